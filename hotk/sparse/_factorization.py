"""`Factorization` of a sparse matrix by SuperLU, and solutions that it gives."""

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import (
    NotPositiveDefiniteError,
    StructureError,
    Tracer,
    extra,
    message,
)
from hotk.dense import promoted, unflattened

from ._conversion import in_csc, on_host
from ._pattern import Pattern
from ._products import product
from ._vectors import check_one, flat_side


# Pivots on the diagonal are as stable as a growth of the entries by this shows.
_MOST_GROWTH = 1e6


@final
class Factorization:
    """The factors L U of a sparse square matrix, made once for many right-hand sides.

    It lives on the host: SciPy's SuperLU made it. A symmetric matrix is pivoted on its
    diagonal, so that the signs of the pivots are those of its eigenvalues.

    Attributes:
        shape: Numbers of rows and columns.
        pivots: The diagonal of U.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([2.0, 4.0], [0, 1], [0, 1], symmetric=True)
        >>> F = A.factorize()
        >>> F.solve(jnp.array([2.0, 2.0])).tolist(), F.inertia()
        ([1.0, 0.5], (2, 0, 0))
    """

    __slots__ = ("_lu", "_pattern", "pivots", "shape")

    def __init__(self, pattern: Pattern, values: Array) -> None:
        _check_square(pattern, "A.factorize()")
        data = on_host(values, "A.factorize()")
        self.shape, self._pattern = pattern.shape, pattern
        if not np.isfinite(data).all():
            raise ValueError("`A.factorize()`: an entry is NaN or infinite.")
        self._lu = _factors(pattern, data, "A.factorize()")
        self.pivots = np.array(self._lu.U.diagonal())

    def solve(self, b: PyTree) -> Any:
        """Solve `A x = b`.

        Args:
            b: The right-hand side: a tree like the output of the matrix, a flat array,
                or an array of shape `(n, k)`.

        Returns:
            The solution, in the form of `b`.
        """
        flat, tree = flat_side(self._pattern.output, b, "F.solve(b)")
        found = jnp.asarray(_solved(self._lu, np.asarray(flat), "N"))
        return found if tree is None else unflattened(found, self._pattern.input)

    def inertia(self) -> tuple[int, int, int]:
        """Count the positive, zero and negative eigenvalues of a symmetric matrix.

        Returns:
            The numbers of positive, zero and negative ones; a pivot counts as zero if
            it is at most `n eps` times the numbers that it is the difference of.

        Raises:
            ValueError: If the matrix is not known to be symmetric, or needs pivots off
                its diagonal, whose signs say nothing.
        """
        if not self._pattern.symmetric or np.iscomplexobj(self.pivots):
            raise ValueError(
                "`F.inertia()`: the matrix is not known to be real and symmetric; make "
                "it with `symmetric=True` if it is."
            )
        if not np.array_equal(self._lu.perm_r, self._lu.perm_c):
            raise ValueError(
                "`F.inertia()`: this indefinite matrix cannot be factorized with "
                "pivots on its diagonal, so their signs are not those of its "
                "eigenvalues. `hotk.linop.inertia` computes all eigenvalues."
            )
        sizes = np.abs(self.pivots)
        # Not of the largest pivot: variables may have units of their own.
        terms = abs(self._lu.L).multiply(abs(self._lu.U).T).sum(axis=1)
        limit = np.finfo(sizes.dtype).eps * sizes.size * np.asarray(terms).reshape(-1)
        zero = sizes <= limit
        positive = int(((self.pivots > 0) & ~zero).sum())
        return positive, int(zero.sum()), int(sizes.size - positive - zero.sum())

    def logdet(self) -> float:
        """Return the logarithm of the absolute value of the determinant."""
        # the diagonal of L is one, and permutations change the sign alone
        return float(np.log(np.abs(self.pivots)).sum())

    def check_definite(self) -> None:
        """Refuse a matrix that is not positive definite.

        Raises:
            NotPositiveDefiniteError: If a pivot is not positive by more than rounding,
                or lies off the diagonal.
        """
        smallest = float(np.real(self.pivots).min(initial=np.inf))
        got = f"a smallest pivot of {smallest:.6g}"
        try:
            definite = self.inertia()[0] == self.shape[0]
        except ValueError:
            if not self._pattern.symmetric or np.iscomplexobj(self.pivots):
                raise
            definite, got = False, "a pivot off the diagonal"
        if not definite:
            raise not_definite(got, smallest)

    def __repr__(self) -> str:
        """Show the shape and the entries of the factors."""
        return (
            f"Factorization({self.shape[0]} x {self.shape[1]}, {self._lu.nnz} entries)"
        )


def not_definite(got: str, smallest: float) -> NotPositiveDefiniteError:
    """Return what `cholesky` raises."""
    return NotPositiveDefiniteError(
        message(
            "A.cholesky()",
            "the matrix is not positive definite.",
            expected="positive pivots on the diagonal",
            got=got,
            fix="Add a multiple of `hotk.sparse.identity(A)`.",
        ),
        smallest,
    )


def solve(pattern: Pattern, values: Inexact[Array, " nnz"], b: PyTree) -> Any:
    """Solve `A x = b`, differentiable by the values and the right-hand side."""
    check_one(values)
    _check_square(pattern, "A.solve(b)")
    flat, tree = flat_side(pattern.output, b, "A.solve(b)")
    dtype = promoted(values.dtype, flat.dtype, jnp.float32)
    values, flat = values.astype(dtype), flat.astype(dtype)

    def host(values: Array, b: Array, turned: bool) -> np.ndarray:
        data, right = np.array(values), np.asarray(b)
        if not np.isfinite(data).all():
            return np.full(right.shape, np.nan, dtype)  # as JAX's dense solver does
        lu = _factors(pattern, data, "A.solve(b)")
        return _solved(lu, right, "T" if turned else "N").astype(dtype)

    if not isinstance(values, Tracer) and not isinstance(flat, Tracer):
        # A callback of JAX would hide what is raised behind an error of its own.
        found = jnp.asarray(host(values, flat, False))
        return found if tree is None else unflattened(found, pattern.input)

    def solver(turned: bool) -> Any:
        return lambda _, b: jax.pure_callback(
            lambda v, b: host(v, b, turned),
            jax.ShapeDtypeStruct(b.shape, dtype),
            values,
            b,
            vmap_method="sequential",
        )

    found = jax.lax.custom_linear_solve(
        lambda v: product(pattern, values, v),
        flat,
        solver(False),
        transpose_solve=solver(True),
    )
    return found if tree is None else unflattened(found, pattern.input)


def _factors(pattern: Pattern, data: np.ndarray, call: str) -> Any:
    # SuperLU knows four dtypes
    if data.dtype.char not in "fdFD":
        data = data.astype(np.float32)
    matrix = in_csc(pattern, data)
    try:
        found = _on_diagonal(matrix, data) if pattern.symmetric else None
        return found or extra("scipy.sparse.linalg").splu(matrix)
    except RuntimeError as error:
        raise RuntimeError(
            f"`{call}`: the matrix is singular. Add a multiple of "
            "`hotk.sparse.identity(A)`."
        ) from error


def _on_diagonal(matrix: Any, data: np.ndarray) -> Any:
    """Return factors with pivots on the diagonal, `None` if they are not stable."""
    options = {"SymmetricMode": True}
    splu = extra("scipy.sparse.linalg").splu
    try:
        lu = splu(matrix, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    except RuntimeError:  # a zero on the diagonal: only other pivots are left
        return None
    largest = float(np.abs(lu.U.data).max(initial=0.0))
    # Tiny pivots of an indefinite matrix lose the digits of the others.
    stable = largest <= _MOST_GROWTH * float(np.abs(data).max(initial=0.0))
    return lu if stable else None


def _solved(lu: Any, b: np.ndarray, trans: str) -> np.ndarray:
    if np.iscomplexobj(b) and not np.iscomplexobj(lu.U.data):
        parts = [
            lu.solve(np.ascontiguousarray(p), trans) for p in (np.real(b), np.imag(b))
        ]
        return parts[0] + 1j * parts[1]
    return lu.solve(b.astype(lu.U.dtype), trans)


def _check_square(pattern: Pattern, call: str) -> None:
    if pattern.shape[0] != pattern.shape[1]:
        raise StructureError(
            f"`{call}`: a system needs a square matrix, and this one has the shape "
            f"{pattern.shape}. `A.T @ A` is square."
        )
