r"""Rules for the gamma function and its kin, whose derivatives are zeta functions.

No algebraic differential equation holds for gamma functions, so their coefficients have
no recurrence. But those of $\log\Gamma$ at x are $\psi(x)$ and
$(-1)^j \zeta(j, x) / j$ with $\zeta(s, x) = \sum_{n \ge 0} (x + n)^{-s}$ of Hurwitz,
and the sums of all orders share their powers.
"""

import itertools
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import JaxprEqn, bound

from ._elementary import Rule
from ._series import Series, composed, widened


Real: TypeAlias = Float[Array, "..."]
Order: TypeAlias = Real | int

_TERMS = 10  # of a sum, before the formula of Euler and Maclaurin for the others
_BERNOULLI = (  # B_2k / (2k)!
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
)


def _powers(a: Real, s: Order, count: int) -> Real:
    """Return the powers of a number above zero with exponents -s, -s - 1, ..."""
    inverse = 1 / a
    # Of a known whole number in a few products: `pow` is most of the time else.
    if isinstance(s, int):
        powers = [inverse**s]
    else:
        powers = [jax.lax.pow(a, jnp.broadcast_to(-s, a.shape))]
    for _ in range(count - 1):
        powers.append(powers[-1] * inverse)
    return jnp.stack(powers)


def _orders(s: Order, count: int, like: Real) -> Real:
    """Return s, s + 1, ... along a first axis, for numbers like these."""
    first = jnp.full_like(like, s) if isinstance(s, int) else s
    steps = jnp.arange(count).astype(like.dtype).reshape(-1, *(1,) * like.ndim)
    return first[None] + steps


def _sums(s: Order, q: Real, count: int) -> Real:
    """Return Hurwitz's zeta functions of s, s + 1, ... at a number above zero."""
    ends = jnp.arange(_TERMS + 1).astype(q.dtype).reshape(-1, *(1,) * q.ndim)
    rows = _powers(q[None] + ends, s, count)
    orders, end = _orders(s, count, q[0])[:, None], q[None] + _TERMS
    term = orders / end
    rest = end / (orders - 1) + 1 / 2 + _BERNOULLI[0] * term
    for k, pair in enumerate(itertools.pairwise(_BERNOULLI), 1):
        growth = (orders + (2 * k - 1)) * (orders + 2 * k) / end**2
        term = term * growth
        rest = rest + pair[1] * term
    return jnp.sum(rows[:, :_TERMS], axis=1) + rows[:, _TERMS] * rest


def _zetas(s: Order, x: Real, count: int) -> Real:
    r"""Return Hurwitz's zeta functions of s, s + 1, ... at a real number.

    Below zero the sum over all integers n of $(x + n)^{-s}$ is reflected. It depends on
    the distance p of x from the nearest integer alone; written as a sum over pairs
    $p + n$ and $1 - p + n$ it is exactly zero for odd s where p is a half.

    Args:
        s: The first order, above one; a whole number if x is below zero.
        x: The number.
        count: How many orders.
    """
    below = x < 0
    near = jnp.round(x)
    # A half elsewhere: a pole that is not selected would still make a gradient NaN.
    p = jnp.where(below, jnp.abs(x - near), 0.5)
    q = jnp.stack([jnp.where(below, 1 - x, x), 1 + p, 2 - p])
    above, up, down = jnp.moveaxis(_sums(s, q, count), 1, 0)
    up = up + _powers(p, s, count)
    down = down + _powers(1 - p, s, count)
    odd = _orders(s, count, x) % 2
    sign = jnp.where(odd == 0, 1.0, jnp.where(odd == 1, -1.0, jnp.nan)).astype(x.dtype)
    whole = jnp.where((x < near)[None], sign, 1) * (up + sign * down)
    return jnp.where(below[None], whole - sign * above, above)


def _polygamma_terms(m: Order, x: Real, order: int) -> Real:
    r"""Return the coefficients 1 to K of a polygamma function at a number.

    They are $(-1)^{m + j + 1} \frac{(m + j)!}{j!} \zeta(m + j + 1, x)$.
    """
    wide = widened(x)
    if isinstance(m, int):
        factor = jnp.full_like(wide, (-1) ** (m + 1) * math.factorial(m))
    else:
        m = widened(m)
        factor = jnp.exp(jax.lax.lgamma(m + 1))
        factor = jnp.where(m % 2 == 0, -factor, factor)
    zetas = _zetas(m + 2, wide, order)
    terms = []
    for j in range(1, order + 1):
        factor = -factor * (m + j) / j
        terms.append(factor * zetas[j - 1])
    return jnp.stack(terms).astype(x.dtype)


def _lgamma(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    first, slope = bound(equation, [x.primal])[0], jax.lax.digamma(x.primal)
    rows = [first[None], slope[None]]
    if x.order > 1:
        further = _polygamma_terms(0, x.primal, x.order - 1)
        rows.append(further / _orders(2, x.order - 1, x.primal))
    return [composed(x, jnp.concatenate(rows))]


def _digamma(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    (x,) = inputs
    first = bound(equation, [x.primal])[0]
    terms = _polygamma_terms(0, x.primal, x.order)
    return [composed(x, jnp.concatenate([first[None], terms]))]


def _polygamma(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
    m, x = inputs
    if m.moves:  # JAX has no derivative by it either, and says so
        return None
    first = bound(equation, [m.primal, x.primal])[0]
    order = jnp.broadcast_to(m.primal, first.shape)
    terms = _polygamma_terms(order, x.primal, x.order)
    return [composed(x, jnp.concatenate([first[None], terms]))]


def _zeta(equation: JaxprEqn, inputs: list[Series]) -> list[Series] | None:
    s, q = inputs
    first = bound(equation, [s.primal, q.primal])[0]
    if s.moves or q.primal.shape != first.shape:
        return None
    exponent = widened(jnp.broadcast_to(s.primal, first.shape))
    zetas = _zetas(exponent + 1, widened(q.primal), q.order)
    factor = jnp.ones_like(exponent)
    rows = [first]
    for j in range(1, q.order + 1):
        factor = -factor * (exponent + (j - 1)) / j
        term = (factor * zetas[j - 1]).astype(first.dtype)
        # The sums go on where the function itself has no value.
        rows.append(jnp.where(jnp.isnan(first), first, term))
    return [composed(q, jnp.stack(rows))]


GAMMA: dict[str, Rule] = {
    "lgamma": _lgamma,
    "digamma": _digamma,
    "polygamma": _polygamma,
    "zeta": _zeta,
}
