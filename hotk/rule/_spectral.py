"""Functions of symmetric matrices, with derivatives where eigenvalues coincide."""

import functools
from collections.abc import Callable
from typing import TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import DtypeError, Leaf, StructureError, describe, message

from ._custom import custom


Entrywise: TypeAlias = Callable[[Array], Array]
"""A function of an array, entry by entry."""

Quadrature: TypeAlias = tuple[list[float], list[float]]
"""Nodes and weights."""


@functools.cache
def _gauss(count: int) -> Quadrature:
    """Return the Gauss-Legendre rule on [0, 1]; cached, as NumPy solves for it."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [(t + 1) / 2 for t in nodes.tolist()], [w / 2 for w in weights.tolist()]


def spectral_sum(a: Leaf, f: Entrywise) -> Float[Array, ""]:
    r"""Compute the spectral sum $\mathrm{tr} f(A) = \sum_i f(\lambda_i)$.

    For a symmetric matrix. The derivative is $\langle f'(A), dA \rangle$ [1]. It does
    not depend on the choice of eigenvectors, so it exists where eigenvalues coincide;
    derivatives of `jnp.linalg.eigh` divide by their differences there. The cost is
    $O(n^3)$ for the value and for each derivative.

    Args:
        a: Real matrix of shape `(n, n)`; its symmetric part counts.
        f: Function of a real array, entry by entry, as often differentiable as is asked
            for. Arrays that it captures are differentiated as well.

    Returns:
        The sum, a scalar of the dtype of `a`.

    Raises:
        StructureError: If `a` is not a square matrix.
        DtypeError: If `a` is not real.

    Example:
        >>> g = lambda a: hotk.safe.spectral_sum(jnp.diag(a), jnp.log)
        >>> jax.hessian(g)(jnp.ones(2)).round(4).tolist()
        [[-1.0, 0.0], [0.0, -1.0]]

    References:
        [1] Higham (2008). Functions of Matrices, chapter 3. SIAM.
    """
    return _sum(_symmetric(a), f)


def matrix_function(a: Leaf, f: Entrywise) -> Float[Array, "n n"]:
    r"""Compute the matrix function $f(A) = V f(\Lambda) V^T$ of a symmetric matrix.

    Derivatives of first and second order are those of Daleckii and Krein [1]: in the
    basis of eigenvectors $df_{ij} = f[\lambda_i, \lambda_j]\, dA_{ij}$ with divided
    differences [2], which become derivatives of `f` where eigenvalues coincide. From
    the third order on they are those of `jnp.linalg.eigh`, which are NaN where
    eigenvalues coincide. The cost is $O(n^3)$ for the value and for each derivative.

    Args:
        a: Real matrix of shape `(n, n)`; its symmetric part counts.
        f: Function of a real array, entry by entry, as often differentiable as is asked
            for. Arrays that it captures are differentiated as well.

    Returns:
        A symmetric matrix of shape `(n, n)` and the dtype of `a`.

    Raises:
        StructureError: If `a` is not a square matrix.
        DtypeError: If `a` is not real.

    Example:
        >>> root = lambda s: hotk.safe.matrix_function(s * jnp.eye(2), jnp.sqrt)[0, 0]
        >>> print(f"{hotk.second_derivative(root, 1.0):.4f}")
        -0.2500

    References:
        [1] Daleckii and Krein (1965). Integration and differentiation of functions of
            Hermitian operators. AMS Translations 47, 1-30.
        [2] Higham (2008). Functions of Matrices, theorem 3.11. SIAM.
    """
    return _function(_symmetric(a), f, ())


def _symmetric(a: Leaf) -> Array:
    a = jnp.asarray(a)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise StructureError(_text("a square matrix", a))
    if not jnp.issubdtype(a.dtype, jnp.floating):
        raise DtypeError(_text("a real floating-point matrix", a))
    return (a + a.T) / 2


def _text(expected: str, a: Array) -> str:
    return message(
        "safe.matrix_function(a, f)",
        "`a` has the wrong shape or dtype.",
        expected=expected,
        got=describe(a),
        fix="For a batch of matrices use `jax.vmap`.",
    )


@final
class _Slope(eqx.Module):
    """The derivative of a function of a real array, entry by entry."""

    f: Entrywise

    def __call__(self, x: Array) -> Array:
        return jax.jvp(self.f, (x,), (jnp.ones_like(x),))[1]


def _by_captured(
    of_f: Callable[[Entrywise], Array], f: Entrywise, tangents: PyTree, zero: Array
) -> Array:
    """Differentiate by the arrays that a function has captured, if there are any."""
    if not jax.tree.leaves(tangents):
        return zero
    return eqx.filter_jvp(of_f, (f,), (tangents,))[1]


@custom
def _sum(a: Array, f: Entrywise) -> Array:
    return jnp.sum(f(jnp.linalg.eigvalsh(a)))


@_sum.def_jvp
def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> Array:
    a, f = primals
    zero = jnp.zeros((), a.dtype)
    total = _by_captured(lambda f: _sum.f(a, f), f, tangents[1], zero)
    return total + jnp.sum(_function(a, _Slope(f), ()) * tangents[0])


@custom
def _function(a: Array, f: Entrywise, directions: tuple[Array, ...]) -> Array:
    """Differentiate `f(A)` along up to two directions, in this order.

    The k-th derivative of `f(A)` is the sum of this over all orders of k directions, so
    each derivative of it is this function again, with one direction more.
    """
    values, v = jnp.linalg.eigh(a)
    inner = [v.T @ e @ v for e in directions]
    if not inner:
        return (v * f(values)[None, :]) @ v.T
    table = _differences(f, values, len(inner))
    if len(inner) == 1:
        middle = table * inner[0]
    else:
        middle = jnp.einsum("ikj,ik,kj->ij", table, *inner)
    return v @ middle @ v.T


@_function.def_jvp
def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> Array:
    a, f, directions = primals
    along, captured, moved = tangents
    body = lambda f: _function.f(a, f, directions)
    total = _by_captured(body, f, captured, jnp.zeros_like(a))
    # It is linear in each direction.
    for i, e in enumerate(moved):
        if e is not None:
            changed = (*directions[:i], e, *directions[i + 1 :])
            total += _function(a, f, changed)
    if along is None:
        return total
    # Tables of third differences are not worth their n^4 numbers: from the third order
    # on the body is differentiated, and with it `eigh`.
    if len(directions) > 1:
        by_a = lambda a: _function.f(a, f, directions)
        return total + jax.jvp(by_a, (a,), (along,))[1]
    for i in range(len(directions) + 1):
        total += _function(a, f, (*directions[:i], along, *directions[i:]))
    return total


@_function.def_vjp
def _(primals: tuple[PyTree, ...], u: Array) -> tuple[PyTree, ...]:
    """Write the transposes by the function itself: its tables are symmetric."""
    a, f, directions = primals
    at = functools.partial(_function, a, f)
    moving, static = eqx.partition(f, eqx.is_array_like)
    body = lambda moving: _function.f(a, eqx.combine(moving, static), directions)
    captured = jax.vjp(body, moving)[1](u)[0]
    if not directions:
        return at((u,)), captured, ()
    if len(directions) == 1:
        e = directions[0].T
        return at((e, u)) + at((u, e)), captured, (at((u,)),)
    first, second = directions
    by_a = jax.vjp(lambda a: _function.f(a, f, directions), a)[1](u)[0]
    return by_a, captured, (at((u, second.T)), at((first.T, u)))


def _differences(f: Entrywise, x: Array, order: int) -> Array:
    r"""Return the divided differences of all tuples of `order + 1` values.

    Where the values are near each other, by the formula of Hermite and Genocchi, an
    integral of the derivative of that order over a simplex, as soon as two rules of
    Gauss agree about it; elsewhere by their definition.
    """
    if order == 1:
        return _pair(f, *jnp.broadcast_arrays(x[:, None], x[None, :]))
    three = jnp.broadcast_arrays(x[:, None, None], x[None, :, None], x[None, None, :])
    low, middle, high = jnp.sort(jnp.stack(three), axis=0)
    curvature, gap = _Slope(_Slope(f)), high - low

    def integral(rule: Quadrature) -> Array:
        points = list(zip(*rule, strict=True))
        terms = [
            w * s * (1 - t) * curvature(low + t * (middle - low) + (1 - t) * u * gap)
            for t, w in points
            for u, s in points
        ]
        return sum(terms, jnp.zeros_like(gap))

    pairs = _pair(f, middle, high), _pair(f, low, middle)
    return _agreed(integral, pairs, (low, high))


def _pair(f: Entrywise, p: Array, q: Array) -> Array:
    """Return the divided differences of pairs of values."""
    slope, gap = _Slope(f), q - p

    def integral(rule: Quadrature) -> Array:
        terms = [w * slope(p + t * gap) for t, w in zip(*rule, strict=True)]
        return sum(terms, jnp.zeros_like(gap))

    return _agreed(integral, (f(q), f(p)), (p, q))


def _agreed(
    integral: Callable[[Quadrature], Array],
    values: tuple[Array, Array],
    ends: tuple[Array, Array],
) -> Array:
    """Return an integral, or a difference over the gap where that has more digits.

    The first is known as far as two rules agree; the other has the roundings of the
    values and of the ends, over the gap.
    """
    few, many = integral(_gauss(6)), integral(_gauss(9))
    gap = ends[1] - ends[0]
    largest = lambda pair: jnp.maximum(*map(jnp.abs, pair))
    size = jnp.abs(many)
    rounding = size + (largest(values) + size * largest(ends)) / jnp.where(
        gap == 0, 1, jnp.abs(gap)
    )
    agree = jnp.abs(many - few) <= 20 * jnp.finfo(gap.dtype).eps * rounding
    close = agree | (gap == 0)
    difference = values[0] - values[1]
    # The gap is replaced before the division: 0 / 0 in the branch that is not taken
    # would make the derivative NaN.
    return jnp.where(close, many, difference / jnp.where(close, 1, gap))
