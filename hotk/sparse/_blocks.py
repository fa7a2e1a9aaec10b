"""Parts of a sparse matrix: by the paths of leaves, and by indices as in SciPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Inexact, PyTree

from hotk._dense import Index, leaf_numbers

from ._conversion import in_csr
from ._pattern import Pattern
from ._vectors import check_one


def block(
    pattern: Pattern, values: Inexact[Array, " nnz"], row: object, column: object
) -> tuple[Inexact[Array, " k"], Pattern]:
    """Return the entries between two leaves or subtrees, as a matrix of their own."""
    check_one(values)
    rows, cols = pattern.row_index[row], pattern.col_index[column]
    name = (
        "block",
        rows.start,
        rows.stop,
        cols.start,
        cols.stop,
        str(row),
        str(column),
    )

    def derive() -> tuple[Pattern, np.ndarray]:
        output = subtree(pattern.output, pattern.row_index, row)
        at_rows = slice(*np.searchsorted(pattern.rows, [rows.start, rows.stop]))
        within = pattern.cols[at_rows]
        inside = np.flatnonzero((within >= cols.start) & (within < cols.stop))
        at = (inside + at_rows.start).astype(np.int32)
        return Pattern(
            pattern.rows[at] - rows.start,
            pattern.cols[at] - cols.start,
            output=output,
            input=subtree(pattern.input, pattern.col_index, column),
            symmetric=pattern.symmetric and rows == cols,
        ), at

    part, at = pattern.derived(name, derive)
    return values[at], part


def subtree(tree: PyTree, index: Index, path: object) -> PyTree:
    """Return the part of a tree at a path of its index."""
    part = index[path]
    leaves, structure = jax.tree.flatten(tree)
    numbers = leaf_numbers(tree, part)
    # leaves without entries lie within the range of any leaf beside them
    first = next((i for i in numbers if leaves[i].size), numbers[0])
    keys = tree_flatten_with_path(tree)[0][first][0]
    start = 0
    for _ in range(_depth(keys, path)):
        for child in structure.children():
            if start <= first < start + child.num_leaves:
                structure = child
                break
            start += child.num_leaves
    return structure.unflatten(leaves[start : start + structure.num_leaves])


def _depth(keys: tuple[Any, ...], path: object) -> int:
    """Return how many steps of the path of a leaf a path to a subtree is."""
    if isinstance(path, tuple):
        return len(path)
    given = str(path).lstrip(".")
    for depth in range(len(keys) + 1):
        code = keystr(keys[:depth]).lstrip(".")
        words = keystr(keys[:depth], simple=True, separator="/").lstrip(".")
        if given in (code, words):
            return depth
    return len(keys)


def indexed(pattern: Pattern, values: Inexact[Array, " nnz"], key: Any) -> Any:
    """Return a part: values and pattern, or a dense array, or one entry."""
    check_one(values)
    if isinstance(key, tuple) and len(key) == 2 and _is_path(key[0]):
        return block(pattern, values, *key)
    if _is_path(key):
        raise TypeError(
            f"`A[row, column]`: give two paths, such as `A[{key!r}, {key!r}]`, or "
            "`A.block(row, column)`."
        )
    # SciPy takes a matrix of the numbers of the entries apart: all that it knows of
    # indices is known here, and the values may be traced.
    numbers = in_csr(pattern, np.arange(1, pattern.nnz + 1))
    part = numbers[key]
    if np.ndim(part) == 2 and hasattr(part, "tocoo"):
        part = part.tocsr()
        part.sort_indices()
        part.sum_duplicates()
        coo = part.tocoo()
        symmetric = pattern.symmetric and _is_same_slice(key)
        found = Pattern(coo.row, coo.col, part.shape, symmetric=symmetric)
        return values[jnp.asarray(coo.data - 1)], found
    at = np.asarray(part.toarray() if hasattr(part, "toarray") else part)
    if not values.size:
        return jnp.zeros(at.shape, values.dtype)
    taken = values[jnp.asarray(np.maximum(at - 1, 0))]
    return jnp.where(jnp.asarray(at > 0), taken, jnp.zeros((), values.dtype))


def _is_path(key: object) -> bool:
    # a path of `jax.tree_util` is a tuple of keys, which have no order or length
    return isinstance(key, str) or (
        isinstance(key, tuple)
        and bool(key)
        and all(type(k).__module__.startswith("jax") for k in key)
    )


def _is_same_slice(key: Any) -> bool:
    return (
        isinstance(key, tuple)
        and len(key) == 2
        and isinstance(key[0], slice)
        and isinstance(key[1], slice)
        and key[0] == key[1]
    )
