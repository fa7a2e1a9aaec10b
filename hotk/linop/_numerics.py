"""`AbstractNumerics`: what is computed from a linear map, and how operators show."""

import html
from typing import Literal, NoReturn, overload

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Inexact, Int, PyTree

from hotk._core import RandomKey, RealNumber, Scalar, V, names_ours
from hotk._dense import By, Index
from hotk.sparse import Factorization

from . import _dense, space
from ._cholesky import Inertia, cholesky, inertia
from ._eigenpairs import Eigenpairs
from ._eigh import eigh
from ._entries import Part
from ._lanczos import Which
from ._linear_map import AbstractLinearMap
from ._solution import Solution
from ._solve import SolveMethod, solve
from ._vectors import space_of
from .space import flattened


def shown_in_notebook(operator: AbstractLinearMap) -> str:
    """Return the operator in one line, and a table of the leaves of its space."""
    line = f"<p><code>{html.escape(repr(operator))}</code></p>"
    if not jax.tree.leaves(operator.like):
        return line
    return line + Index.of(operator.like)._repr_html_()


class AbstractNumerics(AbstractLinearMap[V]):
    """A linear map with its matrix, solutions and eigenvalues as methods."""

    # ----- Products

    def flat(self, v: PyTree) -> Float[Array, " n"]:
        """Return a vector of the space as one flat array, in the order of `index`.

        Args:
            v: A vector of the space. A complex leaf gives its real parts first, then
                its imaginary parts.

        Raises:
            StructureError: If it is not a vector of the space.
        """
        return flattened(self.vector(v, "A.flat(v)"))

    @names_ours
    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors.

        Args:
            vectors: A tree like the space with one leading axis; or flat vectors in the
                order of `index`, the rows of an array of shape `(k, n)`.
            block_size: The number of vectors at once; all if left out.

        Returns:
            The products, with the same leading axis, as trees or as rows.
        """
        return _dense.many(self, vectors, block_size)

    def quadratic_form(self, v: PyTree) -> Scalar:
        r"""Return $v^T A v$, for complex leaves $\mathrm{Re}(\bar v^T A v)$.

        Args:
            v: A vector of the space.

        Raises:
            StructureError: If it is not a vector of the space.
        """
        v = self.vector(v)
        return space.inner(v, self.mv(v))

    # ----- Dense results

    def __array__(self, *args: object, **named: object) -> NoReturn:
        """Refuse to be an array: NumPy would make one of a single object.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"`np.asarray({type(self).__name__})`: an operator is not an array. Write "
            "`H.matrix()`; for a function of SciPy `hotk.interop.as_scipy(H)`."
        )

    @property
    def T(self) -> "AbstractNumerics[V]":
        """The transposed operator: a symmetric one itself.

        Raises:
            TypeError: If it is not known to be symmetric.
        """
        if self.symmetric:
            return self
        raise TypeError(
            f"`{type(self).__name__}.T`: expected an operator that is known to be "
            "symmetric; this one has products with its matrix alone. Write "
            "`A.matrix().T`."
        )

    @property
    def size(self) -> int:
        """The dimension of the space: its real numbers, two for each complex one."""
        return space.dimension(space_of(self))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return (self.size, self.size)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the matrix: what the dtypes of all leaves promote to."""
        return space.promoted(*[a.dtype for a in space.parts(space_of(self))])

    def matvec(self, v: npt.ArrayLike) -> Inexact[np.ndarray, " n"]:
        """Return the product with a flat vector, by the name that SciPy has for it.

        With `shape` and `dtype` it makes an operator one of SciPy, on flat vectors in
        the order of `index`: `scipy.sparse.linalg.eigsh(H)`, `cg(H, b)`. For blocks of
        vectors and vectors in float64 see `hotk.interop.as_scipy`.

        Args:
            v: A flat vector, or a matrix of one column.

        Returns:
            The product, a NumPy array.

        Raises:
            StructureError: If it does not have as many numbers as the space.

        Example:
            >>> from scipy.sparse.linalg import eigsh
            >>> f = lambda x: jnp.sum(jnp.arange(8.0) * x**2)
            >>> H = hotk.HessianOperator(f, jnp.ones(8))
            >>> eigsh(H, k=2, return_eigenvectors=False).round(3).tolist()
            [12.0, 14.0]
        """
        product = self.mv(self.vector(np.asarray(v).reshape(-1), "A.matvec(v)"))
        return np.array(flattened(product))  # a copy: SciPy writes into it

    def rmatvec(self, v: npt.ArrayLike) -> Inexact[np.ndarray, " n"]:
        """Return the product of the transpose with a flat vector, as SciPy names it.

        Args:
            v: A flat vector, or a matrix of one column.

        Raises:
            TypeError: If the operator is not known to be symmetric: hotk has no
                transpose of another one.
        """
        if not self.symmetric:
            raise TypeError(
                "`A.rmatvec(v)`: the operator is not known to be symmetric, and there "
                "is no transpose of another one."
            )
        return self.matvec(v)

    @property
    def index(self) -> Index:
        """The rows of each leaf in the matrix, by its path: `H.index["w"]`."""
        return Index.of(space_of(self))

    @names_ours
    def matrix(
        self,
        block_size: int | None = None,
        *,
        split: By | None = None,
        mesh_axis: str | None = None,
    ) -> Inexact[Array, "n n"]:
        """Return the matrix, in the order of `index`.

        It takes `n` products, several at once; from 2000 rows on a few gradients if
        the program shows that the matrix is sparse.

        Args:
            block_size: The number of columns at once; chosen from the program if left
                out.
            split: `"columns"` or `"rows"`: divide work and result among the devices of
                `mesh_axis`, whose number has to divide `n`.
            mesh_axis: The axis of the mesh, for `split`; it may be left out if the mesh
                has one axis.

        Returns:
            A real array of shape `(n, n)`, in the dtype that the dtypes of all leaves
            promote to. The matrix of a symmetric operator is symmetric to the last bit:
            it is the mean of what was computed and its transpose. With `split` it is
            what was computed, which is symmetric up to rounding.

        Raises:
            TooLargeError: If it, or the part of one device, would exceed
                `hotk.memory_budget()`.
            StructureError: If `split` is given and there is no mesh, no such axis, or
                its devices do not divide `n`; or rows of an operator that is not known
                to be symmetric are asked for.
        """
        return _dense.matrix(self, block_size, split, mesh_axis)

    @names_ours
    def block(
        self,
        row: Part,
        column: Part,
        block_size: int | None = None,
        *,
        split: By | None = None,
        mesh_axis: str | None = None,
    ) -> Inexact[Array, "rows columns"]:
        """Return the block of the matrix between two parts of the space.

        Only the columns of the block are computed, or only its rows where these are
        fewer and the operator is symmetric.

        Args:
            row: The path of a leaf or subtree, as `index` prints it, a leaf filter or a
                mask: see `restrict`.
            column: The same for the columns.
            block_size: The number of columns at once; chosen from the program if left
                out.
            split: `"columns"` or `"rows"` of the block: see `matrix`.
            mesh_axis: The axis of the mesh, for `split`.

        Returns:
            A real array, its rows and columns in the order of `index`.

        Raises:
            KeyError: If there is no such path.
            StructureError: If a mask does not fit, or nothing is selected; or `split`
                is given and the block cannot be divided, as for `matrix`.
            TooLargeError: If it, or the part of one device, would exceed
                `hotk.memory_budget()`.
        """
        return _dense.block(self, row, column, block_size, split, mesh_axis)

    @names_ours
    def diagonal(self, block_size: int | None = None) -> V:
        """Return the exact diagonal of the matrix as a vector of the space.

        It takes `n` products, `block_size` at once, or a single one if the program
        shows that the matrix is diagonal; from 2000 rows on a few gradients if it shows
        that the matrix is sparse. For an estimate from fewer products see
        `hotk.estimate.diagonal`.

        Args:
            block_size: The number of entries at once; chosen from the program if left
                out.

        Returns:
            A tree like the space. A complex leaf has the diagonal entries of the real
            parts in its real part, those of the imaginary parts in its imaginary part.
        """
        return _dense.diagonal(self, block_size)

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)

    # ----- Krylov

    @names_ours
    def solve(
        self,
        b: PyTree,
        *,
        batched: bool = False,
        x0: PyTree = None,
        preconditioner: AbstractLinearMap | None = None,
        tol: RealNumber = 1e-5,
        max_steps: int | Int[Array, ""] | None = None,
        method: SolveMethod | None = None,
    ) -> Solution[V]:
        """Solve `A x = b` by conjugate gradients, minimal residuals or sparse factors.

        See `hotk.linop.solve`.

        Args:
            b: The right-hand side: a vector of the space.
            batched: Whether `b` has a leading axis, one right-hand side each.
            x0: The start of the iteration; zero if left out.
            preconditioner: An operator close to the inverse of `A`, positive definite.
            tol: Stop when the residual is below `tol` times the norm of `b`.
            max_steps: The most products; `10 n` if left out.
            method: `"iterative"` or `"sparse"`; chosen if left out.
        """
        return solve(
            self,
            b,
            batched=batched,
            x0=x0,
            preconditioner=preconditioner,
            tol=tol,
            max_steps=max_steps,
            method=method,
        )

    @names_ours
    def eigh(
        self,
        k: int = 6,
        which: Which = "LA",
        *,
        key: RandomKey | None = None,
        tol: float | None = None,
        v0: PyTree = None,
        window: int | None = None,
        max_basis: int | None = None,
        max_restarts: int = 100,
        progress: bool = False,
    ) -> Eigenpairs[V]:
        """Compute `k` extreme eigenvalues and their vectors by Lanczos iteration.

        Args:
            k: The number of eigenvalues.
            which: `"LA"`, the largest; `"SA"`, the smallest; `"LM"`, those of largest
                magnitude; `"BE"`, from both ends.
            key: A random key for the start; a fixed one if left out.
            tol: Stop when residuals are below `tol` times the largest eigenvalue found.
            v0: The start, a vector of the space, in place of a random one.
            window: The number of basis vectors that are multiplied before a restart.
            max_basis: The most basis vectors to hold.
            max_restarts: The most restarts.
            progress: Whether to show a bar.
        """
        return eigh(
            self,
            k,
            which,
            key=key,
            tol=tol,
            v0=v0,
            window=window,
            max_basis=max_basis,
            max_restarts=max_restarts,
            progress=progress,
        )

    @overload
    def cholesky(
        self, damping: RealNumber = ..., method: Literal["dense"] = ...
    ) -> Float[Array, "n n"]: ...

    @overload
    def cholesky(
        self, damping: RealNumber = ..., *, method: Literal["sparse"]
    ) -> Factorization: ...

    def cholesky(
        self,
        damping: RealNumber = 0.0,
        method: Literal["dense", "sparse"] = "dense",
    ) -> Float[Array, "n n"] | Factorization:
        """Compute the Cholesky factor of the matrix; see `hotk.linop.cholesky`.

        Args:
            damping: A number that is added to the diagonal.
            method: `"dense"`, or `"sparse"` for a `hotk.sparse.Factorization`.
        """
        return cholesky(self, damping, method=method)

    def inertia(self) -> Inertia:
        """Count the eigenvalues of each sign; see `hotk.linop.inertia`."""
        return inertia(self)
