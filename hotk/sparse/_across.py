"""Rules of what crosses between devices: each holds the same entries, and own values.

A product with a matrix is not their rule: it would multiply what all devices have with
the values of one.
"""

import jax.numpy as jnp

from hotk._core import Arrays, JaxprEqn, bound, varying_along
from hotk._primitive import crossing

from ._linear import (
    Context,
    Linear,
    Operand,
    Rule,
    operand_type,
    result_type,
    with_values,
)
from ._reductions import sum_along


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


def _sum(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand]:
    """Add over axes with numbers, which `jax.vmap` has made, and over those of devices.

    An array without either is one that devices or the axis of a `vmap` have in common.
    """
    axes = equation.params["axes"]
    numbered = tuple(axis for axis in axes if isinstance(axis, int))
    if numbered:
        operands = [
            sum_along(a, numbered, result_type(equation, k)[0])
            if isinstance(a, Linear)
            else jnp.sum(jnp.asarray(a, operand_type(equation, k)[1]), numbered)
            for k, a in enumerate(operands)
        ]
    named = tuple(axis for axis in axes if axis not in numbered)
    if not named:
        return operands
    parameters = {**equation.params, "axes": named}
    return _each(equation.replace(params=parameters), operands, context)


RULES: dict[str, Rule] = {
    "hotk_linear": _pair,
    "ppermute": _each,
    "psum": _sum,
    "psum_invariant": _sum,
}
