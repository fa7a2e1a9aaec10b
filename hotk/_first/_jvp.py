"""`jvp`: Jacobian-vector products, the derivative along a direction."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Tangent, Where
from hotk._dense import Sizes
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Facts,
    Forward,
    first_order_candidates,
)
from hotk._prepared import like_value, operator, two_of_array


def _forward_only(facts: Facts, sizes: Sizes) -> list[tuple[AbstractMode, str]]:
    del sizes
    return first_order_candidates(facts, forward=True)[:1]


@two_of_array
@operator(
    takes="v", wants="inexact", value=True, candidates=_forward_only, modes=(Forward,)
)
def value_and_jvp(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    mode: Forward | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its Jacobian-vector product $J(x)\,v$.

    Computes $f(x)$ and $J(x)\,v = \frac{d}{dt} f(x + t v)\big|_{t=0}$, the derivative
    along `v`, also called pushforward. The cost is one forward pass, about twice the
    cost of `f` [1]. The Jacobian is not formed.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error. Entries at leaves that pass through are ignored.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()` or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well, and the value is computed once.

    Returns:
        The pair `(y, product)`, both with the structure, shapes and dtypes of the value
        of `f`; `((y, aux), product)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no forward derivative.

    Example:
        >>> y, dy = hotk.value_and_jvp(jnp.sin, 0.0, 2.0)
        >>> y.item(), dy.item()
        (0.0, 2.0)

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return Forward().along(f, x, v)


@like_value
@operator(takes="v", wants="inexact", candidates=_forward_only, modes=(Forward,))
def jvp(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    mode: Forward | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the Jacobian-vector product $J(x)\,v$.

    Computes $J(x)\,v = \frac{d}{dt} f(x + t v)\big|_{t=0}$, the derivative along `v`,
    also called pushforward. The cost is one forward pass, about twice the cost of `f`
    [1]. The Jacobian is not formed. `hotk.value_and_jvp` returns the value as well.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error. Entries at leaves that pass through are ignored.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()` or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well.

    Returns:
        The product, with the structure, shapes and dtypes of the value of `f`;
        `(product, aux)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no forward derivative.

    Example:
        >>> hotk.jvp(lambda x: x**2, jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()
        [2.0, 4.0]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return Forward().along(f, x, v)[1:]
