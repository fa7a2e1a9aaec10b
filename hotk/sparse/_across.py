"""Rules of what crosses between devices: each holds the same entries, and own values.

A product with a matrix is not their rule: it would multiply what all devices have with
the values of one.
"""

import jax.numpy as jnp

from hotk._core import Arrays, JaxprEqn, bound, varying_along
from hotk._primitive import crossing

from ._context import Context, Operand, Rule, operand_type
from ._linear import Linear, with_values


def _pair(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Take the values to one device, or add those of all, in one collective."""
    cross = crossing(equation)
    if cross is None:
        return None
    arrays: Arrays = [
        jnp.asarray(values, operand_type(equation, k)[1])
        for k, a in enumerate(operands)
        for values in ([p.values for p in a.pieces] if isinstance(a, Linear) else [a])
        if values is not None
    ]
    rest = iter(cross(arrays))
    return [
        with_values(a, lambda _: next(rest)) if isinstance(a, Linear) else next(rest)
        for a in operands
    ]


def _each(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand]:
    named = equation.params.get("axes") or equation.params["axis_name"]
    axes = [named] if isinstance(named, str) else named

    def change(a: Operand, k: int) -> Operand:
        own = jnp.asarray(a, operand_type(equation, k)[1])
        return bound(equation, varying_along([own], axes))[0]

    return [
        with_values(a, lambda v, k=k: change(v, k))
        if isinstance(a, Linear)
        else change(a, k)
        for k, a in enumerate(operands)
    ]


RULES: dict[str, Rule] = {
    "hotk_linear": _pair,
    "ppermute": _each,
    "psum": _each,
    "psum_invariant": _each,
}
