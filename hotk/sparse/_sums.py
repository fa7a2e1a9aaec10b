"""Entries of one position added: sorted by position, then group by group."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._core import whole
from hotk._primitive import written

from ._coefficients import as_array
from ._linear import Linear, Piece
from ._parts import Parts
from ._positions import Positions, distinct, size_of
from ._shared import Multiple


# Entries of one position are added in so many steps at most; more, as those of a number
# that all others depend on, as one sum.
_MOST_TERMS = 32
# So many groups of sums are compiled one by one, and so many factors told apart.
_MOST_GROUPS, _MOST_FACTORS = 24, 8
# So many of these sums are written one by one.
_FEW_SUMS = 8
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
    arrays = [as_array(p.values, p.shape, dtype).reshape(-1) for p in pieces]
    parts = Parts([Multiple(1.0, array) for array in arrays])
    sums, placed = summed(parts, order, first, counts)
    at = order[first][placed]
    return Linear(a.shape, (Piece(written(*sums), rows[at], cols[at]),))


def sorted_positions(
    rows: Positions, cols: Positions, columns: int, kinds: Positions | None = None
) -> tuple[Positions, Positions, Positions]:
    """Sort positions; return the order, where each position begins, and its entries.

    Args:
        rows: The rows.
        cols: The columns.
        columns: How many columns there are.
        kinds: What to sort the entries of one position by.
    """
    keys = rows * columns + cols
    if kinds is None:
        order = np.argsort(keys, kind="stable")
    else:
        order = np.argsort(
            keys * (int(kinds.max(initial=0)) + 1) + kinds, kind="stable"
        )
    keys = keys[order]
    new = np.ones(keys.size, bool)
    new[1:] = keys[1:] != keys[:-1]
    first = np.flatnonzero(new)
    return order, first, np.diff(np.append(first, keys.size))


def summed(
    parts: Parts, order: Positions, first: Positions, counts: Positions
) -> tuple[list[Array], Positions]:
    """Add the entries of each position.

    Args:
        parts: The entries.
        order: The entries by position, and those of one position by their factors.
        first: Where each position begins.
        counts: How many entries it has.

    Returns:
        Arrays of the sums, in an order in which they are cheap, and the position of
        each.
    """
    if order.size <= _SHORT:
        segments = np.repeat(np.arange(first.size, dtype=np.int32), counts)
        sums = _segment_sum(parts, order, segments, first.size)
        return [sums], np.arange(first.size)
    if len(parts.factors) > _MOST_FACTORS:
        parts = parts.multiplied()
    groups = _groups(parts, order, first, counts)
    if len(groups) > _MOST_GROUPS:
        parts = parts.multiplied()
        groups = _groups(parts, order, first, counts)
    for _, entries in groups:
        parts.prepare(entries)
    sums = [part for _, entries in groups for part in parts.sums(entries)]
    places = [here for here, _ in groups]
    many = np.flatnonzero(counts > _MOST_TERMS)
    if many.size:
        sums.append(_long_sums(parts, order, first[many], counts[many]))
        places.append(many)
    return sums, np.concatenate(places)


def _groups(
    parts: Parts, order: Positions, first: Positions, counts: Positions
) -> list[tuple[Positions, Positions]]:
    """Group positions whose entries are as many and have the same factors.

    Returns:
        For each group its positions, and their entries: a row for each position.
    """
    codes = counts
    if len(parts.factors) > 1:
        # entries of each factor, as the digits of a number
        kinds = parts.kinds[order]
        codes = np.zeros(counts.size, np.int64)
        for k in range(len(parts.factors)):
            own = np.add.reduceat(kinds == k, first, dtype=np.int64)
            codes = codes * (_MOST_TERMS + 1) + own
    groups = []
    for code in np.unique(codes[counts <= _MOST_TERMS]):
        here = np.flatnonzero((codes == code) & (counts <= _MOST_TERMS))
        count = int(counts[here[0]])
        entries = order[first[here][:, None] + np.arange(count)]
        if count == 1:  # in their own order, in which they may be slices
            by_place = np.argsort(entries[:, 0], kind="stable")
            here, entries = here[by_place], entries[by_place]
        groups.append((here, entries))
    return groups


def _long_sums(
    parts: Parts, order: Positions, first: Positions, counts: Positions
) -> Array:
    """Add the entries of positions that have many."""
    runs = [order[i : i + k] for i, k in zip(first, counts, strict=True)]
    if len(runs) <= _FEW_SUMS:
        return jnp.stack([parts.total(run) for run in runs])
    segments = np.repeat(np.arange(len(runs), dtype=np.int32), counts)
    return _segment_sum(parts, np.concatenate(runs), segments, len(runs))


def _segment_sum(
    parts: Parts, entries: Positions, segments: np.ndarray, count: int
) -> Array:
    # zeros on a mesh with explicit axes are whole, and so is what is added to them
    terms = whole(parts.read(entries))
    return jax.ops.segment_sum(terms, segments, count, indices_are_sorted=True)
