r"""Rules for the modified Bessel functions $e^{-|x|} I_0(x)$ and $e^{-|x|} I_1(x)$.

Recurrences from their differential equation lose all digits: in the direction of higher
orders a second solution grows. Their integrals have derivatives under the integral.
"""

import math
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import JaxprEqn, bound

from ._compose import composed, widened
from ._elementary import Rule
from ._series import Series


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
