"""`cross_hessian`: mixed second derivatives by two arguments of a function."""

import equinox as eqx
from jaxtyping import PyTree

from hotk._core import Function, Gradient, Point, Tangent
from hotk._first import gradient, jacobian, jvp
from hotk._mode import AUTO, Auto, Forward, Reverse
from hotk._prepared import arranged


class _FirstGradient(eqx.Module):
    """The gradient of a function by its first argument, as a function of all."""

    func: Function

    def __call__(self, x: Point, *args: PyTree) -> Gradient:
        return gradient(self.func, x, *args)


# The operators behind these names call `x` what is `y` here.
_WORDS = {"`jacobian(f, x)`": "`y", "`jvp(f, x, v)`": "`y", "`gradient(f, x)`": "`x"}


@arranged(words=_WORDS)
def cross_hessian(
    f: Function,
    x: Point,
    y: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
) -> PyTree:
    r"""Compute the mixed second derivatives $\partial^2 f / \partial x\, \partial y$.

    It is the block of the Hessian whose rows are `x` and whose columns are `y`: the
    Jacobian with respect to `y` of the gradient with respect to `x`. The blocks of `x`
    with itself and of `y` with itself are not computed. Hypergradients, equations of
    Euler and Lagrange and sensitivities of minima consist of such blocks.

    Args:
        f: Function `f(x, y, *args)` that returns one real floating-point number.
        x: First argument: any pytree. Floating leaves are differentiated.
        y: Second argument: any pytree. Floating leaves are differentiated.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: How the gradient is differentiated: `hotk.Forward()` costs a product for
            each number in `y`, `hotk.Reverse()` one for each number in `x`. By default
            the cheaper one.

    Returns:
        The structure of `x` with a tree like `y` at each leaf, whose leaves have the
        shape `x_i.shape + y_j.shape`, as of `jax.jacfwd(jax.grad(f, 0), 1)`; `None` at
        leaves that are not differentiated.

    Raises:
        DtypeError: If nothing in `x` or nothing in `y` can be differentiated.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If an operation in `f` has no second derivative.

    Example:
        >>> f = lambda x, y: jnp.sum(x**2) * jnp.sum(y**3)
        >>> hotk.cross_hessian(f, jnp.array([1.0, 2.0]), jnp.array([3.0])).tolist()
        [[54.0], [108.0]]
    """
    del x
    return jacobian, _FirstGradient(f), (y, *args), {"mode": mode, "argnums": 1}


@arranged(words=_WORDS)
def cross_hvp(
    f: Function,
    x: Point,
    v: Tangent,
    y: Point,
    *args: PyTree,
    mode: Forward | Auto = AUTO,
    batched: bool = False,
) -> Gradient:
    r"""Compute the product $(\partial^2 f / \partial x\, \partial y)\, v$.

    It is the change of the gradient with respect to `x` when `y` moves along `v`. No
    matrix is formed: the cost is that of a Hessian-vector product.

    Args:
        f: Function `f(x, y, *args)` that returns one real floating-point number.
        x: First argument: any pytree. Floating leaves are differentiated.
        v: Direction, with the structure, shapes and dtypes of `y`.
        y: Second argument: any pytree. Floating leaves are differentiated.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, or `hotk.Auto()`, which is the same.
        batched: Whether the leaves of `v` have a leading axis, one direction each.

    Returns:
        The product: a tree like `x`, `None` at leaves that are not differentiated; with
        a leading axis if `batched`.

    Raises:
        StructureError: If `v` has another structure or shape than `y`.
        DtypeError: If nothing in `x` or nothing in `y` can be differentiated, or `v` is
            a JAX array of another dtype.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If an operation in `f` has no second derivative.

    Example:
        >>> f = lambda x, y: jnp.sum(x**2) * jnp.sum(y**3)
        >>> x, y = jnp.array([1.0, 2.0]), jnp.array([3.0])
        >>> hotk.cross_hvp(f, x, jnp.array([0.5]), y).tolist()
        [27.0, 54.0]
    """
    del x
    keywords = {"mode": mode, "batched": batched, "argnums": 1}
    return jvp, _FirstGradient(f), (v, y, *args), keywords
