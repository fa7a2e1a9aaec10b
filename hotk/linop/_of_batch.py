"""What is summed over batches, from the operator of one and a vector."""

from collections.abc import Callable
from typing import TypeAlias, final

import equinox as eqx
from jaxtyping import PyTree

from hotk._core import Function, Gradient, Point, Scalar, Vector
from hotk._second import hvp

from ._point_operator import AbstractPointOperator


# From the operator of a batch, and a vector, to what is summed: a tree of arrays.
OfBatch: TypeAlias = Callable[[AbstractPointOperator, PyTree], PyTree]


@final
class WithValue(eqx.Module):
    """A loss that returns its value once more, as auxiliary output."""

    f: Function

    def __call__(self, x: Point, *args: PyTree) -> tuple[Scalar, Scalar]:
        """Return the loss, twice."""
        y = self.f(x, *args)
        return y, y


def value_and_gradient(h: AbstractPointOperator, v: None) -> tuple[Scalar, Gradient]:
    """Return the loss and its gradient."""
    del v
    return h.value, h.gradient


def product(h: AbstractPointOperator, v: Vector) -> tuple[Vector, Scalar]:
    """Return the product with one vector, and the loss."""
    return _with_value(h, v, batched=False)


def products(h: AbstractPointOperator, v: PyTree) -> tuple[PyTree, Scalar]:
    """Return the products with several vectors, and the loss."""
    return _with_value(h, v, batched=True)


def _with_value(
    h: AbstractPointOperator, v: PyTree, *, batched: bool
) -> tuple[PyTree, Scalar]:
    direction, f = h.direction(v, batched=batched), WithValue(h.f)
    keywords = {"has_aux": True, "batched": batched, "where": h.where}
    result, y = hvp(f, h.x, direction, *h.args, **keywords)
    return h.conjugate(result), y


# Known when this file is: a program is kept for each.
ONE_PROGRAM = (value_and_gradient, product, products)
