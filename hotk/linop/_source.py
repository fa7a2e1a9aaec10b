"""Batches of data: where they come from, and how a short one is filled."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from hotk._core import StructureError, describe, leaf_name, message, progress
from hotk._prepared import as_input

from ._frozen import inputs_of
from ._matching import is_same
from ._processes import Processes


Reduction = Literal["mean", "sum"]
Batches = Iterable[PyTree] | Callable[[], Iterable[PyTree]]


class Source:
    """The batches: something that can be iterated over again and again.

    Attributes:
        batches: The batches, or a function that returns an iterator.
        reduction: Whether the loss is a mean or a sum over the examples of a batch.
        show: Whether to show a progress bar for each pass.
        shapes: Shapes and dtypes of the first batch, if there are other processes.
        processes: Those that have batches of their own; `None` if all are here.
        kept: What was made of all batches, for the next pass.
    """

    __slots__ = (
        "_leaves",
        "_others",
        "batches",
        "kept",
        "processes",
        "reduction",
        "shapes",
        "show",
    )

    def __init__(
        self,
        batches: Batches,
        reduction: Reduction,
        show: bool,
        processes: Processes | None = None,
    ) -> None:
        if not (callable(batches) or hasattr(batches, "__iter__")):
            raise TypeError(
                f"`over(loss, x, batches)`: `batches` is {describe(batches)}. Give a "
                "list, a data loader, or a function that returns a new iterator."
            )
        # an iterator is its own iterator, and empty in the second pass
        if not callable(batches) and iter(batches) is batches:
            raise TypeError(
                "`over(loss, x, batches)`: `batches` can be iterated over only once. "
                "Give a list, a data loader, or a function that returns a new iterator."
            )
        is_array = lambda a: isinstance(a, (np.ndarray, jax.Array))
        if isinstance(batches, tuple) and batches and all(map(is_array, batches)):
            raise TypeError(
                "`over(loss, x, batches)`: a tuple of arrays is one batch. Put it in a "
                "list, `[batch]`, or split it into several; `loss(x, batch)` gets each "
                "as one argument."
            )
        if reduction not in ("mean", "sum"):
            raise ValueError(f"`reduction` is {reduction!r}, not 'mean' or 'sum'.")
        self.batches = batches
        self.reduction: Reduction = reduction
        self.show = show
        self.shapes: PyTree = None
        self.processes = processes
        self.kept: Any = None
        self._leaves: Sequence[Any] = ()
        self._others: dict[str, Any] | None = None

    def keep(self, leaves: Sequence[Any], made: Any) -> None:
        """Keep what was made of some arrays."""
        self._leaves, self.kept = leaves, made

    def is_kept(self, leaves: Sequence[Any]) -> bool:
        """Whether something was made of these very arrays."""
        before = self._leaves
        same = len(before) == len(leaves)
        return same and all(a is b for a, b in zip(before, leaves, strict=True))

    def first_batch(self) -> PyTree:
        """Return the first batch that has examples.

        Raises:
            ValueError: If there is none.
        """
        for batch in self._batches():
            if row_count(batch):
                self._others = _others(batch)
                return batch
        raise no_batch()

    def measure(self) -> int:
        """Return the number of examples in a full batch.

        Its shapes are kept: a process whose batches fail needs them to make zeros.
        """
        batch = self.first_batch()
        if self.processes is not None:
            shape = lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))
            self.shapes = jax.tree.map(shape, inputs_of(batch))
        return row_count(batch)

    def __iter__(self) -> Iterator[PyTree]:
        """Begin a pass over the data."""
        batches = progress(self._batches(), "batches", show=self.show)
        return map(self._like_the_first, batches)

    def _like_the_first(self, batch: PyTree) -> PyTree:
        """Refuse a batch whose parts that are not numbers are not those of the first.

        The function is kept with those, and would compute with them.
        """
        first, others = self._others or {}, _others(batch)
        for name in first.keys() | others.keys():
            old, new = first.get(name), others.get(name)
            if not is_same(old, new):
                raise StructureError(
                    message(
                        "over(loss, x, batches)",
                        f"`{name}` holds no numbers that JAX has room for, and is not "
                        "what it is in the first batch.",
                        expected=f"{old!r:.200}",
                        got=f"{new!r:.200}",
                        fix="Write a number for each case; or make an operator of each "
                        "kind of batch, and add them.",
                    )
                )
        return batch

    def _batches(self) -> Iterable[PyTree]:
        return self.batches() if callable(self.batches) else self.batches


def _others(batch: PyTree) -> dict[str, Any]:
    """Return the leaves of a batch that are not numbers for JAX, by their names."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(batch):
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")
        data = isinstance(leaf, jax.Array) or kind in ("f", "b", "c")
        if not data and as_input(leaf) is None:
            found[leaf_name("batch", path)] = leaf
    return found


def no_batch() -> ValueError:
    """Return the error of a pass without examples."""
    return ValueError(
        "`over(loss, x, batches)`: there is no batch. A function must return a new "
        "iterator each time."
    )


def row_count(batch: PyTree) -> int:
    """Count the examples of a batch: the first axis of its arrays.

    Raises:
        StructureError: If the arrays have no common first axis.
    """
    sizes = {np.shape(a)[0] for a in jax.tree.leaves(batch) if np.ndim(a)}
    if len(sizes) != 1:
        raise StructureError(
            message(
                "over(loss, x, batches)",
                "the arrays of a batch have no common first axis.",
                expected="the same number of rows in each array",
                got=f"{sorted(sizes)} rows" if sizes else "no array with an axis",
                fix="The first axis of each array must count the examples.",
            )
        )
    return sizes.pop()


class WeightedBatch(NamedTuple):
    """A batch, and what its loss is multiplied with."""

    batch: PyTree
    weight: float


def padded(batch: PyTree, rows: int, size: int) -> list[WeightedBatch]:
    r"""Return batches of one size and weights that give a short batch's mean.

    The rows are repeated as often as they fit, k times; copies of the first one fill
    the rest. The mean over that, less the first row's share, is the mean over the rows:
    $B \bar L = k \sum_i \ell_i + (B - k r) \ell_1$. So a loss that is a mean (or a sum)
    over examples needs no mask, and nothing is compiled for another size.
    """
    times, rest = divmod(size, rows)
    if times == 0 or size == rows:
        return [WeightedBatch(batch, 1.0)]
    numbers = np.concatenate([np.tile(np.arange(rows), times), np.zeros(rest, int)])
    filled = _select_rows(batch, numbers)
    if not rest:
        return [WeightedBatch(filled, 1.0)]
    first_row = _select_rows(batch, np.zeros(size, int))
    return [
        WeightedBatch(filled, size / (times * rows)),
        WeightedBatch(first_row, -rest / (times * rows)),
    ]


def _select_rows(batch: PyTree, numbers: Int[np.ndarray, " rows"]) -> PyTree:
    # a number beside the arrays, a temperature say, has no rows
    return jax.tree.map(lambda a: a[numbers] if np.ndim(a) else a, batch)
