"""Sums and products of sparse matrices: on patterns once, on values each time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int32

from hotk._core import StructureError, Tracer, describe, describe_tree, message
from hotk._dense import promoted

from ._forms import AbstractForms
from ._pattern import Pattern
from ._positions import distinct
from ._vectors import check_one, is_one_axis, sparse_product


def added(a: AbstractForms, b: AbstractForms) -> tuple[Inexact[Array, " nnz"], Pattern]:
    """Return values and pattern of a sum."""
    p, q = a.pattern, b.pattern
    if p.shape != q.shape:
        raise _mismatch("A + B", p, q, f"a matrix of shape {p.shape}", f"{q.shape}")
    dtype = promoted(a.values.dtype, b.values.dtype)
    left, right = a.values.astype(dtype), b.values.astype(dtype)
    if p == q:
        return left + right, p
    union, at_left, at_right = p.derived(("sum", q.content), lambda: _union(p, q))
    if at_left is not None:
        left = (
            jnp.zeros((*left.shape[:-1], union.nnz), dtype)
            .at[..., at_left]
            .set(left, unique_indices=True, indices_are_sorted=True)
        )
    if at_right is None:
        return left + right, union
    return left.at[..., at_right].add(
        right, unique_indices=True, indices_are_sorted=True
    ), union


def multiplied(
    a: AbstractForms, b: AbstractForms
) -> tuple[Inexact[Array, " nnz"], Pattern]:
    """Return values and pattern of a product."""
    p, q = a.pattern, b.pattern
    if p.shape[1] != q.shape[0]:
        raise _mismatch(
            "A @ B", p, q, f"a matrix of {p.shape[1]} rows", f"{q.shape[0]} rows"
        )
    check_one(a.values)
    check_one(b.values)
    pattern, (left, right, place) = sparse_product(p, q)
    dtype = promoted(a.values.dtype, b.values.dtype)
    terms = a.values.astype(dtype)[left] * b.values.astype(dtype)[right]
    if place.size == pattern.nnz:
        return terms, pattern
    return jax.ops.segment_sum(
        terms, place, pattern.nnz, indices_are_sorted=True
    ), pattern


def scaled(
    values: Inexact[Array, " nnz"], factor: Any, *, divide: bool = False
) -> Inexact[Array, " nnz"] | None:
    """Return multiples of values, `None` if the factor is not a number.

    Raises:
        TypeError: If the factor is an array of several numbers.
    """
    if not isinstance(factor, (bool, int, float, complex, np.generic, np.ndarray)):
        if not isinstance(factor, jax.Array):
            return None
    elif not isinstance(factor, (np.generic, np.ndarray)):
        # a Python number takes the dtype of the values, as it does in JAX
        if isinstance(factor, complex):
            values = values.astype(promoted(values.dtype, jnp.complex64))
        return values / factor if divide else values * factor
    if np.ndim(factor):
        raise TypeError(
            f"a sparse matrix is multiplied by numbers, not by {describe(factor)}. "
            "`A @ v` is a product with a vector, `hotk.sparse.diagonal(d) @ A` scales "
            "rows, `A @ hotk.sparse.diagonal(d)` scales columns."
        )
    factor = jnp.asarray(factor)
    dtype = promoted(values.dtype, factor.dtype)
    values, factor = values.astype(dtype), factor.astype(dtype)
    return values / factor if divide else values * factor


def _union(
    p: Pattern, q: Pattern
) -> tuple[Pattern, Int32[np.ndarray, " a"] | None, Int32[np.ndarray, " b"] | None]:
    """Return the positions of either pattern, and where those of each stand in them.

    `None` if a pattern has all of them.
    """
    n = max(p.shape[1], 1)
    keys = [each.rows.astype(np.int64) * n + each.cols for each in (p, q)]
    key = distinct(np.concatenate(keys))
    rows, cols = np.divmod(key, n)
    # A matrix of flat arrays, as from SciPy, takes the trees of the other one.
    of_output, of_input = (
        p if not is_one_axis(tree) else q for tree in (p.output, p.input)
    )
    pattern = Pattern(
        rows,
        cols,
        p.shape,
        output=of_output.output,
        input=of_input.input,
        symmetric=p.symmetric and q.symmetric,
    )
    places = [
        None if each.size == key.size else np.searchsorted(key, each).astype(np.int32)
        for each in keys
    ]
    # one object for the union and the pattern, where they are equal: no second hash
    return (p if pattern == p else pattern), places[0], places[1]


def _mismatch(
    call: str, p: Pattern, q: Pattern, expected: str, got: str
) -> StructureError:
    return StructureError(
        message(
            call,
            "the matrices do not fit together.",
            expected=expected,
            got=got,
            fix=f"The first is applied to {describe_tree(p.input)}, the second to "
            f"{describe_tree(q.input)}.",
        )
    )


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
    roots = np.sqrt(diagonal)
    terms = roots[pattern.rows] * roots[pattern.cols]
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
