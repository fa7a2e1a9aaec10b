"""`quadratic_form` and `second_derivative`: curvature along one direction."""

from collections.abc import Callable
from typing import Any

from hotk.first import check_scalar_point
from hotk.mode import (
    AUTO,
    Auto,
    Nested,
    Taylor,
    along_candidates,
    weak_if,
)
from hotk.prepared import operator


def _candidates(facts: Any, sizes: Any) -> Any:
    del sizes
    return along_candidates(facts)


@operator(takes="v", candidates=_candidates, modes=(Nested, Taylor))
def quadratic_form(
    f: Callable[..., Any],
    x: Any,
    v: Any,
    *args: Any,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""Compute the curvature of a real scalar `f` at `x` along `v`.

    Computes $v^{\mathsf T} \nabla^2 f(x)\,v = \frac{d^2}{dt^2} f(x + t v)\big|_{t=0}$,
    for complex `x` as well. By default it takes one pass in Taylor mode and no reverse
    pass: it needs no memory for intermediates and works through a `while_loop`.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`, as for `hvp`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            result is then an array of as many numbers.

    Returns:
        A real scalar of the dtype of the value; `(form, aux)` with `has_aux=True`. The
        form carries no factor 1/2.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])
        >>> hotk.quadratic_form(lambda x: jnp.sum(x**3), x, v).item()
        18.0

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13. SIAM.
    """
    assert isinstance(mode, (Nested, Taylor))
    _, form, aux = mode.quadratic_form(f, x, v)
    return weak_if(form, x, v), aux


@operator(wants="inexact", candidates=_candidates, modes=(Nested, Taylor))
def second_derivative(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
) -> Any:
    r"""Compute the second derivative of `f` by a real scalar `x`.

    Computes $f''(x)$ in one forward pass of Taylor mode.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: a real scalar, a Python float or an array of shape `()`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.

    Returns:
        The second derivative, with the structure and shapes of the value, without a
        factor 1/2; `(second, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If `x` is an integer or complex.
        StructureError: If `x` is not a scalar.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> hotk.second_derivative(lambda t: t**4, 1.5).item()
        27.0

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13. SIAM.
    """
    check_scalar_point("second_derivative(f, x)", x)
    assert isinstance(mode, (Nested, Taylor))
    _, second, aux = mode.second_derivative(f, x)
    return weak_if(second, x), aux
