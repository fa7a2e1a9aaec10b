"""`Support`: the directions along which each entry of an array moves, known now."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np


Directions: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

# Of more directions the positions would take longer to find than what they save.
_MOST = 4_000_000


class Support(NamedTuple):
    """Which directions the coefficients of an array are stored for.

    Slot `j` of entry `s` holds the coefficient along direction `of[j, s]`. Both arrays
    have the axes of the array after that of the slots, of length one where nothing
    changes along them. No two slots of an entry that are live have one direction.

    Attributes:
        of: The direction of each slot.
        live: Whether the coefficient there may be other than zero.
    """

    of: Directions
    live: Mask

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.of.shape[0]

    def varies(self, axis: int) -> bool:
        """Whether directions change along an axis of the array."""
        return self.of.shape[axis + 1] > 1

    def is_same(self, other: "Support") -> bool:
        """Whether another one stores the same directions in the same slots."""
        return all(map(np.array_equal, self, other))

    def part(self, slots: slice | Sequence[int]) -> "Support":
        """Return some of the slots."""
        return support(self.of[slots], self.live[slots])


def support(of: np.ndarray, live: np.ndarray) -> Support:
    """Make a support, its axes of length one where nothing changes along them."""
    return Support(_leveled(of), _leveled(live))


def _leveled(a: np.ndarray) -> np.ndarray:
    for axis in range(1, a.ndim):
        if a.shape[axis] > 1 and (a == a.take([0], axis)).all():
            a = a.take([0], axis)
    return a


def moved(
    parts: Sequence[Support],
    shapes: Sequence[Sequence[int]],
    move: Callable[..., np.ndarray | list[np.ndarray]],
) -> list[Support] | None:
    """Move the entries of arrays that have as many slots.

    Args:
        parts: The support of each array.
        shapes: The shape of each.
        move: From such arrays of NumPy to one of the results, or to all.

    Returns:
        The support of each result; `None` if there are too many entries.
    """
    slots = parts[0].slots
    if slots * sum(int(np.prod(shape)) for shape in shapes) > _MOST:
        return None

    def each(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        pairs = list(zip(arrays, shapes, strict=True))
        rows = [
            move(*(np.broadcast_to(a[j], s) for a, s in pairs)) for j in range(slots)
        ]
        columns = [row if isinstance(row, list) else [row] for row in rows]
        return [np.stack(column) for column in zip(*columns, strict=True)]

    pairs = zip(each([p.of for p in parts]), each([p.live for p in parts]), strict=True)
    return [support(of, live) for of, live in pairs]


def padded(a: Support, slots: int) -> Support:
    """Return a support with more slots, which hold nothing."""
    more = slots - a.slots
    if not more:
        return a
    of = np.concatenate([a.of, np.repeat(a.of[:1], more, axis=0)])
    none = np.zeros((more, *a.live.shape[1:]), bool)
    return Support(of, np.concatenate([a.live, none]))


def nowhere(slots: int, rank: int) -> Support:
    """Return the support of an array that does not move."""
    ones = (slots, *(1,) * rank)
    return Support(np.zeros(ones, np.int32), np.zeros(ones, bool))


def matches(a: Support, i: int, b: Support, j: int) -> np.ndarray:
    """Return where two slots hold coefficients along one direction."""
    return np.asarray((a.of[i] == b.of[j]) & a.live[i] & b.live[j])


def union(parts: Sequence[Support]) -> Support:
    """Return a support with all directions of several of one shape."""
    total = parts[0]
    for part in parts[1:]:
        for j in range(part.slots):
            held = [matches(total, t, part, j) for t in range(total.slots)]
            covered = [(h | ~part.live[j]).all() for h in held]
            if any(covered):
                continue
            # Where another slot has the direction already, this one stays empty.
            there = np.logical_or.reduce(np.broadcast_arrays(*held))
            live = np.asarray(part.live[j] & ~there)
            if live.any():
                total = support(
                    _joined(total.of, np.asarray(part.of[j])), _joined(total.live, live)
                )
    return total


def _joined(a: np.ndarray, slot: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(a.shape[1:], slot.shape)
    rows = (
        np.broadcast_to(a, (a.shape[0], *shape)),
        np.broadcast_to(slot, shape)[None],
    )
    return np.concatenate(rows)


def along(a: Support, axes: Sequence[int]) -> tuple[Support, bool]:
    """Let each entry along some axes be a slot of its own, first slots, then entries.

    Args:
        a: A support.
        axes: Axes of the array.

    Returns:
        The support without these axes, and whether no direction is in two slots.
    """
    places = [axis + 1 for axis in axes]
    lengths = [a.of.shape[p] for p in places]
    front = range(1, len(places) + 1)

    def turned(array: np.ndarray) -> np.ndarray:
        shape = list(array.shape)
        for p, length in zip(places, lengths, strict=True):
            shape[p] = length
        array = np.moveaxis(np.broadcast_to(array, shape), places, front)
        return array.reshape(-1, *array.shape[len(places) + 1 :])

    made = support(turned(a.of), turned(a.live))
    return made, _are_distinct(made)


def _are_distinct(a: Support) -> bool:
    """Whether no direction is in two live slots of one entry."""
    of, live = np.broadcast_arrays(a.of, a.live)
    # An empty slot has a direction of its own.
    own = np.arange(a.slots).reshape(-1, *(1,) * (of.ndim - 1))
    ordered = np.sort(np.where(live, of, -1 - own), axis=0)
    return not (np.diff(ordered, axis=0) == 0).any()


def without(a: Support, axes: Sequence[int]) -> Support:
    """Return the support of sums along axes that directions do not change along."""
    places = tuple(axis + 1 for axis in axes)
    live = np.asarray(a.live.any(axis=places))
    return support(a.of.squeeze(places), live)


def level(a: Support, axis: int) -> Support:
    """Return a support whose directions do not change along an axis."""
    if not a.varies(axis):
        return a
    slots, _ = along(a, [axis])
    slots = support(
        np.expand_dims(slots.of, axis + 1), np.expand_dims(slots.live, axis + 1)
    )
    return union([slots.part([j]) for j in range(slots.slots)])
