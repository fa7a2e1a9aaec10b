"""Rules for operations that are linear or bilinear: coefficient by coefficient."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import (
    Arrays,
    JaxprEqn,
    Leaf,
    bound,
    is_inexact,
    operation_name,
    traits_of,
)

from ._elementary import ELEMENTARY
from ._gamma import GAMMA
from ._series import Coefficient, Series, constant, product, times
from ._special import BESSEL, SPECIAL


RULES = {**ELEMENTARY, **BESSEL, **GAMMA, **SPECIAL}


def rule_for(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
    """Return the series of the outputs, or `None` if there is no rule for it."""
    places = linear_places(equation, inputs)
    if places is not None:
        return _linear(equation, inputs, places)
    if traits_of(equation).bilinear:
        return [_bilinear(equation, *inputs)]
    rule = RULES.get(operation_name(equation))
    return None if rule is None else rule(equation, inputs)


def has_rule(equation: JaxprEqn, inputs: list[Series]) -> bool:
    """Whether there is a rule for an operation."""
    linear = linear_places(equation, inputs) is not None
    known = operation_name(equation) in RULES
    return linear or known or traits_of(equation).bilinear


def linear_places(equation: JaxprEqn, inputs: list[Series]) -> tuple[int, ...] | None:
    """Return the operands that an operation is linear in, if nothing else moves."""
    moving = tuple(i for i, series in enumerate(inputs) if series.moves)
    if traits_of(equation).bilinear:
        return moving if len(moving) == 1 else None
    places = joint_places(equation)
    return places if places and set(moving) <= set(places) else None


def joint_places(equation: JaxprEqn) -> tuple[int, ...]:
    """Return the operands that an operation is linear in together, the others held."""
    linear = traits_of(equation).linear
    return () if linear is None else tuple(range(len(equation.invars))[linear])


def of_moving(
    equation: JaxprEqn, values: Arrays, moving: list[int]
) -> Callable[..., list[Array]]:
    """Return an operation as a function of what moves among its operands."""

    def operation(*moved: Leaf) -> list[Array]:
        whole = list(values)
        for i, value in zip(moving, moved, strict=True):
            whole[i] = value
        return bound(equation, whole)

    return operation


def _linear(
    equation: JaxprEqn, inputs: list[Series], places: tuple[int, ...]
) -> list[Series]:
    """Apply an operation to each coefficient of the operands that it is linear in."""
    values = [series.primal for series in inputs]
    primals = bound(equation, values)
    if traits_of(equation).bilinear:
        columns = _stacked(equation, inputs, *places)
    else:
        columns = [
            term(equation, values, places, [series[k] for series in inputs])
            for k in range(1, inputs[0].order + 1)
        ]
    return [
        Series(primal, tuple(None if c is None else c[i] for c in columns))
        if is_inexact(primal)
        else constant(primal, len(columns))  # such as rounded ones
        for i, primal in enumerate(primals)
    ]


def term(
    equation: JaxprEqn,
    values: Arrays,
    places: Sequence[int],
    terms: list[Coefficient],
) -> list[Array] | None:
    """Apply an operation to coefficients of the operands that it is linear in.

    Args:
        equation: Its equation.
        values: Its operands.
        places: Which it is linear in.
        terms: One coefficient of each operand.
    """
    if all(terms[i] is None for i in places):
        return None
    filled: list[Any] = [
        value
        if i not in places
        else (jnp.zeros_like(value) if terms[i] is None else terms[i])
        for i, value in enumerate(values)
    ]
    parameters = equation.params
    if equation.primitive.name == "gather":  # what is filled in does not move
        parameters = {**parameters, "fill_value": 0}
    return bound(equation, filled, parameters)


def _stacked(
    equation: JaxprEqn, inputs: list[Series], place: int
) -> list[list[Array] | None]:
    """Apply a product with a constant to all coefficients at once."""
    terms = inputs[place].terms
    there = [k for k, term in enumerate(terms) if term is not None]
    values = [series.primal for series in inputs]

    def one(term: Leaf) -> Array:
        return bound(equation, [*values[:place], term, *values[place + 1 :]])[0]

    columns: list[list[Array] | None] = [None] * len(terms)
    if equation.primitive.name == "mul" or len(there) == 1:
        for k in there:
            columns[k] = [one(terms[k])]
        return columns
    rows = jax.vmap(one)(jnp.stack([terms[k] for k in there]))
    for row, k in enumerate(there):
        columns[k] = [rows[row]]
    return columns


def _bilinear(equation: JaxprEqn, a: Series, b: Series) -> Series:
    applied = lambda p, q: bound(equation, [p, q])[0]
    return product(lambda p, q: times(p, q, applied), a, b)
