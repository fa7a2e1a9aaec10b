"""The Hessian of a mean over data that comes in batches."""

from collections.abc import Callable, Iterator
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import StructureError, describe_tree, message, number_name, progress
from hotk.prepared import jitted
from hotk.second import hvp

from . import space
from ._operator import AbstractOperator


class Source:
    """Where batches come from: something that can be iterated over again and again."""

    __slots__ = ("batches", "reduction", "show")

    def __init__(self, batches: Any, reduction: str, show: bool) -> None:
        if not callable(batches) and iter(batches) is batches:
            raise TypeError(
                "`over(loss, x, batches)`: `batches` can be read only once. Give a "
                "list, a loader, or a function that returns a new iterator."
            )
        is_array = lambda a: isinstance(a, (np.ndarray, jax.Array))
        if isinstance(batches, tuple) and batches and all(map(is_array, batches)):
            raise TypeError(
                "`over(loss, x, batches)`: a tuple of arrays is one batch. Put it into "
                "a list, `[batch]`, or cut it into several; `loss(x, batch)` gets each "
                "as one argument."
            )
        if reduction not in ("mean", "sum"):
            raise ValueError(f"`reduction` is {reduction!r}, not 'mean' or 'sum'.")
        self.batches: Any = batches
        self.reduction = reduction
        self.show = show

    def first(self) -> Any:
        """Return the first batch.

        Raises:
            ValueError: If there is none.
        """
        for batch in self._batches():
            if _rows(batch):
                return batch
        raise _nothing()

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass over the data."""
        return progress(self._batches(), "batches", show=self.show)

    def _batches(self) -> Any:
        return self.batches() if callable(self.batches) else self.batches


def _nothing() -> ValueError:
    return ValueError(
        "`over(loss, x, batches)`: there is no batch. A function must return a new "
        "iterator each time."
    )


def _rows(batch: Any) -> int:
    sizes = {np.shape(a)[0] for a in jax.tree.leaves(batch) if np.ndim(a)}
    if len(sizes) != 1:
        raise StructureError(
            message(
                "over(loss, x, batches)",
                "the arrays of a batch have no common first axis.",
                expected="as many rows in each array",
                got=f"{sorted(sizes)} rows" if sizes else "no array with an axis",
                fix="Let the first axis of all arrays count the examples.",
            )
        )
    return sizes.pop()


def _padded(batch: Any, rows: int, size: int) -> list[tuple[Any, float]]:
    r"""Return batches of one size and weights that give a short batch's mean.

    The rows are repeated as often as they fit, k times; copies of the first one fill
    the rest. The mean over that, less the first row's share, is the mean over the rows:
    $B \bar L = k \sum_i \ell_i + (B - k r) \ell_1$. So a loss that is a mean (or a sum)
    over examples needs no mask, and nothing is compiled for another size.
    """
    times, rest = divmod(size, rows)
    if times == 0 or size == rows:
        return [(batch, 1.0)]
    numbers = np.concatenate([np.tile(np.arange(rows), times), np.zeros(rest, int)])
    whole = _picked(batch, numbers)
    if not rest:
        return [(whole, 1.0)]
    first = _picked(batch, np.zeros(size, int))
    return [(whole, size / (times * rows)), (first, -rest / (times * rows))]


def _picked(batch: Any, numbers: Any) -> Any:
    return jax.tree.map(lambda a: a[numbers] if np.ndim(a) else a, batch)


@jitted
def _added(total: Any, part: Any, weight: Any) -> Any:
    return jax.tree.map(
        lambda t, a: t + weight.astype(t.dtype) * a.astype(t.dtype),
        total,
        part,
    )


@final
class WithValue(eqx.Module):
    """A loss that returns its value once more, as auxiliary output."""

    f: Any

    def __call__(self, x: Any, *args: Any) -> Any:
        """Return the loss, twice."""
        y = self.f(x, *args)
        return y, y


@final
class DataOperator(AbstractOperator):
    """An operator of second order for a mean, or a sum, over a data set in batches.

    Made by `HessianOperator.over` and `GGNOperator.over`. Each product is one pass over
    the data, on the host, so the operator cannot be part of a compiled program; Krylov
    methods take their steps on the host then.

    Attributes:
        make: From a point and a batch to the operator of the batch.
        x: The point.
        source: Where the batches come from.
        size_of_batch: How many examples a full batch has.
        examples: How many examples there are.
        value: The loss over all examples.
        gradient: Its gradient, a vector of the space.
        space: A vector of the space.
        dtype: The dtype in which batches are summed, `None` for at least `float32`.
    """

    make: Callable[[Any, Any], Any]
    x: Any
    source: Source
    size_of_batch: int
    examples: int
    value: Any
    gradient: Any
    space: Any
    dtype: Any

    on_host = True

    @staticmethod
    def of(make: Callable[..., Any], x: Any, source: Source, dtype: Any) -> Any:
        """Read the data once: for value, gradient and count."""
        first = source.first()
        one = make(x, first)
        once, twice = float(one.value), float(one.value)
        if once != twice and np.isfinite(once):
            raise _unequal(once, twice)
        size = _rows(first)
        blank = DataOperator(make, x, source, size, 0, None, None, one.like, dtype)
        (value, gradient), count = blank._sum(lambda h: (h.value, h.gradient))
        gradient = space.narrowed(gradient, one.like)
        return DataOperator(
            make, x, source, size, count, value, gradient, one.like, dtype
        )

    def at(self, x: Any) -> "DataOperator":
        """Return the operator at another point, after one pass over the data."""
        return DataOperator.of(self.make, x, self.source, self.dtype)

    @property
    def like(self) -> Any:
        """The differentiated part of the point, `None` elsewhere."""
        return self.space

    def __repr__(self) -> str:
        """Show the size of space and data, and the loss."""
        what = f"{describe_tree(self.like)}, n={self.size}, {self.examples} examples"
        return f"DataOperator({what}, value {number_name(self.value)})"

    @property
    def symmetric(self) -> bool:
        """It is."""
        return True

    def mv(self, v: Any) -> Any:
        """Return the product with one vector: one pass over the data.

        Raises:
            ValueError: If the loss is not the same as in the first pass.
        """
        return self._product(v, batched=False)

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
        """Return the products with several vectors: one pass over the data."""
        del block_size
        return self._product(vectors, batched=True)

    def _product(self, v: Any, *, batched: bool) -> Any:
        """Multiply, and see that the loss is what it was."""

        def product(h: Any) -> Any:
            direction = h.direction(v, batched=batched)
            f = WithValue(h.f)
            found, y = hvp(f, h.x, direction, *h.args, has_aux=True, batched=batched)
            return h.conjugate(found), y

        return self._checked(product)

    def _checked(self, each: Callable[[Any], Any]) -> Any:
        """Sum results with the loss beside them, and see that it is what it was."""
        (found, value), _ = self._sum(each)
        before, after = float(self.value), float(value)
        limit = 100 * float(jnp.finfo(value.dtype).eps) * max(abs(before), abs(after))
        if not abs(after - before) <= limit and np.isfinite(before):
            raise _unequal(before, after)
        return found

    def matrix(self, block_size: int | None = None) -> Any:
        """Return the matrix: one pass over the data. See `AbstractOperator.matrix`."""
        return self._checked(lambda h: (h.matrix(block_size), h.value))

    def block(self, row: str, column: str, block_size: int | None = None) -> Any:
        """Return a part of the matrix. See `AbstractOperator.block`."""
        return self._checked(lambda h: (h.block(row, column, block_size), h.value))

    def diagonal(self, block_size: int | None = None) -> Any:
        """Return the exact diagonal. See `AbstractOperator.diagonal`."""
        return self._checked(lambda h: (h.diagonal(block_size), h.value))

    def _sum(self, each: Callable[[Any], Any]) -> tuple[Any, int]:
        """Sum over the batches, each weighted by its number of examples."""
        total: Any = None
        count = 0
        mean = self.source.reduction == "mean"
        for batch in self.source:
            rows = _rows(batch)
            if not rows:
                continue
            share = rows if mean else 1
            for same, weight in self._parts(batch, rows):
                part = each(self.make(self.x, same))
                if total is None:
                    blank = lambda a: jnp.zeros_like(a, dtype=self._wide(a))
                    total = jax.tree.map(blank, part)
                total = _added(total, part, share * weight)
            count += rows
        if total is None:
            raise _nothing()
        if mean:
            total = jax.tree.map(lambda a: a / count, total)
        return total, count

    def _parts(self, batch: Any, rows: int) -> list[tuple[Any, float]]:
        """Return the batch, or what stands for a short one; weights for its mean."""
        parts = _padded(batch, rows, self.size_of_batch)
        if self.source.reduction == "mean":
            return parts
        # the sum over a padded batch is that of as many rows as a full one has
        return [
            (same, weight * rows / max(rows, self.size_of_batch))
            for same, weight in parts
        ]

    def _wide(self, a: Any) -> Any:
        wide = space.wide(a.dtype)
        return wide if self.dtype is None else space.promoted(wide, self.dtype)


def _unequal(before: float, after: float) -> ValueError:
    return ValueError(
        message(
            "over(loss, x, batches)",
            "the loss is not the same when it is asked twice.",
            expected=f"{before!r}",
            got=f"{after!r}",
            fix="Fix its random key (dropout, augmentation), use running statistics "
            "frozen, and give batches that hold the same examples in each pass.",
        )
    )
