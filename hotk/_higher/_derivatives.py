"""`derivatives` and `taylor`: all orders along a direction, up to a limit."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    Argnums,
    Function,
    Keywords,
    Point,
    Tangent,
    TooLargeError,
    Where,
    message,
)
from hotk._dense import size_of
from hotk._mode import (
    AUTO,
    Auto,
    Taylor,
    scaled,
    taylor_only,
)
from hotk._prepared import check_bytes, list_like_value, operator


def check_factorial(call: str, y: PyTree, order: int) -> None:
    """Refuse an order K for which K! or 1/K! is out of range for the dtype of `y`.

    Args:
        call: The call, for messages.
        y: Values of the function, or their shapes.
        order: K.
    """
    # 400! is beyond every dtype; a larger order need not be computed to know that.
    factorial = math.factorial(min(order, 400))
    for leaf in jax.tree.leaves(y):
        limits = jnp.finfo(leaf.dtype)
        if factorial > float(limits.max) or factorial * float(limits.tiny) > 1:
            highest = _highest(float(limits.max), float(limits.tiny))
            raise TooLargeError(
                message(
                    call,
                    f"{order}! is out of range for {leaf.dtype}.",
                    expected=f"an order of at most {highest}",
                    got=str(order),
                    fix="Use `hotk.taylor`, whose coefficients have no factor, or a "
                    "wider dtype.",
                )
            )


def _highest(largest: float, tiny: float) -> int:
    largest = min(largest, 1 / tiny)
    return next(k for k in range(400) if math.factorial(k + 1) > largest)


def check_all_orders(call: str, f: Function, x: Point, order: int) -> None:
    """Refuse so many orders that their values exceed the memory budget."""
    y, _ = jax.eval_shape(f, x)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(y))
    check_bytes(call, size_of(x), (order + 1) * each, "a lower order")


@list_like_value
@operator(
    takes="v",
    wants="inexact",
    candidates=taylor_only("all orders in one pass"),
    modes=(Taylor,),
)
def derivatives(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute all derivatives of `f` along a direction, up to an order K.

    Computes $\frac{d^k}{dt^k} f(x + t v)\big|_{t=0}$ for k = 0 to K in one pass, by
    truncated Taylor series (Taylor mode): the program of `f` is read equation by
    equation, and each operation is applied to all coefficients [1]. An operation
    without a rule of its own gets the series that follows from its derivative, so none
    is missing. Loops and branches are entered. The cost grows at most quadratically
    with K, where nested derivatives grow exponentially.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        order: The highest order K: an integer, at least 0, or a `ValueError` is
            raised. It is static: another one is another program.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; all
            results then have it as well, the value too.

    Returns:
        A list of K + 1 trees with the structure, shapes and dtypes of the value of `f`:
        the value, the first derivative, and so on, without factors; `(list, aux)` with
        `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.
        TooLargeError: If K + 1 values exceed the memory budget, or K! is out of range
            for their dtype: K is at most 170 in float64 and 33 in float32.

    Example:
        >>> values = hotk.derivatives(jnp.exp, 0.0, 2.0, order=5)
        >>> [d.item() for d in values]
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    assert isinstance(mode, Taylor)
    call = "derivatives(f, x, v)"
    check_all_orders(call, f, x, order)
    check_factorial(call, jax.eval_shape(f, x)[0], order)
    coefficients, aux = mode.coefficients(f, x, v, order)
    factors = [math.factorial(k) for k in range(order + 1)]
    pairs = zip(factors, coefficients, strict=True)
    return [jax.tree.map(lambda a, k=k: scaled(k, a), c) for k, c in pairs], aux


@list_like_value
@operator(
    takes="v",
    wants="inexact",
    candidates=taylor_only("all orders in one pass"),
    modes=(Taylor,),
)
def taylor(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the Taylor coefficients of `f` along a direction, up to an order K.

    Computes $c_k = \frac{1}{k!} \frac{d^k}{dt^k} f(x + t v)\big|_{t=0}$ for k = 0 to K,
    so that $f(x + t v) = \sum_k c_k t^k + O(t^{K+1})$, in one pass by truncated Taylor
    series (Taylor mode) [1]. The cost grows at most quadratically with K.
    `hotk.derivatives` returns the derivatives themselves, $k!\,c_k$, which leave the
    range of a dtype at lower orders.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        order: The highest order K: an integer, at least 0, or a `ValueError` is
            raised. It is static: another one is another program.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; all
            results then have it as well, the value too.

    Returns:
        A list of the K + 1 coefficients, trees with the structure, shapes and dtypes of
        the value of `f`, with the factor 1/k!; `(list, aux)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.
        TooLargeError: If K + 1 coefficients exceed the memory budget.

    Example:
        >>> coefficients = hotk.taylor(jnp.exp, 0.0, 1.0, order=4)
        >>> print(", ".join(f"{c:.4f}" for c in coefficients))
        1.0000, 1.0000, 0.5000, 0.1667, 0.0417

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    assert isinstance(mode, Taylor)
    check_all_orders("taylor(f, x, v)", f, x, order)
    return mode.coefficients(f, x, v, order)
