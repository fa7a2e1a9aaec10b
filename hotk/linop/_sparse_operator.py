"""`SparseOperator`: a sparse matrix as an operator."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import StructureError, Tracer, Vector, describe, message
from hotk.sparse import SparseMatrix

from ._linear_map import AbstractLinearMap
from ._operator import AbstractOperator


_CALL = "SparseOperator(A)"
# Of a sum of products, in units of rounding.
_ROUNDING = 100


@final
class SparseOperator(AbstractOperator):
    """A square sparse matrix as an operator: for solvers, eigenvalues and estimates.

    A product takes two operations for each entry, and no derivative. A matrix that is
    symmetric up to rounding need not be called so, except inside of a transformation.

    Attributes:
        entries: The matrix.

    Example:
        >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2) + jnp.sum(x**2)
        >>> A = hotk.linop.SparseOperator(hotk.sparse_hessian(f, jnp.zeros(4)))
        >>> A
        SparseOperator(n=4, nnz=10)
        >>> hotk.linop.cg(A, jnp.ones(4)).x.round(3).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    entries: SparseMatrix

    def __init__(self, matrix: SparseMatrix) -> None:
        """Take a matrix.

        Args:
            matrix: A square matrix, with the same structure, shapes and dtypes of
                vectors on both sides.

        Raises:
            TypeError: If it is no `hotk.SparseMatrix`.
            StructureError: If it does not map a space into itself.
        """
        if not isinstance(matrix, SparseMatrix):
            raise TypeError(
                message(
                    _CALL,
                    "this is not a sparse matrix of hotk.",
                    expected="a `hotk.SparseMatrix`",
                    got=describe(matrix),
                    fix="For one of SciPy write `hotk.SparseMatrix.from_scipy(A)`.",
                )
            )
        if matrix.shape[0] != matrix.shape[1] or not matrix.pattern.is_of_one_space:
            raise StructureError(
                message(
                    _CALL,
                    "the matrix does not map a space into itself.",
                    expected="a square matrix, with equal trees on both sides",
                    got=f"{matrix.shape[0]} rows and {matrix.shape[1]} columns",
                    fix="For least squares take `A.T @ A`.",
                )
            )
        self.entries = matrix.symmetrized() if _is_symmetric(matrix) else matrix

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        space = self.entries.pattern.input
        one = jax.tree.structure(space).num_nodes == 1  # then it is that of the entries
        dtype = lambda leaf: self.entries.dtype if one else leaf.dtype
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype(leaf)), space)

    def __repr__(self) -> str:
        """Show the size and the number of entries."""
        return f"SparseOperator(n={self.size}, nnz={self.entries.nnz})"

    @property
    def symmetric(self) -> bool:
        """Whether the matrix is symmetric."""
        return self.entries.symmetric

    def is_transpose_of(self, other: AbstractLinearMap) -> bool:
        """Whether it is known to be the transpose of another operator.

        Args:
            other: The other one, whose matrix is compared if it is one of this class.
        """
        if self.symmetric or not isinstance(other, SparseOperator):
            return super().is_transpose_of(other)
        a, b = self.entries, other.entries.T
        if isinstance(a.values, Tracer) or isinstance(b.values, Tracer):
            return False
        same = a.pattern == b.pattern
        return same and np.array_equal(np.asarray(a.values), np.asarray(b.values))

    def sparse_or_none(self, like: Vector) -> SparseMatrix:
        """Return the matrix."""
        del like
        return self.entries

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        return self.entries @ v


def _is_symmetric(matrix: SparseMatrix) -> bool:
    if matrix.symmetric or isinstance(matrix.values, Tracer):
        return matrix.symmetric
    total, difference = matrix + matrix.T, matrix - matrix.T
    if total.pattern != difference.pattern:
        return False
    # Each pair is compared with itself: another entry may be in a unit of its own. The
    # terms of a sum such as `J.T @ J` are no larger than the roots of its diagonal.
    apart = np.abs(np.asarray(difference.values))
    own = np.abs(np.asarray(total.values)) / 2 + apart / 2
    roots = np.sqrt(np.abs(np.asarray(matrix.diagonal())))
    terms = roots[total.rows] * roots[total.cols]
    rounding = _ROUNDING * float(jnp.finfo(matrix.dtype).eps)
    return bool(np.all(apart <= rounding * np.maximum(own, terms)))
