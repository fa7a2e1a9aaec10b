"""The axes of pieces: summed where nothing moves, the longest one last, split."""

import jax.numpy as jnp
import numpy as np

from ._coefficients import is_number, reshaped, short_sum, times
from ._linear import Linear, Piece
from ._positions import Positions, size_of


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
