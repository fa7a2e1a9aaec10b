"""Rules for elementary functions, by recurrences from their differential equations."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from hotk._core import JaxprEqn, Leaf, bound

from ._series import Coefficient, Series, product, scaled, times, total


Rule: TypeAlias = Callable[[JaxprEqn, list[Series]], list[Series] | None]
# From the coefficients of y so far to the next one of the slope.
Slope: TypeAlias = Callable[[list[Any]], Coefficient]


def from_slope(x: Series, first: Leaf, slope: Slope) -> list[Any]:
    r"""Solve $y' = w\,x'$ where `slope(y)` returns the next coefficient of w.

    Args:
        x: The argument.
        first: The value of y.
        slope: From the coefficients of y so far to the next one of w.
    """
    y: list[Any] = [first]
    w: list[Coefficient] = []
    for k in range(1, x.order + 1):
        w.append(slope(y))
        parts = (times(scaled(j, x[j]), w[k - j]) for j in range(1, k + 1))
        y.append(scaled(1 / k, total(parts)))
    return y


def as_series(coefficients: Sequence[Coefficient]) -> Series:
    """Return the series of these coefficients, the value first."""
    return Series(coefficients[0], tuple(coefficients[1:]))


def square(y: Sequence[Coefficient], k: int) -> Any:
    """Return the k-th coefficient of a square, each product once."""
    pairs = [scaled(2, times(y[j], y[k - j])) for j in range((k + 1) // 2)]
    middle = [times(y[k // 2], y[k // 2])] if k % 2 == 0 else []
    return total([*pairs, *middle])


def _exp(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    first = bound(equation, [x.primal])[0]
    return [as_series(from_slope(x, first, lambda y: y[-1]))]


def _expm1(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    y = from_slope(x, jnp.exp(x.primal), lambda y: y[-1])
    return [as_series([bound(equation, [x.primal])[0], *y[1:]])]


def _tanh(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs

    def slope(y: list[Coefficient]) -> Coefficient:
        squared = square(y, len(y) - 1)
        if len(y) == 1:
            return 1 - squared
        return None if squared is None else -squared

    return [as_series(from_slope(x, bound(equation, [x.primal])[0], slope))]


def _logistic(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    return [logistic(x, bound(equation, [x.primal])[0])]


def logistic(x: Series, first: Leaf) -> Series:
    """Return the series of the logistic function.

    Args:
        x: The argument.
        first: The value.
    """

    def slope(y: list[Coefficient]) -> Coefficient:
        if len(y) == 1:
            return first * jax.lax.logistic(-x.primal)
        squared = square(y, len(y) - 1)
        return total([y[-1], None if squared is None else -squared])

    return as_series(from_slope(x, first, slope))


def _turning(sign: int) -> Rule:
    """Return the rule of a pair of functions that are each other's derivative."""

    def rule(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
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
        return [as_series(s if name.startswith("sin") else c)]

    return rule


def _log(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    base = x.primal + 1 if equation.primitive.name == "log1p" else x.primal
    return [logarithm(x, base, bound(equation, [x.primal])[0])]


def logarithm(x: Series, base: Leaf, first: Leaf) -> Series:
    """Return the series of a logarithm.

    Args:
        x: The argument, of which the value does not count.
        base: The number whose logarithm is the value.
        first: The value.
    """
    y: list[Coefficient] = [first]
    for k in range(1, x.order + 1):
        parts = (times(scaled(-j / k, y[j]), x[k - j]) for j in range(1, k))
        right = total([x[k], *parts])
        y.append(None if right is None else right / base)
    return as_series(y)


def _divided(a: Callable[[int], Coefficient], b: Series, order: int) -> list[Any]:
    """Return the coefficients of a / b."""
    y: list[Any] = []
    for k in range(order + 1):
        parts = (times(b[j], y[k - j]) for j in range(1, k + 1))
        known = total(parts)
        right = total([a(k), None if known is None else -known])
        y.append(None if right is None else right / b.primal)
    return y


def _div(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    a, b = inputs
    quotient = _divided(lambda k: a[k], b, b.order)
    return [as_series([bound(equation, [a.primal, b.primal])[0], *quotient[1:]])]


def _sqrt(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    [first] = bound(equation, [x.primal])
    y: list[Coefficient] = [first]
    twice = 2 * first
    for k in range(1, x.order + 1):
        inner = square([None, *y[1:], None], k)
        right = total([x[k], None if inner is None else -inner])
        y.append(None if right is None else right / twice)
    return [as_series(y)]


def _power_series(x: Series, first: Leaf, exponent: float) -> Series:
    r"""Solve $x\,y' = r\,y\,x'$ for $y = x^r$, away from $x = 0$."""
    y: list[Coefficient] = [first]
    for k in range(1, x.order + 1):
        parts = (
            times(scaled(exponent * j - (k - j), x[j]), y[k - j])
            for j in range(1, k + 1)
        )
        right = total(parts)
        y.append(None if right is None else scaled(1 / k, right) / x.primal)
    return as_series(y)


def _integer_pow(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    exponent = equation.params["y"]
    if exponent < 0:
        power = _whole_power(x, -exponent)
        one = jnp.ones_like(x.primal)
        inverse = _divided(lambda k: one if k == 0 else None, power, x.order)
        return [as_series([bound(equation, [x.primal])[0], *inverse[1:]])]
    return [_whole_power(x, exponent)]


def _squared(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
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
    return as_series([square(y, k) for k in range(x.order + 1)])


def _rsqrt(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    return [_power_series(x, bound(equation, [x.primal])[0], -0.5)]


def _slogdet(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
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
    y: list[Coefficient] = [first]
    for k in range(1, last + 1):
        parts = [scaled(j, times(m[j - 1], c[k - j - 1], trace)) for j in range(1, k)]
        y.append(scaled(1 / k, total([scaled(k, times(inverse, a[k], trace)), *parts])))
        if k < last:
            inner = [times(m[j - 1], c[k - j - 1], jnp.matmul) for j in range(1, k)]
            right = total([m[k - 1], *inner])
            c.append(None if right is None else -right)
    return [Series(sign, (None,) * last), as_series(y)]


ELEMENTARY: dict[str, Rule] = {
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
