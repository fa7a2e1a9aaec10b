"""Positions of the entries of a pattern, checked."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from jaxtyping import Int32, PyTree

from hotk._core import StructureError, describe, message
from hotk._dense import dimension


class AbstractPattern(Protocol):
    """What is checked of a pattern; see there."""

    rows: Int32[np.ndarray, " nnz"]
    cols: Int32[np.ndarray, " nnz"]
    shape: tuple[int, int]
    symmetric: bool

    @property
    def output(self) -> PyTree:
        """The tree of the vectors that a product gives."""

    @property
    def input(self) -> PyTree:
        """The tree of the vectors that it multiplies."""


def as_positions(given: npt.ArrayLike) -> Int32[np.ndarray, " nnz"]:
    """Return read-only indices that nobody else can write into."""
    given = np.asarray(given)
    if given.dtype == np.int32 and not given.flags.writeable and given.base is None:
        return given  # those of another pattern
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"`Pattern(rows, cols)`: {describe(given)} are no integers.")
    if given.size and given.max() > np.iinfo(np.int32).max:
        raise StructureError(
            f"`Pattern(rows, cols)`: an entry stands at {given.max()}; rows and "
            "columns are numbered by 32 bits."
        )
    indices = np.array(given, np.int32)
    indices.setflags(write=False)
    return indices


def check_positions(pattern: AbstractPattern) -> None:
    """See that positions are in order, each once, and fit to shape and trees.

    Raises:
        StructureError: If they do not.
    """
    rows, cols, (m, n) = pattern.rows, pattern.cols, pattern.shape
    sizes = dimension(pattern.output), dimension(pattern.input)
    problem = got = ""
    if rows.ndim != 1 or rows.shape != cols.shape:
        problem = "`rows` and `cols` must be two lists of one length."
        got = f"{describe(rows)} and {describe(cols)}"
    elif sizes != (m, n):
        problem = "the trees do not fit to the shape."
        got = f"trees of {sizes[0]} and {sizes[1]} numbers"
    elif rows.size and not _are_all(rows, cols, m, n):
        if min(rows.min(), cols.min()) < 0 or rows.max() >= m or cols.max() >= n:
            problem = "an entry stands outside of the matrix."
            got = (
                f"rows {rows.min()} to {rows.max()}, columns {cols.min()} to "
                f"{cols.max()}"
            )
        else:
            step = np.diff(rows)
            wrong = np.flatnonzero((step < 0) | ((step == 0) & (np.diff(cols) <= 0)))
            if wrong.size:
                k = int(wrong[0])
                problem = "entries must be sorted by row, then column, each once."
                got = (
                    f"({rows[k]}, {cols[k]}) before ({rows[k + 1]}, {cols[k + 1]}), "
                    f"entries {k} and {k + 1}"
                )
    if pattern.symmetric and not problem and not _is_mirrored(rows, cols, m, n):
        problem = "`symmetric=True`, and an entry has no mirror image."
        got = f"{rows.size} entries; give both halves"
    if problem:
        raise StructureError(
            message(
                "Pattern(rows, cols, shape)",
                problem,
                expected=f"positions in {m} rows and {n} columns",
                got=got,
                fix="`hotk.SparseMatrix.from_coo` sorts entries and adds those of one "
                "position.",
            )
        )


def _is_mirrored(rows: np.ndarray, cols: np.ndarray, m: int, n: int) -> bool:
    """Whether the positions of a pattern are those of its transpose."""
    if m == n and rows.size == m * n:
        return True
    below, above = rows > cols, rows < cols
    if m != n or below.sum() != above.sum():
        return False
    lower = rows[below].astype(np.int64) * n + cols[below]  # ascending, as they stand
    upper = cols[above].astype(np.int64) * n + rows[above]
    return np.array_equal(lower, np.sort(upper))


def _are_all(rows: np.ndarray, cols: np.ndarray, m: int, n: int) -> bool:
    """Whether positions are those of a dense matrix, which is seen at once."""
    if rows.size != m * n:
        return False
    numbers = np.arange(max(m, n))
    same = (rows.reshape(m, n) == numbers[:m, None]).all()
    return bool(same and (cols.reshape(m, n) == numbers[:n]).all())
