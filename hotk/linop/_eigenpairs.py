"""`Eigenpairs`: eigenvalues with their vectors, and the derivatives of both."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hotk._core import (
    LARGEST_FACTOR,
    AbstractReport,
    ModeError,
    Scalar,
    V,
    Vector,
    WhileLoop,
    message,
)
from hotk._prepared import jitted
from hotk._primitive import have_tangents, without_derivative
from hotk.rule import Condition, linear_solve

from . import space
from ._driver import compiled
from ._linear_map import AbstractLinearMap
from ._solution import Method
from ._solve import by_iteration


@final
class Eigenpairs(AbstractReport, Generic[V]):
    """Some eigenvalues of a symmetric operator, with vectors and residuals.

    It is a pytree of arrays, and prints as a table.

    Attributes:
        values: The eigenvalues, in ascending order: the Rayleigh quotients of the
            vectors.
        vectors: The eigenvectors, of norm 1: a tree like the space with one leading
            axis.
        residuals: The norms of `A v - lambda v`, computed anew at the end. Each
            interval `lambda +- residual` holds an eigenvalue.
        converged: Whether each residual is below the tolerance.
        complete: Whether a search from a random direction, orthogonal to these vectors,
            found no eigenvalue that belongs among them: then a copy of a multiple one
            is hardly ever missing.
        products: The number of products with the operator, residuals included.
        restarts: The number of restarts.
        method: How they were computed, a member of `hotk.linop.Method`: by Lanczos
            iteration, or from the matrix.
    """

    values: Float[Array, " k"]
    vectors: V
    residuals: Float[Array, " k"]
    converged: Bool[Array, " k"]
    complete: Bool[Array, ""]
    products: Int[Array, ""]
    restarts: Int[Array, ""]
    method: Method

    _header: ClassVar[tuple[str, ...]] = ("eigenvalue", "residual", "converged")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{float(v):.6g}", f"{float(r):.2g}", "yes" if bool(c) else "no")
            for v, r, c in zip(self.values, self.residuals, self.converged, strict=True)
        ]

    def _lines(self) -> list[str]:
        search = "complete" if bool(self.complete) else "copies may be missing"
        counts = f"{int(self.products)} products, {int(self.restarts)} restarts"
        return [f"{counts}, {search}", f"by {self.method}"]


_CALL = "eigh(A, k)"


class _EigenResidual(eqx.Module):
    r"""The equation of an eigenvalue $\lambda = c \nu$ and its vector of norm 1.

    Its Jacobian by $(v, \nu)$ is symmetric, with the matrix $A - \lambda I$ and a
    border $-c v$. It is regular where the eigenvalue is simple. The number c is of the
    size of A, so that the units of A do not matter.
    """

    def __call__(
        self, pair: tuple[Vector, Scalar], A: AbstractLinearMap, c: Scalar
    ) -> tuple[Vector, Scalar]:
        """Return (A v - c nu v, c (1 - v'v) / 2)."""
        v, nu = pair
        return space.plus(A.mv(v), v, -c * nu), c * (1 - space.inner(v, v)) / 2


def with_derivatives(
    found: Eigenpairs, operator: AbstractLinearMap, held: AbstractLinearMap
) -> Eigenpairs:
    """Return eigenpairs with their derivatives by what the operator depends on.

    Args:
        found: The pairs of the operator without tangents.
        operator: The operator, with its tangents.
        held: The same, without them.

    Raises:
        ModeError: If an eigenvalue has not converged or is not simple, and numbers are
            known.
    """
    largest = jnp.max(jnp.abs(found.values))
    c = jnp.where(largest > 0, largest, 1)
    pairs = found.vectors, found.values / c
    factorized = space.dimension(held.like) < LARGEST_FACTOR
    if have_tangents(operator, (held, found)):
        _refuse("has not converged", found, ~np.asarray(found.converged))
        if factorized:
            _refuse("is not simple", found, np.asarray(_is_multiple(held, pairs, c)))
    solver = None if factorized else by_iteration
    vectors, numbers = compiled(
        _attached, (*pairs, found.converged, (operator, c), solver)
    )
    residuals = without_derivative(
        _CALL,
        found.residuals,
        operator,
        names="`residuals`",
        fix="Differentiate `values` or `vectors`, and return these alone from a loop "
        "or a function with a rule of its own, of which JAX may differentiate all.",
    )
    return dataclasses.replace(
        found, values=c * numbers, vectors=vectors, residuals=residuals
    )


def _attached(
    while_loop: WhileLoop,
    vectors: Vector,
    numbers: Array,
    solved: Bool[Array, " k"],
    theta: tuple[AbstractLinearMap, Scalar],
    solver: Callable[..., Any] | None,
) -> tuple[Vector, Array]:
    """Return pairs with their derivatives."""
    del while_loop  # the systems of the derivatives have theirs

    def attach(v: Vector, nu: Scalar, solved: Array) -> tuple[Vector, Scalar]:
        return Condition(
            "symmetric root", _EigenResidual(), theta, solved, linear_solver=solver
        ).attach((v, nu))

    return jax.vmap(attach)(vectors, numbers, solved)


@jitted
def _is_multiple(
    A: AbstractLinearMap, pairs: tuple[Vector, Array], c: Scalar
) -> Bool[Array, " k"]:
    """Return for each pair whether its bordered matrix is singular up to rounding."""

    def of_one(pair: tuple[Vector, Scalar]) -> Array:
        _, product = jax.linearize(lambda pair: _EigenResidual()(pair, A, c), pair)
        b = jax.tree.map(jnp.ones_like, pair)
        return ~space.is_finite(linear_solve(product, b, symmetric=True))

    return jax.vmap(of_one)(pairs)


def _refuse(what: str, found: Eigenpairs, is_bad: np.ndarray) -> None:
    if not is_bad.any():
        return
    bad = ", ".join(map(str, np.flatnonzero(is_bad)))
    values = ", ".join(f"{v:.6g}" for v in np.asarray(found.values)[is_bad])
    raise ModeError(
        message(
            _CALL,
            f"an eigenvalue that {what} has no derivative.",
            expected="simple eigenvalues that have converged",
            got=f"the pairs {bad}, with the eigenvalues {values}",
            fix="Differentiate a function of all copies of an eigenvalue, such as "
            "`hotk.safe.spectral_sum(A.matrix(), f)`, or take "
            "`jax.lax.stop_gradient(A)` if no derivative is meant.",
        )
    )
