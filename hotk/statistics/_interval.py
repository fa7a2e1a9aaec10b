"""`Interval`: estimates with their errors and limits, and how such a table shows."""

from statistics import NormalDist
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import AbstractReport, describe, extra
from hotk._dense import entry_name, leaf_names


# Leaves with more entries than this show as one row, and tables end after so many rows.
_MOST_ENTRIES, _MOST_ROWS = 12, 60


@final
class Interval(AbstractReport):
    """Values with standard errors and the limits of an interval, entry by entry.

    It is a pytree of arrays, and shows as a table with a row for each entry.

    Attributes:
        value: The estimate: a tree of arrays.
        standard_errors: Their standard errors, in the same structure.
        lower: The lower limits.
        upper: The upper limits.
        level: The probability that an interval covers the truth, such as 0.95.
        method: How the limits were found.
        names: The names of the entries, if these are some of their leaves' alone.
    """

    value: PyTree
    standard_errors: PyTree
    lower: PyTree
    upper: PyTree
    level: float = eqx.field(static=True)
    method: str = eqx.field(static=True)
    names: tuple[str, ...] | None = eqx.field(static=True, default=None)

    def _head(self) -> tuple[str, ...]:
        tail = 50 * (1 - self.level)
        limits = (f"{tail:.3g} %", f"{100 - tail:.4g} %")
        return ("", "estimate", "std. error", *limits)

    def _rows(self) -> list[tuple[str, ...]]:
        trees = self.value, self.standard_errors, self.lower, self.upper
        if self.names is None:
            return rows_of(*trees)
        leaves = (jax.tree.leaves(tree) for tree in trees)
        flat = [np.concatenate([np.ravel(a) for a in each]) for each in leaves]
        numbers = (tuple(f"{float(a):.5g}" for a in row) for row in np.transpose(flat))
        rows = zip(self.names, numbers, strict=True)
        return [(name, *row) for name, row in rows][:_MOST_ROWS]

    def _lines(self) -> list[str]:
        sizes = [np.size(a) for a in jax.tree.leaves(self.value)]
        one = self.names is None
        rows = sum(1 if size > _MOST_ENTRIES and one else size for size in sizes)
        more = [f"and {rows - _MOST_ROWS} rows more"] if rows > _MOST_ROWS else []
        return [*more, f"{100 * self.level:.4g} % intervals, {self.method}"]


def rows_of(*trees: PyTree) -> list[tuple[str, ...]]:
    """Return a row for each entry of trees of one structure: its name, its numbers."""
    columns = [[np.asarray(a) for a in jax.tree.leaves(tree)] for tree in trees]
    rows: list[tuple[str, ...]] = []
    for name, *leaf in zip(leaf_names(trees[0]), *columns, strict=True):
        shape, size = leaf[0].shape, leaf[0].size
        if size > _MOST_ENTRIES:
            rows.append(_row_of_many(name, leaf))
            continue
        numbers = zip(*(a.reshape(-1) for a in leaf), strict=True)
        for place, entry in enumerate(numbers):
            shown = (f"{float(a):.5g}" for a in entry)
            rows.append((entry_name(name, shape, place), *shown))
    return rows[:_MOST_ROWS]


def _row_of_many(name: str, leaf: list[np.ndarray]) -> tuple[str, ...]:
    """Show a large leaf by the ranges of its numbers."""
    texts = [f"{np.min(a):.3g} to {np.max(a):.3g}" for a in leaf[:2]]
    return (
        f"{name} {describe(jax.ShapeDtypeStruct(leaf[0].shape, leaf[0].dtype))}",
        *texts,
        *[""] * (len(leaf) - 2),
    )


def quantile(level: float, degrees: float | None) -> float:
    """Return how many standard errors an interval has to each side."""
    if not 0 < level < 1:
        raise ValueError(f"`level` is {level!r}: a probability such as 0.95.")
    if degrees is None:
        return NormalDist().inv_cdf((1 + level) / 2)
    if not degrees > 0:
        raise ValueError(f"`degrees` is {degrees!r}: a positive number such as N - n.")
    # Imported here: SciPy's functions take a tenth of a second, and few ask for them.
    return float(extra("scipy.special").stdtrit(degrees, (1 + level) / 2))


def around(
    value: PyTree,
    errors: PyTree,
    level: float,
    degrees: float | None,
    method: str,
) -> Interval:
    """Return the interval of a normal distribution, or of Student's."""
    size = quantile(level, degrees)
    if degrees is not None:
        method += f", Student's t with {degrees:.6g} degrees of freedom"
    span = jax.tree.map(lambda e: jnp.asarray(size, e.dtype) * e, errors)
    lower = jax.tree.map(jnp.subtract, value, span)
    upper = jax.tree.map(jnp.add, value, span)
    return Interval(value, errors, lower, upper, level, method)
