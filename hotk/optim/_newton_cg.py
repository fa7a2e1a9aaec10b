"""`newton_cg`: truncated Newton steps by conjugate gradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Int

from hotk._core import Gradient, Point, Scalar, Tangent, Where, from_host
from hotk.linop import Identity, Reason, Solution, cg, space

from ._extra_args import restricted
from ._line_search import with_line_search
from ._local import (
    AtPoint,
    Numbers,
    Outcome,
    farthest,
    is_newton_step,
    relative_residual,
)
from ._preconditioner import (
    Preconditioner,
    PreconditionerState,
    Preconditioning,
    first_preconditioner,
    preconditioner_at,
    preconditioning,
)
from ._step import of_steps, those_given, transformation
from ._transformation import Chained, Transformation, show_state


class NewtonCGState(NamedTuple):
    """What the last step of `scale_by_newton_cg` was.

    Attributes:
        iterations: Products with the Hessian.
        curvature: The smallest curvature that was met, `p' H p / p' p`.
        residual: The norm of `H p - g` over that of the gradient g.
        newton_decrease: The decrease that the model promises of a whole step of
            Newton's method; infinity where damping, negative curvature or a large
            residual made another of it.
        largest_gradient: The largest norm of a gradient so far.
        outcome: An `Outcome`.
        preconditioner: What is kept of the preconditioner, `None` without one.
    """

    iterations: Int[Array, ""]
    curvature: Scalar
    residual: Scalar
    newton_decrease: Scalar
    largest_gradient: Scalar
    outcome: Outcome
    preconditioner: PreconditionerState | None = None

    __repr__ = show_state


@of_steps
def scale_by_newton_cg(
    *,
    damping: ArrayLike = 0.0,
    max_tol: ArrayLike = 0.5,
    max_steps: ArrayLike | None = None,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
) -> Transformation[NewtonCGState]:
    r"""Solve $(H + \lambda I)\,p = g$ by conjugate gradients, not further than needed.

    The iteration stops when the residual is below
    $\min(\eta, \sqrt{\|g\| / G})\,\|g\|$, where G is the largest $\|g\|$ so far (1 in
    [1] (7.3), which depends on the unit of f), so that steps near a minimum converge
    superlinearly. Where a direction d without positive curvature is met, it stops as
    well, and a multiple of d is added to the step so far, as in [2] (Algorithm 1), but
    one that has no unit of f: to where its slope and the size of its curvature would
    put the minimum, $|g^T d / d^T H d|\,d$, and no further than a hundred lengths of
    the point, or a hundred.

    Args:
        damping: $\lambda$, added to the diagonal.
        max_tol: $\eta$, the largest relative residual.
        max_steps: The most products of one step; 2 n at most if left out,
            as rounding makes n too few.
        preconditioner: Function of the curvature A at a point, an operator, and a
            random key, called as `preconditioner(A, key=key)`. It returns an operator
            near that curvature whose inverse is cheap:
            `functools.partial(hotk.linop.nystrom, rank=50)`, or `lambda A, key:
            hotk.linop.Diagonal(A.diagonal())`.
        update_every: How many updates one such operator serves; its inverse with the
            damping of each of them is the preconditioner.

    Returns:
        A transformation from the gradient to p. Its update takes `value_fn=` (or
        `obj_fn=`): the function of the parameters that the gradient is of. Where p is
        no descent direction it is the gradient; where a number is not finite, zero.

    Raises:
        TypeError: If `value_fn` or `params` is missing in an update, or the
            preconditioner is not a function.
        ValueError: If `update_every` is not positive.

    Example:
        >>> f = lambda x: jnp.sum((x - 1.0) ** 2)
        >>> transform = hotk.optim.scale_by_newton_cg()
        >>> x = jnp.zeros(2)
        >>> g = jax.grad(f)(x)
        >>> p, state = transform.update(g, transform.init(x), x, value_fn=f)
        >>> p.tolist(), int(state.iterations)
        ([-1.0, -1.0], 1)

    References:
        [1] Nocedal and Wright (2006). Numerical Optimization, 2nd ed., section 7.1.
        [2] Royer, O'Neill and Wright (2020). A Newton-CG algorithm with complexity
            guarantees for smooth unconstrained optimization. Math. Program. 180.
    """
    numbers = {
        "damping": damping,
        "max_tol": max_tol,
        "update_every": update_every,
        **those_given(max_steps=max_steps),
    }
    preconditioning("newton_cg", preconditioner)  # refuses what is none
    return transformation(
        "newton_cg",
        lambda params, numbers: _first(
            params, first_preconditioner("newton_cg", preconditioner, params)
        ),
        _newton_cg,
        numbers,
        preconditioner=preconditioner,
    )


def _first(
    params: optax.Params, preconditioner: PreconditionerState | None
) -> NewtonCGState:
    dtype = space.scalar_dtype(jax.tree.leaves(params))
    zero, never = from_host(0, dtype), from_host(jnp.inf, dtype)
    return NewtonCGState(
        iterations=from_host(0, int),
        curvature=zero,
        residual=zero,
        newton_decrease=never,
        largest_gradient=zero,
        outcome=Outcome.accepted,
        preconditioner=preconditioner,
    )


def _newton_cg(
    local: AtPoint,
    gradient: Gradient,
    state: NewtonCGState,
    numbers: Numbers,
    *,
    preconditioning: Preconditioning | None = None,
) -> tuple[Any, NewtonCGState]:
    near = local.linearized()
    known = preconditioner_at(
        "newton_cg", preconditioning, numbers, state.preconditioner, near.hessian
    )
    operator = near.hessian + numbers["damping"] * Identity()
    size = space.norm(gradient)
    tol, steepest = relative_residual(numbers, size, state.largest_gradient)
    steps = numbers.get("max_steps", 2 * max(space.dimension(gradient), 1))
    found = cg(
        operator,
        gradient,
        preconditioner=known.inverse(numbers["damping"]),
        tol=tol,
        max_steps=steps,
        verify=False,
    )
    bent = found.reason == Reason.negative_curvature
    step = space.choose(bent, _along_curvature(local.x, gradient, found), found.x)
    slope = space.inner(gradient, step)
    descends = (slope > 0) & space.is_finite(step)
    step = space.choose(descends, step, gradient)
    usual = Outcome.where(descends, Outcome.accepted, Outcome.steepest)
    outcome = Outcome.where(
        space.is_finite(gradient, near.value),
        Outcome.where(size > 0, usual, Outcome.stationary),
        Outcome.not_finite,
    )
    good = (outcome == Outcome.accepted) | (outcome == Outcome.steepest)
    step = space.choose(good, step, space.zeros(step))
    residual = found.relative + numbers["damping"] * space.norm(step) / size
    whole = ~bent & descends & is_newton_step(residual)
    return step, NewtonCGState(
        iterations=found.iterations,
        curvature=found.curvature,
        residual=found.relative,
        # the residual is orthogonal to the step, and `found.model` keeps a vector more
        newton_decrease=jnp.where(whole, slope / 2, jnp.inf),
        largest_gradient=steepest,
        outcome=outcome,
        preconditioner=known.state,
    )


def _along_curvature(x: Point, gradient: Gradient, found: Solution) -> Tangent:
    """Add to the steps so far a direction of negative curvature, downhill."""
    d = found.direction
    length = space.norm(d)
    unit = space.times(1 / jnp.where(length > 0, length, 1), d)
    slope, curvature = space.inner(gradient, unit), jnp.abs(found.curvature)
    far = farthest(x).astype(length.dtype)
    reach = jnp.abs(slope) / jnp.where(curvature > 0, curvature, 1)
    reach = jnp.where(curvature > 0, jnp.minimum(reach, far), far)
    return space.plus(found.x, unit, jnp.where(slope < 0, -reach, reach))


@of_steps
def newton_cg(
    learning_rate: optax.ScalarOrSchedule | None = None,
    *,
    damping: ArrayLike = 0.0,
    max_tol: ArrayLike = 0.5,
    max_steps: ArrayLike | None = None,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    where: Where = None,
) -> Chained[NewtonCGState]:
    """Minimize by truncated Newton steps: `scale_by_newton_cg` with a step length.

    Args:
        learning_rate: A number or a schedule; if left out, a line search chooses the
            length of each step (`hotk.optim.scale_by_line_search`).
        damping: A number that is added to the diagonal of the Hessian.
        max_tol: The largest relative residual of the system.
        max_steps: The most products of one step; 2 n at most if left out.
        preconditioner: A function of the curvature and a random key, such as
            `functools.partial(hotk.linop.nystrom, rank=50)`.
        update_every: How many updates one operator that it returns serves.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        >>> x0 = jnp.array([-1.2, 1.0])
        >>> found = hotk.optim.minimize(f, x0, hotk.optim.newton_cg())
        >>> found.x.round(3).tolist()
        [1.0, 1.0]
    """
    inner = scale_by_newton_cg(
        damping=damping,
        max_tol=max_tol,
        max_steps=max_steps,
        preconditioner=preconditioner,
        update_every=update_every,
    )
    return restricted(with_line_search(inner, learning_rate), where)
