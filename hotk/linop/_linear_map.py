"""`AbstractLinearMap`: what solvers and dense methods need of an operator."""

import abc
import operator
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import (
    RealNumber,
    StructureError,
    V,
    Vector,
    describe,
    difference,
    message,
)
from hotk._dense import as_vector, from_flat, is_flat
from hotk._prepared import jitted
from hotk.sparse import SparseMatrix


M = TypeVar("M", bound="AbstractLinearMap")


class AbstractLinearMap(eqx.Module, Generic[V]):
    """A linear map of a space of trees into itself.

    It is the argument of every solver of `hotk.linop`, and has only what these use.
    `AbstractOperator` adds arithmetic, and the solvers as methods: it imports them, so
    they cannot import it.
    """

    # Whether a product runs on the host, as one over batches of data does.
    on_host = False

    # Equinox makes a pytree of a bound method on every read of an attribute: a product
    # of a small operator took four times as long.
    __getattribute__ = object.__getattribute__

    @property
    @abc.abstractmethod
    def like(self) -> Vector:
        """A vector of the space, whose values do not matter; `None` for any space."""

    @property
    @abc.abstractmethod
    def symmetric(self) -> bool:
        """Whether the map is symmetric."""

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite; nothing is computed."""
        return False

    @abc.abstractmethod
    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""

    def applied(self, v: Vector) -> Vector:
        """Return the product with one vector, outside of a trace, by one program."""
        return self.mv(v) if self.on_host else _product(self, v)

    @abc.abstractmethod
    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""

    @abc.abstractmethod
    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix."""

    def sparse_or_none(self, like: Vector) -> SparseMatrix | None:
        """Return the matrix if it is known to be sparse, found without products.

        Args:
            like: A vector of the space.
        """
        del like
        return None

    def inverse_or_none(self, damping: RealNumber) -> "AbstractLinearMap | None":
        r"""Return $(A + \lambda I)^{-1}$ if it is known in closed form.

        Args:
            damping: The number $\lambda$.
        """
        del damping
        return None

    def is_transpose_of(self, other: "AbstractLinearMap") -> bool:
        """Whether it is known to be the transpose of another operator.

        Args:
            other: The other one: itself, if it is symmetric, or one made of the same
                arrays.
        """
        if not self.symmetric or self is other:
            return self.symmetric
        (a, tree), (b, other_tree) = jax.tree.flatten(self), jax.tree.flatten(other)
        return tree == other_tree and all(map(operator.is_, a, b))

    def __copy__(self: M) -> M:
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self: M, memo: object) -> M:
        """Return itself: nothing in it can change."""
        return self

    def vector(self, v: PyTree, call: str = "A @ v") -> Vector:
        """Check that a tree is a vector of the space, and cast its NumPy leaves.

        One flat vector, in the order of `index`, becomes a tree; `flat` turns back.

        Args:
            v: A tree with the structure and shapes of the space, or one flat array.
                Entries at leaves that are not differentiated are dropped.
            call: The call that it is an argument of, for the error message.

        Returns:
            The vector: a tree of arrays of JAX.

        Raises:
            StructureError: If it is not a vector of the space.
        """
        if self.like is None:
            return jax.tree.map(jnp.asarray, v)
        if is_flat(v, self.like):
            return from_flat(call, v, self.like)
        return as_vector(call, v, self.like)


@jitted
def _product(operator: AbstractLinearMap, v: Vector) -> Vector:
    return operator.mv(v)


def common_like(operators: Iterable[AbstractLinearMap]) -> Vector:
    """Return a vector of the space that operators share, `None` for any space."""
    return next((o.like for o in operators if o.like is not None), None)


def as_factor(number: PyTree) -> Array | None:
    """Return what an operator is multiplied with, `None` if it is not a number.

    Raises:
        TypeError: If it is complex.
    """
    if isinstance(number, AbstractLinearMap) or np.ndim(number) or number is None:
        return None
    if np.iscomplexobj(number):
        raise TypeError("an operator is multiplied by real numbers only")
    exact = isinstance(number, (bool, int))  # one program for 2 and for 2.5
    return jnp.asarray(float(number) if exact else number)


def refuse_number(other: object, sign: str) -> Any:
    """Refuse a number as a term of a sum; any other class may know what to do."""
    if not isinstance(other, (int, float, np.generic, np.ndarray, jax.Array)):
        return NotImplemented
    raise TypeError(
        message(
            f"A {sign} B",
            "the terms of a sum are operators.",
            expected="two operators of one space",
            got=f"an operator and {describe(other)}",
            fix=f"For a multiple of the identity write `A {sign} 0.1 * "
            f"hotk.Identity()`, for a diagonal matrix `A {sign} hotk.Diagonal(d)`.",
        )
    )


def check_same_space(operators: Iterable[AbstractLinearMap], symbol: str) -> None:
    """Refuse operators of different spaces."""
    vectors = [o.like for o in operators if o.like is not None]
    for other in vectors[1:]:
        same = jax.tree.structure(vectors[0]) == jax.tree.structure(other) and all(
            a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(
                jax.tree.leaves(vectors[0]), jax.tree.leaves(other), strict=True
            )
        )
        if not same:
            raise StructureError(
                message(
                    f"A {symbol} B",
                    "the operators act on different spaces.",
                    **difference("b", vectors[0], other),
                    fix="Make both at points of the same structure, shapes and dtypes.",
                )
            )
