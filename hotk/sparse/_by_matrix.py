"""Linear operations without a rule: by their matrix, or as depending on all."""

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import JaxprEqn, ProgramKind, bound, crosses_devices, traits_of

from ._coefficients import Coefficient, taken
from ._examples import ExampleMap, examples
from ._linear import (
    Context,
    Linear,
    Operand,
    Piece,
    TooDense,
    operand_type,
    result_type,
    with_values,
    zero,
)
from ._merge import added
from ._pieces import repeated
from ._positions import Positions, Shape, distinct, size_of


# Numbers of a matrix that is computed for an operation without a rule.
_MOST_NUMBERS = 4_000_000


def by_matrix(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand]:
    """Evaluate an operation that is linear in its linear operands, whatever it is.

    Each result depends on all entries of an operand, or on those of the same example
    where the operation is known to treat examples one by one.

    Raises:
        TooDense: If its matrix is too large, or JAX cannot compute it.
    """
    _refuse_nonlinear(equation, operands)
    count = len(equation.outvars)
    results = [zero(result_type(equation, j)[0]) for j in range(count)]
    for k, operand in enumerate(operands):
        if not isinstance(operand, Linear) or not operand.pieces:
            continue
        groups = [examples(equation, operands, k, j, context) for j in range(count)]
        if operand.pieces[0].values is None:
            for j, group in enumerate(groups):
                results[j] = _all(operand, results[j], group, context)
            continue
        if crosses_devices(equation):
            raise TooDense  # the matrix would be multiplied with the values of one
        # A direction is one of each example, so the examples of all results are those
        # that are paired in each.
        common = set.intersection(*(set(group.pairs) for group in groups))
        groups = [group._replace(pairs=sorted(common)) for group in groups]
        for part, unit in _real_parts(operand, operand_type(equation, k)[1]):
            matrices = _matrices(equation, operands, k, unit, groups[0])
            for j, (group, matrix) in enumerate(zip(groups, matrices, strict=True)):
                results[j] = _multiplied(part, matrix, results[j], group, context)
    return list(results)


def _refuse_nonlinear(equation: JaxprEqn, operands: list[Operand]) -> None:
    """See that an operation is linear in its linear operands together.

    All operations of a linear program are. A solver that is run by its program may
    have others inside.
    """
    traits = traits_of(equation)
    places = [k for k, a in enumerate(operands) if isinstance(a, Linear) and a.pieces]
    both = traits.bilinear and len(places) > 1
    outside = traits.linear is not None and not set(places) <= set(
        range(len(operands))[traits.linear]
    )
    # A loop may be linear as a whole, as an iterative solver, and none of its steps:
    # in one of its operands at least then, in two of them together hardly.
    steps = traits.program is ProgramKind.WHILE and len(places) > 1
    smooth = traits.elementwise and traits.linear is None and not traits.bilinear
    if both or outside or smooth or steps:
        raise TooDense


def _real_parts(a: Linear, dtype: np.dtype) -> list[tuple[Linear, complex]]:
    """Split a complex array: an operation may be linear over real numbers only."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return [(a, 1.0)]
    array = lambda v: jnp.asarray(v, dtype)
    return [
        (with_values(a, lambda v: jnp.real(array(v))), 1.0),
        (with_values(a, lambda v: jnp.imag(array(v))), 1.0j),
    ]


def _matrices(
    equation: JaxprEqn,
    operands: list[Operand],
    k: int,
    unit: complex,
    group: ExampleMap,
) -> list[jax.Array]:
    """Return for each result the matrix of an operation: `[input, *result]`."""
    shape, dtype = operand_type(equation, k)
    count = len(equation.outvars)
    n = size_of(group.inner)
    results = sum(size_of(result_type(equation, j)[0]) for j in range(count))
    if n * results > _MOST_NUMBERS:
        raise TooDense

    def apply(direction: jax.Array) -> list[jax.Array]:
        whole = jnp.broadcast_to(group.stretched(direction), shape)
        inputs = [
            jnp.zeros(*operand_type(equation, i))
            if isinstance(operand, Linear)
            else jnp.asarray(operand)
            for i, operand in enumerate(operands)
        ]
        inputs[k] = whole
        return bound(equation, inputs)

    basis = jnp.eye(n, dtype=dtype)
    try:
        return jax.vmap(apply)(basis * unit if unit != 1.0 else basis)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise TooDense from error  # an operation that JAX cannot map


def _multiplied(
    a: Linear, matrix: jax.Array, total: Linear, group: ExampleMap, context: Context
) -> Linear:
    """Add the product of a matrix, one for each example, with an array."""
    m, offsets = size_of(total.shape), group.offsets

    def factor(rows: Positions, copies: Shape) -> Coefficient:
        apart = offsets.reshape(offsets.shape + (1,) * (len(copies) - offsets.ndim))
        at = group.within(rows) * m + group.first(rows) + apart
        return taken(matrix, np.broadcast_to(at, copies))

    made = repeated(a, total.shape, group.first, offsets, context.budget, factor)
    return added(total, made, matrix.dtype)


def _all(a: Linear, total: Linear, group: ExampleMap, context: Context) -> Linear:
    """Let every entry of a result depend on every entry of its example."""
    count = context.columns
    keys = [
        group.first(p.all_rows().reshape(-1)) * count + p.columns.reshape(-1)
        for p in a.pieces
        if p.size
    ]
    if not keys:
        return total
    once = distinct(np.concatenate(keys), size_of(total.shape) * count)
    # Each column once for each example, at the first entry of the result.
    firsts = Linear(total.shape, (Piece(None, *np.divmod(once, count)),))
    stay = lambda rows: rows
    made = repeated(firsts, total.shape, stay, group.offsets, context.budget)
    return Linear(total.shape, (*total.pieces, *made.pieces))
