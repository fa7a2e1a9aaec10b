"""A `scan` whose steps are taken one after the other."""

from collections.abc import Sequence

import jax.numpy as jnp

from hotk._core import JaxprEqn

from ._context import Context, Operand, result_type
from ._linear import Linear, zero
from ._loop import Loop
from ._merge import added
from ._pieces import moved
from ._positions import size_of
from ._structure import row_of


def one_by_one(loop: Loop, equation: JaxprEqn, context: Context) -> list[Operand]:
    """Unroll a loop."""
    carry, count = list(loop.carry), len(loop.carry)
    stacked: list[dict[int, Operand]] = [{} for _ in equation.outvars[count:]]
    steps: Sequence[int] = range(loop.length)
    for t in reversed(steps) if loop.reverse else steps:
        rows = [row_of(a, t) if isinstance(a, Linear) else a[t] for a in loop.rows]
        results = context.run(loop.body, [*loop.constants, *carry, *rows], context)
        carry = results[:count]
        for all_steps, result in zip(stacked, results[count:], strict=True):
            all_steps[t] = result
    return [*carry, *(_stacked(s, equation, count + j) for j, s in enumerate(stacked))]


def _stacked(steps: dict[int, Operand], equation: JaxprEqn, j: int) -> Operand:
    """Stack the results of all steps along a leading axis."""
    shape, dtype = result_type(equation, j)
    if not any(isinstance(a, Linear) for a in steps.values()):
        return jnp.stack([jnp.asarray(steps[t], dtype) for t in sorted(steps)])
    total, k = zero(shape), size_of(shape[1:])
    for t, result in steps.items():
        if isinstance(result, Linear):
            to = lambda rows, t=t: rows + t * k
            total = added(total, moved(result, shape, to), dtype)
    return total
