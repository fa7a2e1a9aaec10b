"""Linear operations without a rule: by their matrix, or as depending on all."""

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import JaxprEqn, Program, bound, traits_of

from ._coefficients import Coefficient, taken
from ._context import Context, Operand, operand_type, result_type
from ._merge import added
from ._pieces import Linear, TooDense, repeated, with_values, zero
from ._positions import Positions, Shape, size_of


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
        axes = _independent_axes(equation, k)
        if operand.pieces[0].values is None:
            for j in range(count):
                results[j] = _all(operand, results[j], axes, context)
            continue
        for part, unit in _real_parts(operand, operand_type(equation, k)[1]):
            for j, matrix in enumerate(_matrices(equation, operands, k, unit, axes)):
                results[j] = _multiplied(part, matrix, results[j], axes, context)
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
    steps = traits.program is Program.WHILE and len(places) > 1
    smooth = traits.elementwise and traits.linear is None and not traits.bilinear
    if both or outside or smooth or steps:
        raise TooDense


def _independent_axes(equation: JaxprEqn, k: int) -> int:
    """Return along how many leading axes an operation treats examples one by one."""
    name, parameters = equation.primitive.name, equation.params
    rank = len(operand_type(equation, k)[0])
    if name == "triangular_solve" and k == 1:
        return rank - 2
    if name == "fft":
        return rank - len(parameters["fft_lengths"])
    if name == "gather" and k == 0:
        numbers = parameters["dimension_numbers"]
        leading = tuple(range(len(numbers.operand_batching_dims)))
        same = numbers.operand_batching_dims == leading
        same = same and numbers.start_indices_batching_dims == leading
        return (
            len(leading) if same and not set(leading) & set(numbers.offset_dims) else 0
        )
    return 0


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
    equation: JaxprEqn, operands: list[Operand], k: int, unit: complex, axes: int
) -> list[jax.Array]:
    """Return for each result the matrix of an operation: `[input, *result]`."""
    shape, dtype = operand_type(equation, k)
    count = len(equation.outvars)
    n = size_of(shape[axes:])
    results = sum(size_of(result_type(equation, j)[0]) for j in range(count))
    if n * results > _MOST_NUMBERS:
        raise TooDense

    def apply(direction: jax.Array) -> list[jax.Array]:
        whole = jnp.broadcast_to(direction, shape)
        inputs = [
            jnp.zeros(*operand_type(equation, i))
            if isinstance(operand, Linear)
            else jnp.asarray(operand)
            for i, operand in enumerate(operands)
        ]
        inputs[k] = whole
        return bound(equation, inputs)

    basis = jnp.eye(n, dtype=dtype).reshape(n, *shape[axes:])
    try:
        return jax.vmap(apply)(basis * unit if unit != 1.0 else basis)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise TooDense from error  # an operation that JAX cannot map


def _multiplied(
    a: Linear, matrix: jax.Array, total: Linear, axes: int, context: Context
) -> Linear:
    """Add the product of a matrix, one for each example, with an array."""
    examples = size_of(a.shape[:axes])
    n, m = matrix.shape[0], size_of(total.shape[axes:])
    offsets = np.arange(m, dtype=np.int64)

    def factor(rows: Positions, copies: Shape) -> Coefficient:
        apart = offsets.reshape((m,) + (1,) * (len(copies) - 1))
        example, i = np.divmod(rows, n)
        return taken(
            matrix, np.broadcast_to((i * examples + example) * m + apart, copies)
        )

    first = lambda rows: rows // n * m
    made = repeated(a, total.shape, first, offsets, context.budget, factor)
    return added(total, made, matrix.dtype)


def _all(a: Linear, total: Linear, axes: int, context: Context) -> Linear:
    """Let every entry of a result depend on every entry of its example."""
    n, m = size_of(a.shape[axes:]), size_of(total.shape[axes:])
    offsets = np.arange(m, dtype=np.int64)
    first = lambda rows: rows // max(n, 1) * m
    made = repeated(a, total.shape, first, offsets, context.budget)
    return Linear(total.shape, (*total.pieces, *made.pieces))
