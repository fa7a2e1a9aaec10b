"""`gradient`: of a real scalar function."""

from collections.abc import Callable
from typing import Any

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


@operator(value=True, candidates=_reverse_first, modes=(Forward, Reverse))
def value_and_gradient(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
) -> Any:
    r"""Evaluate a real scalar function `f` and its gradient at `x`.

    Computes $f(x)$ and $\nabla f(x)$, in reverse mode at about three times the cost of
    `f`. For complex `x` it is what `jax.grad` returns,
    $\partial_a f - i\,\partial_b f$ at $x = a + i b$: descend along its conjugate.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`) or
            `hotk.Auto()`: reverse mode, forward where a `while_loop` forbids it.
        has_aux: Whether `f` returns `(y, aux)`.

    Returns:
        The pair `(y, gradient)`: a scalar, and the structure, shapes and dtypes of `x`
        with `None` at leaves that are not differentiated; `((y, aux), gradient)` with
        `has_aux=True`, as `jax.value_and_grad`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> x = jnp.array([1.0, 2.0])
        >>> y, g = hotk.value_and_gradient(lambda x: jnp.sum(x**2), x)
        >>> y.item(), g.tolist()
        (5.0, [2.0, 4.0])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3. SIAM.
    """
    assert isinstance(mode, (Forward, Reverse))
    return mode.gradient(f, x)


@operator(candidates=_reverse_first, modes=(Forward, Reverse))
def gradient(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
) -> Any:
    r"""As `value_and_gradient`, and returns the gradient $\nabla f(x)$ alone.

    With `has_aux=True` it returns `(gradient, aux)`.

    Example:
        >>> hotk.gradient(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0])).tolist()
        [2.0, 4.0]
    """
    assert isinstance(mode, (Forward, Reverse))
    _, g, aux = mode.gradient(f, x)
    return g, aux
