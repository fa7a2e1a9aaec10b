"""What a sparse matrix is applied to, and the products."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int32, PyTree

from hotk._core import StructureError, describe, describe_tree, message
from hotk._dense import as_vector, flattened, is_flat, promoted, unflattened
from hotk._prepared import check_bytes

from ._pattern import Pattern


def product(
    pattern: Pattern,
    values: Inexact[Array, " nnz"],
    v: Inexact[Array, "n *columns"],
    places: Sequence[Any] | None = None,
) -> Inexact[Array, "m *columns"]:
    """Multiply a matrix with a vector, or with the columns of a dense matrix.

    Args:
        pattern: The pattern of the matrix.
        values: Its entries.
        v: The vector.
        places: The rows and columns of the entries, if these are to vary by device.
    """
    dtype = promoted(values.dtype, v.dtype)
    values, v = values.astype(dtype), v.astype(dtype)
    rows, cols = (pattern.rows, pattern.cols) if places is None else places
    taken = v.at[cols].get(mode="promise_in_bounds")
    terms = values.reshape(-1, *[1] * (v.ndim - 1)) * taken
    return jax.ops.segment_sum(terms, rows, pattern.shape[0], indices_are_sorted=True)


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


def apply(
    pattern: Pattern, values: Inexact[Array, " nnz"], v: PyTree, call: str
) -> Any:
    """Multiply a matrix with a vector in any of its forms, and return that form."""
    check_one(values)
    n = pattern.shape[1]
    if _is_array(v):
        one_array = is_one_axis(pattern.input) and is_one_axis(pattern.output)
        if v.shape == (n,) and (one_array or is_flat(v, pattern.input)):
            return product(pattern, values, as_inexact(v))
        if v.ndim == 2 and v.shape[0] == n and not _is_leaf(v, pattern.input):
            return product(pattern, values, as_inexact(v))
        if v.shape == (n,) and is_one_axis(pattern.input):
            return unflattened(product(pattern, values, as_inexact(v)), pattern.output)
        if v.ndim <= 2 and is_one_axis(pattern.input):
            raise _wrong(call, pattern, v)
    flat = flattened(as_vector(call, v, pattern.input))
    return unflattened(product(pattern, values, flat), pattern.output)


def flat_side(tree: PyTree, b: PyTree, call: str) -> tuple[Array, PyTree]:
    """Return a vector in any form as one array, and a tree to turn it back into.

    The tree is `None` if the vector was an array of numbers or of columns.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(tree))
    if _is_array(b) and (
        (b.shape == (size,) and (is_one_axis(tree) or is_flat(b, tree)))
        or (b.ndim == 2 and b.shape[0] == size and not _is_leaf(b, tree))
    ):
        return as_inexact(b), None
    return flattened(as_vector(call, b, tree)), tree


def is_one_axis(tree: PyTree) -> bool:
    """Whether the vectors of a space are real arrays of one axis."""
    leaves, treedef = jax.tree.flatten(tree)
    return (
        treedef == jax.tree.structure(0)
        and leaves[0].ndim == 1
        and not jnp.iscomplexobj(leaves[0])
    )


def as_inexact(v: Any) -> Inexact[Array, "..."]:
    """Return an array of floating or complex numbers, copied if it is NumPy's."""
    if isinstance(v, np.ndarray):
        v = jnp.asarray(
            np.array(v)
        )  # JAX may use its memory, which the user may change
    return v if jnp.issubdtype(v.dtype, jnp.inexact) else v.astype(float)


def check_one(values: Array | np.ndarray) -> None:
    """Refuse a batch of matrices outside of `vmap`.

    Raises:
        StructureError: If the values have a batch axis.
    """
    if jnp.ndim(values) != 1:
        raise StructureError(
            f"this `SparseMatrix` is a batch of matrices, with values of shape "
            f"{jnp.shape(values)}: use it inside of `jax.vmap`, which takes it as it "
            "takes arrays."
        )


def _is_array(v: object) -> bool:
    return isinstance(v, (jax.Array, np.ndarray))


def _is_leaf(v: Any, tree: PyTree) -> bool:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef == jax.tree.structure(0) and leaves[0].shape == v.shape


def _wrong(call: str, pattern: Pattern, v: Any) -> StructureError:
    n = pattern.shape[1]
    return StructureError(
        message(
            call,
            "this is not a vector that the matrix can be applied to.",
            expected=f"{describe_tree(pattern.input)}, or an array of shape ({n}, k)",
            got=describe(v),
            fix=f"The matrix has the shape {pattern.shape}; `A.T` is its transpose.",
        )
    )
