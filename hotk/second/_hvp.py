"""`hvp`: Hessian-vector products."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Tangent, Where
from hotk.mode import (
    AUTO,
    Auto,
    Nested,
    second_order_candidates,
)
from hotk.prepared import operator


@operator(
    takes="v",
    wants="single",
    value=True,
    candidates=second_order_candidates,
    modes=(Nested,),
)
def value_gradient_and_hvp(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> tuple[PyTree, ...]:
    r"""Compute value, gradient and Hessian-vector product of a real scalar function.

    Computes $f(x)$, $\nabla f(x)$ and $\nabla^2 f(x)\,v = \frac{d}{dt} \nabla f(x + t
    v)\big|_{t=0}$ without forming $\nabla^2 f(x)$ [1]. The product costs about two
    gradients, at twice the memory of a gradient; value and gradient come with it. For
    complex `x` the product is the derivative of what `jax.grad` returns: the conjugate
    of the product in the real embedding (see the page on mathematics).

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number, twice
            differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error. Entries at leaves that pass through are ignored.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: How the two derivatives are nested: a `hotk.Nested`, or `hotk.Auto()`:
            forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well, and `f` is linearized once.

    Returns:
        The triple `(y, gradient, product)`: a scalar and two trees with the structure,
        shapes and dtypes of `x`, `None` at leaves that are not differentiated;
        `((y, aux), gradient, product)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but one real floating-point number, of
            shape `()` or `(1,)`.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> f = lambda x, c: c * jnp.sum(x**3)
        >>> x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])
        >>> y, g, hv = hotk.value_gradient_and_hvp(f, x, v, 10.0)
        >>> y.item(), g.tolist(), hv.tolist()
        (90.0, [30.0, 120.0], [60.0, 0.0])

    References:
        [1] Pearlmutter (1994). Fast exact multiplication by the Hessian. Neural
            Computation 6(1), 147-160. https://doi.org/10.1162/neco.1994.6.1.147
    """
    assert isinstance(mode, Nested)
    return mode.product(f, x, v)


@operator(
    takes="v", wants="single", candidates=second_order_candidates, modes=(Nested,)
)
def hvp(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the Hessian-vector product $\nabla^2 f(x)\,v$.

    Computes $\nabla^2 f(x)\,v = \frac{d}{dt} \nabla f(x + t v)\big|_{t=0}$, the
    derivative of the gradient along `v`, without forming the Hessian [1]. The cost is
    about two gradients, at twice the memory of a gradient. For complex `x` the product
    is the derivative of what `jax.grad` returns: the conjugate of the product in the
    real embedding (see the page on mathematics). `hotk.value_gradient_and_hvp` returns
    the value and the gradient as well. `hotk.HessianOperator` is the Hessian as an
    object, with products, solvers and eigenvalues.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number, twice
            differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`. NumPy arrays and
            Python numbers are cast to the dtype of `x`; a JAX array of another dtype
            is an error. Entries at leaves that pass through are ignored.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: How the two derivatives are nested: a `hotk.Nested`, or `hotk.Auto()`:
            forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well, and `f` is linearized once.

    Returns:
        The product, with the structure, shapes and dtypes of `x` and `None` at leaves
        that are not differentiated; `(product, aux)` with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but one real floating-point number, of
            shape `()` or `(1,)`.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])
        >>> hotk.hvp(lambda x: jnp.sum(x**3), x, v).tolist()
        [6.0, 0.0]
        >>> hotk.hvp(lambda x: jnp.sum(x**3), x, jnp.eye(2), batched=True).tolist()
        [[6.0, 0.0], [0.0, 12.0]]

    References:
        [1] Pearlmutter (1994). Fast exact multiplication by the Hessian. Neural
            Computation 6(1), 147-160. https://doi.org/10.1162/neco.1994.6.1.147
    """
    assert isinstance(mode, Nested)
    return mode.product(f, x, v)[2:]
