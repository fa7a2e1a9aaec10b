"""From a linear program to its matrix by the algebra of pieces."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import ShardingTypeError
from hotk._dense import dimension, is_complex, promoted

from ._assemble import Entries, assemble
from ._context import AbstractWatch
from ._interpret import evaluate_linear
from ._linear import Budget, Linear, Piece, TooDense, variable, with_values
from ._linear_program import LinearProgram
from ._positions import Shape
from ._structure import reshape


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
