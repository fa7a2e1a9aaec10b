r"""`Local`: the series of many directions, stored where its entries move.

An entry of an intermediate result often depends on few numbers of the point: a feature
of one electron on its three coordinates, a distance on six. Its coefficients along all
other directions are zero, so they are neither stored nor computed; which these are is
known from the program alone. What is linear or entry by entry works on slots as it does
on directions, and a sum over slots is the sum over directions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._core import Leaf, varying_alike, zeros_like

from ._frame import Frame
from ._series import Coefficient, Series, total
from ._support import Support, matches, union


# With more slots than this, each direction reads its slot; with fewer, each slot is
# compared with all directions.
_FEW = 12


class Local(NamedTuple):
    """The series of an array, with slots in place of directions.

    Attributes:
        series: The coefficients; those below the top one have an axis of slots.
        support: The directions that the slots are of.
    """

    series: Series
    support: Support

    @property
    def primal(self) -> Any:
        """The value."""
        return self.series.primal

    @property
    def top(self) -> Any:
        """The sum of the top coefficients."""
        return self.series.terms[-1]

    @property
    def moves(self) -> bool:
        """Whether it depends on t: where it does not, it is no `Local`."""
        return True

    def frame(self, frame: Frame) -> Frame:
        """Return how its coefficients are laid out."""
        return frame_of(self.support, frame)


def frame_of(support: Support, frame: Frame) -> Frame:
    """Return the frame of slots, given that of directions."""
    weights = frame.weights
    if weights is not None:
        weights = weights[support.of]
    return Frame(frame.order, support.slots, weights)


Value: TypeAlias = Series | Local
"""The series of an array in a pass along many directions."""


class Seeds(NamedTuple):
    """The first coefficients of a part of the point, which are known.

    Attributes:
        values: Along an axis of slots.
        support: The directions that the slots are of.
    """

    values: np.ndarray
    support: Support

    def series(self, x: Leaf, top: Coefficient, order: int) -> Local:
        """Return the series of the part."""
        x = jnp.asarray(x)
        first, x, *tops = varying_alike(
            [jnp.asarray(self.values, x.dtype), x, *([] if top is None else [top])]
        )
        terms = (first, *(None,) * (order - 2), *(tops or [None]))
        return Local(Series(x, terms), self.support)


def aligned(a: Local, target: Support) -> Local:
    """Return a series with its coefficients in the slots of a larger support."""
    if a.support.is_same(target):
        return a
    plan = [_sources(a.support, target, t) for t in range(target.slots)]
    *lower, top = a.series.terms
    terms = (None if c is None else _gathered(c, plan) for c in lower)
    return Local(Series(a.primal, (*terms, top)), target)


_Sources = list[tuple[int, np.ndarray | None]]
"""What is added in a slot: slots, and where they count, `None` for everywhere."""


def _sources(a: Support, target: Support, t: int) -> _Sources:
    found: _Sources = []
    for j in range(a.slots):
        mask = matches(a, j, target, t)
        if mask.any():
            whole = (mask | ~a.live[j]).all()
            found.append((j, None if whole else mask))
    return found


def _gathered(c: Array, plan: list[_Sources]) -> Array:
    """Return the coefficients in other slots; those that follow one another at once."""
    parts: list[Array] = []
    begin = 0
    while begin < len(plan):
        end = begin + 1
        while end < len(plan) and _follows(plan[end - 1], plan[end]):
            end += 1
        sources = plan[begin]
        if not sources:
            parts.append(jnp.zeros_like(c, shape=(end - begin, *c.shape[1:])))
        elif _is_whole(sources):
            first = sources[0][0]
            parts.append(c[first : first + end - begin])
        else:
            terms = (
                c[j] if mask is None else jnp.where(mask, c[j], zeros_like(c[j]))
                for j, mask in sources
            )
            parts.append(total(terms)[None])
        begin = end
    if len(parts) == 1:
        return parts[0]
    # Where a mask says where an array counts, axes of length one were stretched.
    shape = np.broadcast_shapes(*(part.shape[1:] for part in parts))
    parts = [jnp.broadcast_to(part, (len(part), *shape)) for part in parts]
    return jnp.concatenate(parts)


def _is_whole(sources: _Sources) -> bool:
    return len(sources) == 1 and sources[0][1] is None


def _follows(one: _Sources, two: _Sources) -> bool:
    if not one and not two:
        return True
    return _is_whole(one) and _is_whole(two) and two[0][0] == one[0][0] + 1


def dense(a: Value, frame: Frame) -> Series:
    """Return a series with its coefficients along all directions."""
    if not isinstance(a, Local):
        return a
    *lower, top = a.series.terms
    for c in lower:
        frame.check(None if c is None else c[0])
    terms = (None if c is None else _spread(c, a.support, frame) for c in lower)
    return Series(a.primal, (*terms, top))


def _spread(c: Array, support: Support, frame: Frame) -> Array:
    assert frame.many is not None
    of, live = support
    rank, shape = c.ndim - 1, (frame.many, *c.shape[1:])
    if of.size == of.shape[0]:  # an empty slot holds zeros
        return _placed(c, of.reshape(-1), frame.many)
    directions = np.arange(frame.many, dtype=np.int32).reshape(-1, *(1,) * rank)
    if support.slots <= _FEW:
        # Compared at run time: the comparison fuses, its result may be large.
        numbers = jax.lax.broadcasted_iota(jnp.int32, (frame.many, *(1,) * rank), 0)
        marked = np.where(live, of, -1)
        terms = (
            jnp.where(numbers == marked[j][None], c[j][None], zeros_like(c[j])[None])
            for j in range(support.slots)
        )
        return jnp.broadcast_to(total(terms), shape)
    where = np.full((frame.many, *np.broadcast_shapes(of.shape, live.shape)[1:]), 0)
    there = np.zeros(where.shape, bool)
    for j in range(support.slots):
        here = (directions == of[j][None]) & live[j][None]
        where, there = np.where(here, j, where), there | here
    index = np.broadcast_to(where, (*where.shape[:1], *c.shape[1:]))
    read = jnp.take_along_axis(c, jnp.asarray(index), axis=0, mode="promise_in_bounds")
    return read if there.all() else jnp.where(there, read, zeros_like(read))


def _placed(c: Array, of: np.ndarray, many: int) -> Array:
    """Return coefficients along all directions, given the direction of each slot.

    A direction that several slots have gets their sum.
    """
    if np.array_equal(of, np.arange(many)):
        return c
    order = np.argsort(of, kind="stable")
    counts = np.bincount(of, minlength=many)
    most = int(counts.max(initial=1))
    if most == 1 and np.array_equal(of, np.arange(of[0], of[0] + of.size)):
        margins = [(int(of[0]), many - int(of[0]) - of.size, 0)]
        zero = jnp.zeros((), c.dtype)
        return jax.lax.pad(c, zero, [*margins, *[(0, 0, 0)] * (c.ndim - 1)])
    if most * many > 2 * of.size + many:
        zeros = jnp.zeros_like(c, shape=(many, *c.shape[1:]))
        return zeros.at[of].add(c)
    # The last row is zero: a direction with fewer slots than another reads it.
    rows = np.full((many, most), of.size)
    starts = np.cumsum(counts) - counts
    rank = np.arange(of.size) - starts[of[order]]
    rows[of[order], rank] = order
    if counts.min() < most:
        c = jnp.concatenate([c, jnp.zeros_like(c[:1])])
    read = c[rows.reshape(-1)].reshape(many, most, *c.shape[1:])
    return read[:, 0] if most == 1 else jnp.sum(read, axis=1)


def added(
    parts: Sequence[Value], primal: Array, top: Coefficient, frame: Frame
) -> Value:
    """Return a series whose lower coefficients are sums of those of several.

    Args:
        parts: Series with these coefficients; their values and top ones do not count.
        primal: The value.
        top: The top coefficient.
        frame: The directions.
    """
    local = [part for part in parts if isinstance(part, Local)]
    if len(local) == len(parts):
        whole = union([part.support for part in local])
        if is_few(whole.slots, frame):
            rows = [aligned(part, whole).series for part in local]
            return Local(_sum(rows, primal, top), whole)
    return _sum([dense(part, frame) for part in parts], primal, top)


def _sum(rows: Sequence[Series], primal: Array, top: Coefficient) -> Series:
    columns = zip(*(row.terms[:-1] for row in rows), strict=True)
    return Series(primal, (*map(total, columns), top))


def is_few(slots: int, frame: Frame) -> bool:
    """Whether slots are so few that all directions take more work."""
    assert frame.many is not None
    return 3 * slots <= frame.many


def if_few(a: Local, frame: Frame) -> Value:
    """Return a series as it is if it has few slots, else along all directions."""
    return a if is_few(a.support.slots, frame) else dense(a, frame)
