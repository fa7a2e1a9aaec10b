"""`gradient`: of a real scalar function."""

from jaxtyping import PyTree

from hotk._core import (
    Argnums,
    Function,
    FunctionWithAux,
    Gradient,
    Keywords,
    Point,
    Scalar,
    Where,
)
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Reverse,
    reverse_first,
)
from hotk._prepared import like_point, operator, value_and_like_point
from hotk._primitive import divided_as


@value_and_like_point
@operator(value=True, candidates=reverse_first, modes=(Forward, Reverse))
def value_and_gradient(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value and the gradient of a real scalar function.

    Computes $f(x)$ and $\nabla f(x)$ in one reverse pass: about three times the cost of
    `f` [1], and the memory of its intermediate results. For complex `x` the gradient is
    what `jax.grad` returns, $\partial_a f - i\,\partial_b f$ at $x = a + i b$: descend
    along its conjugate.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`) or
            `hotk.Auto()`: reverse, or forward where a `while_loop` has no reverse mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The pair `(y, gradient)`: a scalar, and the structure, shapes and dtypes of `x`
        with `None` at leaves that are not differentiated; `((y, aux), gradient)` with
        `has_aux=True`, as from `jax.value_and_grad`.

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
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _gradient(f, x, mode)


@like_point
@operator(candidates=reverse_first, modes=(Forward, Reverse))
def gradient(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> PyTree:
    r"""Compute the gradient $\nabla f(x)$ of a real scalar function.

    The cost is one reverse pass, about three times the cost of `f` [1], and the memory
    of its intermediate results. For complex `x` the gradient is what `jax.grad`
    returns, $\partial_a f - i\,\partial_b f$ at $x = a + i b$: descend along its
    conjugate. `hotk.value_and_gradient` returns the value as well.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`) or
            `hotk.Auto()`: reverse, or forward where a `while_loop` has no reverse mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The gradient, with the structure, shapes and dtypes of `x` and `None` at leaves
        that are not differentiated; `(gradient, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> hotk.gradient(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0])).tolist()
        [2.0, 4.0]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _gradient(f, x, mode)[1:]


def _gradient(
    f: FunctionWithAux, x: Point, mode: AbstractMode
) -> tuple[Scalar, Gradient, PyTree]:
    """Return `y`, its gradient, divided among devices as `x` is, and `aux`."""
    assert isinstance(mode, (Forward, Reverse))
    y, gradient, aux = mode.gradient(f, x)
    return y, divided_as(gradient, x), aux
