"""Steps that are tried: a model's minimizer is taken if the objective agrees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from hotk._core import Gradient, Point, Scalar, Tangent, cond, from_host, while_loop
from hotk.linop import AbstractOperator, space

from ._bounds import Bounds
from ._linear_solver import LinearSolver
from ._local import AtPoint, Linearization, Outcome, is_newton_step
from ._preconditioner import PreconditionerState
from ._transformation import show_state


class Trial(NamedTuple):
    r"""A step that a model proposes.

    Attributes:
        step: The step s, to be added to the point.
        model: What the model changes by, negative.
        bounded: Whether s is as long as the region allows.
        iterations: Products with the Hessian that it took, or factorizations.
        curvature: The smallest curvature seen.
        damping: What is added to the Hessian, so that $(H + \lambda I) s = -g$.
        rest: What the model decreases by from s, along single variables at least: zero
            of a whole step of Newton's method, infinity of one of which nothing is
            known. If left out, the damping and the length of s tell whether it is one.
    """

    step: Tangent
    model: Scalar
    bounded: Bool[Array, ""]
    iterations: Int[Array, ""]
    curvature: Scalar
    damping: Scalar
    rest: Scalar | None = None


class GlobalizedState(NamedTuple):
    """What became of the trials of one update.

    Attributes:
        control: The radius of the region, or the weight of the regularizer, for the
            next step.
        iterations: Products with the Hessian, of all trials; or factorizations of it
            where it is sparse.
        curvature: The smallest curvature seen; of the exact subproblems the smallest
            one along the eigenvectors in the metric, which is negative where the
            Hessian is not positive definite.
        damping: What was added to the Hessian, times $D^2$ where `scale` has D.
        predicted: The decrease of the model.
        newton_decrease: What the last model promised of a whole step of Newton's
            method, at least; infinity if the step was another, made shorter or longer
            by region, damping or negative curvature.
        actual: The decrease of the objective.
        rejections: How many trials were rejected.
        outcome: An `Outcome`.
        solver: How its systems were solved, a `LinearSolver`.
        largest_gradient: The largest norm of a gradient so far, where systems are
            solved to a tolerance.
        preconditioner: What is kept of the preconditioner, `None` without one.
        scale: What measures each variable: the largest root of its diagonal entry of
            the Hessian so far, in an exact subproblem and the cubic term; of sums of
            squares of few parameters the largest norm of its column of the Jacobian;
            or the inverse of the sizes that were given. `None` where all are 1 and
            stay so. Both below are `None` but for those sums of squares.
        cosine: The root of the relative decrease that the step without any damping
            promises for a sum of squares: the cosine of the angle between the residuals
            and the range of their Jacobian, before the step. NaN before the first one,
            infinity where it is not known.
        relative_step: The largest entry of that step, relative to that of the point.
        bounds: The bounds of the parameters, `None` without any.
    """

    control: Scalar
    iterations: Int[Array, ""]
    curvature: Scalar
    damping: Scalar
    predicted: Scalar
    newton_decrease: Scalar
    actual: Scalar
    rejections: Int[Array, ""]
    outcome: Outcome
    solver: LinearSolver
    largest_gradient: Scalar
    preconditioner: PreconditionerState | None = None
    scale: Float[Array, " n"] | None = None
    cosine: Scalar | None = None
    relative_step: Scalar | None = None
    bounds: Bounds | None = None

    __repr__ = show_state


class _Trials(NamedTuple):
    step: Tangent
    control: Scalar
    taken: Bool[Array, ""]
    doubtful: Bool[Array, ""]
    trials: Int[Array, ""]
    state: GlobalizedState


def initial_state(
    params: Point, control: Scalar, solver: LinearSolver
) -> GlobalizedState:
    """Return the state before any step."""
    zero = from_host(0, space.scalar_dtype(jax.tree.leaves(params)))
    none = from_host(0, int)
    start = from_host(control, zero.dtype)
    never = from_host(jnp.inf, zero.dtype)
    return GlobalizedState(
        control=start,
        iterations=none,
        curvature=zero,
        damping=zero,
        predicted=zero,
        newton_decrease=never,
        actual=zero,
        rejections=none,
        outcome=Outcome.accepted,
        solver=solver,
        largest_gradient=zero,
    )


def product_along(
    hessian: AbstractOperator, gradient: Gradient
) -> tuple[Tangent, Tangent]:
    """Return the unit vector along a gradient, and its product: neither overflows."""
    size = space.norm(gradient)
    unit = space.times(1 / jnp.where(size > 0, size, 1), space.widened(gradient))
    return unit, hessian.mv(space.narrowed(unit, hessian.like))


def first_length(hessian: AbstractOperator, gradient: Gradient) -> Scalar:
    """Return the length of the step to the minimum of the model along the gradient."""
    size = space.norm(gradient)
    curvature = space.inner(*product_along(hessian, gradient))
    length = size / jnp.where(curvature > 0, curvature, 1)
    usual = (curvature > 0) & jnp.isfinite(length) & (length > 0)
    return jnp.where(usual, length, 1).astype(size.dtype)


def adapted_radius(
    radius: Scalar, ratio: Scalar, trial: Trial, length: Scalar, largest: Scalar
) -> Scalar:
    """Return the radius after a trial: Algorithm 4.1 of Nocedal and Wright (2006).

    Args:
        radius: The radius of the trial, zero if it is the first and was not known.
        ratio: That of the actual and the predicted decrease.
        trial: The trial.
        length: The length of its step.
        largest: The largest radius.
    """
    length = jnp.where(jnp.isfinite(length) & (length > 0), length, radius)
    radius = jnp.where(radius > 0, radius, length)
    wider = jnp.where((ratio > 0.75) & trial.bounded, 2 * radius, radius)
    return jnp.where(ratio < 0.25, length / 4, jnp.minimum(wider, largest))


def globalized_step(
    local: AtPoint,
    near: Linearization,
    gradient: Gradient,
    control: Scalar,
    propose: Callable[[Any], Trial],
    adapt: Callable[[Any, Any, Trial], Any],
    *,
    accept: ArrayLike,
    max_rejections: ArrayLike,
    solver: LinearSolver,
    bounds: Bounds | None = None,
) -> tuple[Any, GlobalizedState]:
    r"""Try steps until the objective decreases as it should.

    Close to a minimum the decrease is lost in the rounding of f. There, where the
    values refuse a step and both decreases are below $\varepsilon^{2/3} |f|$, the
    slopes along the step decide, as in the approximate Wolfe conditions [1] (4.1):
    $-(g(x) + g(x + s))^T s / 2$ is the decrease up to the third order of s, with
    nothing that cancels.

    Args:
        local: The objective at the point.
        near: Its value and gradient there.
        gradient: Its gradient, or what stands for it.
        control: The radius, or the weight.
        propose: From it to a trial.
        adapt: From it, the ratio of the actual and the predicted decrease, and the
            trial to the next one; the ratio of a trial that is rejected is -infinity.
        accept: The smallest ratio of a step that is taken.
        max_rejections: After so many the step is zero.
        solver: How the trials solve their systems.
        bounds: Bounds of the point, in which it is and the trials are.

    References:
        [1] Hager and Zhang (2005). A new conjugate gradient method with guaranteed
            descent and an efficient line search. SIAM J. Optim. 16(1), 170-192.
    """
    size = space.norm(gradient)
    dtype = size.dtype
    start = near.value.astype(dtype)
    rounding = jnp.finfo(dtype).eps * jnp.abs(start)
    # f sums many terms, each with a rounding of its own: its noise is many roundings
    noise = jnp.finfo(dtype).eps ** (2 / 3) * jnp.abs(start)

    def moved(step: Tangent) -> Point:
        y = space.plus(local.x, space.narrowed(step, local.x))
        return y if bounds is None else bounds.landed(y, local.x)

    def size_at(x: Point, gradient: Gradient) -> Scalar:
        return space.norm(gradient if bounds is None else bounds.projected(x, gradient))

    def attempt(s: _Trials) -> _Trials:
        trial = propose(s.control)
        step = space.narrowed(trial.step, gradient)
        y = local.at(moved(step)).astype(dtype)
        predicted, actual = -trial.model.astype(dtype), start - y
        # where both are rounding errors of f they agree
        ratio = (actual + rounding) / (predicted + rounding)
        sensible = jnp.isfinite(ratio) & space.is_finite(step)
        ratio = jnp.where(sensible, ratio, -jnp.inf)
        taken = sensible & (ratio > accept) & (y <= start) & (predicted > 0)
        below = (predicted > 0) & (predicted <= noise) & (jnp.abs(actual) <= noise)
        doubtful = sensible & ~taken & below
        ratio = jnp.where(taken, ratio, -jnp.inf)
        whole = is_newton_step(trial.damping * space.norm(step) / size)
        # a whole step along negative curvature has no end
        ends = whole if trial.rest is None else whole | (trial.curvature >= 0)
        rest = jnp.where(ends, 0 if trial.rest is None else trial.rest, jnp.inf)
        newton_decrease = (predicted + rest).astype(dtype)
        return _Trials(
            step=step,  # the last one: no vector of an earlier one is kept
            control=adapt(s.control, ratio, trial).astype(dtype),
            taken=taken,
            doubtful=doubtful,
            trials=s.trials + 1,
            state=s.state._replace(
                iterations=s.state.iterations + trial.iterations.astype(int),
                curvature=trial.curvature.astype(dtype),
                damping=trial.damping.astype(dtype),
                predicted=predicted,
                newton_decrease=jnp.where(sensible, newton_decrease, jnp.inf),
                actual=jnp.where(taken, actual, 0),
            ),
        )

    finite = space.is_finite(gradient, start)
    begin = _Trials(
        step=space.zeros(gradient),
        control=control,
        taken=jnp.zeros((), bool),
        doubtful=jnp.zeros((), bool),
        trials=jnp.zeros((), int),
        state=initial_state(gradient, control, solver),
    )
    worthwhile = finite & (size > 0)
    more = lambda s: ~(s.taken | s.doubtful) & (s.trials <= max_rejections)
    end = while_loop(lambda s: worthwhile & more(s), attempt, begin)

    def decrease_by_slopes() -> Scalar:
        y = moved(end.step)
        after = AtPoint(local.f, y, local.mode).gradient()
        slopes = [space.inner(g, end.step) for g in (near.gradient, after)]
        # without this, steps at the floor of the gradient's rounding never end
        better = size_at(y, after) < size_at(local.x, near.gradient)
        return jnp.where(better, -sum(slopes) / 2, -jnp.inf).astype(dtype)

    # Once an update and not once a trial: under `vmap` both branches are computed.
    nothing = lambda: jnp.zeros((), dtype)
    actual = cond(end.doubtful, decrease_by_slopes, nothing)
    agreed = end.doubtful & (actual > accept * end.state.predicted)
    taken = end.taken | agreed
    actual = jnp.where(agreed, actual, end.state.actual)
    outcome = Outcome.where(taken, Outcome.accepted, Outcome.rejected)
    outcome = Outcome.where(size > 0, outcome, Outcome.stationary)
    outcome = Outcome.where(finite, outcome, Outcome.not_finite)
    # A radius that overflowed would make every later step zero: keep the old one.
    kept = agreed | ~jnp.isfinite(end.control)
    last = jnp.where(kept, control, end.control)
    state = end.state._replace(
        control=last,
        actual=actual,
        rejections=end.trials - taken.astype(int),
        outcome=outcome,
    )
    step = space.choose(taken, end.step, space.zeros(end.step))
    if bounds is not None:
        step = bounds.shortened(step, local.x)
    return space.times(-1, step), state
