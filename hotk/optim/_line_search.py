"""`scale_by_line_search`: the length of a step, by values and slopes along it."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Int

from hotk._core import Point, Scalar, Tangent, from_host, while_loop
from hotk.linop import space

from ._local import AtPoint, Numbers, Outcome
from ._step import of_steps, transformation
from ._transformation import (
    Chained,
    StateT,
    Transformation,
    chained,
    scale_by_rate,
    show_state,
)


class LineSearchState(NamedTuple):
    """What the last line search found.

    Attributes:
        length: The step over what came in.
        evaluations: Values that were computed, without the one at the point.
        predicted: The decrease that the slope promises.
        actual: The decrease that was found.
        outcome: An `Outcome`.
    """

    length: Scalar
    evaluations: Int[Array, ""]
    predicted: Scalar
    actual: Scalar
    outcome: Outcome

    __repr__ = show_state


# What is evaluated next: the point itself, the whole step, or another length.
_START, _FIRST, _NEXT = range(3)


class _LineSearch(NamedTuple):
    """What is known along the step.

    Value and slope stand in the program once, for the point and for all trials: each
    copy of a large objective would take the compiler as long again.

    Attributes:
        phase: What is evaluated next.
        start: The value at the point.
        slope: The slope there.
        t: The last length, or the best one while it grows.
        y: The value there.
        evaluations: How many lengths were tried.
        growing: Whether the lengths grow.
        running: Whether there is one to try.
        agreed: Whether the slopes have taken the step that the values refused.
    """

    phase: Int[Array, ""]
    start: Scalar
    slope: Scalar
    t: Scalar
    y: Scalar
    evaluations: Int[Array, ""]
    growing: Bool[Array, ""]
    running: Bool[Array, ""]
    agreed: Bool[Array, ""]


@of_steps
def scale_by_line_search(
    *,
    decrease: ArrayLike = 1e-4,
    shrink: ArrayLike = 0.5,
    grow: ArrayLike = 2.0,
    max_evaluations: ArrayLike = 40,
) -> Transformation[LineSearchState]:
    r"""Scale a step so that the objective decreases enough.

    For updates p (with the sign of `optax.apply_updates`) it looks for a length t with
    $f(x + t p) \le f(x) + c_1 t\,g^T p$ [1] (3.4): t = 1 first, which is kept if it
    is good enough, and doubled as long as the curvature along p is not positive and f
    goes on to decrease; else t shrinks to the minimum of the parabola through what is
    known, but not below a tenth and not above `shrink` of what it was. The slope
    $g^T p$ is computed. A value of f that is not finite counts as too large, and t
    shrinks by the seventh power of `shrink`. Where the decrease is lost in the rounding
    of f, the slope at t = 1 decides by the approximate Wolfe condition [2] (4.1), so f
    may increase by $\varepsilon^{2/3} |f|$.

    Unlike the line searches of optax it does not compile again for a new closure, and
    needs no keyword but `value_fn`.

    Args:
        decrease: $c_1$.
        shrink: The largest factor between two lengths that are too large.
        grow: The factor between two lengths that are too small.
        max_evaluations: The most values of f. If none is good enough, the step is zero.

    Returns:
        A transformation, to be put last in a chain.

    Example:
        >>> f = lambda x: jnp.sum(x**4)
        >>> search = hotk.optim.scale_by_line_search()
        >>> transform = optax.chain(optax.scale(-1.0), search)
        >>> x = 10 * jnp.ones(2)
        >>> g = jax.grad(f)(x)
        >>> step, _ = transform.update(g, transform.init(x), x, value_fn=f)
        >>> bool(f(x + step) < f(x))
        True

    References:
        [1] Nocedal and Wright (2006). Numerical Optimization, 2nd ed., section 3.1 and
            (3.57) to (3.58).
        [2] Hager and Zhang (2005). A new conjugate gradient method with guaranteed
            descent and an efficient line search. SIAM J. Optim. 16(1), 170-192.
    """
    numbers = {
        "decrease": decrease,
        "shrink": shrink,
        "grow": grow,
        "max_evaluations": max_evaluations,
    }
    return _searching(numbers, uphill=False)


def _searching(
    numbers: Mapping[str, Any], *, uphill: bool
) -> Transformation[LineSearchState]:
    name = "scale_by_line_search"
    return transformation(name, _first, _line_search, numbers, uphill=uphill)


def _first(params: optax.Params, numbers: Numbers) -> LineSearchState:
    del numbers
    zero = from_host(0, space.scalar_dtype(jax.tree.leaves(params)))
    none = from_host(0, int)
    return LineSearchState(zero, none, zero, zero, Outcome.accepted)


def _line_search(
    local: AtPoint,
    step: Tangent,
    state: LineSearchState,
    numbers: Numbers,
    *,
    uphill: bool,
) -> tuple[Any, LineSearchState]:
    del state
    step = space.times(-1, step) if uphill else step
    dtype = space.scalar_dtype(step)
    c1, shrink, grow = (
        numbers[k].astype(dtype) for k in ("decrease", "shrink", "grow")
    )
    one, none = jnp.ones((), dtype), jnp.zeros((), int)
    no, nothing = jnp.zeros((), bool), jnp.zeros((), dtype)

    def good(s: _LineSearch, t: Scalar, y: Scalar) -> Bool[Array, ""]:
        # a decrease that is lost in rounding cannot be asked for
        asked, rounding = c1 * t * s.slope, jnp.finfo(dtype).eps * jnp.abs(s.start)
        enough = y <= s.start + jnp.where(-asked > rounding, asked, 0)
        return enough & jnp.isfinite(y)

    def shrunk(s: _LineSearch) -> Scalar:
        t, y = s.t, s.y
        curvature = y - s.start - t * s.slope  # of the parabola, over t squared
        best = -s.slope * t / (2 * jnp.where(curvature > 0, curvature, 1))
        convex = jnp.isfinite(y) & (curvature > 0)
        factor = jnp.where(convex, jnp.clip(best, 0.1, shrink), shrink)
        # a step of rounded curvature may be too long by many powers of ten
        return t * jnp.where(jnp.isfinite(y), factor, shrink**7)

    def evaluated(s: _LineSearch) -> _LineSearch:
        first = s.phase == _FIRST
        t = jnp.where(s.growing, grow * s.t, shrunk(s))
        t = jnp.where(first, one, t)
        t = jnp.where(s.phase == _START, 0, t)
        at = AtPoint(local.f, _moved(local.x, step, t), local.mode)
        y, slope = (a.astype(dtype) for a in at.value_and_slope(step))
        begun = s._replace(start=y, slope=slope, running=slope < 0)
        begins, tried = s.phase == _START, trial(s, t, y, slope)
        after = jax.tree.map(lambda a, b: jnp.where(begins, a, b), begun, tried)
        return after._replace(phase=jnp.minimum(s.phase + 1, _NEXT))

    def trial(s: _LineSearch, t: Scalar, y: Scalar, slope: Scalar) -> _LineSearch:
        first = s.phase == _FIRST
        enough = good(s, t, y)
        straight = enough & (y - s.start <= s.slope)  # no positive curvature along it
        better = enough & (y < s.y)
        passed = s.growing & ~better & ~first  # the one before was the best
        # f sums many terms, each with a rounding of its own: its noise is many
        noise = jnp.finfo(dtype).eps ** (2 / 3) * jnp.abs(s.start)
        below = (-s.slope <= noise) & (jnp.abs(y - s.start) <= noise)
        agrees = -(s.slope + slope) / 2 >= -c1 * s.slope
        agreed = first & ~enough & below & agrees
        running = jnp.where(s.growing, better, ~enough)
        return s._replace(
            t=jnp.where(passed, s.t, t),
            y=jnp.where(passed, s.y, y),
            evaluations=s.evaluations + 1,
            growing=jnp.where(first, straight, s.growing & better),
            running=jnp.where(first, straight | ~enough, running) & ~agreed,
            agreed=s.agreed | agreed,
        )

    phase, start, slope = jnp.asarray(_START), nothing, nothing
    if local.known is not None:
        start, slope = (a.astype(dtype) for a in local.value_and_slope(step))
        phase = jnp.asarray(_FIRST)
    most = jnp.maximum(numbers["max_evaluations"], 1)
    end = while_loop(
        lambda s: (s.phase == _START) | (s.running & (s.evaluations < most)),
        evaluated,
        _LineSearch(phase, start, slope, one, nothing, none, no, slope < 0, no),
    )
    slope = end.slope
    found = (end.agreed | good(end, end.t, end.y)) & (slope < 0)
    found &= jnp.isfinite(end.start)
    length = jnp.where(found, end.t, 0)
    outcome = Outcome.where(found, Outcome.accepted, Outcome.rejected)
    outcome = Outcome.where(slope == 0, Outcome.stationary, outcome)
    outcome = Outcome.where(
        space.is_finite(end.start, slope), outcome, Outcome.not_finite
    )
    actual = jnp.where(found, end.start - end.y, 0)
    scaled = space.choose(found, space.times(length, step), space.zeros(step))
    return scaled, LineSearchState(
        length, end.evaluations, -length * slope, actual, outcome
    )


def _moved(x: Point, step: Tangent, t: Scalar) -> Point:
    return jax.tree.map(
        lambda a, b: a + b.astype(a.dtype), x, space.times(t, space.widened(step))
    )


def with_line_search(
    inner: Transformation[StateT],
    learning_rate: optax.ScalarOrSchedule | None,
) -> Chained[StateT]:
    """Chain a direction with a learning rate, or else with a line search."""
    if learning_rate is None:
        # The search turns the sign itself: outside of a trace `optax.scale` would be a
        # call, and a program, for each leaf.
        usual = inspect.signature(scale_by_line_search).parameters.values()
        search = _searching({p.name: p.default for p in usual}, uphill=True)
        return chained(inner, optax.identity(), search)
    return chained(inner, scale_by_rate(learning_rate))
