"""`Factorization` of a sparse matrix, its solutions, and those with a shift."""

import functools
from typing import Any, final

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._dense import promoted, unflattened

from ._bunch_kaufman import inertia_by_pairs
from ._conversion import in_csr, on_host
from ._factor_errors import ROUNDINGS, check_regular, named, not_definite, not_finite
from ._factors import AnyFactors, definite_factors, factors, most_growth
from ._pattern import Pattern
from ._selected import inverse_diagonal, selected_inverse
from ._solve import check_square
from ._superlu import Factors, congruent_factors, symmetric_factors
from ._vectors import flat_side


@final
class Factorization:
    """The factors L U of a sparse square matrix, made once for many right-hand sides.

    It lives on the host. SciPy's SuperLU makes it; of a positive definite matrix in
    which many small blocks meet few other rows, a Schur complement. A symmetric matrix
    is pivoted on its diagonal, so that the signs of the pivots are those of its
    eigenvalues.

    Attributes:
        shape: Numbers of rows and columns.
        pivots: The diagonal of U.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([2.0, 4.0], [0, 1], [0, 1], symmetric=True)
        >>> F = A.factorize()
        >>> F.solve(jnp.array([2.0, 2.0])).tolist(), F.inertia()
        ([1.0, 0.5], (2, 0, 0))
    """

    __slots__ = ("_data", "_factors", "_is_regular", "_pattern", "pivots", "shape")

    def __init__(self, pattern: Pattern, values: Array | np.ndarray) -> None:
        check_square(pattern, "A.factorize()")
        data = on_host(values, "A.factorize()")
        self.shape, self._pattern = pattern.shape, pattern
        if not np.isfinite(data).all():
            raise ValueError(not_finite(pattern, data))
        self._data = data
        self._factors = factors(pattern, data, "A.factorize()")
        self.pivots = self._narrow(self._factors.pivots)
        self._is_regular = False  # as far as is known

    def solve(self, b: PyTree) -> Any:
        """Solve `A x = b`.

        Args:
            b: The right-hand side: a tree like the output of the matrix, a flat array,
                or an array of shape `(n, k)`.

        Returns:
            The solution, in the form of `b`.

        Raises:
            RuntimeError: If the matrix is singular up to rounding.
        """
        self.check_regular("F.solve(b)")
        flat, tree = flat_side(self._pattern.output, b, "F.solve(b)")
        found = jnp.asarray(self.solve_flat(np.asarray(flat)))
        return found if tree is None else unflattened(found, self._pattern.input)

    def solve_flat(self, b: np.ndarray) -> np.ndarray:
        """Solve `A x = b` by NumPy alone, as within a callback of JAX.

        A matrix that is singular up to rounding is not refused: an inverse iteration
        has one on purpose.

        Args:
            b: A flat array of NumPy, or one of shape `(n, k)`.

        Returns:
            The solution, an array of NumPy.
        """
        return self._narrow(self._factors.solve(b), b)

    def check_regular(self, call: str, dtype: npt.DTypeLike | None = None) -> None:
        """Refuse a matrix that is singular up to rounding.

        Args:
            call: The call, for the message.
            dtype: In which the entries were computed, if not in their own.

        Raises:
            RuntimeError: If a pivot is as small as the rounding of its terms.
        """
        if not self._is_regular:
            known = self._data.dtype if dtype is None else dtype
            check_regular(self._pattern, self._factors, known, call)
            self._is_regular = True

    def inertia(self) -> tuple[int, int, int]:
        """Count the positive, zero and negative eigenvalues of a symmetric matrix.

        Returns:
            The numbers of positive, zero and negative ones; a pivot counts as zero if
            rounding, of the entries or of the factors, may have made it.

        Raises:
            ValueError: If the matrix is not known to be symmetric; or if it needs
                pivots off its diagonal, whose signs say nothing, and has more than
                4000 rows, or more than 2000 and is singular.
        """
        self._check_symmetric("F.inertia()")
        found: AnyFactors | None = self._factors
        data = self._data.astype(np.float64)
        if not self._factors.on_diagonal:
            most = most_growth(self._data.dtype)
            found = congruent_factors(self._pattern, data, most)
        # The factors are exact to rounding in double precision, and the entries in
        # their own; in half precision they are taken as they are.
        double, own = np.finfo(np.float64).eps, jnp.finfo(self.pivots.dtype).eps
        rounding = ROUNDINGS * float(own)
        if found is None:
            dense = inertia_by_pairs(self._pattern, data, rounding)
            if dense is not None:
                return dense
            raise ValueError(
                "`F.inertia()`: this indefinite matrix cannot be factorized with "
                "pivots on its diagonal, so their signs are not those of its "
                "eigenvalues. `hotk.linop.inertia` computes all eigenvalues."
            )
        sizes = np.abs(found.pivots)
        # Not of the largest pivot: variables may have units of their own.
        limit = (sizes.size * double + rounding) * found.terms
        zero = sizes <= limit
        if zero.any() and (found.pivots[~zero] < 0).any():
            # Entries of an indefinite matrix grow, and with them what rounding may be.
            dense = inertia_by_pairs(self._pattern, data, rounding)
            if dense is not None:
                return dense
        positive = int(((found.pivots > 0) & ~zero).sum())
        return positive, int(zero.sum()), int(sizes.size - positive - zero.sum())

    def logdet(self) -> float:
        """Return the logarithm of the absolute value of the determinant."""
        # the diagonal of L is one, and permutations change the sign alone
        return float(np.log(np.abs(self._factors.pivots)).sum())

    def selected_inverse(self) -> Float[np.ndarray, " nnz"]:
        """Return the entries of the inverse where a symmetric matrix has entries.

        By Takahashi's equations [1]: no others are computed but those where the factor
        has entries.

        Returns:
            An array of NumPy, in the order of the entries of the matrix.

        Raises:
            ValueError: If the matrix is not known to be symmetric, or needs pivots off
                its diagonal.

        Example:
            >>> f = lambda x: x[0] ** 2 + 2 * x[1] ** 2
            >>> A = hotk.sparse_hessian(f, jnp.ones(2))
            >>> A.cholesky().selected_inverse().tolist()
            [0.5, 0.25]

        References:
            [1] Rue and Martino (2007). Approximate Bayesian inference for hierarchical
                Gaussian Markov random field models. Journal of Statistical Planning and
                Inference 137(10), 3177-3192. Section 2.2.
        """
        self._check_selected("F.selected_inverse()")
        return self._narrow(selected_inverse(self._factors, self._pattern))

    def inverse_diagonal(self) -> Float[np.ndarray, " n"]:
        """Return the diagonal of the inverse of a symmetric matrix.

        Returns:
            An array of NumPy.

        Raises:
            ValueError: As `selected_inverse`.
        """
        self._check_selected("F.inverse_diagonal()")
        return self._narrow(inverse_diagonal(self._factors, self._pattern))

    def inverse_root(
        self, b: Float[np.ndarray, "n *k"], *, transposed: bool = False
    ) -> Float[np.ndarray, "n *k"]:
        r"""Multiply with the root R of the inverse of a positive definite matrix.

        Args:
            b: A flat array of NumPy, or one of shape `(n, k)`.
            transposed: Whether to multiply with $R^T$.

        Returns:
            $R b$ or $R^T b$ with $A^{-1} = R R^T$, an array of NumPy.
        """
        return self._narrow(self._factors.inverse_root(b, transposed), b)

    def is_definite(self) -> bool:
        """Whether the matrix is positive definite, by more than rounding.

        Raises:
            ValueError: If the matrix is not known to be real and symmetric.
        """
        self._check_symmetric("F.is_definite()")
        # with a pivot off the diagonal it is not
        return self._factors.on_diagonal and self.inertia()[0] == self.shape[0]

    def negative_curvature(self) -> tuple[float, Inexact[np.ndarray, " n"]]:
        r"""Return a direction along which the quadratic form is not positive.

        Returns:
            The curvature $p^T A p / p^T p$ and the direction p, a flat array. Both are
            zero if the factorization shows none: the matrix is positive definite, or
            its pivots do not stand on the diagonal.

        Raises:
            ValueError: If the matrix is not known to be real and symmetric.
        """
        self._check_symmetric("F.negative_curvature()")
        least = int(np.argmin(self.pivots)) if self.pivots.size else 0
        found = self._factors
        known = found.on_diagonal and bool(self.pivots.size)
        if not isinstance(found, Factors) or not known or self.pivots[least] > 0:
            return 0.0, np.zeros_like(self.pivots)
        p = found.direction(least)
        return float(found.pivots[least]) / float(p @ p), self._narrow(p)

    def check_definite(self) -> None:
        """Refuse a matrix that is not positive definite.

        Raises:
            NotPositiveDefiniteError: If a pivot is not positive by more than rounding,
                or lies off the diagonal.
            ValueError: If the matrix is not known to be real and symmetric.
        """
        if not self.is_definite():
            smallest = float(np.real(self.pivots).min(initial=np.inf))
            got = "a pivot off the diagonal"
            if self._factors.on_diagonal and self.pivots.size:
                row = int(self._factors.order[np.argmin(self.pivots)])
                name = named(self._pattern.output, row, "row")
                got = f"a smallest pivot of {smallest:.6g}, in {name}"
            raise not_definite(got, smallest)

    def _narrow(self, a: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return an array in the precision of the matrix and other arrays."""
        known = [b.dtype for b in (self._data, *others)]
        return a.astype(promoted(*known, jnp.float32), copy=False)

    def _check_symmetric(self, call: str) -> None:
        if not self._pattern.symmetric or np.iscomplexobj(self.pivots):
            raise ValueError(
                f"`{call}`: the matrix is not known to be real and symmetric; if it "
                "is up to rounding, take `A.symmetrized()`, or make it with "
                "`symmetric=True`."
            )

    def _check_selected(self, call: str) -> None:
        self._check_symmetric(call)
        if not self._factors.on_diagonal:
            raise ValueError(
                f"`{call}`: this indefinite matrix cannot be factorized with pivots on "
                "its diagonal."
            )

    def __repr__(self) -> str:
        """Show the shape and the entries of the factors."""
        m, n = self.shape
        return f"Factorization({m} x {n}, {self._factors.nnz} entries)"


@final
class Shifted:
    r"""A symmetric matrix A whose $A + \lambda I$ is factorized for several $\lambda$.

    It is stored on the host, in double precision, and uses only NumPy and SciPy, so it
    can be made in a callback. All factorizations share one order of the rows.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([-2.0, 4.0], [0, 1], [0, 1], symmetric=True)
        >>> shifted = hotk.sparse.Shifted(A.pattern, A.values)
        >>> shifted.definite(1.0) is None
        True
        >>> shifted.definite(3.0).solve(np.array([1.0, 14.0])).round(6).tolist()
        [1.0, 2.0]
    """

    def __init__(self, pattern: Pattern, values: npt.ArrayLike) -> None:
        found = np.asarray(values, np.float64)
        # millions of entries in a callback: those of JAX cannot change
        self._values = found.copy() if found.flags.writeable else found
        self._pattern = pattern

    # Each is made when it is asked for: of millions of entries they take as long as a
    # third of the factors.

    @functools.cached_property
    def matrix(self) -> Any:
        """The matrix, a sparse array of SciPy."""
        return in_csr(self._pattern, self._values)

    @functools.cached_property
    def diagonal(self) -> Float[np.ndarray, " n"]:
        """The diagonal of A."""
        return self.matrix.diagonal()

    @functools.cached_property
    def norm(self) -> float:
        """The largest sum of absolute values in a row: no eigenvalue is larger."""
        rows, n = self._pattern.rows, self._pattern.shape[0]
        return float(np.bincount(rows, abs(self._values), n).max(initial=0.0))

    def factors(self, shift: float) -> Factors | None:
        r"""Factorize $A + \lambda I$ with pivots on its diagonal.

        Args:
            shift: The number $\lambda$.

        Returns:
            Factors, with `solve`, `pivots` and `is_definite`; `None` if a pivot is
            zero.
        """
        try:
            return symmetric_factors(self._pattern, self._values, shift)
        except RuntimeError:
            return None

    def definite(self, shift: float) -> AnyFactors | None:
        r"""Factorize $A + \lambda I$ if it is positive definite.

        Args:
            shift: The number $\lambda$.

        Returns:
            Factors, with `solve` and `pivots`; `None` if the matrix is not positive
            definite.
        """
        return definite_factors(self._pattern, self._values, shift)
