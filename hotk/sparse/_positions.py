"""Index arithmetic: flat positions in arrays of a shape, in row-major order."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np


Shape: TypeAlias = tuple[int, ...]
# 64 bits: a virtual array, of which only a few pieces exist, may have any size.
Positions: TypeAlias = np.ndarray
# A table may have so many entries for each number that is looked up in it.
_TABLE = 8


def size_of(shape: Sequence[int]) -> int:
    """Return the number of entries of an array of a shape."""
    return math.prod(int(k) for k in shape)


def strides(shape: Sequence[int]) -> list[int]:
    """Return by how much the flat position grows along each axis."""
    steps = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        steps[d] = steps[d + 1] * int(shape[d + 1])
    return steps


def every(shape: Sequence[int]) -> Positions:
    """Return the flat position of each entry of an array of a shape."""
    return np.arange(size_of(shape), dtype=np.int64).reshape(tuple(shape))


def grid(shape: Sequence[int], steps: Sequence[int], base: int = 0) -> Positions:
    """Return `base + sum(steps[d] * i[d])` for each index `i` of a shape."""
    total = np.full((1,) * len(shape), base, np.int64)
    for d, (count, step) in enumerate(zip(shape, steps, strict=True)):
        axis = [1] * len(shape)
        axis[d] = int(count)
        total = total + (np.arange(count, dtype=np.int64) * int(step)).reshape(axis)
    return np.broadcast_to(total, tuple(shape))


def unravel(flat: Positions, shape: Sequence[int]) -> list[Positions]:
    """Return the index along each axis of flat positions."""
    coordinates: list[Positions] = []
    for count in reversed(shape[1:]):
        flat, last = np.divmod(flat, int(count)) if count != 1 else (flat, flat * 0)
        coordinates.append(last)
    if shape:
        coordinates.append(flat)
    return coordinates[::-1]


def ravel(
    coordinates: Iterable[Positions], steps: Iterable[int], like: Positions
) -> Positions:
    """Return flat positions, given the index along each axis and the steps of them.

    Args:
        coordinates: The indices.
        steps: By how much the position grows along each of these axes.
        like: An array of the shape of the result, for an array without axes.
    """
    flat = np.zeros(like.shape, np.int64)
    for index, step in zip(coordinates, steps, strict=True):
        if step:
            flat += index * step if step != 1 else index
    return flat


def as_affine(positions: Positions) -> tuple[int, list[int]] | None:
    """Return base and steps if the positions are a `grid`, else `None`."""
    if not positions.size:
        return None
    first = (0,) * positions.ndim
    base = int(positions[first])
    steps: list[int] = []
    for d, count in enumerate(positions.shape):
        second = (*first[:d], 1, *first[d + 1 :])
        steps.append(int(positions[second]) - base if count > 1 else 0)
    # Most that are not a grid end elsewhere, which is seen without a whole comparison.
    pairs = zip(steps, positions.shape, strict=True)
    if int(positions.reshape(-1)[-1]) != base + sum(s * (k - 1) for s, k in pairs):
        return None
    same = np.array_equal(grid(positions.shape, steps, base), positions)
    return (base, steps) if same else None


def at_steps(rows: Positions, shape: Shape, steps: Sequence[int]) -> Positions:
    """Return `sum(steps[d] * i[d])` for the index `i` of each flat position.

    By a table of all positions where there are more entries: divisions take longer.
    """
    if rows.size > size_of(shape):
        return grid(shape, steps).reshape(-1)[rows]
    return ravel(unravel(rows, shape), steps, rows)


def distinct(keys: Positions, count: int | None = None) -> Positions:
    """Return the different numbers among some, ascending.

    By sorting: `np.unique` takes a hundred times longer for a million numbers, which it
    looks up by their hashes (NumPy 2.3 and later).

    Args:
        keys: The numbers.
        count: What they are less than, none below zero. Where most numbers are among
            them, a table of all is faster than to sort, by ten.
    """
    if count is None or count > _TABLE * keys.size:
        keys = np.sort(keys, axis=None)
        return keys[np.append(True, keys[1:] != keys[:-1])] if keys.size else keys
    table = np.zeros(count, bool)
    table[keys] = True
    return np.flatnonzero(table)
