"""`levenberg_marquardt`: steps with the Gauss-Newton matrix of a model."""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike

from hotk._core import Gradient, Scalar, Where, cond, from_host, nan_on_purpose
from hotk.curvature import residuals_of
from hotk.linop import space

from ._bounds import Limits, first_bounds
from ._extra_args import restricted
from ._factored import adapted_damping, factored_step, factored_system
from ._full_step import is_affordable
from ._globalized import (
    GlobalizedState,
    globalized_step,
    initial_state,
    product_along,
)
from ._linear_solver import (
    CgOrSparse,
    LinearSolver,
    check_choice,
    first_solver,
    sparse_system,
)
from ._local import AtPoint, Numbers, relative_residual
from ._objective import of_residuals
from ._preconditioner import (
    KeptPreconditioner,
    Preconditioner,
    Preconditioning,
    first_preconditioner,
    only_for_iterations,
    preconditioner_at,
    preconditioning,
)
from ._projected import projected_step
from ._samples import System, check_system_choice, sample_system
from ._scaling import (
    SIZES,
    Rescaled,
    Scaling,
    check_scaling,
    first_scale,
    is_given,
    measured,
    steepness,
)
from ._sparse_steps import damped_proposal
from ._step import of_steps, those_given, transformation
from ._transformation import Chained, Transformation, chained, scale_by_rate
from ._truncated import damped


@of_steps
def scale_by_levenberg_marquardt(
    *,
    damping: ArrayLike = 1e-3,
    accept: ArrayLike = 1e-4,
    max_tol: ArrayLike = 1e-3,
    max_steps: ArrayLike | None = None,
    max_rejections: ArrayLike = 30,
    linear_solver: CgOrSparse = "auto",
    system: System = "auto",
    max_acceleration: ArrayLike = 0.75,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    bounds: Limits | None = None,
    scaling: Scaling = "jacobian",
) -> Transformation[GlobalizedState]:
    r"""Solve $(G + \lambda D^2)\,s = -g$ with the Gauss-Newton matrix G.

    $G = J^T H_L J$ leaves out the second derivatives of the model. $\lambda$ starts at
    `damping` times the largest curvature that is met first, and follows the ratio
    $\rho$ of the decrease of f and that of the model: where s is taken, it is
    multiplied with $\max(1/3, 1 - (2 \rho - 1)^3)$ [1] (Algorithm 3.16); where not,
    with 4, where [1] has 2, 4, 8, and so on. An update tries larger $\lambda$ by itself
    until a step is taken.

    For sums of squares of few parameters D has the norms of the columns of J that were
    largest so far [4], and the systems of all $\lambda$ are solved by one QR
    factorization of $J D^{-1}$: up to 32 parameters, and up to 300 where it takes less
    work than a hundred products. The step then has no unit. The first $\lambda$ is at
    least so large that $\|D s\| \le \|D x\|$. In the state, `cosine` and
    `relative_step` are those of the step without damping; with the default `tol`
    `minimize` stops by these.

    For others D is the identity, and the systems are solved by conjugate gradients: no
    matrix is formed. From 2000 parameters on G is a sparse matrix, if the program shows
    that it is sparse and factors take less work than n products: $D^{-1} G D^{-1} +
    \lambda I$ is factorized on the host by SciPy's SuperLU, where D has the largest
    $\sqrt{G_{ii}}$ so far, the norms of the columns.

    With fewer residuals than parameters the same step is $-J^T (J J^T + \lambda
    I)^{-1} r$, a system of the size of the residuals [2] (6). Where the objective tells
    which residuals belong to which example, the rows of J cost one gradient of each,
    and a trial is one Cholesky factorization. To the step of a sum of squares the same
    factor gives a second-order correction, the geodesic acceleration [3]: on networks
    for differential equations it halves the steps.

    With bounds that a step by the factor of J would cross, it is found on the faces
    that it meets, by factors of the columns that are left. Systems that are not solved
    by the factor are then those of `trust_region`, with G for the Hessian: `control` is
    their radius.

    Args:
        damping: Of the first $\lambda$, without a unit.
        accept: The least ratio for a step; zero in [1].
        max_tol: The largest relative residual of a system; the square root of the
            gradient's norm over the largest one so far if that is less.
        max_steps: The most products of one system; 2 n if left out.
        max_rejections: After so many trials the step is zero.
        linear_solver: `"cg"`; `"sparse"`, which looks for a sparse matrix whatever the
            size, and iterates only if none is cheap; or `"auto"`, as above. For systems
            in the parameters.
        system: `"samples"`, for systems of the size of the residuals; `"parameters"`;
            or `"auto"`: samples where these are fewer and take less work than a hundred
            products, counted in multiplications. That they rarely do with many outputs
            an example, as those of a classifier.
        max_acceleration: Of a sum of squares, by a factor of J or in the space of the
            samples: the longest geodesic acceleration, twice its length over that of
            the step [3]; zero for none.
        preconditioner: For conjugate gradients a function of the curvature at a point
            and a random key, as for `scale_by_newton_cg`. With one, systems are those
            of the parameters, solved by iteration.
        update_every: How many updates one such operator serves; its inverse with the
            damping of each of them is the preconditioner.
        bounds: A pair of lower and upper bounds: each a number, `None`, or a tree like
            the parameters, as for `minimize`. `init` puts them into the state. Not
            beside a sparse solver, systems of samples or a preconditioner.
        scaling: D: `"jacobian"`, as above, for systems by factors in the parameters;
            `None`, for the identity; or typical sizes of the variables, whose inverse
            is D: a number, or a tree like the parameters, or the head of one, with
            numbers, `None` for 1 and arrays. With sizes systems are those of the
            parameters.

    Returns:
        A transformation from the gradient to -s. Its update takes one of these:
        `residual_fn=`, for the objective $\|r(x)\|^2 / 2$; `model_fn=` and `loss_fn=`,
        for `loss_fn(model_fn(x))`; or `value_fn=`, a `hotk.curvature.LeastSquares` or
        `hotk.curvature.GaussNewton(model, loss)`. With `examples=`, a tree of arrays
        with one leading axis, the functions are those of one example,
        `residual_fn(x, example)` and `model_fn(x, example)`; several of them are a
        tuple, with a tuple of trees. In its state `control` is $\lambda$, and
        `iterations` counts products or factorizations. f never increases by more than
        its rounding, $\varepsilon^{2/3} |f|$.

    Raises:
        ValueError: If there is no such solver, system or scaling, a size is not
            positive, or it takes no bounds or sizes and there are some.
        TypeError: If there is no function, or `params` is missing, in an update.
        StructureError: If with `system="samples"` the function of an update is not one
            of single examples.

    Example:
        >>> r = lambda x: jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])
        >>> f = hotk.curvature.GaussNewton(r, lambda z: jnp.sum(z**2) / 2)
        >>> x0 = jnp.array([-1.2, 1.0])
        >>> transform = hotk.optim.levenberg_marquardt()
        >>> found = hotk.optim.minimize(f, x0, transform)
        >>> found.x.round(3).tolist()
        [1.0, 1.0]

    References:
        [1] Madsen, Nielsen and Tingleff (2004). Methods for non-linear least squares
            problems, 2nd ed. Technical University of Denmark. Section 3.2.
        [2] Ren and Goldfarb (2019). Efficient subsampled Gauss-Newton and natural
            gradient methods for training neural networks. arXiv:1906.02353.
        [3] Transtrum and Sethna (2012). Improvements to the Levenberg-Marquardt
            algorithm for nonlinear least-squares minimization. arXiv:1201.5885.
        [4] More (1978). The Levenberg-Marquardt algorithm: implementation and theory.
            Lecture Notes in Mathematics 630, 105-116. Section 6.
    """
    numbers = {
        "damping": damping,
        "accept": accept,
        "max_tol": max_tol,
        "max_rejections": max_rejections,
        "max_acceleration": max_acceleration,
        "update_every": update_every,
        **those_given(max_steps=max_steps),
    }
    check_choice("levenberg_marquardt", linear_solver, ("auto", "cg", "sparse"))
    check_system_choice("levenberg_marquardt", system)
    preconditioning("levenberg_marquardt", preconditioner)  # refuses what is none
    refused = "`linear_solver='sparse'`" if linear_solver == "sparse" else None
    refused = "`system='samples'`" if system == "samples" else refused
    refused = refused if preconditioner is None else "`preconditioner=`"
    if preconditioner is not None:
        only_for_iterations("levenberg_marquardt", system, linear_solver)
        system, linear_solver = "parameters", "cg"
    beside = None if linear_solver == "sparse" else refused
    numbers |= check_scaling("levenberg_marquardt", scaling, "jacobian", beside)
    if is_given(scaling):
        refused, system = SIZES, "parameters"
    by_factors = linear_solver != "cg" and system != "samples"

    def init(params: Any, numbers: Mapping[str, Any]) -> GlobalizedState:
        solver = first_solver(linear_solver, LinearSolver.cg)
        state = initial_state(params, from_host(0.0), solver)
        state = state._replace(
            preconditioner=first_preconditioner(
                "levenberg_marquardt", preconditioner, params
            ),
            bounds=first_bounds("levenberg_marquardt", bounds, params, refused),
        )
        if is_given(scaling) or (by_factors and not space.has_shards(params)):
            scale = first_scale("levenberg_marquardt", scaling, params)
            state = state._replace(scale=scale)
        may_factor = linear_solver == "auto" and (system == "auto" or is_given(scaling))
        if not (is_affordable(params) and may_factor):
            return state
        with nan_on_purpose():
            none = from_host(np.nan, state.control.dtype)
        return state._replace(cosine=none, relative_step=none)

    return transformation(
        "levenberg_marquardt",
        init,
        _levenberg_marquardt,
        numbers,
        of_residuals,
        preconditioner=preconditioner,
        linear_solver=linear_solver,
        system=system,
        sized=is_given(scaling),
    )


def _levenberg_marquardt(
    local: AtPoint,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    *,
    linear_solver: CgOrSparse,
    system: System,
    sized: bool,
    preconditioning: Preconditioning | None = None,
) -> tuple[Any, GlobalizedState]:
    bounds = None if state.bounds is None else state.bounds.like(local.x)
    factored = factored_system(local, state, numbers["adapts"], bounds)
    if factored is not None:
        return factored_step(local, gradient, state, numbers, factored, bounds)
    if bounds is not None:
        near = local.linearized()
        made = projected_step(local, near, gradient, state, numbers, bounds)
        return made[0], _without_distance(made[1], state, state.scale)
    samples = sample_system("levenberg_marquardt", local, system)
    near = local.linearized() if samples is None else samples.linearized(local.value())
    size = space.norm(gradient)
    dtype = size.dtype
    tol, steepest = relative_residual(numbers, size, state.largest_gradient)
    matrix, scale = None, state.scale
    if samples is None:
        matrix = sparse_system(local, linear_solver, instead_of_products=True)
    unit = scale if sized else None
    if matrix is not None:
        assert scale is not None  # as `init` has made it
        roots = jnp.sqrt(jnp.abs(space.flattened(matrix.diagonal())))
        scale, unit = measured(roots, scale, numbers["adapts"])
        if residuals_of(local.at, local.x) is None:
            # Where a loss is linear, as Huber's is far away, there is no curvature but
            # a slope: steps in these units would be as long as rounding lets them.
            slopes, at = (
                space.flattened(space.widened(a)) for a in (gradient, local.x)
            )
            steeper = jnp.maximum(unit, steepness(slopes, at, unit))
            unit = jnp.where(numbers["adapts"] > 0, steeper, unit)
        scale = scale.astype(dtype)
    model = Rescaled.of(near.hessian, gradient, unit)

    def begin() -> Scalar:
        largest = space.norm(product_along(model.hessian, model.gradient)[1])
        usual = jnp.isfinite(largest) & (largest > 0)
        return (numbers["damping"] * jnp.where(usual, largest, 1)).astype(dtype)

    known = KeptPreconditioner(None, state.preconditioner)
    if samples is not None:
        most = numbers["max_acceleration"]
        solver, propose = LinearSolver.samples, samples.proposal(gradient, most)
    elif matrix is not None and unit is not None:
        solver, propose = LinearSolver.sparse, damped_proposal(matrix, gradient, unit)
    else:
        known = preconditioner_at(
            "levenberg_marquardt",
            preconditioning,
            numbers,
            state.preconditioner,
            near.hessian,
        )
        steps = numbers.get("max_steps", 2 * max(space.dimension(gradient), 1))
        limits = {"tol": tol, "max_steps": steps}
        solver = LinearSolver.cg
        propose = functools.partial(damped, model, known, limits)
    begun = state.control > 0
    step, after = globalized_step(
        local,
        near,
        gradient,
        cond(begun, lambda: state.control, begin),
        propose,
        functools.partial(adapted_damping, numbers["accept"]),
        accept=numbers["accept"],
        max_rejections=numbers["max_rejections"],
        solver=solver,
    )
    after = after._replace(preconditioner=known.state, largest_gradient=steepest)
    return step, _without_distance(after, state, scale)


def _without_distance(
    after: GlobalizedState, state: GlobalizedState, scale: Array | None
) -> GlobalizedState:
    after = after._replace(scale=scale)
    if state.cosine is None:
        return after
    unknown = jnp.full((), jnp.inf, after.control.dtype)
    return after._replace(cosine=unknown, relative_step=unknown)


@of_steps
def levenberg_marquardt(
    learning_rate: optax.ScalarOrSchedule = 1.0,
    *,
    damping: ArrayLike = 1e-3,
    accept: ArrayLike = 1e-4,
    max_tol: ArrayLike = 1e-3,
    max_steps: ArrayLike | None = None,
    max_rejections: ArrayLike = 30,
    linear_solver: CgOrSparse = "auto",
    system: System = "auto",
    max_acceleration: ArrayLike = 0.75,
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    bounds: Limits | None = None,
    scaling: Scaling = "jacobian",
    where: Where = None,
) -> Chained[GlobalizedState]:
    """Minimize sums of squares: `scale_by_levenberg_marquardt` with the sign turned.

    Args:
        learning_rate: A factor of the step, or a schedule.
        damping: Of the first damping, which adapts; without a unit.
        accept: The least ratio for a step.
        max_tol: The largest relative residual of a system.
        max_steps: The most products of one system.
        max_rejections: After so many trials the step is zero.
        linear_solver: `"auto"`, `"cg"` or `"sparse"`.
        system: `"auto"`, `"parameters"` or `"samples"`.
        max_acceleration: The longest geodesic acceleration; zero for none.
        preconditioner: A function of the curvature and a random key.
        update_every: How many updates one operator that it returns serves.
        bounds: A pair of lower and upper bounds.
        scaling: `"jacobian"`, `None`, or typical sizes of the variables.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> r = lambda x: jnp.exp(x) - 2.0
        >>> transform = hotk.optim.levenberg_marquardt()
        >>> x = jnp.zeros(2)
        >>> g = jax.grad(lambda x: jnp.sum(r(x) ** 2) / 2)(x)
        >>> step, _ = transform.update(g, transform.init(x), x, residual_fn=r)
        >>> bool(jnp.all(step > 0))
        True
    """
    inner = scale_by_levenberg_marquardt(
        damping=damping,
        accept=accept,
        max_tol=max_tol,
        max_steps=max_steps,
        max_rejections=max_rejections,
        linear_solver=linear_solver,
        system=system,
        max_acceleration=max_acceleration,
        preconditioner=preconditioner,
        update_every=update_every,
        bounds=bounds,
        scaling=scaling,
    )
    return restricted(chained(inner, scale_by_rate(learning_rate)), where)
