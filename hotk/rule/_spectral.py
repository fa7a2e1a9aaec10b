"""Functions of symmetric matrices, with derivatives where eigenvalues coincide."""

import functools
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import DtypeError, StructureError, describe, message

from ._custom import custom


@functools.cache
def _rule(count: int) -> tuple[list[float], list[float]]:
    """Return the Gauss-Legendre rule on [0, 1]; NumPy has it in a part of its own."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [(t + 1) / 2 for t in nodes.tolist()], [w / 2 for w in weights.tolist()]


def spectral_sum(a: Any, f: Callable[[Any], Any]) -> Any:
    r"""Compute $\mathrm{tr} f(A) = \sum_i f(\lambda_i)$ of a symmetric matrix.

    Its derivative is $\langle f'(A), dA \rangle$, where no eigenvector is told from
    another, so it exists where eigenvalues coincide; derivatives of `jnp.linalg.eigh`
    divide by their differences there.

    Args:
        a: Real matrix of shape `(n, n)`; its symmetric part counts.
        f: Function of a real array, entry by entry, as often differentiable as is asked
            for. Arrays that it captures are differentiated as well.

    Returns:
        The sum, a scalar.

    Raises:
        StructureError: If `a` is no square matrix.
        DtypeError: If `a` is not real.

    Example:
        >>> g = lambda a: hotk.safe.spectral_sum(jnp.diag(a), jnp.log)
        >>> jax.hessian(g)(jnp.ones(2)).round(4).tolist()
        [[-1.0, 0.0], [0.0, -1.0]]

    References:
        Higham (2008). Functions of Matrices, chapter 3. SIAM.
    """
    return _sum(_symmetric(a), f)


def matrix_function(a: Any, f: Callable[[Any], Any]) -> Any:
    r"""Compute $f(A) = V f(\Lambda) V^T$ of a symmetric matrix.

    Derivatives of first and second order are those of Daleckii and Krein: in the basis
    of eigenvectors $df_{ij} = f[\lambda_i, \lambda_j]\, dA_{ij}$ with divided
    differences, which become derivatives of `f` where eigenvalues coincide. From the
    third on they are those of `jnp.linalg.eigh`, which must not coincide.

    Args:
        a: Real matrix of shape `(n, n)`; its symmetric part counts.
        f: Function of a real array, entry by entry, as often differentiable as is asked
            for. Arrays that it captures are differentiated as well.

    Returns:
        A symmetric matrix of shape `(n, n)`.

    Raises:
        StructureError: If `a` is no square matrix.
        DtypeError: If `a` is not real.

    Example:
        >>> root = lambda s: hotk.safe.matrix_function(s * jnp.eye(2), jnp.sqrt)[0, 0]
        >>> print(f"{hotk.second_derivative(root, 1.0):.4f}")
        -0.2500

    References:
        Daleckii and Krein (1965). Integration and differentiation of functions of
        Hermitian operators. AMS Translations 47, 1-30. Higham (2008). Functions of
        Matrices, theorem 3.11. SIAM.
    """
    return _function(_symmetric(a), f, ())


def _symmetric(a: Any) -> Any:
    a = jnp.asarray(a)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise StructureError(_text("a square matrix", a))
    if not jnp.issubdtype(a.dtype, jnp.floating):
        raise DtypeError(_text("a real floating-point matrix", a))
    return (a + a.T) / 2


def _text(expected: str, a: Any) -> str:
    return message(
        "safe.matrix_function(a, f)",
        "`a` is of another kind.",
        expected=expected,
        got=describe(a),
        fix="For a batch of matrices use `jax.vmap`.",
    )


@final
class _Slope(eqx.Module):
    """The derivative of a function of a real array, entry by entry."""

    f: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        return jax.jvp(self.f, (x,), (jnp.ones_like(x),))[1]


def _by_captured(of_f: Callable[[Any], Any], f: Any, tangents: Any, zero: Any) -> Any:
    """Differentiate by the arrays that a function has captured, if there are any."""
    if not jax.tree.leaves(tangents):
        return zero
    return eqx.filter_jvp(of_f, (f,), (tangents,))[1]


@custom
def _sum(a: Any, f: Any) -> Any:
    return jnp.sum(f(jnp.linalg.eigvalsh(a)))


@_sum.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    a, f = primals
    zero = jnp.zeros((), a.dtype)
    total = _by_captured(lambda f: _sum.f(a, f), f, tangents[1], zero)
    return total + jnp.sum(_function(a, _Slope(f), ()) * tangents[0])


@custom
def _function(a: Any, f: Any, directions: Any) -> Any:
    """Differentiate `f(A)` along up to two directions, one term of it each order."""
    values, v = jnp.linalg.eigh(a)
    inner = [v.T @ e @ v for e in directions]
    if not inner:
        return (v * f(values)[None, :]) @ v.T
    table = _differences(f, values, len(inner))
    if len(inner) == 1:
        made = table * inner[0]
    else:
        made = jnp.einsum("ikj,ik,kj->ij", table, *inner)
    return v @ made @ v.T


@_function.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    a, f, directions = primals
    along, captured, moved = tangents
    body = lambda f: _function.f(a, f, directions)
    total = _by_captured(body, f, captured, jnp.zeros_like(a))
    for i, e in enumerate(moved):
        if e is not None:
            changed = (*directions[:i], e, *directions[i + 1 :])
            total += _function(a, f, changed)
    if along is None:
        return total
    if len(directions) > 1:
        by_a = lambda a: _function.f(a, f, directions)
        return total + jax.jvp(by_a, (a,), (along,))[1]
    for i in range(len(directions) + 1):
        total += _function(a, f, (*directions[:i], along, *directions[i:]))
    return total


@_function.def_vjp
def _(primals: Any, u: Any) -> Any:
    """Write the transposes by the function itself: its tables are symmetric."""
    a, f, directions = primals
    at = functools.partial(_function, a, f)
    moving, kept = eqx.partition(f, eqx.is_array_like)
    body = lambda moving: _function.f(a, eqx.combine(moving, kept), directions)
    captured = jax.vjp(body, moving)[1](u)[0]
    if not directions:
        return at((u,)), captured, ()
    if len(directions) == 1:
        e = directions[0].T
        return at((e, u)) + at((u, e)), captured, (at((u,)),)
    first, second = directions
    by_a = jax.vjp(lambda a: _function.f(a, f, directions), a)[1](u)[0]
    return by_a, captured, (at((u, second.T)), at((first.T, u)))


def _differences(f: Any, x: Any, order: int) -> Any:
    r"""Return the divided differences of all tuples of `order + 1` values.

    Where the values are near each other, by the formula of Hermite and Genocchi, an
    integral of the derivative of that order over a simplex, as soon as two rules of
    Gauss agree about it; elsewhere by their definition.
    """
    if order == 1:
        return _pair(f, *jnp.broadcast_arrays(x[:, None], x[None, :]))
    three = jnp.broadcast_arrays(x[:, None, None], x[None, :, None], x[None, None, :])
    low, middle, high = jnp.sort(jnp.stack(three), axis=0)
    bend, gap = _Slope(_Slope(f)), high - low

    def integral(rule: Any) -> Any:
        points = list(zip(*rule, strict=True))
        return sum(
            w * s * (1 - t) * bend(low + t * (middle - low) + (1 - t) * u * gap)
            for t, w in points
            for u, s in points
        )

    pairs = _pair(f, middle, high), _pair(f, low, middle)
    return _agreed(integral, pairs, (low, high))


def _pair(f: Any, p: Any, q: Any) -> Any:
    """Return the divided differences of pairs of values."""
    slope, gap = _Slope(f), q - p

    def integral(rule: Any) -> Any:
        return sum(w * slope(p + t * gap) for t, w in zip(*rule, strict=True))

    return _agreed(integral, (f(q), f(p)), (p, q))


def _agreed(integral: Callable[[Any], Any], values: Any, ends: Any) -> Any:
    """Return an integral, or a difference over the gap where that has more digits.

    The first is known as far as two rules agree; the other has the roundings of the
    values and of the ends, over the gap.
    """
    # two rules, to see whether they agree
    few, many = integral(_rule(6)), integral(_rule(9))
    gap = ends[1] - ends[0]
    largest = lambda pair: jnp.maximum(*map(jnp.abs, pair))
    size = jnp.abs(many)
    rounding = size + (largest(values) + size * largest(ends)) / jnp.where(
        gap == 0, 1, jnp.abs(gap)
    )
    agree = jnp.abs(many - few) <= 20 * jnp.finfo(gap.dtype).eps * rounding
    close = agree | (gap == 0)
    difference = values[0] - values[1]
    return jnp.where(close, many, difference / jnp.where(close, 1, gap))
