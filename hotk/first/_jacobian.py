"""`jacobian` and `derivative`: of functions with any output."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotk._core import DtypeError, StructureError, describe_tree, message
from hotk.dense import is_complex
from hotk.mode import (
    AUTO,
    Auto,
    Forward,
    Reverse,
    first_order_candidates,
    weak_if,
    weak_like,
)
from hotk.prepared import check_budget, operator


def _by_sizes(facts: Any, sizes: Any) -> Any:
    return first_order_candidates(facts, forward=sizes.n <= sizes.m)


def _forward(facts: Any, sizes: Any) -> Any:
    del sizes
    return first_order_candidates(facts, forward=True)


@operator(value=True, wants="inexact", candidates=_by_sizes, modes=(Forward, Reverse))
def value_and_jacobian(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    r"""Evaluate `f` and its Jacobian at `x`.

    Computes $f(x)$ and $J_{ij} = \partial f_i / \partial x_j$: by columns in forward
    mode (one pass for each of the n numbers in `x`), by rows in reverse mode (one for
    each of the m numbers in the value).

    Args:
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if n <= m.
        has_aux: Whether `f` returns `(y, aux)`.
        block_size: How many columns or rows at once; chosen if left out.

    Returns:
        The pair `(y, jacobian)`. The Jacobian is a tree of trees as from
        `jax.jacobian`: the structure of `y`, then that of `x`, with leaves of shape
        `y.shape + x.shape`; `((y, aux), jacobian)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.
        TooLargeError: If the Jacobian would exceed the memory budget.

    Example:
        >>> y, J = hotk.value_and_jacobian(lambda x: x**2, jnp.array([1.0, 2.0]))
        >>> J.tolist()
        [[2.0, 0.0], [0.0, 4.0]]

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3. SIAM.
    """
    refuse_complex("jacobian(f, x)", x, "jvp")
    check_budget("jacobian(f, x)", f, x, order=1)
    assert isinstance(mode, (Forward, Reverse))
    y, found, aux = mode.jacobian(f, x, block_size)
    structure = jax.tree.structure(y)
    rows = [weak_like(row, x) for row in structure.flatten_up_to(found)]
    return y, structure.unflatten(rows), aux


@operator(wants="inexact", candidates=_by_sizes, modes=(Forward, Reverse))
def jacobian(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """As `value_and_jacobian`, and returns the Jacobian alone.

    With `has_aux=True` it returns `(jacobian, aux)`.

    Example:
        >>> hotk.jacobian(lambda x: x**2, jnp.array([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    formula = value_and_jacobian.kind.formula
    return formula(f, x, mode=mode, block_size=block_size)[1:]


@operator(value=True, wants="inexact", candidates=_forward, modes=(Forward, Reverse))
def value_and_derivative(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
) -> Any:
    r"""Evaluate `f` and its derivative by a real scalar `x`.

    Computes $f(x)$ and $f'(x)$ in one forward pass.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: a real scalar, a Python float or an array of shape `()`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` (one pass for each number in the
            value) or `hotk.Auto()`.
        has_aux: Whether `f` returns `(y, aux)`.

    Returns:
        The pair `(y, derivative)`, both with the structure of the value;
        `((y, aux), derivative)` with `has_aux=True`.

    Raises:
        DtypeError: If `x` is an integer or complex.
        StructureError: If `x` is not a scalar.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> y, dy = hotk.value_and_derivative(lambda t: jnp.stack([t, t**2]), 3.0)
        >>> y.tolist(), dy.tolist()
        ([3.0, 9.0], [1.0, 6.0])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3. SIAM.
    """
    check_scalar_point("derivative(f, x)", x)
    assert isinstance(mode, (Forward, Reverse))
    y, slope, aux = mode.derivative(f, x)
    return y, weak_if(slope, x), aux


@operator(wants="inexact", candidates=_forward, modes=(Forward, Reverse))
def derivative(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
) -> Any:
    """As `value_and_derivative`, and returns the derivative alone.

    With `has_aux=True` it returns `(derivative, aux)`.

    Example:
        >>> hotk.derivative(lambda t: t**3, 2.0).item()
        12.0
    """
    return value_and_derivative.kind.formula(f, x, mode=mode)[1:]


def refuse_complex(call: str, x: Any, instead: str) -> None:
    """Refuse complex leaves, for which a dense derivative is not one array."""
    if is_complex(x):
        raise DtypeError(
            message(
                call,
                "`x` has complex leaves.",
                expected="real floating leaves",
                got=describe_tree(x),
                fix=f"Use `hotk.{instead}`, or split `x` into its two parts.",
            )
        )


def check_scalar_point(call: str, x: Any) -> None:
    """Refuse a point that is not one real number."""
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or np.shape(leaves[0]) != ():
        raise StructureError(
            message(
                call,
                "`x` must be one real number.",
                expected="f32[]",
                got=describe_tree(x),
                fix="Use `hotk.jacobian` for arrays and trees.",
            )
        )
    refuse_complex(call, x, "jvp")
