"""Products of a sparse matrix with vectors, and with another sparse matrix."""

import jax
import numpy as np
from jaxtyping import Array, Inexact, Int32

from hotk._dense import promoted
from hotk._prepared import check_bytes

from ._pattern import Pattern


def product(
    pattern: Pattern, values: Inexact[Array, " nnz"], v: Inexact[Array, "n *columns"]
) -> Inexact[Array, "m *columns"]:
    """Multiply a matrix with a vector, or with the columns of a dense matrix."""
    dtype = promoted(values.dtype, v.dtype)
    values, v = values.astype(dtype), v.astype(dtype)
    taken = v.at[pattern.cols].get(mode="promise_in_bounds")
    terms = values.reshape(-1, *[1] * (v.ndim - 1)) * taken
    return jax.ops.segment_sum(
        terms, pattern.rows, pattern.shape[0], indices_are_sorted=True
    )


def sparse_product(a: Pattern, b: Pattern) -> tuple[Pattern, Int32[np.ndarray, "3 k"]]:
    """Return the pattern of a product of two matrices, and what its entries are.

    The terms of the sum over the inner index, in the order of the entries that they
    belong to: the entry of the first matrix, that of the second, and that of the
    product.
    """
    return a.derived(("product", b.content), lambda: _sparse_product(a, b))


def _sparse_product(a: Pattern, b: Pattern) -> tuple[Pattern, Int32[np.ndarray, "3 k"]]:
    (m, _), (_, n) = a.shape, b.shape
    counts = np.diff(b.starts)[a.cols].astype(np.int64)
    total = int(counts.sum())
    check_bytes("A @ B", a.nnz + b.nnz, 24 * total, "`A @ (B @ v)` for products")
    left = np.repeat(np.arange(a.nnz), counts)
    # the k-th term of an entry of `a` is the k-th entry of the row of `b` it meets
    offset = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    right = b.starts[a.cols][left] + offset
    key = a.rows[left].astype(np.int64) * n + b.cols[right]
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.ones(key.size, bool)
    first[1:] = key[1:] != key[:-1]
    place = np.cumsum(first) - 1
    rows, cols = np.divmod(key[first], max(n, 1))
    terms = np.stack([left[order], right[order], place]).astype(np.int32)
    terms.setflags(write=False)
    pattern = Pattern(rows, cols, (m, n), output=a.output, input=b.input)
    return pattern, terms
