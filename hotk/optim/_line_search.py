"""`scale_by_line_search`: the length of a step, by values alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Bool, Int

from hotk._core import Point, Scalar, Tangent
from hotk.linop import space

from ._local import Local, Numbers, Outcome, is_finite
from ._step import transformation


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


class _Search(NamedTuple):
    t: Scalar
    y: Scalar
    evaluations: Int[Array, ""]
    growing: Bool[Array, ""]
    running: Bool[Array, ""]


def scale_by_line_search(
    *,
    decrease: ArrayLike = 1e-4,
    shrink: ArrayLike = 0.5,
    grow: ArrayLike = 2.0,
    max_evaluations: ArrayLike = 40,
) -> optax.GradientTransformationExtraArgs:
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
    return transformation("scale_by_line_search", _first, _line_search, numbers)


def _first(params: optax.Params, numbers: Numbers) -> LineSearchState:
    del numbers
    zero = jnp.zeros((), space.scalar_dtype(jax.tree.leaves(params)))
    none = jnp.zeros((), int)
    return LineSearchState(zero, none, zero, zero, Outcome.accepted)


def _line_search(
    local: Local, step: Tangent, state: LineSearchState, numbers: Numbers
) -> tuple[Any, LineSearchState]:
    del state
    dtype = space.scalar_dtype(step)
    c1, shrink, grow = (
        numbers[k].astype(dtype) for k in ("decrease", "shrink", "grow")
    )
    start, slope = (a.astype(dtype) for a in local.value_and_slope(step))
    one, none = jnp.ones((), dtype), jnp.zeros((), int)
    value = lambda t: local.at(_moved(local.x, step, t)).astype(dtype)
    rounding = jnp.finfo(dtype).eps * jnp.abs(start)

    def good(t: Scalar, y: Scalar) -> Bool[Array, ""]:
        # a decrease that is lost in rounding cannot be asked for
        asked = c1 * t * slope
        enough = y <= start + jnp.where(-asked > rounding, asked, 0)
        return enough & jnp.isfinite(y)

    def shrunk(t: Scalar, y: Scalar) -> Scalar:
        curvature = y - start - t * slope  # of the parabola, over t squared
        best = -slope * t / (2 * jnp.where(curvature > 0, curvature, 1))
        convex = jnp.isfinite(y) & (curvature > 0)
        factor = jnp.where(convex, jnp.clip(best, 0.1, shrink), shrink)
        # a step of rounded curvature may be too long by many powers of ten
        return t * jnp.where(jnp.isfinite(y), factor, shrink**7)

    def next_length(s: _Search) -> _Search:
        t = jnp.where(s.growing, grow * s.t, shrunk(s.t, s.y))
        y = value(t)
        better = good(t, y) & (y < s.y)
        passed = s.growing & ~better  # the one before was the best
        return _Search(
            t=jnp.where(passed, s.t, t),
            y=jnp.where(passed, s.y, y),
            evaluations=s.evaluations + 1,
            growing=s.growing & better,
            running=jnp.where(s.growing, better, ~good(t, y)),
        )

    y = value(one)
    # f sums many terms, each with a rounding of its own: its noise is many roundings
    noise = jnp.finfo(dtype).eps ** (2 / 3) * jnp.abs(start)
    below = (-slope <= noise) & (jnp.abs(y - start) <= noise)
    doubtful = (slope < 0) & ~good(one, y) & below
    moved = Local(local.f, _moved(local.x, step, one), local.mode)
    last = jax.lax.cond(
        doubtful,
        lambda: moved.value_and_slope(step)[1].astype(dtype),
        lambda: jnp.zeros((), dtype),
    )
    agreed = doubtful & (-(slope + last) / 2 >= -c1 * slope)
    straight = good(one, y) & (y - start <= slope)  # no positive curvature along it
    running = (slope < 0) & ~agreed & (straight | ~good(one, y))
    begin = _Search(one, y, none + 1, straight, running)
    go_on = lambda s: s.running & (s.evaluations < numbers["max_evaluations"])
    end = jax.lax.while_loop(go_on, next_length, begin)
    found = (agreed | good(end.t, end.y)) & (slope < 0) & jnp.isfinite(start)
    length = jnp.where(found, end.t, 0)
    outcome = Outcome.where(found, Outcome.accepted, Outcome.rejected)
    outcome = Outcome.where(slope == 0, Outcome.stationary, outcome)
    outcome = Outcome.where(is_finite(start, slope), outcome, Outcome.not_finite)
    actual = jnp.where(found, start - end.y, 0)
    scaled = space.choose(found, space.times(length, step), space.zeros(step))
    return scaled, LineSearchState(
        length, end.evaluations, -length * slope, actual, outcome
    )


def _moved(x: Point, step: Tangent, t: Scalar) -> Point:
    return jax.tree.map(
        lambda a, b: a + b.astype(a.dtype), x, space.times(t, space.widened(step))
    )


def with_line_search(
    inner: optax.GradientTransformationExtraArgs,
    learning_rate: optax.ScalarOrSchedule | None,
) -> optax.GradientTransformationExtraArgs:
    """Chain a direction with a learning rate, or else with a line search."""
    if learning_rate is None:
        return optax.chain(inner, optax.scale(-1.0), scale_by_line_search())
    return optax.chain(inner, optax.scale_by_learning_rate(learning_rate))
