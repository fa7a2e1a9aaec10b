"""From pieces to a sparse matrix: entries sorted, those of one position added."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._axes import alongside
from ._halves import AddedNumbers, all_terms, lower_terms
from ._linear import Linear
from ._merge import merged, without_repetition
from ._ordered import in_order
from ._parts import Parts
from ._positions import Positions
from ._shared import multiples
from ._sums import sorted_positions, summed


class Entries(NamedTuple):
    """The entries of a sparse matrix, sorted by row, then column.

    Attributes:
        values: The values; `None` where only the pattern is asked for.
        rows: Their rows.
        cols: Their columns.
    """

    values: Array | None
    rows: Positions
    cols: Positions


def assemble(
    make: Callable[[], Linear],
    columns: int,
    dtype: np.dtype,
    *,
    valued: bool,
    symmetric: bool,
) -> Entries:
    """Add the pieces of a vector that is linear in `v`.

    Args:
        make: Computes it, an array of one axis.
        columns: The number of entries of `v`.
        dtype: The dtype of the values.
        valued: Whether values are asked for, or the pattern alone.
        symmetric: Whether to take the lower half alone, and mirror it.
    """
    terms: list[AddedNumbers] = []

    def compute() -> list[Array]:
        a = make()
        if valued:
            a = without_repetition(alongside(a))
        pieces = merged(a, dtype).pieces
        terms[:] = (lower_terms if symmetric else all_terms)(pieces, dtype)
        return [term.values for term in terms if valued]

    # What is computed is looked at as a whole, to compute nothing twice.
    values = multiples(jax.make_jaxpr(compute)()) if valued else []
    if not valued:
        compute()
    rows = _joined([term.rows for term in terms])
    cols = _joined([term.cols for term in terms])
    places = [term.places for term in terms]
    if not valued:
        order, first, _ = sorted_positions(rows, cols, columns)
        at = order[first]
        return _arranged(Entries(None, rows[at], cols[at]), None, columns, symmetric)
    if not rows.size:
        return Entries(jnp.zeros((0,), dtype), rows, cols)
    parts = Parts(values, places)
    order, first, counts = sorted_positions(rows, cols, columns, parts.kinds)
    at = order[first]
    found, placed = summed(parts, order, first, counts)
    # `placed[k]` is the position whose value is entry `k`.
    index = np.empty_like(placed)
    index[placed] = np.arange(placed.size)
    half = Entries(None, rows[at], cols[at])
    return _arranged(half, (found, index), columns, symmetric)


def _joined(parts: Sequence[Positions]) -> Positions:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _arranged(
    lower: Entries,
    values: tuple[Sequence[Array], Positions] | None,
    columns: int,
    symmetric: bool,
) -> Entries:
    """Return entries in order, mirrored if only the lower half is there."""
    rows, cols = lower.rows, lower.cols
    source = np.arange(rows.size)
    if symmetric:
        off = np.flatnonzero(rows != cols)
        source = np.concatenate([source, off])
        rows, cols = (
            np.concatenate([rows, cols[off]]),
            np.concatenate([cols, rows[off]]),
        )
        order = np.argsort(rows * columns + cols, kind="stable")
        rows, cols, source = rows[order], cols[order], source[order]
    if values is None:
        return Entries(None, rows, cols)
    found, index = values
    return Entries(in_order(found, index[source]), rows, cols)
