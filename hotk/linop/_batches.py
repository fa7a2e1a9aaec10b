"""The Hessian of a mean over data that comes in batches."""

from collections.abc import Callable
from typing import TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._core import (
    Function,
    Gradient,
    Point,
    Scalar,
    Vector,
    describe_tree,
    message,
    number_name,
)
from hotk.prepared import jitted
from hotk.second import hvp

from . import space
from ._entries import Part
from ._operator import AbstractOperator
from ._point_operator import AbstractPointOperator
from ._source import Source, no_batch, padded, row_count


R = TypeVar("R")


# Compiled, or each leaf would take two calls of JAX for each batch.
@jitted
def _add(total: PyTree, part: PyTree, weight: Float[Array, ""]) -> PyTree:
    return jax.tree.map(
        lambda t, a: t + weight.astype(t.dtype) * a.astype(t.dtype), total, part
    )


@final
class WithValue(eqx.Module):
    """A loss that returns its value once more, as auxiliary output."""

    f: Function

    def __call__(self, x: Point, *args: PyTree) -> tuple[Scalar, Scalar]:
        """Return the loss, twice."""
        y = self.f(x, *args)
        return y, y


@final
class DataOperator(AbstractOperator):
    """An operator of second order for a mean, or a sum, over a data set in batches.

    `HessianOperator.over` and `GGNOperator.over` make it. Each product is one pass over
    the data, on the host, so the operator cannot be part of a compiled program; the
    iterations of solvers run in Python.

    Attributes:
        make: From a point and a batch to the operator of the batch.
        x: The point.
        source: The batches.
        size_of_batch: The number of examples in a full batch.
        examples: The number of all examples.
        value: The loss over all examples.
        gradient: Its gradient, a vector of the space.
        space: A vector of the space.
        sum_dtype: The dtype in which batches are summed, `None` for at least `float32`.
    """

    make: Callable[[Point, PyTree], AbstractPointOperator]
    x: Point
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
        make: Callable[[Point, PyTree], AbstractPointOperator],
        x: Point,
        source: Source,
        dtype: DTypeLike | None,
    ) -> "DataOperator":
        """Make the operator after one pass over the data, for value and gradient.

        Args:
            make: From a point and a batch to the operator of the batch.
            x: The point.
            source: The batches.
            dtype: The dtype in which batches are summed.

        Raises:
            ValueError: If there is no batch, or a loss is not the same twice.
        """
        first_batch = source.first_batch()
        of_first = make(x, first_batch)
        # a loss with a random key that moves on is found at once, before a pass
        once, twice = float(of_first.value), float(of_first.value)
        if once != twice and np.isfinite(once):
            raise _loss_changed(once, twice)
        size, like = row_count(first_batch), of_first.like
        both = lambda h: (h.value, h.gradient)
        parts = make, x, source, size, dtype
        (value, gradient), count = _sum_over_batches(both, *parts)
        gradient = space.narrowed(gradient, like)
        return DataOperator(make, x, source, size, count, value, gradient, like, dtype)

    def at(self, x: Point) -> "DataOperator":
        """Return the operator at another point, after one pass over the data.

        Args:
            x: A point of the same structure, shapes and dtypes.
        """
        return DataOperator.of(self.make, x, self.source, self.sum_dtype)

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

        def product(h: AbstractPointOperator) -> tuple[PyTree, Scalar]:
            direction, f = h.direction(v, batched=batched), WithValue(h.f)
            keywords = {"has_aux": True, "batched": batched, "where": h.where}
            result, y = hvp(f, h.x, direction, *h.args, **keywords)
            return h.conjugate(result), y

        return self._sum_with_check(product)

    def _sum_with_check(
        self, of_batch: Callable[[AbstractPointOperator], tuple[PyTree, Scalar]]
    ) -> PyTree:
        """Sum results with the loss beside them, and check that it did not change.

        Krylov methods need one matrix in all products: dropout, or a data loader that
        draws other examples in each pass, would give wrong results without an error.
        """
        parts = self.make, self.x, self.source, self.size_of_batch, self.sum_dtype
        (result, value), _ = _sum_over_batches(of_batch, *parts)
        before, after = float(self.value), float(value)
        # batches in another order give another sum by rounding
        limit = 100 * float(jnp.finfo(value.dtype).eps) * max(abs(before), abs(after))
        if not abs(after - before) <= limit and np.isfinite(before):
            raise _loss_changed(before, after)
        return result

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix: one pass over the data. See `AbstractOperator.matrix`."""
        return self._sum_with_check(lambda h: (h.matrix(block_size), h.value))

    def block(
        self, row: Part, column: Part, block_size: int | None = None
    ) -> Inexact[Array, "rows columns"]:
        """Return a block of the matrix. See `AbstractOperator.block`."""
        return self._sum_with_check(
            lambda h: (h.block(row, column, block_size), h.value)
        )

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the exact diagonal. See `AbstractOperator.diagonal`."""
        return self._sum_with_check(lambda h: (h.diagonal(block_size), h.value))


def _sum_over_batches(
    of_batch: Callable[[AbstractPointOperator], R],
    make: Callable[[Point, PyTree], AbstractPointOperator],
    x: Point,
    source: Source,
    full: int,
    dtype: DTypeLike | None,
) -> tuple[R, int]:
    """Sum over the batches, each weighted by its number of examples.

    Args:
        of_batch: What to sum: a tree of arrays, from the operator of a batch.
        make: From a point and a batch to the operator of the batch.
        x: The point.
        source: The batches.
        full: The number of examples in a full batch.
        dtype: The dtype in which batches are summed.

    Returns:
        The sum, or the mean if the losses are means, and the number of examples.
    """

    def zero(a: Array) -> Array:
        wide = space.wide(a.dtype)
        wide = wide if dtype is None else space.promoted(wide, dtype)
        return jnp.zeros_like(a, dtype=wide)

    total: PyTree = None
    count = 0
    mean = source.reduction == "mean"
    for batch in source:
        rows = row_count(batch)
        if not rows:
            continue
        # The weights of padded batches are those of a mean; a sum over a full batch has
        # more rows than the short one.
        share = rows if mean else rows / max(rows, full)
        for full_batch, weight in padded(batch, rows, full):
            part = of_batch(make(x, full_batch))
            if total is None:
                total = jax.tree.map(zero, part)
            total = _add(total, part, jnp.asarray(float(share * weight)))
        count += rows
    if total is None:
        raise no_batch()
    if mean:
        total = jax.tree.map(lambda a: a / count, total)
    return total, count


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
