"""`SparseMatrix`: values on a fixed pattern."""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike
from jaxtyping import Array, Inexact, PyTree

from hotk._core import Scalar, StructureError, Tracer, Vector, describe, extra
from hotk._dense import is_complex, unflattened

from ._arithmetic import added, check_halves, multiplied, scaled, symmetric_if_seen
from ._blocks import block, indexed
from ._conversion import summed
from ._factor_errors import not_definite
from ._factorization import Factorization
from ._forms import AbstractForms
from ._pattern import Pattern
from ._selected import differentiable_inverse, log_determinant
from ._solve import solve
from ._vectors import apply, check_one


def _as_values(values: npt.ArrayLike | Array) -> Any:
    if isinstance(values, (np.ndarray, np.generic, list, tuple)):
        # A copy: JAX may use the memory of a NumPy array, which the user may change.
        values = np.array(values)
        if values.dtype.kind in "OSUmM":
            raise TypeError(f"`SparseMatrix`: the values {values} are not numbers.")
        values = jnp.asarray(values)
    if isinstance(values, jax.Array) and values.dtype.kind in "iub":
        values = values.astype(float)
    return values


@final
class SparseMatrix(AbstractForms):
    """A sparse matrix: values, which JAX computes, on a pattern, which is fixed.

    It is a pytree whose only leaf is `values`: it goes through `jit`, `vmap`, `grad`
    and `scan`, and matrices of one pattern share compiled programs. Its vectors are
    trees, as in `hotk.HessianOperator`, or flat arrays.

    Attributes:
        values: The entries, in the order of the pattern.
        pattern: Where they stand: a `hotk.sparse.Pattern`.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([2.0, 1.0, 5.0], [0, 1, 1], [0, 0, 1])
        >>> (A @ jnp.array([1.0, 2.0])).tolist()
        [2.0, 11.0]
        >>> A.todense().tolist()
        [[2.0, 0.0], [1.0, 5.0]]
    """

    values: Inexact[Array, " nnz"] = eqx.field(converter=_as_values)
    pattern: Pattern = eqx.field(static=True)

    def __check_init__(self) -> None:
        """Refuse values that do not fit to the pattern."""
        shape = getattr(self.values, "shape", None)
        if shape is not None and shape[-1:] != (self.pattern.nnz,):
            raise StructureError(
                f"`SparseMatrix(values, pattern)`: the pattern has {self.pattern.nnz} "
                f"entries and `values` the shape {shape}."
            )

    def __hash__(self) -> int:
        """Return the hash of the pattern, as arrays have none: `jax.jit(A.solve)`."""
        return hash(self.pattern)

    @staticmethod
    def from_coo(
        values: npt.ArrayLike | Array,
        rows: npt.ArrayLike,
        cols: npt.ArrayLike,
        shape: tuple[int, int] | None = None,
        *,
        symmetric: bool = False,
    ) -> "SparseMatrix":
        """Make a matrix from entries in any order; those of one position are added.

        Args:
            values: The entries; they may be traced.
            rows: Their rows.
            cols: Their columns.
            shape: Numbers of rows and columns; the smallest if left out.
            symmetric: Whether the matrix is symmetric.

        Returns:
            The matrix.

        Raises:
            TypeError: If something is no list of numbers, or a position no integer.
            StructureError: If the lists differ in length, an entry stands outside of
                the shape or without its mirror image, or values that are known and
                called symmetric are not.
        """
        entries = _as_values(values)
        if not isinstance(entries, jax.Array):
            raise TypeError(
                f"`SparseMatrix.from_coo(values, rows, cols)`: {describe(values)} is "
                "no list of numbers."
            )
        found, pattern = summed(entries, rows, cols, shape, symmetric)
        check_halves(pattern, found)
        return SparseMatrix(found, pattern)

    @staticmethod
    def from_scipy(matrix: Any, *, symmetric: bool = False) -> "SparseMatrix":
        """Make a matrix from one of `scipy.sparse`.

        Args:
            matrix: A sparse array or matrix of SciPy, of any format.
            symmetric: Whether the matrix is symmetric.

        Returns:
            The matrix.
        """
        coo = matrix.tocoo()
        shape = (int(coo.shape[0]), int(coo.shape[1]))
        return SparseMatrix.from_coo(
            coo.data, coo.row, coo.col, shape, symmetric=symmetric
        )

    # ----- Products

    @property
    def T(self) -> "SparseMatrix":
        """The transpose; itself if it is symmetric."""
        if self.symmetric:
            return self
        pattern, order = self.pattern.transposed()
        return SparseMatrix(self.values[..., order], pattern)

    def astype(self, dtype: DTypeLike) -> "SparseMatrix":
        """Return the matrix with values of another dtype."""
        return SparseMatrix(self.values.astype(dtype), self.pattern)

    def __matmul__(self, other: PyTree) -> Any:
        """Return the product with a vector, a dense matrix or a sparse matrix.

        Args:
            other: A tree with the structure and shapes of `pattern.input`; one flat
                array of as many numbers; an array of shape `(n, k)`, whose columns are
                such flat arrays; or a `SparseMatrix`, or one of SciPy.

        Returns:
            A tree like `pattern.output`, a flat array, an array of shape `(m, k)`, or
            a `SparseMatrix`.

        Raises:
            StructureError: If the vector does not fit.
        """
        if hasattr(other, "tocoo"):  # of SciPy, which is not imported to find that out
            other = SparseMatrix.from_scipy(other)
        if isinstance(other, SparseMatrix):
            return SparseMatrix(*multiplied(self, other))
        return apply(self.pattern, self.values, other, "A @ v")

    def __rmatmul__(self, other: PyTree) -> Any:
        """Return the product of the transpose, `v @ A`: for a matrix `(k, m)` too."""
        if getattr(other, "ndim", 1) == 2 and other.shape[1] == self.shape[0]:
            return (self.T @ other.T).T
        return self.T @ other

    def matvec(self, v: npt.ArrayLike) -> Inexact[np.ndarray, " m"]:
        """Return the product with a flat vector, by the name that SciPy has for it.

        With `shape` and `dtype` it makes the matrix an operator of SciPy:
        `scipy.sparse.linalg.eigsh(A)`.

        Args:
            v: A flat vector, or a matrix of one column.

        Returns:
            The product, a NumPy array.
        """
        flat = np.asarray(v).reshape(-1, 1)
        return np.array(self @ jnp.asarray(flat))[:, 0]

    def rmatvec(self, v: npt.ArrayLike) -> Inexact[np.ndarray, " n"]:
        """Return the product of the conjugate transpose with a flat vector."""
        return np.conj(self.T.matvec(np.conj(np.asarray(v))))

    # ----- Arithmetic

    def __add__(self, other: object) -> "SparseMatrix":
        """Return the sum with another sparse matrix."""
        found = _summand(other)
        if found is None:
            return NotImplemented
        return SparseMatrix(*added(self, found))

    def __radd__(self, other: object) -> "SparseMatrix":
        """Return the sum with another sparse matrix; zero begins `sum(matrices)`."""
        return self if isinstance(other, int) and other == 0 else self + other

    def __sub__(self, other: object) -> "SparseMatrix":
        """Return the difference of two sparse matrices."""
        found = _summand(other)
        if found is None:
            return NotImplemented
        return SparseMatrix(*added(self, -found))

    def __rsub__(self, other: object) -> "SparseMatrix":
        """Return the difference of another one and this one."""
        return -self + other

    def __neg__(self) -> "SparseMatrix":
        """Return the negative of the matrix."""
        return SparseMatrix(-self.values, self.pattern)

    def __mul__(self, factor: Any) -> "SparseMatrix":
        """Return the matrix times a number."""
        values = scaled(self.values, factor)
        return NotImplemented if values is None else SparseMatrix(values, self.pattern)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "SparseMatrix":
        """Return the matrix divided by a number."""
        values = scaled(self.values, divisor, divide=True)
        return NotImplemented if values is None else SparseMatrix(values, self.pattern)

    def symmetrized(self) -> "SparseMatrix":
        """Return the mean of the matrix and its transpose, known to be symmetric.

        Returns:
            A matrix whose pattern says `symmetric`; itself if it does already.
        """
        if self.symmetric:
            return self
        mean = (self + self.T) / 2
        trees = {"output": self.pattern.output, "input": self.pattern.input}
        pattern = Pattern(mean.rows, mean.cols, **trees, symmetric=True)
        return SparseMatrix(mean.values, pattern)

    # ----- Solutions

    def solve(self, b: PyTree, *, nan_if_singular: bool = False) -> Any:
        """Solve `A x = b` by a sparse factorization; it works inside of `jit`.

        It runs on the host, by SciPy's SuperLU. It can be differentiated by the values
        and by `b`: the derivative is a system with the same matrix or its transpose.

        Args:
            b: The right-hand side: a tree like `pattern.output`, a flat array, or an
                array of shape `(n, k)`.
            nan_if_singular: Whether the solution is NaN if the matrix is singular, as
                one of many under `vmap` may be, in place of an error.

        Returns:
            The solution: a tree like `pattern.input`, or an array like `b`.

        Raises:
            StructureError: If the matrix is not square, or `b` does not fit.
            RuntimeError: If the matrix is singular; inside of `jit` it is a
                `jax.errors.JaxRuntimeError`.
        """
        return solve(self.pattern, self.values, b, nan_if_singular=nan_if_singular)

    def factorize(self) -> Factorization:
        """Factorize the matrix once, for many right-hand sides.

        A matrix that is symmetric up to rounding, as `J @ J.T`, need not be called so.

        Returns:
            A `hotk.sparse.Factorization`.

        Raises:
            TypeError: If the values are traced: use `solve` inside of `jit`.
            ValueError: If an entry is NaN or infinite.
            RuntimeError: If the matrix is singular.
        """
        pattern = symmetric_if_seen(self.pattern, self.values)
        return Factorization(pattern, self.values)

    def cholesky(self) -> Factorization:
        """Factorize a positive definite matrix.

        Returns:
            A `hotk.sparse.Factorization`.

        Raises:
            NotPositiveDefiniteError: If the matrix is not positive definite.
            ValueError: If it is not symmetric.
        """
        try:
            found = self.factorize()
        except RuntimeError as error:
            if not symmetric_if_seen(self.pattern, self.values).symmetric:
                raise
            raise not_definite("a pivot of zero", 0.0) from error
        found.check_definite()
        return found

    def logdet(self) -> Scalar:
        r"""Compute the log-determinant of a positive definite matrix, NaN of another.

        By SciPy's SuperLU on the host, also inside of `jit`. There are two derivatives,
        $\partial \log\det A / \partial A_{ij} = (A^{-1})_{ij}$ and that of it along a
        symmetric T, the entries of $-A^{-1} T A^{-1}$ on the pattern. Each takes a few
        factorizations. A third one is an error in reverse mode, NaN in forward mode.

        Raises:
            ValueError: If the matrix is not known to be symmetric.
        """
        return log_determinant(self.pattern, self.values)

    def selected_inverse(self) -> "SparseMatrix":
        """Compute the entries of the inverse where the matrix has entries.

        See `hotk.sparse.Factorization.selected_inverse`. For a precision matrix these
        are the variances, and the covariances of neighbors. Inside of `jit` it works
        too, and it has a first derivative; what is not positive definite gives NaN
        there.

        Raises:
            NotPositiveDefiniteError: If the matrix is not positive definite.
            ValueError: If it is not symmetric.
        """
        if isinstance(self.values, Tracer):
            entries = differentiable_inverse(self.pattern, self.values)
        else:
            entries = self.cholesky().selected_inverse()
        return SparseMatrix(jnp.asarray(entries, self.dtype), self.pattern)

    # ----- Parts

    def diagonal(self) -> Vector:
        """Return the diagonal; entries outside of the pattern are zero.

        Returns:
            A tree like `pattern.input` if that of the output is the same, else a flat
            array. A complex leaf has the diagonal entries of the real parts in its real
            part, those of the imaginary parts in its imaginary part.
        """
        check_one(self.values)
        at = np.flatnonzero(self.rows == self.cols)
        flat = jnp.zeros(min(self.shape), self.dtype)
        flat = flat.at[self.rows[at]].set(self.values[at], unique_indices=True)
        tree = self.pattern.input
        is_real = jnp.issubdtype(self.dtype, jnp.floating) or is_complex(tree)
        fits = self.pattern.is_of_one_space and is_real
        return unflattened(flat, tree) if fits else flat

    def block(self, row: object, column: object) -> "SparseMatrix":
        """Return the block between two leaves or subtrees.

        Args:
            row: The path of a leaf or subtree of the output, as `pattern.row_index`
                prints it: `"w"`, `"layers/0/weight"` or `".layers[0].weight"`.
            column: That of a leaf or subtree of the input.

        Returns:
            A sparse matrix that maps between these subtrees.

        Raises:
            KeyError: If there is no such path.
        """
        return SparseMatrix(*block(self.pattern, self.values, row, column))

    def __getitem__(self, key: Any) -> Any:
        """Return an entry, a row, or a part of the matrix.

        Args:
            key: Two paths of trees, as for `block`; or what SciPy takes: numbers,
                slices, masks and arrays of integers.

        Returns:
            A `SparseMatrix` for a part with two axes, a dense array for a single row or
            column or a list of entries, a number for one entry.
        """
        found = indexed(self.pattern, self.values, key)
        return SparseMatrix(*found) if isinstance(found, tuple) else found


def _summand(other: object) -> SparseMatrix | None:
    """Return what is added as a sparse matrix, `None` if it knows how to add itself.

    Raises:
        TypeError: If the sum would be dense.
    """
    if isinstance(other, SparseMatrix):
        return other
    if extra("scipy.sparse").issparse(other):
        return SparseMatrix.from_scipy(other)
    if isinstance(other, (int, float, complex, np.generic, np.ndarray, jax.Array)):
        raise TypeError(
            f"the sum of a sparse matrix and {describe(other)} is dense. Add a "
            "multiple of `hotk.sparse.identity(A)`, or `hotk.sparse.diagonal(d)`; or "
            "use `A.todense()`."
        )
    return None
