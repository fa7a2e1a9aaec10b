"""Rules for functions whose own derivative rules would be applied order after order."""

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import JaxprEqn, Leaf, bound

from ._elementary import Rule, as_series, from_slope, logarithm, logistic, square
from ._series import (
    Coefficient,
    Series,
    composed,
    product,
    scaled,
    times,
    total,
    widened,
)


class _Exponential:
    """The coefficients of exp(u), one for each further one of u."""

    def __init__(self, first: Any) -> None:
        self.terms: list[Any] = [first]
        self.steps: list[Any] = []

    def next(self, u: Coefficient) -> Coefficient:
        """Return the next coefficient, given that of the exponent."""
        k = len(self.terms)
        self.steps.append(scaled(k, u))
        pairs = zip(self.steps, reversed(self.terms), strict=True)
        self.terms.append(scaled(1 / k, total(times(step, y) for step, y in pairs)))
        return self.terms[-1]


def _tan(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs

    def slope(y: list[Coefficient]) -> Coefficient:
        squared = square(y, len(y) - 1)
        return 1 + squared if len(y) == 1 else squared

    return [as_series(from_slope(x, bound(equation, [x.primal])[0], slope))]


def _cbrt(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    r"""Solve $3 y^2 y' = x'$."""
    (x,) = inputs
    y: list[Any] = [bound(equation, [x.primal])[0]]
    squares = [square(y, 0)]
    for k in range(1, x.order + 1):
        parts = (times(scaled(-j / k, y[j]), squares[k - j]) for j in range(1, k))
        right = total([scaled(1 / 3, x[k]), *parts])
        y.append(None if right is None else right / squares[0])
        squares.append(square(y, k))
    return [as_series(y)]


def _quantile(factor: float, rate: float) -> Rule:
    r"""Return the rule that solves $y' = a\,e^{c y^2} x'$, as inverses of erf do."""

    def rule(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
        (x,) = inputs
        first = bound(equation, [x.primal])[0]
        exponential = _Exponential(factor * jnp.exp(rate * first * first))

        def slope(y: list[Coefficient]) -> Coefficient:
            k = len(y) - 1
            if k == 0:
                return exponential.terms[0]
            return exponential.next(scaled(rate, square(y, k)))

        return [as_series(from_slope(x, first, slope))]

    return rule


def _log_ndtr(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
    r"""Solve $y' = e^{-x^2/2 - \log\sqrt{2\pi} - y} x'$."""
    (x,) = inputs
    first = bound(equation, [x.primal])[0]
    column = [x.primal, *x.terms]
    exponent = jax.scipy.stats.norm.logpdf(x.primal) - first
    exponential = _Exponential(jnp.exp(exponent))

    def slope(y: list[Coefficient]) -> Coefficient:
        k = len(y) - 1
        if k == 0:
            return exponential.terms[0]
        below = scaled(-1, y[k])
        return exponential.next(total([scaled(-0.5, square(column, k)), below]))

    return [as_series(from_slope(x, first, slope))]


def _logaddexp(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
    r"""Return $b + \log(1 + e^{a - b})$, whose slope is a logistic function."""
    a, b = inputs
    first = bound(equation, [a.primal, b.primal])[0]
    if jnp.iscomplexobj(first):
        return None
    equal = a.primal == b.primal  # infinite as well, where the difference is NaN
    minus = [scaled(-1, term) for term in b.terms]
    x = Series(
        jnp.where(equal, 0, a.primal - b.primal),
        tuple(total(pair) for pair in zip(a.terms, minus, strict=True)),
    )
    share = logistic(x, jax.lax.logistic(x.primal))
    y = from_slope(x, first, lambda y: share[len(y) - 1])
    return [Series(first, tuple(map(total, zip(b.terms, y[1:], strict=True))))]


def _pow(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    r"""Return $x^r$ as $x^{r_0}\, e^{(r - r_0) \log x}$, right at zero as well."""
    x, r = inputs
    first = bound(equation, [x.primal, r.primal])[0]
    value = jnp.broadcast_to(x.primal, first.shape).astype(first.dtype)
    power = _constant_power(x, value, first, r.primal)
    if not r.moves:
        return [power]
    # The logarithm of zero counts as that of one, as in JAX's own rule.
    safe = jnp.where(value == 0, 1, value)
    log = logarithm(x, safe, jnp.log(safe))
    exponent = product(times, Series(None, r.terms), log)
    exponential = _Exponential(jnp.ones_like(first))
    terms = tuple(map(exponential.next, exponent.terms))
    return [product(times, power, Series(exponential.terms[0], terms))]


def _constant_power(x: Series, value: Array, first: Array, exponent: Leaf) -> Series:
    exponent = jnp.broadcast_to(exponent, first.shape).astype(first.dtype)
    rows, binomial = [first], jnp.ones_like(exponent)
    for j in range(1, x.order + 1):
        binomial = binomial * (exponent - (j - 1)) / j
        # Zero to a negative power is infinite, also where its factor is zero.
        none = (binomial == 0) & (value == 0)
        power = jax.lax.pow(jnp.where(none, 1, value), exponent - j)
        rows.append(jnp.where(none, 0, binomial * power))
    return composed(x, jnp.stack(rows))


SPECIAL: dict[str, Rule] = {
    "tan": _tan,
    "cbrt": _cbrt,
    "erf_inv": _quantile(math.sqrt(math.pi) / 2, 1.0),
    "ndtri": _quantile(math.sqrt(2 * math.pi), 0.5),
    "pow": _pow,
    "logaddexp": _logaddexp,
    "log_ndtr": _log_ndtr,
}


# Rules for the modified Bessel functions $e^{-|x|} I_0(x)$ and $e^{-|x|} I_1(x)$.
# Recurrences from their differential equation lose all digits: in the direction of
# higher orders a second solution grows. Their integrals have derivatives under the
# integral.

Real: TypeAlias = Float[Array, "..."]

# Below this number the trapezoidal rule with so many nodes is exact to rounding for
# orders up to 12, and from it on so many terms of the expansion at infinity are.
_FAR = 40.0
_NODES = 56
_TERMS = 32


def _near(u: Real, order: int, degree: int) -> list[Real]:
    r"""Return the coefficients by the trapezoidal rule.

    They are $\frac1\pi \int_0^\pi \cos(\nu\theta)\,\frac{(-s)^j}{j!}\,e^{-us}\,d\theta$
    with $s = 1 - \cos\theta$.
    """
    angles = np.pi * np.arange(_NODES + 1) / _NODES
    weights = np.cos(degree * angles) / _NODES
    weights[[0, -1]] /= 2
    column = lambda a: jnp.asarray(a, u.dtype).reshape(-1, *(1,) * u.ndim)
    s = 2 * np.sin(angles / 2) ** 2
    rows = column(weights) * jnp.exp(-u[None] * column(s))
    terms = [jnp.sum(rows, axis=0)]
    for j in range(1, order + 1):
        rows = rows * column(-s / j)
        terms.append(jnp.sum(rows, axis=0))
    return terms


def _far(u: Real, order: int, degree: int) -> list[Real]:
    r"""Return the coefficients by the derivatives of the expansion at infinity.

    It is $\sum_m a_m u^{-m - 1/2} / \sqrt{2 \pi}$.
    """
    a = [1.0]
    for m in range(1, _TERMS):
        a.append(-a[-1] * (4 * degree**2 - (2 * m - 1) ** 2) / (8 * m))
    inverse = 1 / u
    powers = [jnp.sqrt(inverse / (2 * math.pi))]
    for _ in range(_TERMS - 1):
        powers.append(powers[-1] * inverse)
    stacked, scale = jnp.stack(powers), jnp.ones_like(u)
    factors, terms = np.array(a), []
    for j in range(order + 1):
        column = jnp.asarray(factors, u.dtype).reshape(-1, *(1,) * u.ndim)
        terms.append(scale * jnp.sum(stacked * column, axis=0))
        scale = scale * inverse
        factors = -factors * (np.arange(_TERMS) + 0.5 + j) / (j + 1)
    return terms


def _bessel(degree: int) -> Rule:
    def rule(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
        (x,) = inputs
        first = bound(equation, [x.primal])[0]
        wide = widened(x.primal)
        u = jnp.abs(wide)
        is_far = u > _FAR
        near = _near(jnp.where(is_far, 0, u), x.order, degree)
        far = _far(jnp.where(is_far, u, _FAR), x.order, degree)
        rows = [first]
        for j in range(1, x.order + 1):
            term = jnp.where(is_far, far[j], near[j])
            # At the kink at 0 from the right, as the derivative of |x| is in JAX: so
            # that $I_\nu(x) = e^{|x|} e^{-|x|} I_\nu(x)$ has no kink.
            term = jnp.where(wide < 0, (-1) ** (j + degree) * term, term)
            rows.append(term.astype(first.dtype))
        return [composed(x, jnp.stack(rows))]

    return rule


BESSEL: dict[str, Rule] = {"bessel_i0e": _bessel(0), "bessel_i1e": _bessel(1)}
