"""`chunk`: the steps of `minimize` that are one program."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import Gradient, Point, Scalar, cond, while_loop
from hotk.linop import space
from hotk.mode import Nested

from ._bounds import Bounds, bounds_of_loop, held_at
from ._differences import Around, differences, sides
from ._flat import Known, on_flat, stepping
from ._full_step import Distance, Model, distance, is_affordable, verdict
from ._minimum import Stop
from ._whole import Transform


class Limits(NamedTuple):
    """What a chunk of steps goes on from.

    Attributes:
        tol: The largest norm of a gradient that is small.
        xtol: The largest relative length of a step that is small.
        rtol: The largest relative change of point and value that is small.
        most: The most steps of all chunks.
        steps: How many there were.
        still: How many of the last ones changed nothing.
        curvature: The smallest one so far.
        idle: How many of the last steps hardly changed the value.
    """

    tol: Scalar
    xtol: Scalar
    rtol: Scalar
    most: Int[Array, ""]
    steps: Int[Array, ""]
    still: Int[Array, ""]
    curvature: Scalar
    idle: Int[Array, ""]


class Iterate(NamedTuple):
    """The state of the loop: the point, what is known there, and why to stop.

    Attributes:
        x: The point.
        y: The value there.
        gradient: The gradient there.
        size: The norm of the gradient.
        state: The state of the transformation.
        steps: Steps so far, of all chunks.
        done: Whether there is a reason to stop.
        reason: The reason.
        still: How many of the last steps changed nothing.
        curvature: The smallest one so far.
        start: The value before the first step of this chunk.
        values: The value after each step of this chunk.
        taken: Steps of this chunk.
        multipliers: The gradient at active bounds, of a result.
        active: Which these are, of a result.
        idle: How many of the last steps hardly changed the value.
        tol: The largest norm of a gradient that is small.
        slope: The gradient as one vector, of a result.
        sums: Differences of gradients around a point.
    """

    x: Point
    y: Scalar
    gradient: Gradient
    size: Scalar
    state: optax.OptState
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    reason: Stop
    still: Int[Array, ""]
    curvature: Scalar
    start: Scalar
    values: Float[Array, " length"]
    taken: Int[Array, ""]
    multipliers: Gradient | None = None
    active: PyTree[Int[Array, "..."]] | None = None
    idle: Int[Array, ""] | None = None
    tol: Scalar | None = None
    slope: Float[Array, " n"] | None = None
    sums: Float[Array, "n n"] | None = None


def chunk(
    f: Callable[..., Any],
    x: Point,
    c: tuple[optax.OptState, Limits, tuple[Any, ...], Around | None],
    mode: Nested,
    *,
    transform: Transform,
    length: int,
    flat: bool,
    by_steps: bool,
    by_gradient: bool,
    whole: bool,
) -> Iterate:
    """Make at most `length` steps, or less until one of the reasons to stop.

    Args:
        f: The objective.
        x: The point.
        c: The state, the limits, what the transformation captured, and what is asked
            around a point, if a run that stops by no tolerance that was given is to
            stop at a minimum by Newton's step.
        mode: How second derivatives are taken.
        transform: The transformation, without what it captured.
        length: The most steps.
        flat: Whether points are one vector.
        by_steps: Whether there are tolerances for steps.
        by_gradient: Whether the tolerance for the gradient was given.
        whole: Whether that is told within, as where the run is traced. If not it is by
            `confirmation`.
    """
    state, limits, captured, around = c
    update = transform.update(captured)
    dtype = space.scalar_dtype(x)
    value_fn = lambda x: f(x)[0]
    as_tree = (lambda v: space.unflattened(v, x)) if flat else lambda v: v
    as_vector = space.flattened if flat else lambda v: v
    of_vector = on_flat(f, x) if flat else f
    nothing = jnp.zeros((), dtype)
    bounds = bounds_of_loop("minimize(f, x0, transform)", state, x, given=False)
    if bounds is not None:
        x = bounds.clipped(x)  # a start that was traced may be outside
    box = None if bounds is None else Bounds(*map(as_vector, bounds))

    def stepped(s: Iterate) -> tuple[Point, optax.OptState]:
        params, gradient = as_tree(s.x), as_tree(s.gradient)
        more: dict[str, Any] = {}
        if transform.takes_more:
            more = {"value": s.y, "grad": gradient, "value_fn": value_fn}
        with stepping(Known(value_fn, params, s.y, gradient, flat)):
            updates, after = update(gradient, s.state, params, **more)
        y = as_vector(optax.apply_updates(params, updates))
        return y if box is None else box.landed(y, s.x), after

    def at_rest(s: Iterate) -> tuple[Point, optax.OptState]:
        if around is None or whole:
            return s.x, s.state
        flat = space.flattened(as_vector(x))
        aside = space.unflattened(around.point(flat, s.taken), s.x)
        return space.choose(around.asked & (s.taken >= 0), aside, s.x), s.state

    def step(s: Iterate) -> Iterate:
        # The start is evaluated by the same loop: the function stands in it once.
        begins = s.taken < 0
        place = jnp.where(begins, room, s.taken)
        asked = jnp.zeros((), bool) if around is None or whole else around.asked
        moved, after = cond(begins | asked, at_rest, stepped, s)
        y, gradient, _ = mode.inner.gradient(of_vector, moved)
        y = jnp.asarray(y)
        # what is zero at a minimum
        slope = gradient if box is None else box.projected(moved, gradient)
        size = space.norm(slope)
        finite = space.is_finite(moved, y, size)
        same = space.is_same(moved, s.x, dtype)
        still = jnp.where(same, s.still + 1, 0)
        still = jnp.where(begins, s.still, still)
        stuck = still >= 10
        reason = Stop.where(stuck & ~begins, Stop.stuck, Stop.most_steps)
        measured = _measured(after)
        if by_steps:  # else they would be compiled for nothing
            point = of_vector, moved, y, slope, mode
            held = None if box is None else _differ(slope, gradient)
            confirm = functools.partial(distance, *point, held)
            near = confirm if is_affordable(moved) else None
            reason, ends = _by_steps(s, moved, y, same, limits, reason, near)
        else:
            ends = jnp.zeros((), bool)
        small = size <= (limits.tol if s.tol is None else s.tol)
        if measured is not None and not by_gradient:
            # What the transformation measured has no unit. The gradient has.
            small = jnp.where(jnp.isposinf(measured.step), small, size == 0)
            is_there = measured.step <= limits.tol
            # Parameters can be told further than values: to the end of their steps.
            most = jnp.where(same & ~begins, limits.tol**2, limits.tol ** (8 / 3))
            is_flat = measured.decrease <= most
            reason = Stop.where(is_there, Stop.small_step, reason)
            reason = Stop.where(is_flat, Stop.orthogonal, reason)
            ends = ends | is_there | is_flat
        by_tol = Stop.converged if by_gradient else Stop.small_gradient
        idle = None
        if s.idle is not None:
            assert around is not None
            # A sum has many roundings. Not more often than a step is worth a gradient.
            little = jnp.finfo(dtype).eps ** 0.75 * jnp.abs(y)
            idle = jnp.where(jnp.abs(y - s.y) <= little, s.idle + 1, 0)
            idle = jnp.where(begins, s.idle, idle)
            small = small | ((idle >= max(10, 2 * len(around.start))) & ~stuck)
        reason = Stop.where(small, by_tol, reason)
        reason = Stop.where(size == 0, Stop.stationary, reason)
        ends = ends | small | (size == 0)
        reason = Stop.where(finite, reason, Stop.not_finite)
        sums = s.sums
        if sums is not None:
            assert around is not None
            row = space.flattened(gradient).astype(sums.dtype)
            sums = around.added(sums, row, place)
        kept = finite | begins
        choose = lambda new, old: space.choose(kept, new, old)
        y = y.astype(dtype)
        bent = _smallest_curvature(after, dtype)
        return Iterate(
            x=choose(moved, s.x),
            y=choose(y, s.y),
            gradient=choose(gradient, s.gradient),
            size=choose(size, s.size),
            state=after,
            steps=s.steps + jnp.where(begins, 0, 1),
            done=(~finite | ends | stuck) & ~asked,
            reason=reason,
            still=still,
            curvature=jnp.where(begins, s.curvature, jnp.minimum(s.curvature, bent)),
            start=jnp.where(begins, y, s.start),
            values=s.values.at[place].set(y, mode="drop"),
            taken=s.taken + 1,
            idle=idle,
            tol=s.tol,
            sums=sums,
        )

    room, sums = length, None
    if around is not None and not whole:
        n = len(around.start)
        room = jnp.where(around.asked, 2 * n, length)
        sums = jnp.zeros((n, n), around.start.dtype)
    go_on = lambda s: ~s.done & (s.taken < room) & (s.steps < limits.most)
    begin = Iterate(
        x=as_vector(x),
        y=nothing,
        gradient=space.zeros(as_vector(x)),
        size=nothing,
        state=state,
        steps=limits.steps,
        done=jnp.zeros((), bool),
        reason=Stop.most_steps,
        still=limits.still,
        curvature=limits.curvature,
        start=nothing,
        values=jnp.full(length, jnp.nan, dtype),
        taken=-jnp.ones((), int),
        idle=None if around is None else limits.idle,
        tol=None if around is None else limits.tol,
        sums=sums,
    )
    more = lambda s: (s.taken < 0) | go_on(s)
    until_asked = lambda s: while_loop(more, step, s)

    def gradient_at(v: Array) -> Array:
        like = as_vector(x)
        found = mode.inner.gradient(of_vector, space.unflattened(v, like))[1]
        return space.flattened(found)

    def until_told(s: Iterate) -> Iterate:
        s = until_asked(s)
        asks = (s.reason == Stop.small_gradient) | (s.reason == Stop.stuck)
        tell = lambda: _is_minimum(s, gradient_at, around, box, limits.tol)
        return _told(s, asks, cond(asks, tell, lambda: jnp.zeros((), bool)))

    if around is None or not whole:
        end = until_asked(begin)
    else:
        end = while_loop(more, until_told, begin)
    if around is not None:
        end = end._replace(slope=space.flattened(end.gradient))
    # The gradient is not handed out: it would be one more tree of results a chunk.
    at, slope = as_tree(end.x), as_tree(end.gradient)
    if bounds is not None:
        multipliers, active = bounds.multipliers(at, slope)
        end = end._replace(multipliers=multipliers, active=active)
    return end._replace(x=at, gradient=None)


def _is_minimum(
    s: Iterate,
    gradient: Callable[[Array], Array],
    around: Around | None,
    bounds: Bounds | None,
    tol: Scalar,
) -> Bool[Array, ""]:
    """Return whether a point is a minimum, as `confirmation` does."""
    assert around is not None
    assert s.tol is not None
    x, slope = map(space.flattened, (s.x, s.gradient))
    first = around.start
    lower, upper = bounds or (None, None)
    held = jnp.zeros(len(x), bool)
    if bounds is not None:
        lower, upper = map(space.flattened, bounds)
        held = held_at(x, slope, lower, upper)
    low, high = sides(jnp, x, first, lower, upper)
    eps = jnp.finfo(x.dtype).eps
    beyond = (s.reason == Stop.stuck) | (s.size > s.tol)
    model = Model(
        differences(gradient, x, low, high),
        high - low,
        eps ** (2 / 3),
        slope,
        x,
        first,
        s.y,
        s.start - s.y,
        jnp.where(beyond, eps ** (2 / 3), eps).astype(s.y.dtype),
        held,
    )
    return jnp.asarray(verdict(jnp, model, tol).is_minimum)


def _told(s: Iterate, asks: Bool[Array, ""], is_minimum: Bool[Array, ""]) -> Iterate:
    """Return what follows, as `confirmation` does."""
    assert s.tol is not None
    assert s.idle is not None
    stuck = s.reason == Stop.stuck
    reason = Stop.where(stuck, Stop.stuck, Stop.most_steps)
    reason = Stop.where(is_minimum, Stop.confirmed, reason)
    return s._replace(
        reason=Stop.where(asks, reason, s.reason),
        done=s.done & ~(asks & ~is_minimum & ~stuck),
        tol=jnp.where(asks, jnp.minimum(s.tol, s.size / 10), s.tol),
        idle=jnp.where(asks, 0, s.idle),
    )


def _differ(u: Gradient, v: Gradient) -> Bool[Array, " n"]:
    return space.flattened(u) != space.flattened(v)


def _by_steps(
    s: Iterate,
    moved: Point,
    y: Scalar,
    same: Bool[Array, ""],
    limits: Limits,
    reason: Stop,
    near: Callable[[], Distance] | None,
) -> tuple[Stop, Bool[Array, ""]]:
    """Return the reason to stop, given the length of a step that was taken.

    A step may be short for many reasons, so the whole step of Newton's method has to
    be as short.
    """
    step, reach = space.norm(space.minus(moved, s.x)), space.norm(moved)
    is_short = ~same & (step <= limits.xtol * (limits.xtol + reach))
    y = y.astype(s.y.dtype)
    is_flat = jnp.abs(y - s.y) <= limits.rtol * jnp.abs(y)
    is_close = ~same & (step <= limits.rtol * reach) & is_flat
    if near is not None:
        found = _if(is_short | is_close, near)
        is_short = is_short & found.is_within(limits.xtol)
        is_close = is_close & found.is_within(limits.rtol)
    reason = Stop.where(is_close, Stop.small_change, reason)
    reason = Stop.where(is_short, Stop.small_step, reason)
    return reason, is_short | is_close


def _if(candidate: Bool[Array, ""], near: Callable[[], Distance]) -> Distance:
    """Return a distance, infinite where it is not asked for."""
    types = jax.eval_shape(near)
    far = lambda: jax.tree.map(lambda a: jnp.full(a.shape, jnp.inf, a.dtype), types)
    return cond(candidate, near, far)


def _measured(state: optax.OptState) -> Distance | None:
    """Return how far the last update found the point before it, if it measures that.

    NaN before the first update, infinity where an update could not tell.
    """
    fields = ("relative_step", "cosine")
    of = lambda name: optax.tree_utils.tree_get_all_with_path(state, name)
    found = [[a for _, a in of(name) if a is not None] for name in fields]
    if any(len(values) != 1 for values in found):
        return None
    [step], [cosine] = found
    return Distance(step, cosine**2)


def _smallest_curvature(state: optax.OptState, dtype: DTypeLike) -> Scalar:
    """Return the least of the fields `curvature` in a state, infinity if there is none.

    This is where `Minimum.smallest_curvature` comes from: a state that has a field of
    this name takes part, also within a chain.
    """
    found = optax.tree_utils.tree_get_all_with_path(state, "curvature")
    least = jnp.asarray(jnp.inf, dtype)
    for _, curvature in found:
        known = jnp.asarray(curvature, dtype)
        least = jnp.minimum(least, jnp.where(jnp.isnan(known), jnp.inf, known))
    return least
