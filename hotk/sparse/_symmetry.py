"""Whether a sparse matrix is symmetric, if its pattern does not tell."""

import numpy as np
from jaxtyping import Array, Inexact

from hotk._core import Tracer

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
    numbers = np.asarray(values)
    if numbers.dtype.char not in "fd":
        return pattern
    eps = _ROUNDING * float(np.finfo(numbers.dtype).eps)
    numbers = numbers.astype(float)
    diagonal = np.zeros(n)
    at = pattern.rows == pattern.cols
    diagonal[pattern.rows[at]] = np.abs(numbers[at])
    # Terms of a semi-definite sum are no larger than the roots of the diagonal.
    terms = np.sqrt(diagonal[pattern.rows] * diagonal[pattern.cols])
    largest = np.maximum(np.maximum(np.abs(numbers), np.abs(numbers[order])), terms)
    if not (np.abs(numbers - numbers[order]) <= eps * largest).all():
        return pattern
    return pattern.derived("symmetric", lambda: _as_symmetric(pattern))


def _as_symmetric(pattern: Pattern) -> Pattern:
    return Pattern(
        pattern.rows,
        pattern.cols,
        pattern.shape,
        output=pattern.output,
        input=pattern.input,
        symmetric=True,
    )
