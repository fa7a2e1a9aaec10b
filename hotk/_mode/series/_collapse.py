"""Operations on the series of many directions, whose top coefficients are summed."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import CUSTOM, JaxprEqn, bound, is_inexact, traits_of, varying_alike

from ._frame import Frame, split_top, with_top
from ._rules import linear_places, of_moving
from ._series import Coefficient, Series, times, total


One: TypeAlias = Callable[[JaxprEqn, list[Series], Frame], list[Series]]
"""The rule for the series of one direction."""


def collapsed(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, one: One
) -> list[Series]:
    """Apply an operation to the series of many directions.

    Args:
        equation: Its equation.
        inputs: What it is applied to.
        frame: The directions.
        one: The rule for the series of one direction.
    """
    lower, tops = split_top(inputs)
    if traits_of(equation).bilinear and all(s.moves for s in inputs):
        return [_product(equation, inputs, frame, one)]
    if _is_univariate(equation, inputs):
        return [_composed(equation, inputs[0], frame, one)]
    curved = over_directions(equation, lower, Frame(frame.order), one)
    straight = _pushed(equation, inputs, tops)
    if linear_places(equation, inputs) is not None:
        # The lower coefficients give nothing to the top one; adding their sum, which is
        # zero, would still be computed.
        return [with_top(c, s) for c, s in zip(curved, straight, strict=True)]
    return [
        with_top(c, frame.summed(c.terms[-1]), s)
        for c, s in zip(curved, straight, strict=True)
    ]


def _is_univariate(equation: JaxprEqn, inputs: list[Series]) -> bool:
    return traits_of(equation).univariate and not jnp.iscomplexobj(inputs[0].primal)


def _composed(equation: JaxprEqn, x: Series, frame: Frame, one: One) -> Series:
    r"""Compose a function of one number with a series.

    Its own coefficients $c_j$ are those at the value alone, the same for all
    directions: $y_k = \sum_j c_j\,(\delta^j)_k$ with $\delta = x - x_0$.
    """
    order = frame.order
    # Along x0 + t, once: its coefficients are those of the function.
    unit = varying_alike([jnp.ones_like(x.primal), x.primal])[0]
    slope = Series(x.primal, (unit, *[None] * (order - 1)))
    [outer] = one(equation, [slope], Frame(order))
    lower = list(x.terms[:-1])
    parts: list[list[Any]] = [
        [_each(outer.terms[0], a) for a in lower],
        *([None] * (order - 1) for _ in range(order - 1)),
    ]
    tops = [times(outer.terms[0], x.terms[-1])]
    power: list[Any] = [*lower, None]  # of delta, as its coefficients 1 to K
    for j in range(2, order + 1):
        # The top coefficient of x enters linearly, which `tops` starts with; in higher
        # powers of delta it is above the order.
        power = _next_power(power, [*lower, None])
        parts[j - 1] = [_each(outer.terms[j - 1], a) for a in power[:-1]]
        tops.append(times(outer.terms[j - 1], frame.summed(power[-1])))
    terms = [total(column) for column in zip(*parts, strict=True)]
    return Series(outer.primal, (*terms, total(tops)))


def _next_power(power: list[Coefficient], base: list[Coefficient]) -> list[Any]:
    """Multiply two series without a constant term."""
    return [
        total(times(base[j], power[k - 2 - j]) for j in range(k - 1))
        for k in range(1, len(base) + 1)
    ]


def _each(factor: Array | None, term: Array | None) -> Array | None:
    """Multiply the coefficient of each direction by the same factor."""
    return None if factor is None or term is None else factor[None] * term


def over_directions(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, one: One
) -> list[Series]:
    """Apply a rule to each direction; the value is computed once."""
    if not any(series.moves for series in inputs):
        values = bound(equation, [series.primal for series in inputs])
        return [frame.constant(y) for y in values]
    axes: Any = Series(None, 0)  # pyright: ignore
    # The value is the same in all directions, which `vmap` sees unless a rule of the
    # user computes it from an array that it maps: then the first one is taken.
    ruled = equation.primitive.name in CUSTOM
    outer: Any = Series(0, 0) if ruled else axes  # pyright: ignore
    each = jax.vmap(
        lambda inputs: one(equation, inputs, frame),
        in_axes=([axes] * len(inputs),),
        out_axes=[outer] * len(equation.outvars),
    )
    outputs = each(inputs)
    return [Series(s.primal[0], s.terms) for s in outputs] if ruled else outputs


def _pushed(
    equation: JaxprEqn, inputs: list[Series], tops: list[Coefficient]
) -> list[Array | None]:
    """Push the top coefficients through the derivative of an operation."""
    values = [series.primal for series in inputs]
    moving = [i for i, top in enumerate(tops) if top is not None]
    if not moving:
        return [None] * len(equation.outvars)

    operation = of_moving(equation, values, moving)
    point = [values[i] for i in moving]
    outputs, slopes = jax.jvp(operation, point, [tops[i] for i in moving])
    pairs = zip(outputs, slopes, strict=True)
    # JAX keeps a zero of a program that it has traced before as a literal.
    return [jnp.asarray(slope) if is_inexact(y) else None for y, slope in pairs]


def _product(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, one: One
) -> Series:
    """Multiply two series; the sum over directions is part of each top product."""
    a, b = inputs
    order = frame.order
    # The terms a_j b_(K-j) with 0 < j < K are different for each direction: their sum
    # is one product more in which the axis of directions is contracted as well.
    below = [s.cut(order - 1) for s in inputs]
    [lower] = over_directions(equation, below, Frame(order - 1), one)
    pairs = [(a[j], b[order - j]) for j in range(1, order)]
    curved = [contracted(equation, p, q, frame) for p, q in pairs]
    ends = [
        None if p is None or q is None else bound(equation, [p, q])[0]
        for p, q in ((a.primal, b.terms[-1]), (a.terms[-1], b.primal))
    ]
    return Series(lower.primal, (*lower.terms, total([*curved, *ends])))


def contracted(
    equation: JaxprEqn | None, p: Array | None, q: Array | None, frame: Frame
) -> Array | None:
    """Return the weighted sum over directions of a product of coefficients.

    Args:
        equation: The product; entry by entry if `None`.
        p: The first factor for each direction.
        q: The second.
        frame: The directions.
    """
    if p is None or q is None:
        return None
    if equation is None:
        return frame.summed(p * q)
    if equation.primitive.name != "dot_general":
        each = jax.vmap(lambda p, q: bound(equation, [p, q])[0])
        return jnp.sum(frame.weighted(each(p, q)), axis=0)
    contract, batch = equation.params["dimension_numbers"]
    contract = tuple((0, *(i + 1 for i in side)) for side in contract)
    batch = tuple(tuple(i + 1 for i in side) for side in batch)
    parameters = {**equation.params, "dimension_numbers": (contract, batch)}
    return bound(equation, [frame.weighted(p), q], parameters)[0]
