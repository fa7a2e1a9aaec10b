"""`identity` and `diagonal`: sparse matrices with entries on the diagonal alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from hotk._core import is_inexact
from hotk._dense import flattened

from ._matrix import SparseMatrix
from ._pattern import Pattern


def identity(like: PyTree, dtype: DTypeLike = float) -> SparseMatrix:
    """Make an identity matrix.

    Args:
        like: The number of rows; a vector of the space; or a square `SparseMatrix`,
            whose dtype it takes.
        dtype: The dtype of the entries, if `like` is a number.

    Returns:
        The matrix.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([2.0, 1.0, 1.0], [0, 0, 1], [0, 1, 0])
        >>> (A + 0.5 * hotk.sparse.identity(A)).todense().tolist()
        [[2.5, 1.0], [1.0, 0.5]]
    """
    if isinstance(like, SparseMatrix):
        pattern = like.pattern.derived("identity", lambda: _on_diagonal_of(like))
        return SparseMatrix(jnp.ones(pattern.nnz, like.dtype), pattern)
    if isinstance(like, (int, np.integer)):
        n = int(like)
        pattern = Pattern(np.arange(n), np.arange(n), (n, n), symmetric=True)
        return SparseMatrix(jnp.ones(n, dtype), pattern)
    return diagonal(jax.tree.map(_ones_like, like))


def _ones_like(a: Any) -> Array:
    ones = jnp.ones_like(jnp.asarray(a))
    # its real part multiplies real parts, its imaginary part imaginary parts
    return jax.lax.complex(ones.real, ones.real) if jnp.iscomplexobj(ones) else ones


def diagonal(entries: PyTree) -> SparseMatrix:
    """Make a diagonal matrix.

    Args:
        entries: The diagonal: a tree of floating or complex arrays, the space that the
            matrix acts on. The real part of a complex entry multiplies the real part
            of a vector's entry, its imaginary part the imaginary part.

    Returns:
        The matrix.

    Example:
        >>> D = hotk.sparse.diagonal(jnp.array([2.0, 3.0]))
        >>> (D @ jnp.array([1.0, 1.0])).tolist()
        [2.0, 3.0]
    """
    arrays = jax.tree.map(jnp.asarray, entries)
    arrays = jax.tree.map(lambda a: a if is_inexact(a) else a.astype(float), arrays)
    flat = flattened(arrays)
    numbers = np.arange(flat.size)
    pattern = Pattern(numbers, numbers, output=arrays, input=arrays, symmetric=True)
    return SparseMatrix(flat, pattern)


def _on_diagonal_of(matrix: SparseMatrix) -> Pattern:
    numbers = np.arange(min(matrix.shape))
    pattern = matrix.pattern
    return Pattern(
        numbers,
        numbers,
        pattern.shape,
        output=pattern.output,
        input=pattern.input,
        symmetric=pattern.shape[0] == pattern.shape[1],
    )
