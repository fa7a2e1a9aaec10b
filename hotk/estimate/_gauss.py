r"""Forms $e_1^T f(T) e_1$ of projected matrices: Gauss's rules, and the logarithm.

Where a Krylov space ends, rounding repeats eigenvalues of T, closer to each other than
the digits of their difference, and mixes their eigenvectors. Derivatives of single
nodes and weights divide by these differences. So a rule merges what coincides, and the
logarithm has its derivatives from resolvents, which divide by none.

References:
    [1] Golub and Welsch (1969). Calculation of Gauss quadrature rules. Math. Comp.
        23, 221-230.
    [2] Higham (2008). Functions of Matrices. SIAM. (11.1) and section 3.2.
    [3] Trefethen and Weideman (2014). The exponentially convergent trapezoidal rule.
        SIAM Rev. 56(3), 385-458. Section 14.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import Scalar, fori_loop
from hotk._prepared import jitted
from hotk.linop import space

from ._quadrature import Projected


@jitted(quickly="if small")
def rules(
    found: Projected,
) -> tuple[Float[Array, "samples steps"], Float[Array, "samples steps"]]:
    """Return Gauss's rule for the spectral measure of each start [1].

    Returns:
        The nodes, which are the eigenvalues of T, and their weights, the squared first
        entries of its eigenvectors.
    """

    def rule(alpha: Array, beta: Array) -> tuple[Array, Array]:
        matrix = jnp.diag(alpha) + jnp.diag(beta, 1) + jnp.diag(beta, -1)
        unit = space.power_of_size(matrix)  # of gaps as well
        nodes, weights = _gauss(matrix / unit)
        return unit * nodes, weights

    return jax.vmap(rule)(found.alpha, found.beta)


@jax.custom_jvp
def _merged(matrix: Float[Array, "k k"]) -> tuple[Array, Array]:
    """Return eigenvalues and vectors; one of those that coincide has their weight."""
    nodes, vectors = jnp.linalg.eigh(matrix)
    least = _least(nodes)

    def turn(i: Array, vectors: Array) -> Array:
        """Turn two neighbours so that the first entry is that of the second alone."""
        first = vectors[0]
        a, b = first[i], first[i + 1]
        size = jnp.hypot(a, b)
        close = (nodes[i + 1] - nodes[i] <= least) & (size > 0)
        size = jnp.where(close, size, 1)
        c, s = jnp.where(close, b / size, 1), jnp.where(close, a / size, 0)
        one, other = vectors[:, i], vectors[:, i + 1]
        vectors = vectors.at[:, i].set(c * one - s * other)
        vectors = vectors.at[:, i + 1].set(s * one + c * other)
        return vectors.at[0, i].set(jnp.where(close, 0, a))

    return nodes, fori_loop(0, len(nodes) - 1, turn, vectors)


def _least(nodes: Float[Array, " k"]) -> Scalar:
    """Return the least difference of eigenvalues that has digits."""
    return jnp.finfo(nodes.dtype).eps ** (2 / 3) * jnp.max(jnp.abs(nodes))


def _in_eigenvectors(
    nodes: Float[Array, " k"],
    vectors: Float[Array, "k k"],
    tangent: Float[Array, "k k"],
) -> tuple[Float[Array, "k k"], Float[Array, "k k"]]:
    """Return a tangent in the eigenvectors, and the differences of the eigenvalues."""
    turned = jnp.linalg.multi_dot([vectors.T, tangent, vectors], precision="highest")
    return turned, nodes[None] - nodes[:, None]


@_merged.defjvp
def _(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Serve second derivatives of a rule: NaN where it has merged nodes."""
    nodes, vectors = _merged(*primals)
    turned, gaps = _in_eigenvectors(nodes, vectors, *tangents)
    near = jnp.abs(gaps) <= _least(nodes)
    weighted = (vectors[0] != 0)[None] | (vectors[0] != 0)[:, None]
    lost = jnp.any(near & weighted & ~jnp.eye(len(nodes), dtype=bool))
    slopes = jnp.where(near, 0, turned / jnp.where(near, 1, gaps))
    moved = jnp.matmul(vectors, slopes, precision="highest")
    moved = moved * jnp.where(lost, jnp.nan, 1)  # a factor: in reverse mode as well
    return (nodes, vectors), (jnp.diagonal(turned), moved)


@jax.custom_jvp
def _gauss(matrix: Float[Array, "k k"]) -> tuple[Array, Array]:
    nodes, vectors = _merged(matrix)
    return nodes, vectors[0] ** 2


@_gauss.defjvp
def _(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    nodes, vectors = _merged(*primals)
    turned, gaps = _in_eigenvectors(nodes, vectors, *tangents)
    first = vectors[0]
    # Two of which one has no weight do not change each other's, or to second order.
    apart = (gaps != 0) & (first[None] * first[:, None] != 0)
    slopes = jnp.where(apart, turned / jnp.where(apart, gaps, 1), 0)
    moved = 2 * first * jnp.matmul(first, slopes, precision="highest")
    return (nodes, first**2), (jnp.diagonal(turned), moved)


def logarithms(found: Projected) -> Float[Array, " samples"]:
    r"""Return $e_1^T \log(T) e_1$ of each start, for positive definite matrices.

    Its derivatives are right to any order, whatever T repeats.
    """

    def one(alpha: Array, beta: Array) -> Scalar:
        unit = space.power_of_size((alpha, beta))
        return _logarithm(alpha / unit, beta / unit) + jnp.log(unit)

    return jax.vmap(one)(found.alpha, found.beta)


@jax.custom_jvp
def _logarithm(alpha: Float[Array, " k"], beta: Float[Array, " k-1"]) -> Scalar:
    matrix = jnp.diag(alpha) + jnp.diag(beta, 1) + jnp.diag(beta, -1)
    nodes, vectors = jnp.linalg.eigh(matrix)
    # nodes of weight zero may be negative by rounding: they add 0, and not NaN
    return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.where(nodes > 0, nodes, 1)))


@_logarithm.defjvp
def _(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Scalar, Scalar]:
    r"""Integrate $\int_0^\infty x(t)^T \dot T x(t)\,dt$, $x(t) = (T + t I)^{-1} e_1$.

    This is the derivative of the logarithm [2]. With $t = e^u$ the trapezoidal rule
    converges as $e^{-2 \pi^2 / h}$ [3], and the rest beyond its ends is rounding.
    """
    (alpha, beta), (alpha_dot, beta_dot) = primals, tangents
    eps = float(jnp.finfo(alpha.dtype).eps)
    digits = -math.log(eps)
    spacing = 2 * math.pi**2 / (digits + 5)
    # from the least eigenvalue that is not rounding to a bound of the largest
    low = math.log(eps) - digits
    sides = jnp.abs(jnp.pad(beta, (0, 1))) + jnp.abs(jnp.pad(beta, (1, 0)))
    high = jax.lax.stop_gradient(jnp.log(jnp.max(jnp.abs(alpha) + sides)))
    count = math.ceil((digits - low) / spacing)
    u = high + digits - spacing * jnp.arange(count, dtype=alpha.dtype)
    t = jnp.exp(u)
    x = _first_columns(alpha, beta, t)
    squares = x**2 @ alpha_dot + 2 * (x[:, 1:] * x[:, :-1]) @ beta_dot
    return _logarithm(alpha, beta), spacing * jnp.sum(t * squares)


def _first_columns(
    alpha: Float[Array, " k"], beta: Float[Array, " k-1"], t: Float[Array, " nodes"]
) -> Float[Array, "nodes k"]:
    r"""Return $(T + t I)^{-1} e_1$ for each t: by elimination from the last row on."""

    def eliminate(pivot: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        diagonal, beside = row
        ratio = beside / pivot
        return diagonal + t - beside * ratio, ratio

    last = alpha[-1] + t
    rows = alpha[:-1], beta
    pivot, ratios = jax.lax.scan(eliminate, last, rows, reverse=True)
    first = 1 / pivot
    factors = jnp.concatenate([first[None], -ratios])
    return jnp.cumprod(factors, axis=0).T
