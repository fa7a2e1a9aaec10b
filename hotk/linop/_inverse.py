"""Products with the inverse of an operator: by a factorization, or by iteration."""

import functools
from typing import Any, Literal, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Num, PyTree

from hotk._core import LARGEST_FACTOR, RealNumber, Scalar, Vector, describe_tree
from hotk._prepared import shown
from hotk.sparse import SparseMatrix, identity

from . import _dense, space
from ._cholesky import cholesky
from ._linear_map import AbstractLinearMap
from ._solution import Solution
from ._solve import solve
from ._vectors import check_symmetric, is_known_positive, space_of


InverseMethod: TypeAlias = Literal["cholesky", "solve"]


@final
class Damped(AbstractLinearMap):
    r"""A linear map plus a multiple of the identity, $A + \lambda I$.

    Attributes:
        inner: The map A.
        damping: The number.
    """

    inner: AbstractLinearMap
    damping: Num[Array, ""]

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.inner.like

    @property
    def symmetric(self) -> bool:
        """Whether the map is symmetric."""
        return self.inner.symmetric

    @property
    def on_host(self) -> bool:
        """Whether a product runs on the host."""
        return self.inner.on_host

    @property
    def positive_semidefinite(self) -> bool:
        """Whether the map is known to be, and the number is not negative."""
        return self.inner.positive_semidefinite and is_known_positive(self.damping)

    def sparse_or_none(self, like: Vector) -> SparseMatrix | None:
        """Return the matrix if that of the inner map is sparse."""
        matrix = self.inner.sparse_or_none(like)
        if matrix is None:
            return None
        return matrix + identity(matrix) * self.damping.astype(matrix.dtype)

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        return space.plus(self.inner.mv(v), v, self.damping)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""
        return space.plus(self.inner.many(vectors, block_size), vectors, self.damping)

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix."""
        a = self.inner.matrix(block_size)
        return a + self.damping.astype(a.dtype) * jnp.eye(len(a), dtype=a.dtype)


@shown
def inverse_fields(
    operator: AbstractLinearMap,
    damping: RealNumber,
    method: InverseMethod | None,
    tol: RealNumber | None,
    max_steps: int | None,
) -> tuple[Vector, Damped | None, Float[Array, "n n"] | None, Scalar, int | None]:
    """Factorize an operator, or only note how its systems are to be solved.

    Returns:
        The fields of an `AbstractInverse`.

    Raises:
        TypeError: If the operator is not known to be symmetric.
        ValueError: If there is no such method.
        NotPositiveDefiniteError: If a factorization meets a matrix that is not.
    """
    call, like = "A.inverse()", space_of(operator)
    if method not in (None, "cholesky", "solve"):
        raise ValueError(f"`{call}`: method {method!r} is not 'cholesky' or 'solve'.")
    check_symmetric(call, operator)
    if method is None:
        small = space.dimension(like) <= LARGEST_FACTOR
        method = "cholesky" if small else "solve"
    dtype = space.scalar_dtype(like)
    precision = float(jnp.finfo(dtype).eps) ** 0.5
    if method == "cholesky":
        # Without the operator: one over batches of data goes through no `jit`.
        damped, factor = None, cholesky(operator, damping)
    else:
        damped, factor = Damped(operator, jnp.asarray(damping, dtype)), None
    return (
        like,
        damped,
        factor,
        jnp.asarray(precision if tol is None else tol, dtype),
        max_steps,
    )


class AbstractInverse(AbstractLinearMap):
    r"""The inverse $(A + \lambda I)^{-1}$ of a linear map.

    Attributes:
        template: A vector of the space.
        damped: The map $A + \lambda I$, if systems are solved by iteration.
        factor: Its Cholesky factor, if they are not.
        tol: The relative tolerance of an iteration.
        max_steps: The most products of one; ten times the dimension if `None`.
    """

    template: Vector
    damped: Damped | None
    factor: Float[Array, "n n"] | None
    tol: Scalar
    max_steps: int | None = eqx.field(static=True)

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.template

    @property
    def symmetric(self) -> bool:
        """Whether the inverse is symmetric: always `True`."""
        return True

    @property
    def on_host(self) -> bool:
        """Whether a product runs on the host: one with a factor does not."""
        return self.damped is not None and self.damped.on_host

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be: a factor exists of no other matrix."""
        return self.damped is None or self.damped.positive_semidefinite

    def __repr__(self) -> str:
        """Show the space and the method."""
        method = "solve" if self.factor is None else "cholesky"
        n = space.dimension(self.like)
        return f"Inverse({describe_tree(self.like, 4)}, n={n}, {method})"

    def mv(self, v: Vector) -> Vector:
        """Return the solution of a system."""
        if self.damped is not None:
            found = solve(self.damped, v, tol=self.tol, max_steps=self.max_steps)
            return _checked(found, v)
        assert self.factor is not None
        flat = space.flattened(v).astype(self.factor.dtype)
        solve_part = functools.partial(
            jax.lax.linalg.triangular_solve, self.factor, left_side=True, lower=True
        )
        half = solve_part(flat[:, None])
        solved = solve_part(half, transpose_a=True)[:, 0]
        return space.unflattened(solved, self.like)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the solutions of several systems, `block_size` of them at once."""
        if self.damped is None or not self.on_host:
            return _dense.many(self, vectors, block_size)
        options: dict[str, Any] = {"tol": self.tol, "max_steps": self.max_steps}
        found = solve(self.damped, vectors, batched=True, **options)
        return _checked(found, vectors)


def _checked(found: Solution, v: Vector) -> Vector:
    # A wrong vector would look like any other one. An error of the run, as it is known
    # only then; it works inside of `jit` and `vmap` as well.
    return eqx.error_if(
        space.narrowed(found.x, v),
        ~jnp.all(found.converged),
        "`A.inverse()`: a system did not converge: the operator is singular, or "
        "`max_steps` is too small. Give a larger `damping` or `tol`, or look at "
        "`A.solve(b)`, which says why it stopped.",
    )
