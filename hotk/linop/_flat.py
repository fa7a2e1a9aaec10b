"""`Flat`: an operator on trees as one on flat arrays, for the iterations on it.

An iteration has a kernel for each leaf in each of its thirty operations. The compiler
takes longer for them than for the product where there are many leaves.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._core import Vector
from hotk._prepared import jitted

from . import _direct, space
from ._linear_map import AbstractLinearMap
from ._solution import Solution
from .space import flattened, unflattened


@final
class Flat(AbstractLinearMap):
    """An operator on flat arrays, in the order of the index.

    Attributes:
        operator: The operator on trees.
        tree: A vector of its space.
    """

    operator: AbstractLinearMap
    tree: Vector

    @property
    def like(self) -> Float[Array, " n"]:
        """A flat vector."""
        return _flattened(self.tree)

    @property
    def symmetric(self) -> bool:
        """Whether the operator is symmetric."""
        return self.operator.symmetric

    @property
    def on_host(self) -> bool:
        """Whether its products run on the host."""
        return self.operator.on_host

    def mv(self, v: Vector) -> Vector:
        """Return the product with a flat vector."""
        return flattened(self.operator.mv(unflattened(v, self.tree)))

    def applied(self, v: Vector) -> Vector:
        """Return the product outside of a trace: by the program of the operator."""
        return _flattened(self.operator.applied(_unflattened(v, self.tree)))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several flat vectors."""
        trees = jax.vmap(lambda v: unflattened(v, self.tree))(vectors)
        return jax.vmap(flattened)(self.operator.many(trees, block_size))

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix."""
        return self.operator.matrix(block_size)


@jitted(quickly="always")
def _flattened(v: Vector) -> Float[Array, " n"]:
    return flattened(v)


@jitted(quickly="always")
def _unflattened(v: Float[Array, " n"], like: Vector) -> Vector:
    return unflattened(v, like)


@jitted(quickly="always")
def as_trees(rows: Float[Array, "k n"], like: Vector) -> PyTree:
    """Return flat vectors as trees with one leading axis."""
    return jax.vmap(lambda v: unflattened(v, like))(rows)


def is_better_flat(operator: AbstractLinearMap, *others: PyTree) -> bool:
    """Whether an iteration should have flat vectors.

    Not inside of a transformation, nor on several devices: a flat array does not keep
    how the leaves are split among them.
    """
    if operator.like is None or space.has_shards(operator.like):
        return False
    if len(space.parts(operator.like)) <= 1 or not _direct.is_concrete(operator):
        return False
    return all(map(_direct.is_concrete, others))


def flat(run: Callable[..., Solution]) -> Callable[..., Solution]:
    """Return an iteration for a system on trees, made of one for flat vectors.

    Args:
        run: Function `run(while_loop, A, b, x0, M, ...)`.
    """

    def run_flat(
        while_loop: Any,
        A: AbstractLinearMap,
        b: Vector,
        x0: Vector | None,
        M: AbstractLinearMap | None,
        *rest: Any,
    ) -> Solution:
        like = A.like
        start = None if x0 is None else flattened(x0)
        inverse = None if M is None else Flat(M, like)
        solution = run(while_loop, Flat(A, like), flattened(b), start, inverse, *rest)
        return dataclasses.replace(
            solution,
            x=unflattened(solution.x, like),
            direction=unflattened(solution.direction, like),
        )

    return run_flat
