"""The Hessian of a mean over data that comes in batches."""

from collections.abc import Callable
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Inexact, PyTree

from hotk._core import (
    Gradient,
    Point,
    Scalar,
    Tracer,
    Vector,
    describe_tree,
    in_trace,
    message,
    number_name,
)
from hotk._dense import By

from . import space
from ._dense import in_rows
from ._entries import Part
from ._frozen import arrays_of, other_types
from ._operator import AbstractOperator
from ._source import Source
from ._sums import (
    Adding,
    OfBatch,
    OfOneBatch,
    product,
    products,
    sum_over_batches,
    value_and_gradient,
)
from ._symmetric import AbstractSymmetricOperator


@final
class DataOperator(AbstractSymmetricOperator):
    """An operator of second order for a mean, or a sum, over a data set in batches.

    `HessianOperator.over` and `GGNOperator.over` make it. Each product is one pass over
    the data, on the host, so the operator cannot be part of a compiled program; the
    iterations of solvers run in Python.

    Attributes:
        operators: The operator of one batch, without its arrays.
        source: The batches.
        size_of_batch: The number of examples in a full batch.
        examples: The number of all examples.
        value: The loss over all examples.
        gradient: Its gradient, a vector of the space.
        space: A vector of the space.
        sum_dtype: The dtype in which batches are summed, `None` for at least `float32`.
    """

    operators: OfOneBatch
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
        make: Callable[[], OfOneBatch],
        x: Point,
        source: Source,
        dtype: DTypeLike | None,
    ) -> "DataOperator":
        """Make the operator after one pass over the data, for value and gradient.

        Args:
            make: Makes the operator of one batch, which all share.
            x: The point.
            source: The batches.
            dtype: The dtype in which batches are summed.

        Raises:
            ValueError: If there is no batch, or a loss is not the same twice.
        """
        _refuse_trace()
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"`over(loss, x, batches)`: `dtype` is {jnp.dtype(dtype).name}, and "
                "sums over batches are floating numbers."
            )

        def first() -> tuple[OfOneBatch, int]:
            with other_types():
                operators = make()
            # a loss with a random key that moves on is found at once, before a pass
            of_first = operators.for_batch(arrays_of(source.first_batch()))
            once, twice = float(of_first.value), float(of_first.value)
            if once != twice and np.isfinite(once):
                raise _loss_changed(once, twice)
            return operators, source.measure()

        processes = source.processes
        operators, size = first() if processes is None else processes.together(first, x)
        like = operators.like_first.like
        add = Adding(operators, value_and_gradient, None, dtype)
        (value, gradient), count = sum_over_batches(add, source, size)
        gradient = space.narrowed(gradient, like)
        return DataOperator(
            operators, source, size, count, value, gradient, like, dtype
        )

    def at(self, x: Point) -> "DataOperator":
        """Return the operator at another point, after one pass over the data.

        Args:
            x: A point of the same structure, shapes and dtypes.
        """
        move = lambda: self.operators.at(x)
        return DataOperator.of(move, x, self.source, self.sum_dtype)

    @property
    def x(self) -> Point:
        """The point."""
        return self.operators.like_first.x

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
        what = f"{describe_tree(self.like, 4)}, n={self.size}, {self.examples} examples"
        return f"DataOperator({what}, value {number_name(self.value)})"

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector: one pass over the data.

        Raises:
            ValueError: If the loss is not the same as in the first pass.
        """
        return self._product(v, batched=False)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors: one pass over the data."""
        del block_size  # several blocks would be several passes
        return in_rows(self, vectors, lambda v: self._product(v, batched=True))

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
        _refuse_trace(v)
        add = Adding(self.operators, of_batch, v, self.sum_dtype, shapes)
        (result, value), _ = sum_over_batches(add, self.source, self.size_of_batch)
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
        self,
        row: Part,
        column: Part,
        block_size: int | None = None,
        *,
        split: By | None = None,
        mesh_axis: str | None = None,
    ) -> Inexact[Array, "rows columns"]:
        """Return a block of the matrix. See `AbstractOperator.block`.

        Raises:
            StructureError: If `split` is given: each batch may be divided instead.
        """
        if split is not None or mesh_axis is not None:
            return AbstractOperator.block(
                self, row, column, block_size, split=split, mesh_axis=mesh_axis
            )
        return self._sum_with_check(
            lambda h, v: (h.block(row, column, block_size), h.value)
        )

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the exact diagonal. See `AbstractOperator.diagonal`."""
        return self._sum_with_check(lambda h, v: (h.diagonal(block_size), h.value))


def _refuse_trace(v: PyTree = None) -> None:
    # A pass is a loop of Python: in a trace all data would be its constants.
    if not in_trace() and not any(isinstance(a, Tracer) for a in jax.tree.leaves(v)):
        return
    raise TypeError(
        message(
            "HessianOperator.over(loss, x, batches)",
            "an operator over batches reads its data in each call, which a compiled "
            "program cannot.",
            expected="a call outside of `jax.jit`, `jax.grad`, `jax.vmap` and loops",
            got="a call inside of a transformation",
            fix="Call it outside: solvers such as `H.solve(b)` make one call for each "
            "product; or use `HessianOperator(loss, x, data)` of data that fit in "
            "memory.",
        )
    )


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
