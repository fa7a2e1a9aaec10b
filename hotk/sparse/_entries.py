"""From a linear program to its matrix by the algebra of pieces."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk.dense import promoted

from ._assemble import Entries, assemble
from ._context import AbstractWatch
from ._interpret import evaluate_linear
from ._linear_program import LinearProgram
from ._pieces import Budget, Linear, Piece, TooDense, variable, with_values
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
    arguments, columns = [], 0
    for leaf in jax.tree.leaves(linear.inputs):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise TooDense
        arguments.append(variable(leaf.shape, columns, valued=valued))
        columns += leaf.size
    results = evaluate_linear(linear.program, arguments, budget, columns, watch)
    outputs = jax.tree.leaves(linear.outputs)
    pieces: list[Piece] = []
    rows = 0
    for result, output in zip(results, outputs, strict=True):
        for part in _real_parts(result, output):
            pieces += [
                Piece(p.values, p.all_rows() + rows, p.columns) for p in part.pieces
            ]
            rows += output.size
    if transposed:
        pieces = [Piece(p.values, p.columns, p.all_rows()) for p in pieces]
        rows, columns = columns, rows
    whole = Linear((rows,), tuple(pieces))
    dtype = real_dtype(linear.outputs, linear.inputs)
    return assemble(whole, columns, dtype, symmetric=symmetric)


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
