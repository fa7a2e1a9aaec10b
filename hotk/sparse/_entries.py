"""From a linear program to its matrix, by the algebra of pieces and sums of entries."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import ShardingTypeError
from hotk._dense import dimension, is_complex, promoted

from ._halves import AddedNumbers, all_terms, lower_terms
from ._interpret import evaluate_linear
from ._linear import (
    AbstractWatch,
    Budget,
    Linear,
    Piece,
    TooDense,
    variable,
    with_values,
)
from ._linear_program import LinearProgram
from ._merge import merged, without_repetition
from ._ordered import in_order
from ._parts import Parts
from ._pieces import alongside
from ._positions import Positions, Shape
from ._shared import multiples
from ._structure import reshape
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


def entries(
    linear: LinearProgram,
    budget: Budget,
    *,
    valued: bool,
    symmetric: bool = False,
    transposed: bool = False,
    watch: AbstractWatch | None = None,
) -> Entries:
    """Compute the matrix of a linear program.

    Args:
        linear: The program, of real arguments.
        budget: What entries are paid from.
        valued: Whether values are asked for, or the pattern alone.
        symmetric: Whether to take the lower half alone, and mirror it.
        transposed: Whether the program is that of the transpose.
        watch: What looks at each operation.

    Raises:
        TooDense: If the budget does not suffice.
    """
    leaves = jax.tree.leaves(linear.inputs)
    if is_complex(leaves):
        raise TooDense
    first = np.cumsum([0, *(leaf.size for leaf in leaves)]).tolist()
    m, n = dimension(linear.outputs), first[-1]

    def compute() -> Linear:
        arguments = [
            variable(leaf.shape, i, valued=valued)
            for leaf, i in zip(leaves, first, strict=False)
        ]
        program, sources = linear.program, linear.sources
        results = evaluate_linear(program, arguments, budget, n, watch, sources)
        outputs = jax.tree.leaves(linear.outputs)
        pieces = tuple(_stacked(results, outputs))
        if transposed:
            turned = (Piece(p.values, p.columns, p.all_rows()) for p in pieces)
            return Linear((n,), tuple(turned))
        return Linear((m,), pieces)

    dtype = real_dtype(linear.outputs, linear.inputs)
    columns = m if transposed else n
    try:
        return assemble(compute, columns, dtype, valued=valued, symmetric=symmetric)
    except ShardingTypeError as error:
        # Values that are divided along explicit axes of a mesh cannot be read anywhere.
        raise TooDense from error


def _stacked(results: Sequence[object], outputs: Sequence[Any]) -> Iterator[Piece]:
    """Yield the pieces of arrays as those of one, in which they follow each other."""
    rows = 0
    for result, output in zip(results, outputs, strict=True):
        for part in _real_parts(result, output):
            for p in part.pieces:
                yield Piece(p.values, p.all_rows() + rows, p.columns)
            rows += output.size


def real_dtype(*trees: PyTree) -> np.dtype:
    """Return the dtype of the values of a matrix between trees."""
    leaves = jax.tree.leaves(trees)
    return promoted(*(jnp.finfo(leaf.dtype).dtype for leaf in leaves))


def _real_parts(a: object, output: jax.ShapeDtypeStruct) -> list[Linear]:
    """Return a flat real array, or the real and the imaginary part of a complex one."""
    shape: Shape = (output.size,)
    flat = reshape(a, shape) if isinstance(a, Linear) else Linear(shape, ())
    if not jnp.issubdtype(output.dtype, jnp.complexfloating):
        return [flat]
    return [
        with_values(flat, lambda v, part=part: part(jnp.asarray(v)))
        for part in (jnp.real, jnp.imag)
    ]
