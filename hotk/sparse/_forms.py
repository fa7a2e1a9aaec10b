"""`AbstractForms`: what a sparse matrix is, and its other forms."""

from typing import TYPE_CHECKING, Any, Literal, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Inexact, Int32

from hotk._core import bytes_name, dtype_name, extra, html_table
from hotk._prepared import check_bytes

from ._conversion import to_scipy
from ._pattern import Pattern
from ._vectors import check_one


if TYPE_CHECKING:  # importing it imports SciPy
    from jax.experimental.sparse import BCOO, BCSR


class AbstractForms(eqx.Module):
    """Values on a pattern: their facts, and the same matrix in other forms."""

    values: eqx.AbstractVar[Inexact[Array, " nnz"]]
    pattern: eqx.AbstractVar[Pattern]

    # NumPy's arrays and numbers leave `v @ A` and `c * A` to the matrix.
    __array_ufunc__ = None
    ndim = 2

    # ----- What it is

    @property
    def rows(self) -> Int32[np.ndarray, " nnz"]:
        """Row of each entry, ascending."""
        return self.pattern.rows

    @property
    def cols(self) -> Int32[np.ndarray, " nnz"]:
        """Column of each entry, ascending within a row."""
        return self.pattern.cols

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.pattern.shape

    @property
    def nnz(self) -> int:
        """The number of entries, zeros among them included."""
        return self.pattern.nnz

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def symmetric(self) -> bool:
        """Whether it is known to be symmetric."""
        return self.pattern.symmetric

    @property
    def nbytes(self) -> int:
        """The bytes of values and positions."""
        return self.values.nbytes + self.pattern.nbytes

    # ----- Other forms

    def todense(self) -> Inexact[Array, "m n"]:
        """Return the dense matrix.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        m, n = self.shape
        needed = m * n * self.dtype.itemsize
        instead = "`A @ v` for products, `A.diagonal()`, `A.block(row, column)`"
        check_bytes("A.todense()", n, needed, f"{instead}, `A.to_scipy()`")
        check_one(self.values)
        dense = jnp.zeros(self.shape, self.dtype)
        return dense.at[self.rows, self.cols].set(self.values, unique_indices=True)

    def toarray(self) -> Inexact[np.ndarray, "m n"]:
        """Return the dense matrix as an array of NumPy, by the name SciPy has for it.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        return np.array(self.todense())

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """Return the dense matrix: `np.asarray(A)`."""
        del copy  # it is always a new array
        return np.asarray(self.toarray(), dtype)

    def to_scipy(self, format: Literal["csr", "csc", "coo"] = "csr") -> Any:
        """Return the matrix as a sparse array of SciPy.

        Args:
            format: `"csr"`, `"csc"` or `"coo"`.

        Returns:
            A `scipy.sparse.csr_array`, `csc_array` or `coo_array`, a copy.

        Raises:
            TypeError: If the values are traced: SciPy needs numbers.
        """
        return to_scipy(self.pattern, self.values, format)

    def to_bcoo(self) -> "BCOO":
        """Return the matrix as a `BCOO` of JAX; it works inside of `jit`."""
        positions = np.stack([self.rows, self.cols], axis=1)
        return extra("jax.experimental.sparse").BCOO(
            (self.values, jnp.asarray(positions)),
            shape=self.shape,
            indices_sorted=True,
            unique_indices=True,
        )

    def to_bcsr(self) -> "BCSR":
        """Return the matrix as a `BCSR` of JAX; it works inside of `jit`."""
        cols, starts = jnp.asarray(self.cols), jnp.asarray(self.pattern.starts)
        return extra("jax.experimental.sparse").BCSR(
            (self.values, cols, starts),
            shape=self.shape,
            indices_sorted=True,
            unique_indices=True,
        )

    def __repr__(self) -> str:
        """Show shape, entries, dtype and bytes in one line."""
        m, n = self.shape
        batch = f", batch of {self.values.shape[:-1]}" if self.values.ndim > 1 else ""
        return (
            f"SparseMatrix({m} x {n}, {self.nnz} entries of {dtype_name(self.dtype)}, "
            f"{100 * self.pattern.density:.3g} %{batch}, {bytes_name(self.nbytes)})"
        )

    def _repr_html_(self) -> str:
        facts = [*self.pattern._facts(), ("dtype", dtype_name(self.dtype))]
        return html_table(("SparseMatrix", ""), facts)

    def __copy__(self) -> Self:
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: nothing in it can change."""
        return self
