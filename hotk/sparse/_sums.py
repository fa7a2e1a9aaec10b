"""Entries of one position added: sorted by position, then group by group."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._coefficients import as_array, taken, written
from ._pieces import Linear, Piece
from ._positions import Positions, size_of


# Entries of one position are added in so many steps at most; more, as those of a number
# that all others depend on, as one sum.
_MOST_TERMS = 32
# So many of these sums are written one by one.
_FEW_SUMS = 8
# A table may have so many entries for each number that is looked up in it.
_TABLE = 8
# Fewer entries are added in one operation, which is slower and compiles faster.
_SHORT = 2000


def coalesced(a: Linear, columns: int, dtype: np.dtype) -> Linear:
    """Return an array as one piece, in which each position occurs once.

    Args:
        a: The array.
        columns: The number of entries of `v`.
        dtype: Its dtype.
    """
    pieces = [p for p in a.pieces if p.size]
    if not pieces:
        return Linear(a.shape, ())
    rows = np.concatenate([p.all_rows().reshape(-1) for p in pieces])
    cols = np.concatenate([p.columns.reshape(-1) for p in pieces])
    if pieces[0].values is None:
        keys = distinct(rows * columns + cols, size_of(a.shape) * columns)
        return Linear(a.shape, (Piece(None, *np.divmod(keys, columns)),))
    order, first, counts = sorted_positions(rows, cols, columns)
    parts = Parts([as_array(p.values, p.shape, dtype).reshape(-1) for p in pieces])
    values, placed = summed(parts, order, first, counts)
    at = order[first][placed]
    return Linear(a.shape, (Piece(values, rows[at], cols[at]),))


def distinct(keys: Positions, count: int) -> Positions:
    """Return the different numbers among some below `count`, ascending.

    Where most numbers are among them a table of all is faster than to sort, by ten.
    """
    if count > _TABLE * keys.size:
        keys = np.sort(keys)  # which `np.unique` does by a table of hashes, slowly
        return keys[np.append(True, keys[1:] != keys[:-1])] if keys.size else keys
    table = np.zeros(count, bool)
    table[keys] = True
    return np.flatnonzero(table)


def sorted_positions(
    rows: Positions, cols: Positions, columns: int
) -> tuple[Positions, Positions, Positions]:
    """Sort positions; return the order, where each position begins, and its entries."""
    keys = rows * columns + cols
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    new = np.ones(keys.size, bool)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new)
    return order, first, np.diff(np.append(first, keys.size))


def read_at(a: Array, places: Positions) -> Array:
    """Return the entries of an array of one axis at places."""
    return jnp.broadcast_to(taken(a, places), places.shape)


class Parts:
    """Arrays that are read as one after the other; joined only if it is needed."""

    def __init__(self, parts: list[Array]) -> None:
        self.parts = parts
        self.bounds = np.cumsum([0, *(part.size for part in parts)])
        self._whole: Array | None = None

    def whole(self) -> Array:
        """Return all of them as one array."""
        if self._whole is None:
            one = len(self.parts) == 1
            self._whole = written(self.parts[0] if one else jnp.concatenate(self.parts))
        return self._whole

    def read(self, places: Positions) -> Array:
        """Return the entries at places, in any order."""
        return read_at(self.whole(), places)

    def read_sorted(self, places: Positions) -> Array:
        """Return the entries at sorted places: by slices, if these are few."""
        runs = np.flatnonzero(np.diff(places) != 1)
        if runs.size > 16 + 2 * len(self.parts):
            return self.read(places)
        slices = []
        for k, part in enumerate(self.parts):
            low, high = np.searchsorted(places, self.bounds[k : k + 2])
            own = places[low:high] - self.bounds[k]
            breaks = np.flatnonzero(np.diff(own) != 1)
            begins = np.append(0, breaks + 1) if own.size else []
            ends = np.append(breaks, own.size - 1) if own.size else []
            for i, j in zip(begins, ends, strict=True):
                slices.append(part[int(own[i]) : int(own[j]) + 1])
        return slices[0] if len(slices) == 1 else jnp.concatenate(slices)


def summed(
    parts: Parts, order: Positions, first: Positions, counts: Positions
) -> tuple[Array, Positions]:
    """Add the entries of each position.

    Returns:
        The sums, in an order in which they are cheap, and the position of each.
    """
    if order.size <= _SHORT:
        segments = np.repeat(np.arange(first.size, dtype=np.int32), counts)
        return _segment_sum(parts, order, segments, first.size), np.arange(first.size)
    sums: list[Array] = []
    places: list[Positions] = []
    for count in np.unique(counts[counts <= _MOST_TERMS]):
        here = np.flatnonzero(counts == count)
        source = order[first[here][:, None] + np.arange(count)]
        if count == 1:
            by_place = np.argsort(source[:, 0], kind="stable")
            here = here[by_place]
            sums.append(parts.read_sorted(source[by_place, 0]))
        else:
            terms = [parts.read(source[:, q]) for q in range(count)]
            sums.append(sum(terms[1:], terms[0]))
        places.append(here)
    many = np.flatnonzero(counts > _MOST_TERMS)
    if many.size:
        sums.append(_long_sums(parts, order, first[many], counts[many]))
        places.append(many)
    return jnp.concatenate(sums), np.concatenate(places)


def _long_sums(
    parts: Parts, order: Positions, first: Positions, counts: Positions
) -> Array:
    """Add the entries of positions that have many."""
    runs = [order[i : i + k] for i, k in zip(first, counts, strict=True)]
    if len(runs) <= _FEW_SUMS:
        return jnp.stack([jnp.sum(parts.read_sorted(np.sort(run))) for run in runs])
    segments = np.repeat(np.arange(len(runs), dtype=np.int32), counts)
    return _segment_sum(parts, np.concatenate(runs), segments, len(runs))


def _segment_sum(
    parts: Parts, places: Positions, segments: np.ndarray, count: int
) -> Array:
    terms = parts.read(places)
    return jax.ops.segment_sum(terms, segments, count, indices_are_sorted=True)
