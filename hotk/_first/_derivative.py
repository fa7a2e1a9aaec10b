"""`derivative`: by a real scalar."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Reverse,
    forward_first,
    weak_if,
)
from hotk._prepared import array_of_array, operator, two_of_array

from ._points import check_scalar_point


@two_of_array
@operator(
    value=True, wants="inexact", candidates=forward_first, modes=(Forward, Reverse)
)
def value_and_derivative(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value and the derivative of a function of one real number.

    Computes $f(x)$ and $f'(x)$ in one forward pass, about twice the cost of `f` [1].

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: a real scalar, a Python float or an array of shape `()`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` (one pass for each number in the
            value) or `hotk.Auto()`: forward, or reverse where there is no forward mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The pair `(y, derivative)`, both with the structure, shapes and dtypes of the
        value of `f`; `((y, aux), derivative)` with `has_aux=True`.

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
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _derived(f, x, mode)


@array_of_array
@operator(wants="inexact", candidates=forward_first, modes=(Forward, Reverse))
def derivative(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> PyTree:
    r"""Compute the derivative $f'(x)$ of a function of one real number.

    The cost is one forward pass, about twice the cost of `f` [1].
    `hotk.value_and_derivative` returns the value as well, `hotk.second_derivative`
    and `hotk.derivatives` go further.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: a real scalar, a Python float or an array of shape `()`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` (one pass for each number in the
            value) or `hotk.Auto()`: forward, or reverse where there is no forward mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The derivative, with the structure, shapes and dtypes of the value of `f`;
        `(derivative, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If `x` is an integer or complex.
        StructureError: If `x` is not a scalar.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> hotk.derivative(lambda t: t**3, 2.0).item()
        12.0

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _derived(f, x, mode)[1:]


def _derived(
    f: Function, x: Point, mode: AbstractMode
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `y`, its derivative, and `aux`."""
    check_scalar_point("derivative(f, x)", x)
    assert isinstance(mode, (Forward, Reverse))
    y, slope, aux = mode.derivative(f, x)
    return y, weak_if(slope, x), aux
