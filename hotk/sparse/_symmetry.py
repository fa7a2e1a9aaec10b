"""Whether a sparse matrix is symmetric, if its pattern does not tell."""

import numpy as np
from jaxtyping import Array, Inexact

from hotk._core import StructureError, Tracer, message

from ._pattern import Pattern


# Of a sum of products, as those of `A.T @ D @ A`, in units of rounding.
_ROUNDING = 100


def symmetric_if_seen(pattern: Pattern, values: Inexact[Array, " nnz"]) -> Pattern:
    """Return the pattern, called symmetric if the matrix is, up to rounding."""
    m, n = pattern.shape
    if pattern.symmetric or m != n or isinstance(values, Tracer) or values.ndim != 1:
        return pattern
    turned, order = pattern.transposed()
    same = np.array_equal(turned.rows, pattern.rows)
    if not same or not np.array_equal(turned.cols, pattern.cols):
        return pattern
    if np.dtype(values.dtype).char not in "fd":
        return pattern
    if not _halves_differ(pattern, np.asarray(values), order):
        return pattern.derived("symmetric", lambda: _as_symmetric(pattern))
    return pattern


def check_halves(pattern: Pattern, values: Inexact[Array, " nnz"]) -> None:
    """Refuse values that are known and whose halves differ by more than rounding.

    Raises:
        StructureError: If they do, and the pattern is called symmetric.
    """
    known = not isinstance(values, Tracer) and values.ndim == 1
    if not (pattern.symmetric and known and np.dtype(values.dtype).char in "fd"):
        return
    numbers, (_, order) = np.asarray(values), pattern.transposed()
    if np.isfinite(numbers).all() and _halves_differ(pattern, numbers, order):
        k = int(np.argmax(np.abs(numbers - numbers[order])))
        row, col = pattern.rows[k], pattern.cols[k]
        raise StructureError(
            message(
                "SparseMatrix.from_coo(values, rows, cols, symmetric=True)",
                "the two halves differ.",
                expected=f"{numbers[k]} at ({col}, {row}), as at ({row}, {col})",
                got=f"{numbers[order][k]}",
                fix="Leave `symmetric` out; `.symmetrized()` takes the mean of both.",
            )
        )


def _halves_differ(pattern: Pattern, numbers: np.ndarray, order: np.ndarray) -> bool:
    n = pattern.shape[0]
    eps = _ROUNDING * float(np.finfo(numbers.dtype).eps)
    numbers = numbers.astype(float)
    diagonal = np.zeros(n)
    at = pattern.rows == pattern.cols
    diagonal[pattern.rows[at]] = np.abs(numbers[at])
    # Terms of a semi-definite sum are no larger than the roots of the diagonal.
    terms = np.sqrt(diagonal[pattern.rows] * diagonal[pattern.cols])
    largest = np.maximum(np.maximum(np.abs(numbers), np.abs(numbers[order])), terms)
    return not (np.abs(numbers - numbers[order]) <= eps * largest).all()


def _as_symmetric(pattern: Pattern) -> Pattern:
    return Pattern(
        pattern.rows,
        pattern.cols,
        pattern.shape,
        output=pattern.output,
        input=pattern.input,
        symmetric=True,
    )
