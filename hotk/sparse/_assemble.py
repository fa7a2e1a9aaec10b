"""From pieces to a sparse matrix: entries sorted, those of one position added."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._coefficients import as_array
from ._merge import merged
from ._pieces import Linear, Piece
from ._positions import Positions
from ._sums import Parts, read_at, sorted_positions, summed


class Entries(NamedTuple):
    """The entries of a sparse matrix, sorted by row, then column.

    Attributes:
        values: The values; `None` where only the pattern is asked for.
        rows: Their rows.
        cols: Their columns.
    """

    values: Array | None
    rows: Positions
    cols: Positions


def assemble(a: Linear, columns: int, dtype: np.dtype, *, symmetric: bool) -> Entries:
    """Add the pieces of a vector that is linear in `v`.

    Args:
        a: An array of one axis.
        columns: The number of entries of `v`.
        dtype: The dtype of the values.
        symmetric: Whether to take the lower half alone, and mirror it.
    """
    a = merged(a, dtype)
    pieces = [_cut(piece, symmetric) for piece in a.pieces]
    pieces = [piece for piece in pieces if piece is not None]
    rows = _joined([piece.all_rows() for piece in pieces])
    cols = _joined([piece.columns for piece in pieces])
    order, first, counts = sorted_positions(rows, cols, columns)
    at = order[first]
    found = Entries(None, rows[at], cols[at])
    valued = all(piece.values is not None for piece in pieces)
    if not pieces:
        return Entries(jnp.zeros((0,), dtype), found.rows, found.cols)
    if not valued:
        return _arranged(found, None, columns, symmetric)
    parts = [as_array(p.values, p.columns.shape, dtype).reshape(-1) for p in pieces]
    values, placed = summed(Parts(parts), order, first, counts)
    # `placed[k]` is the position whose value is entry `k`.
    index = np.empty_like(placed)
    index[placed] = np.arange(placed.size)
    return _arranged(found, (values, index), columns, symmetric)


def _cut(piece: Piece, symmetric: bool) -> Piece | None:
    """Flatten a piece; of a symmetric matrix keep what is not above the diagonal."""
    rows = piece.all_rows().reshape(-1)
    columns = piece.columns.reshape(-1)
    values = piece.values
    if values is not None:
        values = jnp.broadcast_to(jnp.asarray(values), piece.shape).reshape(-1)
    if symmetric:
        below = rows >= columns
        if not below.any():
            return None
        if not below.all():
            places = np.flatnonzero(below)
            rows, columns = rows[places], columns[places]
            values = None if values is None else read_at(values, places)
    return Piece(values, rows, columns) if rows.size else None


def _joined(parts: Sequence[Positions]) -> Positions:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _arranged(
    lower: Entries,
    values: tuple[Array, Positions] | None,
    columns: int,
    symmetric: bool,
) -> Entries:
    """Return entries in order, mirrored if only the lower half is there."""
    rows, cols = lower.rows, lower.cols
    source = np.arange(rows.size)
    if symmetric:
        off = np.flatnonzero(rows != cols)
        source = np.concatenate([source, off])
        rows, cols = (
            np.concatenate([rows, cols[off]]),
            np.concatenate([cols, rows[off]]),
        )
        order = np.argsort(rows * columns + cols, kind="stable")
        rows, cols, source = rows[order], cols[order], source[order]
    if values is None:
        return Entries(None, rows, cols)
    found, index = values
    return Entries(read_at(found, index[source]), rows, cols)
