"""Functions whose derivatives exist where those of the plain ones are NaN.

Each computes what its namesake in `jax.numpy` or `jax.nn` computes, and has derivatives
in every nesting at the points where the namesake's are NaN or lose their digits.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import DtypeError, describe, message

from ._custom import custom
from ._determinant import det as det, slogdet as slogdet
from ._spectral import (
    matrix_function as matrix_function,
    spectral_sum as spectral_sum,
)


def sqrt(x: Any) -> Any:
    r"""Compute $\sqrt{x}$, at 0 as the limit of $\sqrt{x + \delta}$.

    There $\sqrt{\delta} = 2^{-m}$, with m = 140 in float64 and 24 in float32 and
    bfloat16, so 7e-43 and 6e-8. The derivatives are huge but finite, up to fourth order
    in float64 and third in float32, and powers of two, so that those of $\sqrt{s}^2$
    cancel without a rounding.

    Args:
        x: Floating array, not negative; not float16, whose range is too small.

    Returns:
        An array of the shape and dtype of `x`.

    Example:
        >>> x = jnp.zeros(2)
        >>> f = lambda x: jnp.exp(-hotk.safe.sqrt(jnp.sum(x**2)) ** 2)
        >>> hotk.hessian(f, x).tolist()
        [[-2.0, 0.0], [0.0, -2.0]]
    """
    x = _floating(x, "sqrt")
    small = 4.0 ** (-140 if jnp.finfo(x.dtype).nmant > 30 else -24)
    return jnp.sqrt(jnp.where(x == 0, x + jnp.asarray(small, x.dtype), x))


def norm(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    r"""Compute the Euclidean norm $\sqrt{\sum_i |x_i|^2}$; see `sqrt` for it at 0.

    The sum is scaled by the largest entry, so it neither overflows nor vanishes. At 0
    the gradient is 0, the middle of the subgradients; $|x|^2$ has the Hessian $2 I$.
    A function $g(|x|)$ that is smooth at 0 only as terms of first order cancel, as in
    $(1 + r) e^{-r}$, has the second derivative 0 there, as rounding leaves nothing of
    what is beyond them: write it in $|x|^2$, or by its series near 0.

    Args:
        x: Floating or complex array, not float16.
        axis: Axis or axes to sum over; all by default.
        keepdims: Whether these axes are kept with length 1.

    Returns:
        The norm, real.

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
    made = scale * sqrt(jnp.sum(squares, axis, keepdims=True))
    return made if keepdims else jnp.squeeze(made, axis)


def _floating(x: Any, name: str) -> Any:
    x = jnp.asarray(x)
    small = name in ("sqrt", "norm") and x.dtype == jnp.float16
    if jnp.issubdtype(x.dtype, jnp.inexact) and not small:
        return x
    raise DtypeError(
        message(
            f"safe.{name}(x)",
            "`x` has another dtype than is computed with.",
            expected="floating-point numbers" + (", not float16" if small else ""),
            got=describe(x),
            fix="Convert it, such as by `x.astype(jnp.float32)`.",
        )
    )


def _real_parts(x: Any) -> tuple[Any, ...]:
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)


def divide(a: Any, b: Any, otherwise: Any = 0.0) -> Any:
    r"""Compute $a / b$, and `otherwise` where $b = 0$, with zero derivatives there.

    Args:
        a: Floating array.
        b: Floating array.
        otherwise: Value where `b` is zero.

    Returns:
        The quotient.

    Example:
        >>> f = lambda x: jnp.sum(hotk.safe.divide(x**2, x))
        >>> jax.grad(f)(jnp.array([0.0, 2.0])).tolist()
        [0.0, 1.0]
    """
    zero = jnp.asarray(b) == 0
    quotient = a / jnp.where(zero, jnp.ones_like(b), b)
    return jnp.where(zero, jnp.asarray(otherwise, quotient.dtype), quotient)


def apply_where(
    condition: Any, f: Callable[[Any], Any], x: Any, otherwise: Any, *, at: Any = 1.0
) -> Any:
    """Compute `f(x)` where a condition holds, and take another value elsewhere.

    `jnp.where(condition, f(x), otherwise)` differentiates `f` also where the condition
    does not hold, and zero times infinity is NaN. Here `f` sees `at` there.

    Args:
        condition: Boolean array.
        f: Function of an array, entry by entry.
        x: Floating array.
        otherwise: Value, or values, where the condition does not hold.
        at: A point where `f` and its derivatives are finite.

    Returns:
        An array like `f(x)`.

    Example:
        >>> f = lambda x: hotk.safe.apply_where(x > 0, jnp.log, x, 0.0)
        >>> jax.grad(f)(0.0).item(), jax.grad(f)(2.0).item()
        (0.0, 0.5)
    """
    x = jnp.asarray(x)
    made = f(jnp.where(condition, x, jnp.asarray(at, x.dtype)))
    return jnp.where(condition, made, jnp.asarray(otherwise, made.dtype))


@dataclasses.dataclass(frozen=True)
class _Exponent:
    value: float


def power(x: Any, y: Any) -> Any:
    r"""Compute $x^y$ with derivatives that exist at $x = 0$.

    $\partial_x^k x^y = y (y - 1) \cdots (y - k + 1)\, x^{y - k}$ is zero where a factor
    is, also where $x^{y - k}$ is infinite. By `y` the derivative is $x^y \log x$, and
    taken as zero where $x \le 0$.

    Args:
        x: Floating array.
        y: Python number, or floating array.

    Returns:
        The power.

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
    return _power(x, y)


@custom
def _fixed_power(x: Any, y: _Exponent) -> Any:
    return jnp.asarray(x) ** y.value


@_fixed_power.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    x, y = primals
    if y.value == 0:
        return jnp.zeros_like(tangents[0])
    return y.value * _fixed_power(x, _Exponent(y.value - 1)) * tangents[0]


@custom
def _power(x: Any, y: Any) -> Any:
    return x**y


@_power.def_jvp
def _(primals: Any, tangents: Any, *, y: Any) -> Any:
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
def _sigmoid(x: Any) -> Any:
    return jax.nn.sigmoid(x)


@_sigmoid.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    return _sigmoid(primals[0]) * _sigmoid(-primals[0]) * tangents[0]


@custom
def _softplus(x: Any) -> Any:
    return jax.nn.softplus(x)


@_softplus.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    return _sigmoid(primals[0]) * tangents[0]


def sigmoid(x: Any) -> Any:
    r"""Compute $\sigma(x) = 1 / (1 + e^{-x})$, differentiated as $\sigma(x)\sigma(-x)$.

    So no derivative loses its digits for large `x`, where $1 - \sigma(x)$ cancels.

    Args:
        x: Floating array.

    Returns:
        An array of the shape and dtype of `x`.

    Example:
        >>> plain, safe = jax.grad(jax.nn.sigmoid), jax.grad(hotk.safe.sigmoid)
        >>> print(f"{plain(40.0):.3g} {safe(40.0):.3g}")
        0 4.25e-18
    """
    return _sigmoid(_floating(x, "sigmoid"))


def softplus(x: Any) -> Any:
    r"""Compute $\log(1 + e^x)$, differentiated as `sigmoid`.

    Args:
        x: Floating array.

    Returns:
        An array of the shape and dtype of `x`.

    Example:
        >>> print(f"{jax.grad(jax.grad(hotk.safe.softplus))(40.0):.3g}")
        4.25e-18
    """
    return _softplus(_floating(x, "softplus"))


def logsumexp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    r"""Compute $\log \sum_i e^{x_i}$; entries of $-\infty$ count for nothing.

    Where all entries are $-\infty$ the value is, and the derivatives are zero.

    Args:
        x: Floating array.
        axis: Axis or axes to sum over; all by default.
        keepdims: Whether these axes are kept with length 1.

    Returns:
        The logarithm of the sum.

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
    made = shift + apply_where(total != 0, jnp.log, total, -jnp.inf)
    return made if keepdims else jnp.squeeze(made, axis)
