"""What is done to arrays that are sums of pieces: moved, read, repeated, scaled.

Operations that move entries change `rows` alone and cost nothing at run time; products
multiply `values`; broadcasts repeat a piece.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from ._coefficients import (
    Coefficient,
    is_number,
    reshaped,
    short_sum,
    taken,
    times,
)
from ._linear import Budget, Linear, Piece
from ._positions import Positions, Shape, size_of


# A piece is split into so many at most, each of so many entries at least.
_MOST_SPLIT, _LONG = 64, 2000


def contracted(piece: Piece) -> Piece:
    """Sum over the axes along which neither rows nor columns change."""
    values, rows, columns = piece
    if rows is None:
        return piece
    for d in range(columns.ndim - 1, -1, -1):
        count = columns.shape[d]
        if count == 1 and columns.ndim > 1:
            values = reshaped(values, columns.shape, lambda v, d=d: v.squeeze(d))
            rows, columns = rows.squeeze(d), columns.squeeze(d)
        elif count > 1 and _is_level(columns, d) and _is_level(rows, d):
            if is_number(values):
                values = times(values, float(count))
            else:
                values = short_sum(jnp.broadcast_to(values, columns.shape), d, count)
            rows, columns = rows.take(0, d), columns.take(0, d)
    return longest_last(Piece(values, rows, columns))


def _is_level(positions: Positions, axis: int) -> bool:
    if positions.strides[axis] == 0:
        return True
    first = positions.take([0], axis)
    if not np.array_equal(first, positions.take([-1], axis)):
        return False
    return bool((positions == first).all())


def alongside(a: Linear) -> Linear:
    """Split pieces into those of one axis each, if these are few and long.

    Several of them often are on one diagonal, the same but for a factor, or above the
    diagonal of a symmetric matrix, where a piece of all of them is none of this.
    """
    pieces: list[Piece] = []
    for piece in a.pieces:
        piece = longest_last(Piece(piece.values, piece.all_rows(), piece.columns))
        *others, length = piece.shape or (1,)
        if length < _LONG or size_of(others) > _MOST_SPLIT:
            pieces.append(piece)
            continue
        for at in np.ndindex(*others):
            values = reshaped(piece.values, piece.shape, lambda v, at=at: v[at])
            assert piece.rows is not None
            pieces.append(Piece(values, piece.rows[at], piece.columns[at]))
    return Linear(a.shape, tuple(pieces))


def longest_last(piece: Piece) -> Piece:
    """Move the longest axis to the end, where XLA's vectors run along it."""
    if piece.columns.ndim < 2:
        return piece
    d = int(np.argmax(piece.shape))
    if d == piece.columns.ndim - 1 or piece.shape[d] < 4 * piece.shape[-1]:
        return piece
    assert piece.rows is not None
    values = reshaped(piece.values, piece.shape, lambda v: jnp.moveaxis(v, d, -1))
    return Piece(
        values, np.moveaxis(piece.rows, d, -1), np.moveaxis(piece.columns, d, -1)
    )


def moved(
    a: Linear, shape: Sequence[int], to: Callable[[Positions], Positions]
) -> Linear:
    """Move the entries of an array; those that meet are added.

    Args:
        a: The array.
        shape: The shape of the result.
        to: From flat positions in the array to those in the result, -1 for entries
            that are dropped.
    """
    pieces = []
    for piece in a.pieces:
        if not piece.size:
            continue
        rows = to(piece.all_rows())
        changed = Piece(piece.values, rows, piece.columns)
        if rows.min() < 0:
            changed = kept(changed, rows >= 0)
        if changed.size:
            pieces.append(contracted(changed))
    return Linear(tuple(shape), tuple(pieces))


def read(a: Linear, positions: Positions, budget: Budget) -> Linear:
    """Return `a.ravel()[positions]`, zero where a position is -1."""
    outside = bool(positions.size) and positions.min() < 0
    pieces = []
    for piece in a.pieces:
        if piece.rows is None and not outside:
            values = reshaped(piece.values, piece.shape, lambda v: taken(v, positions))
            columns = piece.columns.reshape(-1)[positions]
            pieces.append(Piece(values, None, columns))
            continue
        joined = _joined(piece, positions.reshape(-1), budget)
        if joined is not None:
            pieces.append(joined)
    return Linear(positions.shape, tuple(pieces))


def _joined(piece: Piece, positions: Positions, budget: Budget) -> Piece | None:
    """Return a piece read at positions: each entry once for each place it is read."""
    rows = piece.all_rows().reshape(-1)
    in_order = not (np.diff(rows) < 0).any()
    order = np.arange(rows.size) if in_order else np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    first = np.searchsorted(sorted_rows, positions, "left")
    counts = np.searchsorted(sorted_rows, positions, "right") - first
    counts[positions < 0] = 0
    total = int(counts.sum())
    budget.spend(total)
    if not total:
        return None
    places = np.repeat(np.arange(positions.size), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    source = order[np.repeat(first, counts) + within]
    if total == rows.size and np.array_equal(source, np.arange(total)):
        # All entries in their order: nothing is to be done at run time.
        return Piece(piece.values, places.reshape(piece.shape), piece.columns)
    values = reshaped(piece.values, piece.shape, lambda v: taken(v, source))
    return Piece(values, places, piece.columns.reshape(-1)[source])


def repeated(
    a: Linear,
    shape: Sequence[int],
    first: Callable[[Positions], Positions],
    offsets: Positions,
    budget: Budget,
    factor: Callable[[Positions, Shape], Coefficient] | None = None,
    nonzero: Callable[[Positions, Shape], np.ndarray] | None = None,
) -> Linear:
    """Add entry `i` of an array to each of the entries `first(i) + offsets`.

    Args:
        a: The array.
        shape: The shape of the result.
        first: From positions in the array to positions in the result.
        offsets: What is added to these, for each copy.
        budget: What the copies are paid from.
        factor: From positions in the array and the shape of the copies to what they
            are multiplied by.
        nonzero: Likewise to where that is not zero, if it is known now.
    """
    pieces = []
    copies = offsets.shape
    for piece in a.pieces:
        if not piece.size * offsets.size:
            continue
        budget.spend(piece.size * offsets.size)
        piece = longest_last(Piece(piece.values, piece.all_rows(), piece.columns))
        assert piece.rows is not None
        shifted = offsets.reshape(copies + (1,) * piece.rows.ndim)
        inner = (1,) * len(copies) + piece.shape
        rows = first(piece.rows).reshape(inner) + shifted
        columns = np.broadcast_to(piece.columns.reshape(inner), rows.shape)
        values = reshaped(
            piece.values, piece.shape, lambda v, inner=inner: v.reshape(inner)
        )
        source = piece.rows.reshape(inner)
        if factor is not None and values is not None:
            values = times(values, factor(source, rows.shape))
        made = Piece(values, rows, columns)
        if nonzero is not None:
            made = kept(made, nonzero(source, rows.shape))
        if made.size:
            pieces.append(contracted(made) if factor is not None else made)
    return Linear(tuple(shape), tuple(pieces))


def scaled(a: Linear, factor: Coefficient) -> Linear:
    """Multiply by a number or, entry by entry, by an array of the same shape."""
    if is_number(factor):
        pieces = (Piece(times(p.values, factor), p.rows, p.columns) for p in a.pieces)
        return Linear(a.shape, tuple(pieces))
    known = isinstance(factor, np.ndarray) and not np.all(factor)
    pieces = []
    for piece in a.pieces:
        if piece.values is None and not known:  # for a pattern nothing is computed
            pieces.append(piece)
            continue
        at = factor if piece.rows is None else taken(factor, piece.rows)
        made = Piece(times(piece.values, at), piece.rows, piece.columns)
        if known:  # what is multiplied by a zero that is known is no entry
            made = kept(made, np.broadcast_to(np.asarray(at) != 0, piece.shape))
        if made.size:
            pieces.append(made)
    return Linear(a.shape, tuple(pieces))


def kept(piece: Piece, mask: np.ndarray) -> Piece:
    """Return the entries of a piece where a known mask holds."""
    count = int(mask.sum())
    if count == mask.size:
        return piece
    rows = piece.all_rows()
    box = _box(mask, count)
    if box is not None:  # a slice
        values = reshaped(piece.values, piece.shape, lambda v: v[box])
        return Piece(values, rows[box], piece.columns[box])
    places = np.flatnonzero(mask)
    values = reshaped(piece.values, piece.shape, lambda v: taken(v, places))
    return Piece(values, rows.reshape(-1)[places], piece.columns.reshape(-1)[places])


def _box(mask: np.ndarray, count: int) -> tuple[slice, ...] | None:
    """Return the box that a mask holds in, `None` if it is none."""
    box, volume = [], 1
    for d in range(mask.ndim):
        other = tuple(axis for axis in range(mask.ndim) if axis != d)
        held = np.flatnonzero(mask.any(axis=other))
        if not len(held) or held[-1] - held[0] + 1 != len(held):
            return None
        box.append(slice(int(held[0]), int(held[-1]) + 1))
        volume *= len(held)
    return tuple(box) if volume == count else None
