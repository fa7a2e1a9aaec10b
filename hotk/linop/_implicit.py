"""Derivatives of what solvers return, by the equations that it solves."""

import dataclasses
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Inexact, PyTree

from hotk._capture import Staged
from hotk._core import ModeError, Vector, WhileLoop, message
from hotk._primitive import have_tangents, without_derivative
from hotk.rule import Condition

from . import _dense, space
from ._driver import compiled
from ._linear_map import AbstractLinearMap
from ._solution import Solution


Product = Callable[[Vector], Vector]

_CALL = "solve(A, b)"
_FIX = (
    "Differentiate `solution.x`, and return that alone from a loop or a function with "
    "a rule of its own, of which JAX may differentiate all results."
)


@final
class SymmetricProduct(AbstractLinearMap):
    """A symmetric product as an operator.

    Attributes:
        product: The product, traced.
        template: A vector of the space.
    """

    product: Staged
    template: Vector

    @staticmethod
    def of(product: Product, like: Vector) -> "SymmetricProduct":
        """Trace a product."""
        return SymmetricProduct(Staged.of(product, like), like)

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.template

    @property
    def symmetric(self) -> bool:
        """Whether the map is symmetric: always `True`."""
        return True

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        return self.product(v)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""
        return _dense.many(self, vectors, block_size)

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix."""
        return _dense.matrix(self, block_size, None, None)


class _Residual(eqx.Module):
    """The residual of a linear system."""

    def __call__(self, x: Vector, A: AbstractLinearMap, b: Vector) -> Vector:
        """Return A x - b."""
        return space.minus(A.mv(x), b)


class _SameSolver(eqx.Module):
    """What solves the systems of the derivatives.

    Attributes:
        solve: `solve(operator, b, options)`.
        options: Its options.
    """

    solve: Callable[..., Solution] = eqx.field(static=True)
    options: PyTree

    def __call__(self, product: Product, b: Vector) -> Vector:
        """Solve a system, with NaN for what has not converged."""
        other = self.solve(SymmetricProduct.of(product, b), b, self.options)
        # a factor: what is not converged must not pass for a solution
        return space.times(jnp.where(other.converged, 1, jnp.nan), other.x)


def with_derivatives(
    found: Solution,
    system: tuple[AbstractLinearMap, Vector],
    held: PyTree,
    solve: Callable[..., Solution],
    options: PyTree,
    *,
    batched: bool,
) -> Solution:
    """Return a solution of `A x = b` with its derivatives by A and by b.

    Args:
        found: The solution, of the system without tangents.
        system: The operator and the right-hand side, with their tangents.
        held: The same, without them.
        solve: What solves the systems of the derivatives, as it did this one, by
            `solve(operator, b, options)`: a function that is no other in each call.
        options: Its options: arrays, and what is hashable.
        batched: Whether there are several right-hand sides.

    Raises:
        ModeError: If it has not converged, and numbers are known.
    """
    A, b = system
    if have_tangents(system, held) and not jnp.all(found.converged):
        raise _not_converged(found)

    # Compiled, as the solution was: outside of `jit` the systems of the derivatives
    # would be traced and compiled at each call.
    attach = _attached_all if batched else _attached
    x = compiled(attach, (found.x, b, found.converged, A, solve, options))
    rest = dataclasses.replace(found, x=None)
    names = "all fields but `x`"
    rest = without_derivative(_CALL, rest, system, names=names, fix=_FIX)
    return dataclasses.replace(rest, x=x)


def _attached(
    while_loop: WhileLoop,
    x: Vector,
    b: Vector,
    solved: Bool[Array, ""],
    A: AbstractLinearMap,
    solve: Callable[..., Solution],
    options: PyTree,
) -> Vector:
    """Return a solution with its derivatives."""
    del while_loop  # the systems of the derivatives have theirs
    again, theta = _SameSolver(solve, options), (A, b)
    return Condition(
        "symmetric root", _Residual(), theta, solved, linear_solver=again
    ).attach(x)


def _attached_all(
    while_loop: WhileLoop, x: Vector, b: Vector, solved: Bool[Array, " k"], *rest: Any
) -> Vector:
    """Return several solutions of one operator with their derivatives."""
    one = lambda x, b, solved: _attached(while_loop, x, b, solved, *rest)
    return jax.vmap(one)(x, b, solved)


def _not_converged(found: Solution) -> ModeError:
    reason = str(found.reason) if found.iterations.ndim == 0 else "several systems"
    return ModeError(
        message(
            _CALL,
            "a system that was not solved has no derivative.",
            expected="a solution that has converged",
            got=reason,
            fix="Give a larger `max_steps` or `tol`, or a preconditioner; "
            "`jax.lax.stop_gradient(A)` if no derivative is meant.",
        )
    )
