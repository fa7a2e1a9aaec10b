"""`hessian`: all second derivatives, as arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._dense import By, Division
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Nested,
    second_order_candidates,
)
from hotk._prepared import array_of_array, check_budget, operator, three_of_array


@three_of_array
@operator(
    wants="inexact", value=True, candidates=second_order_candidates, modes=(Nested,)
)
def value_gradient_and_hessian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
    split: By | Division | None = None,
    mesh_axis: str | None = None,
) -> tuple[PyTree, ...]:
    r"""Compute value, gradient and Hessian of a function.

    Computes $f(x)$, $\nabla f(x)$ and $H_{ij} = \partial^2 f / \partial x_i \partial
    x_j$ by columns, `block_size` of them at once, each as a Hessian-vector product [1]:
    about 2n gradients for n numbers in `x`. The memory beyond the result is that of one
    block. For a function with several outputs it gives the Jacobian and one Hessian for
    each output.

    Args:
        f: Function `f(x, *args)` that returns a real scalar or a tree of floating
            or complex arrays, twice differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many columns at once. Chosen from the program if left out.
        split: `"columns"` or `"rows"`: divide work and result among the devices of
            `mesh_axis`. A leaf without an axis whose length their number divides stays
            whole on each.
        mesh_axis: The axis of the mesh, for `split`; it may be left out if the mesh has
            one axis.

    Returns:
        The triple `(y, gradient, hessian)`. The Hessian has the structure of
        `jax.hessian(f)(x)`: the structure of `y`, then twice that of `x`, with leaves
        of shape `y.shape + x_i.shape + x_j.shape`; `((y, aux), gradient, hessian)` with
        `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.
        StructureError: If `split` is given and there is no mesh, or no such axis.
        TooLargeError: If the Hessian, or the part of one device, would exceed the
            memory budget (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1]
        >>> y, g, H = hotk.value_gradient_and_hessian(f, jnp.ones(2))
        >>> y.item(), g.tolist(), H.tolist()
        (1.0, [2.0, 1.0], [[2.0, 2.0], [2.0, 0.0]])

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7.
            SIAM.
    """
    return _dense(f, x, mode, block_size, split)


@array_of_array
@operator(wants="inexact", candidates=second_order_candidates, modes=(Nested,))
def hessian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
    split: By | Division | None = None,
    mesh_axis: str | None = None,
) -> PyTree:
    r"""Compute the Hessian $H_{ij} = \partial^2 f / \partial x_i \partial x_j$.

    It can stand in for `jax.hessian(f)(x)`. It is computed by columns, `block_size` of
    them at once, each as a Hessian-vector product [1]: about 2n gradients for n numbers
    in `x`. The memory beyond the result is that of one block. For a function with
    several outputs it gives one Hessian for each output.
    `hotk.value_gradient_and_hessian` returns the value and the gradient as well.

    Args:
        f: Function `f(x, *args)` that returns a real scalar or a tree of floating
            or complex arrays, twice differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many columns at once. Chosen from the program if left out.
        split: `"columns"` or `"rows"`: divide work and result among the devices of
            `mesh_axis`. A leaf without an axis whose length their number divides stays
            whole on each.
        mesh_axis: The axis of the mesh, for `split`; it may be left out if the mesh has
            one axis.

    Returns:
        The Hessian, with the structure of `jax.hessian(f)(x)`: the structure of `y`,
        then twice that of `x`, with leaves of shape `y.shape + x_i.shape + x_j.shape`;
        `(hessian, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.
        StructureError: If `split` is given and there is no mesh, or no such axis.
        TooLargeError: If the Hessian, or the part of one device, would exceed the
            memory budget (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> hotk.hessian(lambda x: x[0] ** 2 * x[1], jnp.ones(2)).tolist()
        [[2.0, 2.0], [2.0, 0.0]]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7.
            SIAM.
    """
    return _dense(f, x, mode, block_size, split)[2:]


def _dense(
    f: Function,
    x: Point,
    mode: AbstractMode,
    size: int | None,
    split: By | Division | None,
) -> tuple[PyTree, PyTree, PyTree, PyTree]:
    """Return `y`, its gradient, its Hessian, and `aux`."""
    block = split if isinstance(split, Division) else size
    refuse_complex("hessian(f, x)", x, "hvp")
    check_budget("hessian(f, x)", f, x, order=2, block=block)
    assert isinstance(mode, Nested)
    y, gradient, hessian, aux = mode.hessian(f, x, block)
    if isinstance(block, Division) and block.by == "rows":
        hessian = jax.tree.map(lambda a, h: _turned(a, h, x), y, hessian)
    return y, gradient, hessian, aux


def _turned(y: Array, hessian: PyTree, x: Point) -> PyTree:
    """Make rows of columns: a Hessian is symmetric, so no number leaves its device."""
    points, structure = jax.tree.flatten(x)
    table = [structure.flatten_up_to(row) for row in structure.flatten_up_to(hessian)]

    def block(i: int, j: int) -> Array:
        ahead, row, column = y.ndim, points[i].ndim, points[j].ndim
        first, last = ahead + column, ahead + column + row
        order = [*range(ahead), *range(first, last), *range(ahead, first)]
        return jnp.transpose(table[j][i], order)

    each = range(len(points))
    rows = [structure.unflatten([block(i, j) for j in each]) for i in each]
    return structure.unflatten(rows)
