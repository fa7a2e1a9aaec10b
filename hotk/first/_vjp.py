"""`vjp`: a cotangent pulled back through a function."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hotk.mode import (
    AUTO,
    Auto,
    Forward,
    Reverse,
    first_order_candidates,
)
from hotk.prepared import operator


def _reverse_first(facts: Any, sizes: Any) -> Any:
    del sizes
    return first_order_candidates(facts, forward=False)


@operator(
    takes="u",
    wants="inexact",
    value=True,
    candidates=_reverse_first,
    modes=(Forward, Reverse),
)
def value_and_vjp(
    f: Callable[..., Any],
    x: Any,
    u: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""Evaluate `f` at `x` and pull the cotangent `u` back to `x`.

    Computes $f(x)$ and $u^{\mathsf T} J(x)$ in one reverse pass, about three times the
    cost of `f`. Complex numbers follow `jax.vjp`: no conjugate is taken. Also known as
    pullback.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        u: Cotangent, with the structure, shapes and dtypes of the value of `f`. NumPy
            arrays and Python numbers are cast; a JAX array of another dtype is an
            error.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`, for
            real outputs) or `hotk.Auto()`.
        has_aux: Whether `f` returns `(y, aux)`.
        batched: Whether the leaves of `u` have a leading axis, one cotangent each; the
            result then has it as well, and `f` is linearized once.

    Returns:
        The pair `(y, product)`: the value, and the product with the structure, shapes
        and dtypes of `x` and `None` at leaves that are not differentiated;
        `((y, aux), product)` with `has_aux=True`.

    Raises:
        StructureError: If `u` has another structure or shape than the value.
        DtypeError: If nothing in `x` can be differentiated, or `u` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> x = jnp.array([1.0, 2.0])
        >>> y, product = hotk.value_and_vjp(lambda x: x**2, x, jnp.ones(2))
        >>> y.tolist(), product.tolist()
        ([1.0, 4.0], [2.0, 4.0])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3. SIAM.
    """
    if isinstance(mode, Reverse):
        return mode.back(f, x, u)

    def weighted(x: Any) -> tuple[Any, Any]:
        y, aux = f(x)
        products = jax.tree.map(lambda a, b: jnp.sum(a * b).real, u, y)
        return sum(jax.tree.leaves(products)), (y, aux)

    assert isinstance(mode, Forward)
    _, product, (y, aux) = mode.gradient(weighted, x)
    return y, product, aux


@operator(
    takes="u", wants="inexact", candidates=_reverse_first, modes=(Forward, Reverse)
)
def vjp(
    f: Callable[..., Any],
    x: Any,
    u: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""As `value_and_vjp`, and returns the product $u^{\mathsf T} J(x)$ alone.

    With `has_aux=True` it returns `(product, aux)`.

    Example:
        >>> hotk.vjp(lambda x: x**2, jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()
        [2.0, 4.0]
    """
    _, product, aux = value_and_vjp.kind.formula(f, x, u, mode=mode)
    return product, aux
