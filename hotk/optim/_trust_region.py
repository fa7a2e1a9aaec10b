"""`trust_region`: steps in a region where a model is trusted."""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike

from hotk._core import Gradient, Point, Scalar, Where, cond
from hotk.linop import space

from ._bounds import Limits, first_bounds
from ._extra_args import restricted
from ._globalized import (
    GlobalizedState,
    Trial,
    adapted_radius,
    globalized_step,
    initial_state,
)
from ._linear_solver import (
    DenseOrSparse,
    LinearSolver,
    check_choice,
    first_solver,
)
from ._local import AtPoint, Numbers, farthest, relative_residual
from ._preconditioner import (
    Preconditioner,
    Preconditioning,
    first_preconditioner,
    only_for_iterations,
    preconditioner_at,
    preconditioning,
)
from ._projected import bounded_step
from ._scaling import Rescaled, Scaling, check_scaling, first_scale, is_given
from ._secular import Region
from ._sparse_steps import exactly
from ._step import of_steps, those_given, transformation
from ._subproblem import EigenModel, in_region
from ._transformation import Chained, Transformation, chained, scale_by_rate
from ._truncated import length_along, truncated


Subproblem: TypeAlias = Literal["auto", "steihaug", "exact"]

# So few parameters that a Hessian and its eigenvectors are worth their work: a step
# is exact then, and does not depend on the units of variables.
_FEW = 64
_ALWAYS = sys.maxsize


@of_steps
def scale_by_trust_region(
    *,
    radius: ArrayLike | None = None,
    max_radius: ArrayLike = jnp.inf,
    accept: ArrayLike = 0.15,
    max_tol: ArrayLike = 0.1,
    subproblem: Subproblem = "auto",
    linear_solver: DenseOrSparse = "auto",
    max_steps: ArrayLike | None = None,
    max_rejections: ArrayLike = 20,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    bounds: Limits | None = None,
    scaling: Scaling = "hessian",
) -> Transformation[GlobalizedState]:
    r"""Minimize a quadratic model in a region where it is trusted.

    The step s minimizes $m(s) = g^T s + s^T H s / 2$ over $\|s\| \le \Delta$ by
    truncated conjugate gradients [2], to a relative residual of
    $\min(\eta, \sqrt{\|g\| / G})$, where G is the largest $\|g\|$ so far.
    Or it does exactly, over $\|D s\| \le \Delta$, where the diagonal matrix D has the
    largest $\sqrt{|H_{ii}|}$ so far, so that no step depends on the units of variables:
    where n is small in the eigenvectors of $D^{-1} H D^{-1}$ [3] (section 7.3), and
    where H is sparse by factors of $D^{-1} H D^{-1} + \lambda I$ [3] (Algorithm 7.3.4).
    It is taken if the decrease of f is more than `accept` of the model's. The radius
    shrinks to a quarter of $\|s\|$ where that ratio is below 1/4, and doubles where it
    is above 3/4 and s at the boundary [1] (Algorithm 4.1). Departing from it, an update
    tries
    smaller radii by itself, without a new gradient, until a step is taken; and where
    both decreases are within a rounding of f, they count as equal [3] (section
    17.4.2). Where f is too noisy to tell, the slopes along s decide, as in the
    approximate Wolfe conditions [4] (4.1).

    With a preconditioner M the region is $s^T M^{-1} s \le \Delta^2$ [3] (section 7.4),
    an ellipsoid that is long where the curvature is small, and $\Delta$ is measured in
    it. The first radius is that of a step along -M g. It shrinks to a quarter of itself
    [1] (Algorithm 4.1), as the length of a step inside is not known.

    With bounds the step is Newton's in a region and within them [5]: conjugate
    gradients along the projected gradient, then on the faces that they meet.

    Args:
        radius: The first $\Delta$; if left out, the length of the step to the minimum
            of the model along -g, or 1 where the curvature along g is not positive,
            which costs one product; at most a hundred lengths of the point, or a
            hundred, as a nearly singular Hessian tells no length. Exact subproblems
            measure all of it with D, and g is $D^{-1} g$ there.
        max_radius: The largest one.
        accept: The least ratio for a step.
        max_tol: $\eta$.
        subproblem: `"steihaug"`, `"exact"`, or `"auto"`: exact up to 64 parameters,
            or if a `linear_solver` was chosen, unless there are bounds, a
            preconditioner, `max_steps` or parameters that are divided over devices.
        linear_solver: For the exact subproblem `"dense"`, `"sparse"`, or `"auto"`, as
            for `scale_by_newton`.
        max_steps: The most products of one trial; 2 n if left out, as rounding makes n
            too few.
        max_rejections: After so many trials the step is zero.
        preconditioner: For truncated conjugate gradients a function of the curvature at
            a point, an operator, and a random key, as for `scale_by_newton_cg`. The
            inverse of what it returns has to be positive definite: for a Hessian that
            may be indefinite `hotk.linop.LeafBlocks.of(A)` serves, whose eigenvalues
            count by their sizes. Otherwise steps are rejected.
        update_every: How many updates one such operator serves.
        bounds: A pair of lower and upper bounds: each a number, `None`, or a tree like
            the parameters, as for `minimize`. `init` puts them into the state. Not
            beside the exact subproblem or a preconditioner.
        scaling: D: `"hessian"`, as above, for exact subproblems, and within bounds up
            to 64 parameters, which takes n products more a step; `None`, for the
            identity; or typical sizes of the variables, whose inverse is D: a number,
            or a tree like the parameters, or the head of one, with numbers, `None` for
            1 and arrays. Then conjugate gradients are those of the variables times D.

    Returns:
        A transformation from the gradient to -s. Its update takes `value_fn=`. Its
        state says radius, products, curvature, decreases and what became of the step.
        f never increases by more than its rounding, $\varepsilon^{2/3} |f|$.

    Raises:
        ValueError: If there is no such subproblem, solver or scaling, if `update_every`
            or a size is not positive, or if a preconditioner is beside the exact
            subproblem, sizes or bounds, or bounds beside the exact subproblem.
        TypeError: If `value_fn` or `params` is missing in an update, or the
            preconditioner is no function.

    Example:
        >>> f = lambda x: x[0] ** 2 - x[1] ** 2 + x[1] ** 4
        >>> transform = hotk.optim.scale_by_trust_region()
        >>> x = jnp.array([1.0, 0.0])
        >>> g = jax.grad(f)(x)
        >>> p, state = transform.update(g, transform.init(x), x, value_fn=f)
        >>> bool(f(x - p) < f(x)), int(state.rejections)
        (True, 0)

    References:
        [1] Nocedal and Wright (2006). Numerical Optimization, 2nd ed., chapter 4.
        [2] Steihaug (1983). The conjugate gradient method and trust regions in large
            scale optimization. SIAM J. Numer. Anal. 20(3), 626-637.
        [3] Conn, Gould and Toint (2000). Trust-Region Methods. SIAM.
        [4] Hager and Zhang (2005). A new conjugate gradient method with guaranteed
            descent and an efficient line search. SIAM J. Optim. 16(1), 170-192.
        [5] Lin and More (1999). Newton's method for large bound-constrained
            optimization problems. SIAM J. Optim. 9(4), 1100-1127.
    """
    if subproblem not in ("auto", "steihaug", "exact"):
        raise ValueError(
            f"`trust_region`: subproblem {subproblem!r} is none of 'auto', 'steihaug', "
            "'exact'."
        )
    check_choice("trust_region", linear_solver, ("auto", "dense", "sparse"))
    exact = subproblem == "exact"
    iterates = subproblem == "steihaug" or not (max_steps is preconditioner is None)
    preconditioning("trust_region", preconditioner)  # refuses what is none
    if preconditioner is not None:
        only_for_iterations("trust_region", subproblem)
    refused = "`subproblem='exact'`" if exact else None
    refused = refused if preconditioner is None else "`preconditioner=`"
    beside = None if preconditioner is None else "`preconditioner=`"
    adapts = check_scaling("trust_region", scaling, "hessian", beside)
    most = _ALWAYS if exact or linear_solver != "auto" else _FEW
    most = 0 if iterates else most
    numbers = {
        "radius": 0.0 if radius is None else radius,
        "max_radius": max_radius,
        "accept": accept,
        "max_tol": max_tol,
        "max_rejections": max_rejections,
        "update_every": update_every,
        **those_given(max_steps=max_steps),
        **adapts,
    }

    def init(params: Any, numbers: Mapping[str, Any]) -> GlobalizedState:
        limits = first_bounds("trust_region", bounds, params, refused)
        is_exact = limits is None and _is_exact(params, most)
        solver = first_solver(linear_solver, LinearSolver.dense)
        state = initial_state(
            params, numbers["radius"], solver if is_exact else LinearSolver.cg
        )
        scale = None
        few = limits is not None and scaling is not None
        few = few and _is_exact(params, min(most, _FEW))
        if is_exact or few or is_given(scaling):
            scale = first_scale("trust_region", scaling, params)
        known = first_preconditioner("trust_region", preconditioner, params)
        return state._replace(preconditioner=known, bounds=limits, scale=scale)

    return transformation(
        "trust_region",
        init,
        _trust_region,
        numbers,
        preconditioner=preconditioner,
        linear_solver=linear_solver,
        most=most,
    )


def _is_exact(x: Point, most: int) -> bool:
    """Whether subproblems are exact: of no more than so many parameters."""
    return most == _ALWAYS or (space.dimension(x) <= most and not space.has_shards(x))


def _trust_region(
    local: AtPoint,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    *,
    linear_solver: DenseOrSparse,
    most: int,
    preconditioning: Preconditioning | None = None,
) -> tuple[Any, GlobalizedState]:
    dtype = space.scalar_dtype(gradient)
    largest = numbers["max_radius"].astype(dtype)
    near = local.linearized()
    if state.bounds is not None:
        few = _is_exact(local.x, min(most, _FEW))
        return bounded_step(local, near, gradient, state, numbers, few=few)
    known = preconditioner_at(
        "trust_region", preconditioning, numbers, state.preconditioner, near.hessian
    )
    M = known.inverse(jnp.zeros((), dtype))

    begun = (state.control > 0) & jnp.isfinite(state.control)
    radius = jnp.minimum(jnp.where(begun, state.control, 0), largest)
    scale, norm = state.scale, space.norm
    if scale is not None and _is_exact(local.x, most):
        metric, solver, propose = exactly(
            local,
            near.hessian,
            gradient,
            scale,
            numbers["adapts"],
            linear_solver,
            sparse=Region,
            dense=_in_eigenvectors,
        )
        # A product, once in a run and not in each step.

        def first() -> Scalar:
            begin = metric.first_radius(local.x, numbers["adapts"])
            return jnp.minimum(begin.astype(dtype), largest)

        goes_on = begun & ~metric.is_another(scale, local.x)
        radius = cond(goes_on, lambda: radius, first)
        scale, norm = metric.scale.astype(dtype), metric.norm
        size = space.norm(gradient)
        steepest = relative_residual(numbers, size, state.largest_gradient)[1]
    else:
        solver, model = LinearSolver.cg, Rescaled.of(near.hessian, gradient, scale)
        norm = lambda step: space.norm(model.scaled(step))
        size = space.norm(model.gradient)
        tol, steepest = relative_residual(numbers, size, state.largest_gradient)
        steps = numbers.get("max_steps", 2 * max(space.dimension(gradient), 1))
        limits = {"tol": tol, "max_steps": jnp.asarray(steps)}
        far = farthest(model.scaled(local.x)).astype(dtype)
        widest = jnp.minimum(largest, far) if M is None else largest
        propose = functools.partial(truncated, model, M, size, limits, widest)

    def adapt(radius: Scalar, ratio: Scalar, trial: Trial) -> Scalar:
        length = norm(trial.step)
        if M is not None:
            along = length_along(M, gradient, trial.step)
            length = jnp.where(radius > 0, radius, along)
        return adapted_radius(radius, ratio, trial, length, largest)

    step, after = globalized_step(
        local,
        near,
        gradient,
        radius,
        propose,
        adapt,
        accept=numbers["accept"],
        max_rejections=numbers["max_rejections"],
        solver=solver,
    )
    return step, after._replace(
        preconditioner=known.state,
        largest_gradient=steepest,
        scale=scale,
    )


def _in_eigenvectors(found: EigenModel) -> Callable[[Scalar], Trial]:
    products, lowest = jnp.asarray(len(found.values)), found.lowest()

    def propose(radius: Scalar) -> Trial:
        s, shift = in_region(found, radius.astype(found.values.dtype))
        bounded = jnp.linalg.norm(s) >= 0.99 * radius
        model = found.model(s)
        rest = found.rest(s)
        return Trial(found.step(s), model, bounded, products, lowest, shift, rest)

    return propose


@of_steps
def trust_region(
    learning_rate: optax.ScalarOrSchedule = 1.0,
    *,
    radius: ArrayLike | None = None,
    max_radius: ArrayLike = jnp.inf,
    accept: ArrayLike = 0.15,
    max_tol: ArrayLike = 0.1,
    subproblem: Subproblem = "auto",
    linear_solver: DenseOrSparse = "auto",
    max_steps: ArrayLike | None = None,
    max_rejections: ArrayLike = 20,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    bounds: Limits | None = None,
    scaling: Scaling = "hessian",
    where: Where = None,
) -> Chained[GlobalizedState]:
    """Minimize in trust regions: `scale_by_trust_region` with the sign turned.

    Args:
        learning_rate: A factor of the step, or a schedule. With any other than 1 the
            step is not the one that was tried.
        radius: The first radius; if left out, measured along the gradient.
        max_radius: The largest radius.
        accept: The least ratio for a step.
        max_tol: The largest relative residual of the subproblem.
        subproblem: `"auto"`, `"steihaug"` or `"exact"`; see `scale_by_trust_region`.
        linear_solver: Of the exact subproblem.
        max_steps: The most products of one trial.
        max_rejections: After so many trials the step is zero.
        preconditioner: A function of the curvature and a random key; see
            `scale_by_trust_region` for the region that it makes.
        update_every: How many updates one such operator serves.
        bounds: A pair of lower and upper bounds.
        scaling: `"hessian"`, `None`, or typical sizes of the variables.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        >>> x0 = jnp.array([-1.2, 1.0])
        >>> found = hotk.optim.minimize(f, x0, hotk.optim.trust_region())
        >>> found.x.round(3).tolist()
        [1.0, 1.0]
    """
    inner = scale_by_trust_region(
        radius=radius,
        max_radius=max_radius,
        accept=accept,
        max_tol=max_tol,
        subproblem=subproblem,
        linear_solver=linear_solver,
        max_steps=max_steps,
        max_rejections=max_rejections,
        preconditioner=preconditioner,
        update_every=update_every,
        bounds=bounds,
        scaling=scaling,
    )
    return restricted(chained(inner, scale_by_rate(learning_rate)), where)
