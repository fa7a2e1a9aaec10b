"""Functions whose derivatives exist where those of the plain ones are NaN.

Each computes what its namesake in `jax.numpy` or `jax.nn` computes, and has derivatives
in every nesting at the points where the namesake's are NaN or lose their digits.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from hotk._core import DtypeError, Leaf, describe, message
from hotk._mode import Taylor

from ._custom import custom
from ._determinant import det as det, slogdet as slogdet
from ._spectral import (
    matrix_function as matrix_function,
    spectral_sum as spectral_sum,
)


Axes: TypeAlias = int | tuple[int, ...] | None
"""Axes to reduce, as in NumPy."""


def sqrt(x: Leaf) -> Float[Array, "..."]:
    r"""Compute the square root $\sqrt{x}$, with finite derivatives at 0.

    At 0 it is $\sqrt{\delta} = 2^{-m}$, with m = 140 in float64 and 24 in float32 and
    bfloat16, so 7e-43 and 6e-8. The derivatives are huge but finite, up to fourth order
    in float64 and third in float32, and powers of two, so that those of $\sqrt{s}^2$
    cancel without a rounding.

    Args:
        x: Floating array, not negative; not float16, whose range is too small.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: If `x` holds no floating-point numbers, or those of float16.

    Example:
        >>> x = jnp.zeros(2)
        >>> f = lambda x: jnp.exp(-hotk.safe.sqrt(jnp.sum(x**2)) ** 2)
        >>> hotk.hessian(f, x).tolist()
        [[-2.0, 0.0], [0.0, -2.0]]
    """
    x = _floating(x, "sqrt")
    # A power of 4, so that its root and all that is divided by it are powers of 2.
    small = 4.0 ** (-140 if jnp.finfo(x.dtype).nmant > 30 else -24)
    return jnp.sqrt(jnp.where(x == 0, x + jnp.asarray(small, x.dtype), x))


def norm(x: Leaf, axis: Axes = None, *, keepdims: bool = False) -> Float[Array, "..."]:
    r"""Compute the Euclidean norm $\sqrt{\sum_i |x_i|^2}$, with derivatives at 0.

    The sum is scaled by the largest entry, so it neither overflows nor underflows. At 0
    the gradient is 0, the middle of the subgradients; $|x|^2$ has the Hessian $2 I$,
    and the root is that of `hotk.safe.sqrt`. Write a function $g(|x|)$ that is smooth
    at 0 because terms of first order cancel, as $(1 + r) e^{-r}$ and $\sin(r)/r$, as
    `hotk.safe.radial`. Composed with this norm its second derivatives there are 0, or
    a rounding times the square of a huge number.

    Args:
        x: Floating or complex array, not float16.
        axis: Axis or axes to sum over; all by default.
        keepdims: Whether these axes are kept with length 1.

    Returns:
        The norm: a real array of the precision of `x`, with the shape of `x` but for
        these axes.

    Raises:
        DtypeError: If `x` holds no floating-point numbers, or those of float16.

    Example:
        >>> x = jnp.zeros(2)
        >>> jax.hessian(lambda x: jnp.linalg.norm(x) ** 2)(x).tolist()
        [[nan, nan], [nan, nan]]
        >>> jax.hessian(lambda x: hotk.safe.norm(x) ** 2)(x).tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """
    x = _floating(x, "norm")
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis, keepdims=True, initial=0)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    squares = sum((part / scale) ** 2 for part in _real_parts(x))
    root = scale * sqrt(jnp.sum(squares, axis, keepdims=True))
    return root if keepdims else jnp.squeeze(root, axis)


def radial(
    x: Leaf, g: Callable[[Array], Array], axis: Axes = None
) -> Inexact[Array, "..."]:
    r"""Compute $g(|x|)$ with its derivatives at 0, as of a Matérn kernel.

    With $g(r) = \sum_k c_k r^k$ it is $\sum_k c_k (|x|^2)^{k/2}$, smooth at 0 as far as
    the odd terms vanish; its Hessian there is $g''(0)\, I$. Near 0 it is computed by
    this series, from six derivatives of $g$ at 0. So its derivatives up to the sixth
    order are right at 0 and near it, in all modes, where those of $g$ of a norm are NaN
    or lose all digits. Where odd terms are left it is $|x|^k$ of `hotk.safe.norm`: the
    gradient of $e^{-|x|}$ at 0 is zero, its second derivatives are huge.

    Args:
        x: Floating or complex array, such as the difference of two points.
        g: Function of the distances, entry by entry, with six derivatives at 0 from the
            right, and no other formula within the root of the precision of 0 (3e-4 in
            float32). What it captures may be differentiated as well.
        axis: Axis or axes of `x` to sum over; all by default.

    Returns:
        $g(|x|)$, with the shape of `x` but for these axes.

    Raises:
        DtypeError: If `x` holds no floating-point numbers.

    Example:
        >>> matern = lambda r: (1 + r) * jnp.exp(-r)
        >>> f = lambda x: hotk.safe.radial(x, matern)
        >>> hotk.hessian(f, jnp.zeros(2)).round(4).tolist()
        [[-1.0, 0.0], [0.0, -1.0]]
    """
    x = _floating(x, "radial")
    s = jnp.sum(jnp.asarray(sum(part**2 for part in _real_parts(x))), axis)
    zero, eps = jnp.zeros((), s.dtype), jnp.finfo(s.dtype).eps
    c, _ = Taylor().coefficients(lambda r: (g(r), ()), zero, zero + 1, 6)
    size = [jnp.abs(jax.lax.stop_gradient(a)) for a in c]
    # Where the terms left out are below a rounding of the second derivative. Not where
    # that is zero: how large they are is not known, nor are digits lost.
    fits = size[6] * s**2 + size[5] * s**1.5 < eps * size[2]
    close = (s <= eps) | (size[2] * s <= eps**0.5 * size[0])
    close |= size[4] * s <= eps**0.5 * size[2]  # where g is zero at 0
    near = fits & close | (s == 0)
    series: Array = c[0] + s * (c[2] + s * (c[4] + s * c[6]))
    for k in (1, 3, 5):
        # An odd term that is a rounding is none: its derivatives would be infinite.
        there = near & (size[k] ** 2 > eps * size[k - 1] * size[k + 1])
        series += jnp.where(there, c[k], 0) * sqrt(jnp.where(there, s, 1)) ** k
    return jnp.where(near, series, g(jnp.sqrt(jnp.where(near, 1, s))))


def _floating(x: Leaf, name: str) -> Array:
    x = jnp.asarray(x)
    small = name in ("sqrt", "norm") and x.dtype == jnp.float16
    if jnp.issubdtype(x.dtype, jnp.inexact) and not small:
        return x
    raise DtypeError(
        message(
            f"safe.{name}(x)",
            "`x` has a dtype that is not supported.",
            expected="floating-point numbers" + (", not float16" if small else ""),
            got=describe(x),
            fix="Convert it, such as by `x.astype(jnp.float32)`.",
        )
    )


def _real_parts(x: Array) -> tuple[Array, ...]:
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)


def divide(a: Leaf, b: Leaf, otherwise: Leaf = 0.0) -> Inexact[Array, "..."]:
    r"""Compute the quotient $a / b$, and `otherwise` where $b = 0$.

    Where $b = 0$ the derivatives are zero. `jnp.where(b == 0, 0, a / b)` has NaN as a
    derivative there.

    Args:
        a: Floating array.
        b: Floating array.
        otherwise: Value where `b` is zero.

    Returns:
        The quotient, an array of the common shape and dtype of `a` and `b`.

    Example:
        >>> f = lambda x: jnp.sum(hotk.safe.divide(x**2, x))
        >>> jax.grad(f)(jnp.array([0.0, 2.0])).tolist()
        [0.0, 1.0]
    """
    zero = jnp.asarray(b) == 0
    quotient = a / jnp.where(zero, jnp.ones_like(b), b)
    return jnp.where(zero, jnp.asarray(otherwise, quotient.dtype), quotient)


def apply_where(
    condition: Bool[Array, "..."] | bool,
    f: Callable[[Array], Array],
    x: Leaf,
    otherwise: Leaf,
    *,
    at: Leaf = 1.0,
) -> Inexact[Array, "..."]:
    """Compute `f(x)` where a condition holds, and another value where it does not.

    `jnp.where(condition, f(x), otherwise)` differentiates `f` also where the condition
    does not hold, and zero times infinity is NaN. Here `f` sees `at` there.

    Args:
        condition: Boolean array.
        f: Function of an array, entry by entry.
        x: Floating array.
        otherwise: Value, or values, where the condition does not hold.
        at: A point where `f` and its derivatives are finite.

    Returns:
        An array of the common shape, and of the dtype of `f(x)`.

    Example:
        >>> f = lambda x: hotk.safe.apply_where(x > 0, jnp.log, x, 0.0)
        >>> jax.grad(f)(0.0).item(), jax.grad(f)(2.0).item()
        (0.0, 0.5)
    """
    x = jnp.asarray(x)
    value = f(jnp.where(condition, x, jnp.asarray(at, x.dtype)))
    return jnp.where(condition, value, jnp.asarray(otherwise, value.dtype))


@dataclasses.dataclass(frozen=True)
class _Exponent:
    """A number that is static: as a float it would be an argument that moves."""

    value: float


def power(x: Leaf, y: Leaf) -> Inexact[Array, "..."]:
    r"""Compute the power $x^y$, with derivatives that exist at $x = 0$.

    $\partial_x^k x^y = y (y - 1) \cdots (y - k + 1)\, x^{y - k}$ is zero where a factor
    is, also where $x^{y - k}$ is infinite. By `y` the derivative is $x^y \log x$, and
    taken as zero where $x \le 0$.

    Args:
        x: Floating array, or integers.
        y: Python number, or floating array.

    Returns:
        The power, an array of the common shape and dtype of `x` and `y`.

    Example:
        >>> third = lambda f: jax.grad(jax.grad(jax.grad(f)))
        >>> third(lambda x: x**2.0)(0.0).item()
        nan
        >>> third(lambda x: hotk.safe.power(x, 2.0))(0.0).item()
        0.0
    """
    if isinstance(y, int):
        return jnp.asarray(x) ** y
    if isinstance(y, float):
        return _fixed_power(x, _Exponent(float(y)))
    inexact = [jnp.issubdtype(jnp.result_type(a), jnp.inexact) for a in (x, y)]
    if inexact == [False, True]:  # the rule has no tangent of an integer
        x = float(x) if isinstance(x, int) else jnp.asarray(x, jnp.result_type(x, y))
    return _power(x, y)


@custom
def _fixed_power(x: Leaf, y: _Exponent) -> Array:
    return jnp.asarray(x) ** y.value


@_fixed_power.def_jvp
def _(primals: tuple[Array, _Exponent], tangents: tuple[Array, None]) -> Array:
    x, y = primals
    if y.value == 0:  # and not 0 x^-1, which is NaN at 0
        return jnp.zeros_like(tangents[0])
    return y.value * _fixed_power(x, _Exponent(y.value - 1)) * tangents[0]


@custom
def _power(x: Array, y: Array) -> Array:
    return x**y


@_power.def_jvp
def _(
    primals: tuple[Array, Array], tangents: tuple[Array, Array | None], *, y: Array
) -> Array:
    base, exponent = primals
    exponent = jnp.asarray(exponent, base.dtype)
    positive = base > 0
    held = jax.lax.stop_gradient(exponent)
    exponent = jnp.where(positive, exponent, held)  # no derivative by it elsewhere
    flat = (exponent == 0) & ~positive
    slope = exponent * _power(base, jnp.where(flat, 1, exponent - 1))
    by_base = jnp.where(flat, 0, slope) * tangents[0]
    if tangents[1] is None:  # an integer
        return by_base.astype(y.dtype)
    logarithm = apply_where(positive, jnp.log, base, 0.0)
    return (by_base + y * logarithm * tangents[1]).astype(y.dtype)


@custom
def _sigmoid(x: Array) -> Array:
    return jax.nn.sigmoid(x)


@_sigmoid.def_jvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> Array:
    return _sigmoid(primals[0]) * _sigmoid(-primals[0]) * tangents[0]


@custom
def _softplus(x: Array) -> Array:
    return jax.nn.softplus(x)


@_softplus.def_jvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> Array:
    return _sigmoid(primals[0]) * tangents[0]


def sigmoid(x: Leaf) -> Inexact[Array, "..."]:
    r"""Compute the sigmoid $\sigma(x) = 1 / (1 + e^{-x})$ with accurate derivatives.

    The derivative is computed as $\sigma(x)\,\sigma(-x)$, so that it keeps its digits
    for large `x`, where $1 - \sigma(x)$ cancels.

    Args:
        x: Floating array.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: If `x` holds no floating-point numbers.

    Example:
        >>> plain, safe = jax.grad(jax.nn.sigmoid), jax.grad(hotk.safe.sigmoid)
        >>> print(f"{plain(40.0):.3g} {safe(40.0):.3g}")
        0 4.25e-18
    """
    return _sigmoid(_floating(x, "sigmoid"))


def softplus(x: Leaf) -> Inexact[Array, "..."]:
    r"""Compute the softplus $\log(1 + e^x)$ with accurate derivatives.

    The derivative is `hotk.safe.sigmoid`, whose own derivatives keep their digits for
    large `x`.

    Args:
        x: Floating array.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: If `x` holds no floating-point numbers.

    Example:
        >>> print(f"{jax.grad(jax.grad(hotk.safe.softplus))(40.0):.3g}")
        4.25e-18
    """
    return _softplus(_floating(x, "softplus"))


def logsumexp(
    x: Leaf, axis: Axes = None, *, keepdims: bool = False
) -> Inexact[Array, "..."]:
    r"""Compute $\log \sum_i e^{x_i}$, with derivatives where entries are $-\infty$.

    Such entries contribute nothing. Where all entries are $-\infty$ the value is
    $-\infty$ and the derivatives are zero.

    Args:
        x: Floating array.
        axis: Axis or axes to sum over; all by default.
        keepdims: Whether these axes are kept with length 1.

    Returns:
        The logarithm of the sum: an array of the dtype of `x`, with the shape of `x`
        but for these axes.

    Raises:
        DtypeError: If `x` holds no floating-point numbers.

    Example:
        >>> x = jnp.array([-jnp.inf, -jnp.inf])
        >>> jax.grad(jax.nn.logsumexp)(x).tolist()
        [nan, nan]
        >>> jax.grad(hotk.safe.logsumexp)(x).tolist()
        [0.0, 0.0]
    """
    x = _floating(x, "logsumexp")
    largest = jnp.max(jax.lax.stop_gradient(x), axis, keepdims=True, initial=-jnp.inf)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    gone = x == -jnp.inf
    terms = jnp.where(gone, 0, jnp.exp(jnp.where(gone, 0, x - shift)))
    total = jnp.sum(terms, axis, keepdims=True)
    logarithm = shift + apply_where(total != 0, jnp.log, total, -jnp.inf)
    return logarithm if keepdims else jnp.squeeze(logarithm, axis)
