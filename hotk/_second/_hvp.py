"""`hvp`: Hessian-vector products."""

import jax
from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Tangent, Where
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    Auto,
    Nested,
    second_order_candidates,
)
from hotk._prepared import check_bytes, like_point, operator, three_of_array
from hotk._primitive import divided_as


@three_of_array
@operator(
    takes="v",
    wants="outputs",
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
    weights: PyTree = None,
    batched: bool = False,
) -> tuple[PyTree, ...]:
    r"""Compute value, gradient and Hessian-vector product of a function.

    Computes $f(x)$, $\nabla f(x)$ and $\nabla^2 f(x)\,v = \frac{d}{dt} \nabla f(x + t
    v)\big|_{t=0}$ without forming $\nabla^2 f(x)$ [1]. The product costs about two
    gradients, at twice the memory of a gradient; value and gradient come with it. For
    complex `x` the product is the derivative of what `jax.grad` returns: the conjugate
    of the product in the real embedding (see the page on mathematics).

    Args:
        f: Function `f(x, *args)`, twice differentiable at `x`, that returns one real
            floating-point number, or a tree of arrays. An array of shape `(1,)` alone
            counts as one number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through. Where `f` returns several numbers,
            complex leaves are refused.
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
        weights: Of several outputs: a tree like the value of `f`, cast to its dtypes.
            The function is then the sum of the outputs times their weights.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well, and `f` is linearized once.

    Returns:
        The triple `(y, gradient, product)`: a scalar and two trees with the structure,
        shapes and dtypes of `x`, `None` at leaves that are not differentiated;
        `((y, aux), gradient, product)` with `has_aux=True`. For several outputs they
        are the value, the Jacobian, and a product for each output: the structure of
        `y`, then that of `x`, with leaves of shape `y.shape + x_i.shape`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`, or `weights`
            than the value.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns a single number that is not real and floating, or
            anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If the products of several outputs would exceed the memory budget
            (`hotk.memory_budget`).

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
    return _checked(mode.product(f, x, v), x)


@like_point
@operator(
    takes="v", wants="outputs", candidates=second_order_candidates, modes=(Nested,)
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
    weights: PyTree = None,
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
        f: Function `f(x, *args)`, twice differentiable at `x`, that returns one real
            floating-point number, or a tree of arrays. An array of shape `(1,)` alone
            counts as one number.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through. Where `f` returns several numbers,
            complex leaves are refused.
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
        weights: Of several outputs: a tree like the value of `f`, cast to its dtypes.
            The function is then the sum of the outputs times their weights.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            product then has it as well, and `f` is linearized once.

    Returns:
        The product, with the structure, shapes and dtypes of `x` and `None` at leaves
        that are not differentiated; `(product, aux)` with `has_aux=True`. For several
        outputs y it is a product for each: the structure of y, then that of `x`, with
        leaves of shape `y.shape + x_i.shape`. It costs as many gradients as there are
        outputs; with `weights`, one.

    Raises:
        StructureError: If `v` has another structure or shape than `x`, or `weights`
            than the value.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns a single number that is not real and floating, or
            anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If the products of several outputs would exceed the memory budget
            (`hotk.memory_budget`).

    Example:
        >>> x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])
        >>> hotk.hvp(lambda x: jnp.sum(x**3), x, v).tolist()
        [6.0, 0.0]
        >>> hotk.hvp(lambda x: jnp.sum(x**3), x, jnp.eye(2), batched=True).tolist()
        [[6.0, 0.0], [0.0, 12.0]]

        Of a function with two outputs, for each and for a sum with weights:

        >>> f = lambda x: (jnp.sum(x**3), x[0] * x[1])
        >>> [product.tolist() for product in hotk.hvp(f, x, v)]
        [[6.0, 0.0], [0.0, 1.0]]
        >>> hotk.hvp(f, x, v, weights=(1.0, 10.0)).tolist()
        [6.0, 10.0]

    References:
        [1] Pearlmutter (1994). Fast exact multiplication by the Hessian. Neural
            Computation 6(1), 147-160. https://doi.org/10.1162/neco.1994.6.1.147
    """
    assert isinstance(mode, Nested)
    return _checked(mode.product(f, x, v), x)[2:]


def _checked(results: tuple[PyTree, ...], x: Point) -> tuple[PyTree, ...]:
    """Divide gradient and product among devices as `x` is.

    Products of several outputs are refused by complex numbers, or if they are too many.
    """
    y, gradient, product, aux = results
    if jax.tree.structure(y) == jax.tree.structure(0) and not y.ndim:
        return y, divided_as(gradient, x), divided_as(product, x), aux
    refuse_complex("hvp(f, x, v)", x, "hvp(f, x, v, weights=u)")
    # Shapes so far: the operator is being traced.
    needed = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(product))
    n = sum(a.size for a in jax.tree.leaves(x))
    check_bytes("hvp(f, x, v)", n, needed, "`weights=`, or fewer outputs")
    return results
