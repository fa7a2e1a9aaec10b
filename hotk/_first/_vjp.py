"""`vjp`: vector-Jacobian products, a cotangent pulled back through a function."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Argnums, Cotangent, Function, Gradient, Keywords, Point, Where
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Reverse,
    reverse_first,
)
from hotk._prepared import like_point, operator
from hotk._primitive import divided_as


@operator(
    takes="u",
    wants="inexact",
    value=True,
    candidates=reverse_first,
    modes=(Forward, Reverse),
)
def value_and_vjp(
    f: Function,
    x: Point,
    u: Cotangent,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its vector-Jacobian product $u^{\mathsf T} J(x)$.

    Computes $f(x)$ and $u^{\mathsf T} J(x)$, the cotangent `u` pulled back to `x`, also
    called pullback. The cost is one reverse pass, about three times the cost of `f`
    [1], and the memory of the intermediate results of `f`. Complex numbers follow
    `jax.vjp`: no conjugate is taken.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        u: Cotangent, with the structure, shapes and dtypes of the value of `f`. NumPy
            arrays and Python numbers are cast; a JAX array of another dtype is an
            error.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`, for
            real outputs) or `hotk.Auto()`: reverse, or forward where a `while_loop` has
            no reverse mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `u` have a leading axis, one cotangent each; the
            product then has it as well, and `f` is linearized once.

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
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _pulled_back(f, x, u, mode)


@like_point
@operator(
    takes="u", wants="inexact", candidates=reverse_first, modes=(Forward, Reverse)
)
def vjp(
    f: Function,
    x: Point,
    u: Cotangent,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the vector-Jacobian product $u^{\mathsf T} J(x)$.

    That is the cotangent `u` pulled back to `x`, also called pullback. The cost is one
    reverse pass, about three times the cost of `f` [1], and the memory of the
    intermediate results of `f`. Complex numbers follow `jax.vjp`: no conjugate is
    taken. `hotk.value_and_vjp` returns the value as well.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        u: Cotangent, with the structure, shapes and dtypes of the value of `f`. NumPy
            arrays and Python numbers are cast; a JAX array of another dtype is an
            error.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Reverse()`, `hotk.Forward()` (one pass for each number in `x`, for
            real outputs) or `hotk.Auto()`: reverse, or forward where a `while_loop` has
            no reverse mode.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `u` have a leading axis, one cotangent each; the
            product then has it as well, and `f` is linearized once.

    Returns:
        The product, with the structure, shapes and dtypes of `x` and `None` at leaves
        that are not differentiated; `(product, aux)` with `has_aux=True`.

    Raises:
        StructureError: If `u` has another structure or shape than the value.
        DtypeError: If nothing in `x` can be differentiated, or `u` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> hotk.vjp(lambda x: x**2, jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()
        [2.0, 4.0]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _pulled_back(f, x, u, mode)[1:]


def _pulled_back(
    f: Callable[[Point], tuple[PyTree, PyTree]],
    x: Point,
    u: Cotangent,
    mode: AbstractMode,
) -> tuple[PyTree, Gradient, PyTree]:
    """Return `y`, the product of `u` with the Jacobian of `f`, and `aux`."""
    if isinstance(mode, Reverse):
        y, product, aux = mode.back(f, x, u)
        return y, divided_as(product, x), aux

    # Forward mode has no product with a cotangent: it is the gradient of <u, f(x)>,
    # whose real part is what a real `x` can see.
    def weighted(x: Point) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        y, aux = f(x)
        products = jax.tree.map(lambda a, b: jnp.sum(a * b).real, u, y)
        return sum(jax.tree.leaves(products)), (y, aux)

    assert isinstance(mode, Forward)
    _, product, (y, aux) = mode.gradient(weighted, x)
    return y, divided_as(product, x), aux
