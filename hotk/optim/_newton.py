"""`newton`: Newton steps with a modified factorization, dense or sparse."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from hotk._core import Gradient, Scalar, Where, cond, from_host, while_loop
from hotk.linop import space

from ._extra_args import restricted
from ._line_search import with_line_search
from ._linear_solver import (
    DenseOrSparse,
    LinearSolver,
    check_choice,
    first_solver,
    sparse_system,
)
from ._local import AtPoint, Numbers, Outcome
from ._scaling import Scaling, check_scaling, first_scale, measured
from ._sparse_steps import in_units, newton_step
from ._step import of_steps, transformation
from ._subproblem import along_variables
from ._transformation import Chained, Transformation, show_state


class NewtonState(NamedTuple):
    r"""What the last step of `scale_by_newton` was.

    Attributes:
        damping: $\tau$.
        attempts: Factorizations that it took.
        newton_decrease: What the model promises of a whole step of Newton's method, at
            least: its decrease by p, and from there along single variables.
        outcome: An `Outcome`.
        solver: How the system was solved, a `LinearSolver`.
        scale: What measures each variable: the largest root of its diagonal entry of
            the Hessian so far, or the inverse of the sizes that were given.
    """

    damping: Scalar
    attempts: Int[Array, ""]
    newton_decrease: Scalar
    outcome: Outcome
    solver: LinearSolver
    scale: Float[Array, " n"]

    __repr__ = show_state


class _Factorization(NamedTuple):
    damping: Scalar
    lower: Float[Array, "n n"]
    attempts: Int[Array, ""]


@of_steps
def scale_by_newton(
    *,
    damping: ArrayLike = 0.0,
    least: ArrayLike = 1e-3,
    linear_solver: DenseOrSparse = "auto",
    scaling: Scaling = "hessian",
) -> Transformation[NewtonState]:
    r"""Solve $(H + \tau D^2)\,p = g$ with the whole Hessian: small, or sparse.

    $\tau$ is `damping` where a Cholesky factorization exists. Else it starts at
    $\beta - \min_i a_i$ with the diagonal a of $D^{-1} H D^{-1}$, or at $\beta$ if no
    $a_i$ is negative, and is doubled until one does [1] (Algorithm 3.3), so that p is a
    descent direction. $\beta$ is `least` times the largest $|a_i|$, where [1] has a
    fixed number. D is diagonal and has the largest $\sqrt{|H_{ii}|}$ so far, where [1]
    has the identity: p does not depend on the units of the variables, nor on that of f.

    From 2000 parameters on the Hessian is a sparse matrix, if the program shows that it
    is sparse: it takes a few gradients, and is factorized on the host by SciPy's
    SuperLU. Captured integers, such as indices, are known with
    `linear_solver="sparse"` alone: they decide the pattern, and others compile anew.

    Args:
        damping: The least $\tau$.
        least: $\beta$ over the largest $|a_i|$.
        linear_solver: `"dense"`; `"sparse"`, which looks for a sparse matrix whatever
            the size, and is dense only if none is cheaper; `"auto"`, as above.
        scaling: D: `"hessian"`, as above; `None`, for the identity; or typical sizes of
            the variables, whose inverse is D, as for `scale_by_trust_region`.

    Returns:
        A transformation from the gradient to p. Its update takes `value_fn=`. Where a
        number is not finite, p is zero. Memory: $n^2$ numbers, if not sparse.

    Raises:
        ValueError: If there is no such solver or scaling, or a size is not positive.
        TypeError: If `value_fn` or `params` is missing in an update.

    Example:
        >>> f = lambda x: x[0] ** 2 - x[1] ** 2
        >>> transform = hotk.optim.scale_by_newton()
        >>> x = jnp.ones(2)
        >>> g = jax.grad(f)(x)
        >>> p, state = transform.update(g, transform.init(x), x, value_fn=f)
        >>> bool(g @ p > 0), bool(state.damping > 1)
        (True, True)

    References:
        [1] Nocedal and Wright (2006). Numerical Optimization, 2nd ed., section 3.4.
    """
    check_choice("newton", linear_solver, ("auto", "dense", "sparse"))
    adapts = check_scaling("newton", scaling, "hessian")
    numbers = {"damping": damping, "least": least, **adapts}

    def first(params: optax.Params, numbers: Numbers) -> NewtonState:
        dtype = space.scalar_dtype(jax.tree.leaves(params))
        solver = first_solver(linear_solver, LinearSolver.dense)
        damping, never = (from_host(a, dtype) for a in (numbers["damping"], jnp.inf))
        scale = first_scale("newton", scaling, params)
        none = from_host(0, int)
        return NewtonState(damping, none, never, Outcome.accepted, solver, scale)

    return transformation(
        "newton", first, _newton, numbers, linear_solver=linear_solver
    )


def _newton(
    local: AtPoint,
    gradient: Gradient,
    state: NewtonState,
    numbers: Numbers,
    *,
    linear_solver: DenseOrSparse,
) -> tuple[Any, NewtonState]:
    damping, least, adapts = (numbers[k] for k in ("damping", "least", "adapts"))
    matrix = sparse_system(local, linear_solver)
    if matrix is not None:
        wide = space.flattened(space.widened(gradient))
        roots = jnp.sqrt(jnp.abs(space.flattened(matrix.diagonal())))
        at = space.flattened(space.widened(local.x))
        scale, unit = measured(roots, state.scale, adapts, wide, at)
        scaled, g = in_units(matrix, unit), wide / unit
        p, tau, attempts = newton_step(scaled, g, damping, least)
        finite = space.is_finite(matrix.values, g)
        rest = along_variables(tau * p, space.flattened(scaled.diagonal()))
        solver = LinearSolver.sparse
    else:
        hessian = local.linearized().hessian
        matrix = hessian.matrix()
        matrix = matrix.astype(space.wide(matrix.dtype))
        roots = jnp.sqrt(jnp.abs(jnp.diagonal(matrix)))
        g = hessian.flat(gradient).astype(matrix.dtype)
        at = space.flattened(space.widened(local.x))
        scale, unit = measured(roots, state.scale, adapts, g, at)
        scaled, g = matrix / unit[None] / unit[:, None], g / unit
        finite = space.is_finite(scaled, g)
        given, least = (a.astype(matrix.dtype) for a in (damping, least))
        p, tau, attempts = _factorized(scaled, g, finite, given, least)
        rest = along_variables(g - scaled @ p, jnp.diagonal(scaled))
        never = lambda _: jnp.zeros((), bool)  # the first factorization succeeded
        bent = cond(attempts > 1, _bends_down, never, scaled)
        rest = jnp.where(bent, jnp.inf, rest)  # a whole step along it has no end
        solver = LinearSolver.dense
    step = space.unflattened(p / unit, space.widened(gradient))
    descends = finite & (g @ p > 0)
    outcome = Outcome.where(descends, Outcome.accepted, Outcome.not_finite)
    still = finite & (jnp.max(jnp.abs(g), initial=0) == 0)
    outcome = Outcome.where(still, Outcome.stationary, outcome)
    step = space.choose(descends, step, space.zeros(step))
    dtype = space.scalar_dtype(gradient)
    # Rounding asks for the first shift, and negative curvature for a larger one: at a
    # saddle point whose gradient has no part along it, g is as small as at a minimum.
    bends_down = tau > 2 * jnp.maximum(damping, least)
    tells = descends & ~bends_down
    decrease = jnp.where(tells, g @ p / 2 + rest, jnp.inf).astype(dtype)
    tau, scale = tau.astype(dtype), scale.astype(dtype)
    return step, NewtonState(tau, attempts, decrease, outcome, solver, scale)


def _bends_down(matrix: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether curvature is negative beyond rounding: sums of products lose digits."""
    sizes = jnp.sqrt(jnp.abs(jnp.diagonal(matrix)))
    unit = jnp.where(sizes > 0, sizes, 1)
    noise = float(jnp.finfo(matrix.dtype).eps) ** (2 / 3)
    eye = jnp.eye(len(matrix), dtype=matrix.dtype)
    scaled = matrix / unit[None] / unit[:, None]
    return ~space.is_finite(jnp.linalg.cholesky(scaled + noise * eye))


def _factorized(
    matrix: Float[Array, "n n"],
    g: Float[Array, " n"],
    finite: Bool[Array, ""],
    damping: Scalar,
    least: Scalar,
) -> tuple[Float[Array, " n"], Scalar, Int[Array, ""]]:
    r"""Solve $(A + \tau I) p = g$ for the first $\tau$ that makes it definite.

    Returns:
        The step, $\tau$, and how many factorizations it took.
    """
    diagonal = jnp.diagonal(matrix)
    beta = least * jnp.max(jnp.abs(diagonal), initial=0)
    beta = jnp.where(beta > 0, beta, least)
    eye = jnp.eye(len(matrix), dtype=matrix.dtype)
    factor = lambda tau: jnp.linalg.cholesky(matrix + tau * eye)
    lowest = jnp.min(diagonal, initial=0)

    def more_damped(s: _Factorization) -> _Factorization:
        tau = jnp.maximum(jnp.maximum(2 * s.damping, beta), beta - lowest)
        return _Factorization(tau, factor(tau), s.attempts + 1)

    def indefinite(s: _Factorization) -> Bool[Array, ""]:
        # JAX fills the factor of an indefinite matrix with NaN.
        return finite & ~space.is_finite(s.lower) & (s.attempts < 100)

    start = _Factorization(damping, factor(damping), jnp.ones((), int))
    tau, lower, attempts = while_loop(indefinite, more_damped, start)
    return jax.scipy.linalg.cho_solve((lower, True), g), tau, attempts


@of_steps
def newton(
    learning_rate: optax.ScalarOrSchedule | None = None,
    *,
    damping: ArrayLike = 0.0,
    least: ArrayLike = 1e-3,
    linear_solver: DenseOrSparse = "auto",
    scaling: Scaling = "hessian",
    where: Where = None,
) -> Chained[NewtonState]:
    """Minimize by Newton steps: `scale_by_newton` with a step length.

    Args:
        learning_rate: A number or a schedule; if left out, a line search chooses the
            length of each step (`hotk.optim.scale_by_line_search`).
        damping: The least shift of the Hessian, measured as `scaling` says.
        least: The first shift of an indefinite Hessian, over the largest entry of the
            diagonal of the scaled one.
        linear_solver: `"auto"`, `"dense"` or `"sparse"`.
        scaling: `"hessian"`, `None`, or typical sizes of the variables.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: jnp.sum(jnp.cosh(x - 1.0))
        >>> found = hotk.optim.minimize(f, jnp.zeros(2), hotk.optim.newton())
        >>> found.x.round(3).tolist()
        [1.0, 1.0]
    """
    inner = scale_by_newton(
        damping=damping, least=least, linear_solver=linear_solver, scaling=scaling
    )
    return restricted(with_line_search(inner, learning_rate), where)
