"""The Hessian of a mean over data that comes in batches."""

import math
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Inexact, Int, PyTree

from hotk._core import (
    Gradient,
    Point,
    Scalar,
    Vector,
    describe_tree,
    message,
    number_name,
)
from hotk.dense import By
from hotk.prepared import jitted

from . import space
from ._entries import Part
from ._frozen import arrays_of, inputs_of
from ._of_batch import ONE_PROGRAM, OfBatch, product, products, value_and_gradient
from ._operator import AbstractOperator
from ._point_operator import AbstractPointOperator, with_fields
from ._source import Source, no_batch, padded, row_count
from ._stacked import Stacked, stacked


@final
class DataOperator(AbstractOperator):
    """An operator of second order for a mean, or a sum, over a data set in batches.

    `HessianOperator.over` and `GGNOperator.over` make it. Each product is one pass over
    the data, on the host, so the operator cannot be part of a compiled program; the
    iterations of solvers run in Python.

    Attributes:
        operator: The operator of one batch, without its arrays.
        source: The batches.
        size_of_batch: The number of examples in a full batch.
        examples: The number of all examples.
        value: The loss over all examples.
        gradient: Its gradient, a vector of the space.
        space: A vector of the space.
        sum_dtype: The dtype in which batches are summed, `None` for at least `float32`.
    """

    operator: AbstractPointOperator
    source: Source
    size_of_batch: int
    examples: int
    value: Scalar
    gradient: Gradient
    space: Vector
    sum_dtype: DTypeLike | None

    on_host = True

    @staticmethod
    def of(
        of_first: AbstractPointOperator, source: Source, dtype: DTypeLike | None
    ) -> "DataOperator":
        """Make the operator after one pass over the data, for value and gradient.

        Args:
            of_first: The operator of the first batch, which all share.
            source: The batches.
            dtype: The dtype in which batches are summed.

        Raises:
            ValueError: If there is no batch, or a loss is not the same twice.
        """
        # a loss with a random key that moves on is found at once, before a pass
        once, twice = float(of_first.value), float(of_first.value)
        if once != twice and np.isfinite(once):
            raise _loss_changed(once, twice)
        size, like = row_count(source.first_batch()), of_first.like
        operator = with_fields(of_first, args=())
        add = _Adding(operator, value_and_gradient, None, dtype)
        (value, gradient), count = _sum_over_batches(add, source, size)
        gradient = space.narrowed(gradient, like)
        return DataOperator(operator, source, size, count, value, gradient, like, dtype)

    def at(self, x: Point) -> "DataOperator":
        """Return the operator at another point, after one pass over the data.

        Args:
            x: A point of the same structure, shapes and dtypes.
        """
        of_first = with_fields(
            self.operator.at(x), args=(arrays_of(self.source.first_batch()),)
        )
        return DataOperator.of(of_first, self.source, self.sum_dtype)

    @property
    def x(self) -> Point:
        """The point."""
        return self.operator.x

    @property
    def like(self) -> Vector:
        """A vector of the space: the differentiated part of the point."""
        return self.space

    def __reduce__(self) -> str:
        """Refuse to be pickled: the data belong to this process."""
        raise TypeError(
            message(
                "HessianOperator.over(loss, x, batches)",
                "an operator over batches cannot be pickled.",
                expected="use in the process that made it, or `copy.deepcopy`",
                got="`pickle`, or another process",
                fix="Send `x`, and make the operator there from the function and the "
                "batches.",
            )
        )

    def __repr__(self) -> str:
        """Show the size of space and data, and the loss."""
        what = f"{describe_tree(self.like)}, n={self.size}, {self.examples} examples"
        return f"DataOperator({what}, value {number_name(self.value)})"

    @property
    def symmetric(self) -> bool:
        """Whether the map is symmetric: always `True`."""
        return True

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector: one pass over the data.

        Raises:
            ValueError: If the loss is not the same as in the first pass.
        """
        return self._product(v, batched=False)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors: one pass over the data."""
        del block_size  # several blocks would be several passes
        return self._product(vectors, batched=True)

    def _product(self, v: PyTree, *, batched: bool) -> PyTree:
        """Multiply, with the loss as auxiliary output, which costs nothing more."""
        shape = lambda a, b: jax.ShapeDtypeStruct(np.shape(a), b.dtype)
        shapes = jax.tree.map(shape, v, self.like), self.value
        return self._sum_with_check(products if batched else product, v, shapes)

    def _sum_with_check(
        self, of_batch: OfBatch, v: PyTree = None, shapes: PyTree = None
    ) -> PyTree:
        """Sum results with the loss beside them, and check that it did not change.

        Krylov methods need one matrix in all products: dropout, or a data loader that
        draws other examples in each pass, would give wrong results without an error.

        Args:
            of_batch: What to sum, with the loss.
            v: What that takes besides the operator of a batch.
            shapes: The shapes and dtypes of its results, if they are known.
        """
        add = _Adding(self.operator, of_batch, v, self.sum_dtype, shapes)
        (result, value), _ = _sum_over_batches(add, self.source, self.size_of_batch)
        before, after = float(self.value), float(value)
        # batches in another order give another sum by rounding
        limit = 100 * float(jnp.finfo(value.dtype).eps) * max(abs(before), abs(after))
        if not abs(after - before) <= limit and np.isfinite(before):
            raise _loss_changed(before, after)
        return result

    def matrix(
        self,
        block_size: int | None = None,
        *,
        split: By | None = None,
        mesh_axis: str | None = None,
    ) -> Inexact[Array, "n n"]:
        """Return the matrix: one pass over the data. See `AbstractOperator.matrix`.

        Raises:
            StructureError: If `split` is given: each batch may be divided instead.
        """
        if split is not None or mesh_axis is not None:
            return AbstractOperator.matrix(
                self, block_size, split=split, mesh_axis=mesh_axis
            )
        return self._sum_with_check(lambda h, v: (h.matrix(block_size), h.value))

    def block(
        self, row: Part, column: Part, block_size: int | None = None
    ) -> Inexact[Array, "rows columns"]:
        """Return a block of the matrix. See `AbstractOperator.block`."""
        return self._sum_with_check(
            lambda h, v: (h.block(row, column, block_size), h.value)
        )

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the exact diagonal. See `AbstractOperator.diagonal`."""
        return self._sum_with_check(lambda h, v: (h.diagonal(block_size), h.value))


# So many numbers are moved to a device in the time of a call of JAX.
_SMALL = 1 << 14


class _Adding:
    """Adds what an operator of a batch gives to a sum.

    Attributes:
        operator: The operator of a batch, without its arrays.
        of_batch: What to sum.
        v: What that takes besides.
        dtype: The dtype in which batches are summed.
        shapes: The shapes and dtypes of what is summed, `None` if they are not known.
    """

    def __init__(
        self,
        operator: AbstractPointOperator,
        of_batch: OfBatch,
        v: PyTree,
        dtype: DTypeLike | None,
        shapes: PyTree = None,
    ) -> None:
        self.operator, self.of_batch, self.v = operator, of_batch, v
        self.dtype, self.shapes = dtype, shapes

    def __call__(self, total: PyTree, batch: PyTree, weight: float) -> PyTree:
        """Add the result for a batch, times a weight; `None` is an empty sum."""
        if self.of_batch not in ONE_PROGRAM:
            h = with_fields(self.operator, args=(arrays_of(batch),))
            part = self.of_batch(h, self.v)
            return _plus(self._zero(part) if total is None else total, part, weight)
        # One call of JAX for a batch: the rest of them would be most of the time.
        inputs = self.operator, inputs_of(batch), self.v
        if total is None:
            total = self._begun(inputs)
        return _added(total, weight, *inputs, self.of_batch)

    def all(self, data: Stacked, count: float | None) -> PyTree | None:
        """Return the sum over all batches by one call, over a number if it is given.

        `None` if the sum is not one of those that have a program.
        """
        if self.of_batch not in ONE_PROGRAM:
            return None
        first = jax.tree.map(lambda a: a[0], data.batches) if self.shapes is None else 0
        total = self._begun((self.operator, first, self.v))
        return _added_all(total, data, count, self.operator, self.v, self.of_batch)

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

    total = jax.lax.fori_loop(0, data.number, add, jax.tree.map(jnp.asarray, total))
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


def _sum_over_batches(add: _Adding, source: Source, full: int) -> tuple[PyTree, int]:
    """Sum over the batches, each weighted by its number of examples.

    Args:
        add: Adds the result of a batch, times a weight, to a sum; `None` is empty.
        source: The batches.
        full: The number of examples in a full batch.

    Returns:
        The sum, or the mean if the losses are means, and the number of examples.
    """
    total: PyTree = None
    count = 0
    mean = source.reduction == "mean"
    data = stacked(source, full)
    if data is not None:
        total = add.all(data, float(data.examples) if mean else None)
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
    return (_over(total, float(count)) if mean else total), count


def _loss_changed(before: float, after: float) -> ValueError:
    return ValueError(
        message(
            "over(loss, x, batches)",
            "the loss is not the same when it is evaluated twice.",
            expected=f"{before!r}",
            got=f"{after!r}",
            fix="Fix its random key (dropout, augmentation), freeze running "
            "statistics, and give batches with the same examples in each pass.",
        )
    )
