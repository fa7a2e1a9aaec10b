"""The entries of a matrix to be read: of a symmetric one its lower half alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._coefficients import Coefficient, as_array, plus, times
from ._linear import Piece
from ._merge import are_equal
from ._positions import Positions


class AddedNumbers(NamedTuple):
    """Numbers that are added to entries of a matrix.

    Attributes:
        values: An array of one axis; `None` where only a pattern is asked for.
        places: Which of them are added; `None` for all.
        rows: The row that each is added to.
        cols: The column.
    """

    values: Coefficient
    places: Positions | None
    rows: Positions
    cols: Positions


def all_terms(pieces: Sequence[Piece], dtype: np.dtype) -> list[AddedNumbers]:
    """Return all entries of pieces."""
    return [
        AddedNumbers(
            _flat(p, dtype), None, p.all_rows().reshape(-1), p.columns.reshape(-1)
        )
        for p in pieces
    ]


def lower_terms(pieces: Sequence[Piece], dtype: np.dtype) -> list[AddedNumbers]:
    """Return what adds up to the lower half of a symmetric matrix.

    A piece above the diagonal is left out, as it is the mirror image of what is below.
    The others are read where they are below. Two pieces that are mirror images of each
    other in their positions, as those of an edge of a mesh and of the same edge seen
    from its other end, are halved and added instead: nothing is to be chosen among
    their entries at run time. That takes the mean of an entry and its mirror image.
    """
    terms = all_terms(pieces, dtype)
    valued = all(term.values is not None for term in terms)
    below = [term.rows >= term.cols for term in terms]
    mixed = [i for i, mask in enumerate(below) if mask.any() and not mask.all()]
    paired = _paired(terms, mixed) if valued else None
    whole = [t for t, mask in zip(terms, below, strict=True) if mask.all()]
    if paired is not None and not _meet(whole, paired):
        return whole + paired
    for i in mixed:
        places = np.flatnonzero(below[i])
        rows, cols = terms[i].rows[places], terms[i].cols[places]
        whole.append(AddedNumbers(terms[i].values, places, rows, cols))
    return whole


def _flat(piece: Piece, dtype: np.dtype) -> Coefficient:
    if piece.values is None:
        return None
    return as_array(piece.values, piece.shape, dtype).reshape(-1)


def _paired(terms: list[AddedNumbers], mixed: list[int]) -> list[AddedNumbers] | None:
    """Return the means of mirror images, `None` if a piece has none."""
    means: list[AddedNumbers] = []
    left = list(mixed)
    while left:
        first = terms[left.pop(0)]
        for j in left:
            other = terms[j]
            mirrored = are_equal(first.rows, other.cols)
            if mirrored and are_equal(first.cols, other.rows):
                break
        else:
            return None
        if (first.rows == first.cols).any():
            return None  # twice on the diagonal
        left.remove(j)
        values = times(plus(first.values, other.values), 0.5)
        rows, cols = (
            np.maximum(first.rows, first.cols),
            np.minimum(first.rows, first.cols),
        )
        means.append(AddedNumbers(values, None, rows, cols))
    return means


def _meet(a: list[AddedNumbers], b: list[AddedNumbers]) -> bool:
    """Whether terms of two kinds are added to one entry."""
    if not a or not b:
        return False
    columns = 1 + max(int(t.cols.max(initial=0)) for t in (*a, *b))
    keys = lambda terms: np.concatenate([t.rows * columns + t.cols for t in terms])
    return bool(np.isin(keys(b), keys(a)).any())
