r"""Rules for primitives whose series is cheaper than by their derivative.

With $y = p(x)$ the coefficients of $y$ follow from those of $x$: coefficient by
coefficient where p is linear, by the product of Cauchy where it is bilinear, and by a
recurrence from the differential equation of p for the elementary functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import bound, operation_name

from ._series import Series, constant, is_inexact, scaled, times, total


Rule = Callable[..., list[Series] | None]

# Linear in all of these operands together, the others held: `None` for all operands.
_LINEAR: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(
        (
            "add",
            "add_any",
            "sub",
            "neg",
            "reduce_sum",
            "broadcast_in_dim",
            "reshape",
            "transpose",
            "squeeze",
            "expand_dims",
            "concatenate",
            "pad",
            "rev",
            "convert_element_type",
            "reduce_precision",
            "real",
            "imag",
            "complex",
            "conj",
            "cumsum",
            "copy",
            "slice",
            "split",
            "fft",
            "reduce_window_sum",
            "optimization_barrier",
            "sharding_constraint",
            "psum",
            "psum_invariant",
            "ppermute",
            "all_gather",
            "all_to_all",
            "reduce_scatter",
            "pvary",
            "pcast",
        ),
        None,
    ),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "gather": (0,),
    "scatter-add": (0, 2),
    "div": (0,),
    "triangular_solve": (1,),
}
BILINEAR = ("mul", "dot_general", "conv_general_dilated")


def rule_for(equation: Any, inputs: list[Series]) -> list[Series] | None:
    """Return the series of the outputs, or `None` if there is no rule for it."""
    places = linear_places(equation, inputs)
    if places is not None:
        return _linear(equation, inputs, places)
    if equation.primitive.name in BILINEAR:
        return [_bilinear(equation, *inputs)]
    rule = _ELEMENTARY.get(operation_name(equation))
    return None if rule is None else rule(equation, inputs)


def has_rule(equation: Any, inputs: list[Series]) -> bool:
    """Whether there is a rule for an operation."""
    linear = linear_places(equation, inputs) is not None
    known = equation.primitive.name in BILINEAR
    return linear or known or operation_name(equation) in _ELEMENTARY


def linear_places(equation: Any, inputs: list[Series]) -> tuple[int, ...] | None:
    """Return the operands that an operation is linear in, if nothing else moves."""
    name = equation.primitive.name
    moving = tuple(i for i, series in enumerate(inputs) if series.moves)
    if name in BILINEAR:
        return moving if len(moving) == 1 else None
    places = joint_places(equation)
    return places if places and set(moving) <= set(places) else None


def joint_places(equation: Any) -> tuple[int, ...]:
    """Return the operands that an operation is linear in together, the others held."""
    name, count = equation.primitive.name, len(equation.invars)
    if name == "select_n":
        return tuple(range(1, count))
    places = _LINEAR.get(name, ())
    return tuple(range(count)) if places is None else places


def of_moving(
    equation: Any, values: list[Any], moving: list[int]
) -> Callable[..., list[Any]]:
    """Return an operation as a function of what moves among its operands."""

    def operation(*some: Any) -> list[Any]:
        whole = list(values)
        for i, value in zip(moving, some, strict=True):
            whole[i] = value
        return bound(equation, whole)

    return operation


def _linear(equation: Any, inputs: list[Series], places: Any) -> list[Series]:
    """Apply an operation to each coefficient of the operands that it is linear in."""
    values = [series.primal for series in inputs]
    primals = bound(equation, values)
    if equation.primitive.name in BILINEAR:
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
    equation: Any, values: list[Any], places: Sequence[int], terms: list[Any]
) -> list[Any] | None:
    """Apply an operation to coefficients of the operands that it is linear in.

    Args:
        equation: Its equation.
        values: Its operands.
        places: Which it is linear in.
        terms: One coefficient of each operand.
    """
    if all(terms[i] is None for i in places):
        return None
    filled = [
        value
        if i not in places
        else (jnp.zeros_like(value) if terms[i] is None else terms[i])
        for i, value in enumerate(values)
    ]
    parameters = equation.params
    if equation.primitive.name == "gather":  # what is filled in does not move
        parameters = {**parameters, "fill_value": 0}
    return bound(equation, filled, parameters)


def _stacked(equation: Any, inputs: list[Series], place: int) -> list[Any]:
    """Apply a product with a constant to all coefficients at once."""
    terms = inputs[place].terms
    there = [k for k, term in enumerate(terms) if term is not None]
    values = [series.primal for series in inputs]

    def one(term: Any) -> Any:
        return bound(equation, [*values[:place], term, *values[place + 1 :]])[0]

    made: list[Any] = [None] * len(terms)
    if equation.primitive.name == "mul" or len(there) == 1:
        for k in there:
            made[k] = [one(terms[k])]
        return made
    rows = jax.vmap(one)(jnp.stack([terms[k] for k in there]))
    for row, k in enumerate(there):
        made[k] = [rows[row]]
    return made


def _bilinear(equation: Any, a: Series, b: Series) -> Series:
    applied = lambda p, q: bound(equation, [p, q])[0]
    return product(lambda p, q: times(p, q, applied), a, b)


def product(of_two: Callable[[Any, Any], Any], a: Series, b: Series) -> Series:
    r"""Return the product of Cauchy: $c_k = \sum_j a_j b_{k - j}$."""
    coefficient = lambda k: total(of_two(a[j], b[k - j]) for j in range(k + 1))
    return Series(coefficient(0), tuple(coefficient(k) for k in range(1, a.order + 1)))


def _from_slope(x: Series, first: Any, slope: Callable[[list[Any]], Any]) -> list[Any]:
    r"""Solve $y' = w\,x'$ where `slope(y)` returns the next coefficient of w.

    Args:
        x: The argument.
        first: The value of y.
        slope: From the coefficients of y so far to the next one of w.
    """
    y, w = [first], []
    for k in range(1, x.order + 1):
        w.append(slope(y))
        parts = (times(scaled(j, x[j]), w[k - j]) for j in range(1, k + 1))
        y.append(scaled(1 / k, total(parts)))
    return y


def _series(coefficients: list[Any]) -> Series:
    return Series(coefficients[0], tuple(coefficients[1:]))


def _square(y: list[Any], k: int) -> Any:
    """Return the k-th coefficient of a square, each product once."""
    pairs = [scaled(2, times(y[j], y[k - j])) for j in range((k + 1) // 2)]
    middle = [times(y[k // 2], y[k // 2])] if k % 2 == 0 else []
    return total([*pairs, *middle])


def _exp(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    first = bound(equation, [x.primal])[0]
    return [_series(_from_slope(x, first, lambda y: y[-1]))]


def _expm1(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    y = _from_slope(x, jnp.exp(x.primal), lambda y: y[-1])
    return [_series([bound(equation, [x.primal])[0], *y[1:]])]


def _tanh(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs

    def slope(y: list[Any]) -> Any:
        square = _square(y, len(y) - 1)
        if len(y) == 1:
            return 1 - square
        return None if square is None else -square

    return [_series(_from_slope(x, bound(equation, [x.primal])[0], slope))]


def _logistic(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    first = bound(equation, [x.primal])[0]

    def slope(y: list[Any]) -> Any:
        if len(y) == 1:
            return first * bound(equation, [-x.primal])[0]
        square = _square(y, len(y) - 1)
        return total([y[-1], None if square is None else -square])

    return [_series(_from_slope(x, first, slope))]


def _turning(sign: int) -> Rule:
    """Return the rule of a pair of functions that are each other's derivative."""

    def rule(equation: Any, inputs: list[Series]) -> list[Series]:
        (x,) = inputs
        name = equation.primitive.name
        functions = (jnp.sin, jnp.cos) if sign < 0 else (jnp.sinh, jnp.cosh)
        s, c = ([function(x.primal)] for function in functions)
        for k in range(1, x.order + 1):
            steps = [scaled(j / k, x[j]) for j in range(1, k + 1)]
            up = total(times(d, c[k - j]) for j, d in enumerate(steps, 1))
            down = total(times(d, s[k - j]) for j, d in enumerate(steps, 1))
            s.append(up)
            c.append(scaled(sign, down))
        return [_series(s if name.startswith("sin") else c)]

    return rule


def _log(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    base = x.primal + 1 if equation.primitive.name == "log1p" else x.primal
    y = [bound(equation, [x.primal])[0]]
    for k in range(1, x.order + 1):
        parts = (times(scaled(-j / k, y[j]), x[k - j]) for j in range(1, k))
        found = total([x[k], *parts])
        y.append(None if found is None else found / base)
    return [_series(y)]


def _divided(a: Any, b: Series, order: int) -> list[Any]:
    """Return the coefficients of a / b."""
    y: list[Any] = []
    for k in range(order + 1):
        parts = (times(b[j], y[k - j]) for j in range(1, k + 1))
        known = total(parts)
        found = total([a(k), None if known is None else -known])
        y.append(None if found is None else found / b.primal)
    return y


def _div(equation: Any, inputs: list[Series]) -> list[Series]:
    a, b = inputs
    made = _divided(lambda k: a[k], b, b.order)
    return [_series([bound(equation, [a.primal, b.primal])[0], *made[1:]])]


def _sqrt(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    y = [bound(equation, [x.primal])[0]]
    twice = 2 * y[0]
    for k in range(1, x.order + 1):
        inner = _square([None, *y[1:], None], k)
        found = total([x[k], None if inner is None else -inner])
        y.append(None if found is None else found / twice)
    return [_series(y)]


def _power_series(x: Series, first: Any, exponent: Any) -> Series:
    r"""Solve $x\,y' = r\,y\,x'$ for $y = x^r$, away from $x = 0$."""
    y = [first]
    for k in range(1, x.order + 1):
        parts = (
            times(scaled(exponent * j - (k - j), x[j]), y[k - j])
            for j in range(1, k + 1)
        )
        found = total(parts)
        y.append(None if found is None else scaled(1 / k, found) / x.primal)
    return _series(y)


def _integer_pow(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    exponent = equation.params["y"]
    if exponent < 0:
        power = _whole_power(x, -exponent)
        one = jnp.ones_like(x.primal)
        made = _divided(lambda k: one if k == 0 else None, power, x.order)
        return [_series([bound(equation, [x.primal])[0], *made[1:]])]
    return [_whole_power(x, exponent)]


def _squared(equation: Any, inputs: list[Series]) -> list[Series]:
    del equation
    return [_whole_power(inputs[0], 2)]


def _whole_power(x: Series, n: int) -> Series:
    """Multiply, squaring as often as possible: right at zero as well."""
    if n == 0:
        return Series(jnp.ones_like(x.primal), (None,) * x.order)
    if n == 1:
        return x
    if n % 2:
        return product(times, x, _whole_power(x, n - 1))
    half = _whole_power(x, n // 2)
    y = [half.primal, *half.terms]
    return _series([_square(y, k) for k in range(x.order + 1)])


def _rsqrt(equation: Any, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    return [_power_series(x, bound(equation, [x.primal])[0], -0.5)]


def _slogdet(equation: Any, inputs: list[Series]) -> list[Series] | None:
    r"""Return the series of the logarithm of a determinant.

    With $M = A_0^{-1} A$, so that $M_0 = 1$, and $C = M^{-1}$ is
    $(\log\det A)' = \mathrm{tr}(C M')$: products with one inverse, no more solutions.
    """
    (a,) = inputs
    if jnp.iscomplexobj(a.primal):
        return None
    sign, first = bound(equation, [a.primal])
    inverse = jnp.linalg.inv(a.primal)
    trace = lambda p, q: jnp.sum(p * jnp.swapaxes(q, -1, -2), (-1, -2))
    last = a.order
    m = [times(inverse, term, jnp.matmul) for term in a.terms[: last - 1]]
    c: list[Any] = []  # from the coefficient 1 on
    y = [first]
    for k in range(1, last + 1):
        parts = [scaled(j, times(m[j - 1], c[k - j - 1], trace)) for j in range(1, k)]
        y.append(scaled(1 / k, total([scaled(k, times(inverse, a[k], trace)), *parts])))
        if k < last:
            inner = [times(m[j - 1], c[k - j - 1], jnp.matmul) for j in range(1, k)]
            found = total([m[k - 1], *inner])
            c.append(None if found is None else -found)
    return [Series(sign, (None,) * last), _series(y)]


_ELEMENTARY: dict[str, Rule] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log,
    "tanh": _tanh,
    "logistic": _logistic,
    "sin": _turning(-1),
    "cos": _turning(-1),
    "sinh": _turning(1),
    "cosh": _turning(1),
    "div": _div,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "integer_pow": _integer_pow,
    "square": _squared,
    "slogdet": _slogdet,
}
