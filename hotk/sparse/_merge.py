"""Sums of arrays: equal pieces become one, and so do pieces on one diagonal."""

import itertools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ._coefficients import as_array, plus
from ._linear import Linear, Piece
from ._positions import Positions, Shape, every, grid, size_of, strides, unravel


# With fewer pieces it takes longer to look for diagonals than to carry the pieces on.
_FEW = 6
# The ends of a diagonal are pieces of their own if what is between them is so long.
_LONG = 2000

_Box = tuple[tuple[int, ...], tuple[int, ...]]


def added(a: Linear, b: Linear, dtype: np.dtype) -> Linear:
    """Return the sum of two arrays of one shape.

    Args:
        a: One of them.
        b: The other.
        dtype: Their dtype.
    """
    pieces = list(a.pieces)
    for piece in b.pieces:
        for i, known in enumerate(pieces):
            if _are_same(known, piece):
                values = plus(known.values, piece.values)
                pieces[i] = Piece(values, known.rows, known.columns)
                break
        else:
            pieces.append(piece)
    total = Linear(a.shape, tuple(pieces))
    return merged(total, dtype) if len(pieces) > _FEW else total


def same_entries(a: Linear, b: Linear) -> bool:
    """Whether two arrays have the same pieces, whatever the values."""
    pairs = zip(a.pieces, b.pieces, strict=False)
    return len(a.pieces) == len(b.pieces) and all(_are_same(p, q) for p, q in pairs)


def _are_same(a: Piece, b: Piece) -> bool:
    if a.shape != b.shape or (a.rows is None) != (b.rows is None):
        return False
    return are_equal(a.columns, b.columns) and are_equal(a.rows, b.rows)


def are_equal(a: Positions | None, b: Positions | None) -> bool:
    """Whether positions are the same."""
    if a is b:
        return True
    if a is None or b is None:
        return False
    if not a.size:
        return True
    # Most that differ do so at an end.
    first, last = (0,) * a.ndim, (-1,) * a.ndim
    return a[first] == b[first] and a[last] == b[last] and np.array_equal(a, b)


def without_repetition(a: Linear) -> Linear:
    """Add the pieces that are equal but for their values."""
    found: dict[tuple[int, ...], list[Piece]] = {}
    for piece in a.pieces:
        ends = [
            int(p[at])
            for p in (piece.columns, piece.all_rows())
            for at in ((0,) * p.ndim, (-1,) * p.ndim)
            if p.size
        ]
        alike = found.setdefault((*piece.shape, *ends), [])
        for i, known in enumerate(alike):
            if _are_same(known, piece):
                values = plus(known.values, piece.values)
                alike[i] = Piece(values, known.rows, known.columns)
                break
        else:
            alike.append(piece)
    return Linear(a.shape, tuple(p for alike in found.values() for p in alike))


def merged(a: Linear, dtype: np.dtype) -> Linear:
    """Merge the pieces on one diagonal (column minus row) whose boxes fill a box.

    A stencil makes a piece for each of its points; where stencils of stencils meet on
    a diagonal, one piece of the whole box is cheaper than several of its parts.
    """
    if not a.shape:
        return a
    others: list[Piece] = []
    diagonals: dict[int, list[tuple[Piece, _Box]]] = {}
    for piece in a.pieces:
        if not piece.size:
            continue
        box, offset = _box(piece, a.shape), _offset(piece)
        if box is None or offset is None:
            others.append(piece)
        else:
            diagonals.setdefault(offset, []).append((piece, box))
    for offset, group in diagonals.items():
        whole = None if len(group) == 1 else _union([box for _, box in group])
        if whole is None:
            others.extend(piece for piece, _ in group)
        else:
            boxes = _apart([box for _, box in group], whole)
            others += [_on_box(group, box, offset, a.shape, dtype) for box in boxes]
    return Linear(a.shape, tuple(others))


def _offset(piece: Piece) -> int | None:
    """Return column minus row, `None` if it is not the same for all entries."""
    difference = piece.columns - piece.all_rows()
    first = int(difference[(0,) * difference.ndim])
    return first if (difference == first).all() else None


def _box(piece: Piece, shape: Shape) -> _Box | None:
    """Return the box of the array that the rows run through in order, if they do."""
    if piece.rows is None:
        return (0,) * len(shape), shape
    rows = piece.rows.reshape(-1)
    first = [int(i) for i in unravel(rows[0], shape)]
    last = [int(i) for i in unravel(rows[-1], shape)]
    lengths = [b - a + 1 for a, b in zip(first, last, strict=True)]
    if min(lengths) < 1 or size_of(lengths) != rows.size:
        return None
    if not np.array_equal(_rows_of(first, lengths, shape).reshape(-1), rows):
        return None
    return tuple(first), tuple(i + 1 for i in last)


def _rows_of(first: list[int], lengths: list[int], shape: Shape) -> Positions:
    steps = strides(shape)
    base = sum(i * s for i, s in zip(first, steps, strict=True))
    return grid(lengths, steps, base)


def _union(boxes: list[_Box]) -> _Box | None:
    """Return the box that boxes fill together, `None` if they leave a gap in it."""
    low = np.min([box[0] for box in boxes], axis=0)
    high = np.max([box[1] for box in boxes], axis=0)
    covered = np.zeros(high - low, bool)
    for first, end in boxes:
        covered[tuple(map(slice, first - low, end - low))] = True
    if not covered.all():
        return None
    return tuple(map(int, low)), tuple(map(int, high))


def _apart(boxes: list[_Box], whole: _Box) -> list[_Box]:
    """Cut what boxes of one axis fill where one of them ends, but for short parts.

    In a long part the same boxes have values everywhere: no zero is filled in there,
    which takes longer than the sum. Short parts that follow each other are one.
    """
    if len(whole[0]) != 1:
        return [whole]
    bounds = sorted({corner[0] for box in boxes for corner in box})
    parts: list[_Box] = []
    was_short = False
    for a, b in itertools.pairwise(bounds):
        is_short = b - a < _LONG
        if is_short and was_short:
            (a,), _ = parts.pop()
        parts.append(((a,), (b,)))
        was_short = is_short
    return parts


def _on_box(
    group: list[tuple[Piece, _Box]],
    box: _Box,
    offset: int,
    shape: Shape,
    dtype: np.dtype,
) -> Piece:
    """Add pieces of one diagonal where they are in a box, as one piece."""
    low, high = box
    lengths = tuple(b - a for a, b in zip(low, high, strict=True))
    total = None
    for piece, own in group:
        if piece.values is None:
            total = None
            break
        values = _values_on(piece, own, box, dtype)
        if values is not None:
            total = values if total is None else total + values
    if lengths == shape:
        return Piece(total, None, every(shape) + offset)
    rows = _rows_of(list(low), list(lengths), shape)
    return Piece(total, rows, rows + offset)


def _values_on(piece: Piece, own: _Box, box: _Box, dtype: np.dtype) -> Array | None:
    """Return the values of a piece, whose box is `own`, on another one."""
    first, end = (np.asarray(corner) for corner in own)
    low, high = (np.asarray(corner) for corner in box)
    begin, stop = np.maximum(first, low), np.minimum(end, high)
    if (begin >= stop).any():
        return None
    values = as_array(piece.values, piece.shape, dtype).reshape(end - first)
    if (begin > first).any() or (stop < end).any():
        values = lax.slice(values, tuple(begin - first), tuple(stop - first))
    if (begin > low).any() or (stop < high).any():
        margins = [
            (int(a), int(b), 0) for a, b in zip(begin - low, high - stop, strict=True)
        ]
        values = lax.pad(values, jnp.zeros((), dtype), margins)
    return values
