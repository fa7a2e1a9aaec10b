"""Directions as `Seeds`: which entries of the point each of them moves."""

import itertools

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._core import Point, is_divided_by_type
from hotk._mode import Seeds, support

from ._directions import Table


def unit_seeds(x: Point) -> PyTree[Seeds | None] | None:
    """Return all unit directions of a point, `None` if they save nothing.

    They do where there is only one, or the point is divided along explicit axes. A leaf
    without entries has `None`.
    """
    leaves, treedef = jax.tree.flatten(x)
    starts = [0, *itertools.accumulate(leaf.size for leaf in leaves)]
    if starts[-1] < 2 or any(map(is_divided_by_type, leaves)):
        return None
    pairs = zip(starts, leaves, strict=False)
    units = lambda start, leaf: _units(start, leaf.shape) if leaf.size else None
    return treedef.unflatten(units(start, leaf) for start, leaf in pairs)


def sparse_seeds(table: Table, x: Point) -> PyTree[Seeds | None] | None:
    """Return the directions of a table, `None` if they save nothing.

    Args:
        table: The directions.
        x: The point. A leaf that no direction moves has `None`.
    """
    leaves, treedef = jax.tree.flatten(x)
    if any(map(is_divided_by_type, leaves)):
        return None
    starts = [0, *itertools.accumulate(leaf.size for leaf in leaves)]
    direction, column = np.nonzero(table.values)
    place = table.places[direction, column]
    value = table.values[direction, column]
    made: list[Seeds | None] = []
    for start, leaf in zip(starts, leaves, strict=False):
        here = (place >= start) & (place < start + leaf.size)
        found = _sparse(direction[here], place[here] - start, value[here], leaf.shape)
        if found is not None and 2 * found.support.slots > len(table.places):
            return None
        made.append(found)
    return treedef.unflatten(made)


def _units(start: int, shape: tuple[int, ...]) -> Seeds:
    size = int(np.prod(shape))
    of = np.arange(start, start + size, dtype=np.int32).reshape(1, *shape)
    ones = np.ones((1, *shape))
    return Seeds(ones, support(of, ones.astype(bool)))


def _sparse(
    direction: np.ndarray, place: np.ndarray, value: np.ndarray, shape: tuple[int, ...]
) -> Seeds | None:
    """Return the seeds of one leaf, given the entries that are not zero."""
    if not place.size:
        return None
    size = int(np.prod(shape))
    order = np.argsort(place, kind="stable")
    direction, place, value = direction[order], place[order], value[order]
    counts = np.bincount(place, minlength=size)
    rank = np.arange(place.size) - (np.cumsum(counts) - counts)[place]
    slots = int(counts.max())
    of = np.zeros((slots, size), np.int32)
    values, live = np.zeros((slots, size)), np.zeros((slots, size), bool)
    of[rank, place], values[rank, place], live[rank, place] = direction, value, True
    whole = (slots, *shape)
    return Seeds(values.reshape(whole), support(of.reshape(whole), live.reshape(whole)))
