"""`chunk`: the steps of `minimize` that are one program."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree
from optax.tree_utils import tree_get_all_with_path

from hotk._core import Gradient, Point, Scalar, cond, while_loop
from hotk._mode import Nested
from hotk.linop import space

from ._bounds import Bounds, bounds_of_loop
from ._flat import KnownPoint, on_flat, stepping
from ._full_step import Distance, distance, is_affordable
from ._minimum import Stop
from ._whole import Transform


class ChunkStart(NamedTuple):
    """What a chunk of steps goes on from.

    Attributes:
        tol: The largest norm of a gradient that is small.
        xtol: The largest relative length of a step that is small.
        rtol: The largest relative change of point and value that is small.
        most: The most steps of all chunks.
        steps: How many there were.
        still: How many of the last ones changed nothing, or little at a small gradient.
        near: Whether the gradient was small after the last one, a whole one of Newton's
            method, and that promised little.
        curvature: The smallest one so far.
        highest: The largest size of a value so far.
    """

    tol: Scalar
    xtol: Scalar
    rtol: Scalar
    most: Int[Array, ""]
    steps: Int[Array, ""]
    still: Int[Array, ""]
    near: Bool[Array, ""]
    curvature: Scalar
    highest: Scalar


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
        still: How many of the last steps changed nothing, or little where the gradient
            is small.
        near: Whether the gradient was small after the last one, a whole one of Newton's
            method, and that promised little.
        curvature: The smallest one so far.
        highest: The largest size of a value so far.
        start: The value before the first step of this chunk.
        values: The value after each step of this chunk, zero behind the last.
        taken: Steps of this chunk.
        multipliers: The gradient at active bounds, of a result.
        active: Which these are, of a result.
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
    near: Bool[Array, ""]
    curvature: Scalar
    highest: Scalar
    start: Scalar
    values: Float[Array, " length"]
    taken: Int[Array, ""]
    multipliers: Gradient | None = None
    active: PyTree[Int[Array, "..."]] | None = None


# Beside its point a step of this length is one that something made short.
_SHORT = 1e-3
# How many roundings of its size a sum of terms is off by.
_TERMS = 8
# The root of the rounding would be three digits in single precision.
_RELATIVE = 1e-5


def chunk(
    f: Callable[..., Any],
    x: Point,
    c: tuple[optax.OptState, ChunkStart, tuple[Any, ...]],
    mode: Nested,
    *,
    transform: Transform,
    length: int,
    flat: bool,
    by_steps: bool,
    by_gradient: bool,
) -> Iterate:
    """Make at most `length` steps, or less until one of the reasons to stop."""
    state, limits, captured = c
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
        with stepping(KnownPoint(value_fn, params, s.y, gradient, flat)):
            updates, after = update(gradient, s.state, params, **more)
        y = as_vector(optax.apply_updates(params, updates))
        return y if box is None else box.landed(y, s.x), after

    def step(s: Iterate) -> Iterate:
        # The start is evaluated by the same loop: the function stands in it once.
        begins = s.taken < 0
        moved, after = cond(begins, lambda s: (s.x, s.state), stepped, s)
        y, gradient, _ = mode.inner.gradient(of_vector, moved)
        y = jnp.asarray(y)
        # what is zero at a minimum
        slope = gradient if box is None else box.projected(moved, gradient)
        size = space.norm(slope)
        finite = space.is_finite(moved, y, size)
        same = space.is_same(moved, s.x, dtype)
        small, highest = size <= limits.tol, jnp.fmax(s.highest, jnp.abs(y))
        little = _little(y, highest)
        measured = _measured(after)
        # Parameters can be told further than values, by what measures them.
        tells = not by_gradient and measured is None
        known = _newton_decrease(after) if tells else None
        decrease, is_taken = (jnp.inf, False) if known is None else known
        near = small & (decrease <= little)
        # Where f has a large unit, rounding keeps its gradient above any tolerance.
        eps = jnp.finfo(dtype).eps
        # Near zero it is a sum of squares, of what is rounded beside its largest size.
        squares = (_TERMS * eps) ** 2 * highest
        is_least = decrease <= jnp.maximum(eps * jnp.abs(y), squares)
        # A value that still falls is no rounding: of a line search that finds more than
        # the model promised, or far below the largest value, which says nothing here.
        change = jnp.abs(s.y - y)
        is_least &= change <= eps**0.5 * jnp.abs(y)
        # A region that adapts may bound each step, where the Hessian is singular, or is
        # that of Gauss and Newton. A damping that does not adapt proves nothing so.
        region = None if known is None else _fields(after, "control", "predicted")
        adapts = region is not None
        rests = change <= jnp.where(small & adapts, little, -1)
        is_proven = True
        if region is not None:
            # One that is on its way from a length that was far too short proves none,
            # and none that was rejected though a decrease was predicted.
            control, predicted = region
            step = space.norm(space.minus(moved, s.x))
            before = _fields(s.state, "control")
            assert before is not None  # as it is after
            turns = control != before[0]
            rests &= ~(turns & (step <= _SHORT * space.norm(moved)))
            is_proven = ~same | (predicted <= little)
        still = jnp.where(same | is_least | rests, s.still + 1, 0)
        still = jnp.where(begins, s.still, still)
        stuck = still >= 10
        reason = Stop.where(stuck & ~begins, Stop.stuck, Stop.most_steps)
        if by_steps:  # else they would be compiled for nothing
            point = of_vector, moved, y, slope, mode
            held = None if box is None else _differ(slope, gradient)
            confirm = functools.partial(distance, *point, held)
            confirm = confirm if is_affordable(moved) else None
            reason, ends = _by_steps(s, moved, y, same, limits, reason, confirm)
        else:
            ends = jnp.zeros((), bool)
        if known is not None:
            # A gradient is small on a plateau as well, and where f has a small unit or
            # the variables have large ones. Truncated conjugate gradients see no flat
            # direction beside a steep one, but in the next step.
            is_minimum = near & s.near & (is_taken | stuck)
            is_minimum |= stuck & adapts & is_proven
            small = small & is_minimum | (size == 0)
            is_least = (same | stuck) & ~begins & is_least
            reason = Stop.where(is_least, Stop.rounding, reason)
            ends = ends | is_least
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
        reason = Stop.where(small, Stop.converged, reason)
        ends = ends | small
        reason = Stop.where(finite, reason, Stop.not_finite)
        kept = finite | begins
        choose = lambda new, old: space.choose(kept, new, old)
        y = y.astype(dtype)
        bent = _smallest_curvature(after, dtype)
        place = jnp.where(begins, length, s.taken)
        return Iterate(
            x=choose(moved, s.x),
            y=choose(y, s.y),
            gradient=choose(gradient, s.gradient),
            size=choose(size, s.size),
            state=after,
            steps=s.steps + jnp.where(begins, 0, 1),
            done=~finite | ends | stuck,
            reason=reason,
            still=still,
            near=jnp.where(begins, s.near, near),
            curvature=jnp.where(begins, s.curvature, jnp.minimum(s.curvature, bent)),
            highest=jnp.where(kept, highest, s.highest).astype(dtype),
            start=jnp.where(begins, y, s.start),
            values=s.values.at[place].set(y, mode="drop"),
            taken=s.taken + 1,
        )

    go_on = lambda s: ~s.done & (s.taken < length) & (s.steps < limits.most)
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
        near=limits.near,
        curvature=limits.curvature,
        highest=limits.highest,
        start=nothing,
        values=jnp.zeros(length, dtype),
        taken=-jnp.ones((), int),
    )
    end = while_loop(lambda s: (s.taken < 0) | go_on(s), step, begin)
    # The gradient is not handed out: it would be one more tree of results a chunk.
    at, slope = as_tree(end.x), as_tree(end.gradient)
    if bounds is not None:
        multipliers, active = bounds.multipliers(at, slope)
        end = end._replace(multipliers=multipliers, active=active)
    return end._replace(x=at, gradient=None)


def _differ(u: Gradient, v: Gradient) -> Bool[Array, " n"]:
    return space.flattened(u) != space.flattened(v)


def _by_steps(
    s: Iterate,
    moved: Point,
    y: Scalar,
    same: Bool[Array, ""],
    limits: ChunkStart,
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
    found = _fields(state, "relative_step", "cosine")
    if found is None:
        return None
    step, cosine = found
    return Distance(step, cosine**2)


def _newton_decrease(
    state: optax.OptState,
) -> tuple[Scalar, Bool[Array, ""]] | None:
    """Return what the last model promised of a whole step of Newton's method.

    Returns:
        This decrease, infinity where the step was another one; and whether it was not
        shortened afterwards, by a line search. `None` for methods that do not tell.
    """
    found, lengths = _fields(state, "newton_decrease"), _fields(state, "length")
    if found is None:
        return None
    return found[0], jnp.ones((), bool) if lengths is None else lengths[0] >= 1


def _fields(state: optax.OptState, *names: str) -> list[Any] | None:
    """Return fields of a state, `None` unless each is there and stands there once."""
    of = lambda name: tree_get_all_with_path(state, name)
    found = [[a for _, a in of(name) if a is not None] for name in names]
    if any(len(values) != 1 for values in found):
        return None
    return [value for [value] in found]


def _little(y: Scalar, highest: Scalar) -> Scalar:
    """Return a decrease that is little beside the value.

    Where that is zero at the minimum, it is itself little beside the largest one: as a
    sum of squares of what has been rounded beside its largest size.
    """
    eps = float(jnp.finfo(highest.dtype).eps)
    zero = eps**2 * highest
    relative = min(eps**0.5, _RELATIVE) * jnp.abs(y)
    return jnp.where(jnp.abs(y) <= zero, zero, relative)


def _smallest_curvature(state: optax.OptState, dtype: DTypeLike) -> Scalar:
    """Return the least of the fields `curvature` in a state, infinity if there is none.

    This is where `Minimum.smallest_curvature` comes from: a state that has a field of
    this name takes part, also within a chain.
    """
    found = tree_get_all_with_path(state, "curvature")
    least = jnp.asarray(jnp.inf, dtype)
    for _, curvature in found:
        known = jnp.asarray(curvature, dtype)
        least = jnp.minimum(least, jnp.where(jnp.isnan(known), jnp.inf, known))
    return least
