"""`derivatives` and `taylor`: all orders along a direction."""

import math
from collections.abc import Callable
from typing import Any

import jax

from hotk.mode import (
    AUTO,
    Auto,
    Taylor,
    scaled,
)
from hotk.prepared import operator

from ._orders import check_all_orders, check_factorial


def _candidates(facts: Any, sizes: Any) -> Any:
    del facts, sizes
    return [(Taylor(), "all orders in one pass")]


@operator(takes="v", wants="inexact", candidates=_candidates, modes=(Taylor,))
def derivatives(
    f: Callable[..., Any],
    x: Any,
    v: Any,
    *args: Any,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""Evaluate all derivatives of `f` along a direction, up to an order K.

    Computes $\frac{d^k}{dt^k} f(x + t v)\big|_{t=0}$ for k = 0 to K in one pass, by
    truncated Taylor series: the program of `f` is read equation by equation, and each
    operation is applied to all coefficients [1]. It does not fail for want of a rule:
    an operation without one has the series that follows from its derivative. Loops and
    branches are gone into. The cost grows at most quadratically with K, where nested
    derivatives grow exponentially.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        order: The highest order K: an integer, at least 0, or a `ValueError` is
            raised. It is static: another one is another program.
        mode: `Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        batched: Whether the leaves of `v` have a leading axis, one direction each; all
            results then have it as well, the value too.

    Returns:
        A list of K + 1 trees, each like what `f` returns: the value, the first
        derivative, and so on, with no factor; `(list, aux)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns no floating-point array.
        ModeError: If an operation in `f` has no derivative.
        TooLargeError: If K + 1 values exceed the memory budget, or K! is beyond the
            numbers of their dtype: K is at most 170 in float64 and 33 in float32.

    Example:
        >>> found = hotk.derivatives(jnp.exp, 0.0, 2.0, order=5)
        >>> [d.item() for d in found]
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    assert isinstance(mode, Taylor)
    call = "derivatives(f, x, v)"
    check_all_orders(call, f, x, order)
    check_factorial(call, jax.eval_shape(f, x)[0], order)
    found, aux = mode.coefficients(f, x, v, order)
    factors = [math.factorial(k) for k in range(order + 1)]
    pairs = zip(factors, found, strict=True)
    return [jax.tree.map(lambda a, k=k: scaled(k, a), c) for k, c in pairs], aux


@operator(takes="v", wants="inexact", candidates=_candidates, modes=(Taylor,))
def taylor(
    f: Callable[..., Any],
    x: Any,
    v: Any,
    *args: Any,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""As `derivatives`, and returns the coefficients of Taylor.

    Those are $\frac{1}{k!} \frac{d^k}{dt^k} f(x + t v)\big|_{t=0}$, so that
    $f(x + t v) = \sum_k c_k t^k + O(t^{K+1})$.

    Example:
        >>> found = hotk.taylor(jnp.exp, 0.0, 1.0, order=4)
        >>> print(", ".join(f"{c:.4f}" for c in found))
        1.0000, 1.0000, 0.5000, 0.1667, 0.0417
    """
    assert isinstance(mode, Taylor)
    check_all_orders("taylor(f, x, v)", f, x, order)
    return mode.coefficients(f, x, v, order)
