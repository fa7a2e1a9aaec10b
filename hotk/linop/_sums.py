"""Sums of what operators of batches give, over all batches of a data set."""

import math
from collections.abc import Callable, Hashable
from typing import TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import Function, Gradient, Point, Scalar, Vector, fori_loop
from hotk._prepared import jitted
from hotk._second import hvp

from . import space
from ._frozen import arrays_of, inputs_of, with_numbers
from ._point_operator import AbstractPointOperator, with_fields
from ._source import Source, no_batch, padded, row_count
from ._stacked import Stacked, stacked


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


@final
class OfOneBatch(eqx.Module):
    """The operator of one batch, without its arrays.

    Attributes:
        like_first: That of batches with the types of the first one: its function is a
            program whose captured numbers are arrays, so that others compile nothing.
        of_others: That of all other batches, longer ones for instance.
        types: Shape and dtype of each array of the first batch, and its structure.
    """

    like_first: AbstractPointOperator
    of_others: AbstractPointOperator
    types: Hashable = eqx.field(static=True)

    @staticmethod
    def of(of_first: AbstractPointOperator) -> "OfOneBatch":
        """Take the arrays out of the operator of the first batch."""
        (batch,), f = of_first.args, of_first.f
        others = with_fields(of_first, args=())
        program = with_numbers(f, (of_first.x, batch))
        like_first = others if program is f else with_fields(others, f=program)
        return OfOneBatch(like_first, others, _types(batch))

    def at(self, x: Point) -> "OfOneBatch":
        """Return the operator of one batch at another point."""
        program, others = self.like_first.at(x), self.of_others
        others = program if self.like_first is others else others.at(x)
        return OfOneBatch(program, others, self.types)

    def for_types_of(self, batch: PyTree) -> AbstractPointOperator:
        """Return the operator of such a batch, without its arrays."""
        same = self.like_first is self.of_others or _types(batch) == self.types
        return self.like_first if same else self.of_others

    def for_batch(self, batch: PyTree) -> AbstractPointOperator:
        """Return the operator of a batch."""
        return with_fields(self.for_types_of(batch), args=(batch,))


def _types(batch: PyTree) -> Hashable:
    leaves, tree = jax.tree.flatten(batch)
    is_weak = lambda a: isinstance(a, jax.Array) and a.weak_type
    return tree, *[(np.shape(a), jnp.result_type(a), is_weak(a)) for a in leaves]


def _row_type(a: Array | np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape[1:], jnp.result_type(a))


# So many numbers are moved to a device in the time of a call of JAX.
_SMALL = 1 << 14


class Adding:
    """Adds what an operator of a batch gives to a sum.

    Attributes:
        operators: The operator of a batch, without its arrays.
        of_batch: What to sum.
        v: What that takes besides.
        dtype: The dtype in which batches are summed.
        shapes: The shapes and dtypes of what is summed, `None` if they are not known.
    """

    def __init__(
        self,
        operators: OfOneBatch,
        of_batch: OfBatch,
        v: PyTree,
        dtype: DTypeLike | None,
        shapes: PyTree = None,
    ) -> None:
        self.operators, self.of_batch, self.v = operators, of_batch, v
        self.dtype, self.shapes = dtype, shapes

    def __call__(self, total: PyTree, batch: PyTree, weight: float) -> PyTree:
        """Add the result for a batch, times a weight; `None` is an empty sum."""
        if self.of_batch not in ONE_PROGRAM:
            part = self.of_batch(self.operators.for_batch(arrays_of(batch)), self.v)
            return _plus(self._zero(part) if total is None else total, part, weight)
        # One call of JAX for a batch: the rest of them would be most of the time.
        given = inputs_of(batch)
        inputs = self.operators.for_types_of(given), given, self.v
        if total is None:
            total = self._begun(inputs)
        return _added(total, weight, *inputs, self.of_batch)

    def all(self, data: Stacked, count: float | None) -> PyTree | None:
        """Return the sum over all batches by one call, over a number if it is given.

        `None` if the sum is not one of those that have a program.
        """
        if self.of_batch not in ONE_PROGRAM:
            return None
        first = jax.tree.map(_row_type, data.batches)
        operator = self.operators.for_types_of(first)
        total = self._begun((operator, first, self.v))
        return _added_all(total, data, count, operator, self.v, self.of_batch)

    def zeros(self, batch: PyTree) -> PyTree:
        """Return an empty sum, from the shapes of a batch."""
        return self._begun((self.operators.for_types_of(batch), batch, self.v))

    def _begun(self, inputs: tuple[PyTree, ...]) -> PyTree:
        shapes = self.shapes
        if shapes is None:
            shapes = _part.eval_shape(*inputs, self.of_batch)
        return self._zero(shapes)

    def _zero(self, part: PyTree) -> PyTree:
        def zeros(a: Array | jax.ShapeDtypeStruct) -> Array | np.ndarray:
            wide = space.wide(a.dtype)
            wide = wide if self.dtype is None else space.promoted(wide, self.dtype)
            # JAX takes 20 us to make zeros, and NumPy's have to be moved
            small = math.prod(a.shape) <= _SMALL
            return (np if small else jnp).zeros(a.shape, wide)

        return jax.tree.map(zeros, part)


@jitted(static_argnums=3)
def _part(
    operator: AbstractPointOperator, batch: PyTree, v: PyTree, of_batch: OfBatch
) -> PyTree:
    return of_batch(with_fields(operator, args=(batch,)), v)


@jitted(static_argnums=5)
def _added(
    total: PyTree,
    weight: float | Float[Array, ""],
    operator: AbstractPointOperator,
    batch: PyTree,
    v: PyTree,
    of_batch: OfBatch,
) -> PyTree:
    return _plus(total, _part(operator, batch, v, of_batch), weight)


@jitted(static_argnums=5)
def _added_all(
    total: PyTree,
    data: Stacked,
    count: float | Float[Array, ""] | None,
    operator: AbstractPointOperator,
    v: PyTree,
    of_batch: OfBatch,
) -> PyTree:
    def add(i: Int[Array, ""], total: PyTree) -> PyTree:
        batch = jax.tree.map(lambda a: a[i], data.batches)
        weight = jnp.asarray(data.weights)[i]
        return _plus(total, _part(operator, batch, v, of_batch), weight)

    total = fori_loop(0, data.number, add, jax.tree.map(jnp.asarray, total))
    return total if count is None else _over(total, count)


# Compiled, here and below, or each leaf would take calls of JAX of its own.
@jitted
def _plus(total: PyTree, part: PyTree, weight: float | Float[Array, ""]) -> PyTree:
    weight = jnp.asarray(weight)
    return jax.tree.map(
        lambda t, a: t + weight.astype(t.dtype) * a.astype(t.dtype), total, part
    )


@jitted
def _over(total: PyTree, count: float | Float[Array, ""]) -> PyTree:
    count = jnp.asarray(count)
    return jax.tree.map(lambda a: a / count.astype(_real_dtype(a)), total)


def _real_dtype(a: Array) -> jnp.dtype:
    return jnp.finfo(a.dtype).dtype


def sum_over_batches(add: Adding, source: Source, full: int) -> tuple[PyTree, int]:
    """Sum over the batches, each weighted by its number of examples.

    Args:
        add: Adds the result of a batch, times a weight, to a sum; `None` is empty.
        source: The batches.
        full: The number of examples in a full batch.

    Returns:
        The sum, or the mean if the losses are means, and the number of examples: of
        all processes, if each has batches of its own.
    """
    mean, processes = source.reduction == "mean", source.processes
    if processes is None:
        return _sum_of_this_process(add, source, full, over_count=mean)
    local = lambda: _sum_of_this_process(add, source, full, over_count=False)
    zeros = lambda: add.zeros(source.shapes)
    total, count = processes.sum(local, zeros, add.v)
    return (_over(total, float(count)) if mean else total), count


def _sum_of_this_process(
    add: Adding, source: Source, full: int, *, over_count: bool
) -> tuple[PyTree, int]:
    """Sum over the batches that are here; `over_count` divides by their examples."""
    total: PyTree = None
    count = 0
    mean = source.reduction == "mean"
    data = stacked(source, full)
    if data is not None:
        total = add.all(data, float(data.examples) if over_count else None)
        if total is not None:
            return total, data.examples
    for batch in source:
        rows = row_count(batch)
        if not rows:
            continue
        # The weights of padded batches are those of a mean; a sum over a full batch has
        # more rows than the short one.
        share = rows if mean else rows / max(rows, full)
        for full_batch, weight in padded(batch, rows, full):
            total = add(total, full_batch, float(share * weight))
        count += rows
    if total is None:
        raise no_batch()
    return (_over(total, float(count)) if over_count else total), count
