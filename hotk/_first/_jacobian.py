"""`jacobian`: all first derivatives, as arrays."""

import jax
from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._dense import By, Division, Sizes
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Facts,
    Forward,
    Reverse,
    first_order_candidates,
    weak_like,
)
from hotk._prepared import array_of_array, check_budget, operator, two_of_array

from ._points import refuse_complex


def _by_sizes(facts: Facts, sizes: Sizes) -> list[tuple[AbstractMode, str]]:
    return first_order_candidates(facts, forward=sizes.n <= sizes.m)


@two_of_array
@operator(value=True, wants="inexact", candidates=_by_sizes, modes=(Forward, Reverse))
def value_and_jacobian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
    split: By | Division | None = None,
    mesh_axis: str | None = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its Jacobian.

    Computes $f(x)$ and $J_{ij} = \partial f_i / \partial x_j$: by columns in forward
    mode (one pass for each of the n numbers in `x`), by rows in reverse mode (one pass
    for each of the m numbers in the value) [1]. `block_size` of them are computed at
    once.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if n <= m.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many columns or rows at once. Chosen from the program if left
            out.
        split: `"columns"` or `"rows"`: divide work and result among the devices of
            `mesh_axis`. A leaf without an axis whose length their number divides stays
            whole on each.
        mesh_axis: The axis of the mesh, for `split`; it may be left out if the mesh has
            one axis.

    Returns:
        The pair `(y, jacobian)`. The Jacobian is a tree of trees as from
        `jax.jacobian`: the structure of `y`, then that of `x`, with leaves of shape
        `y.shape + x.shape`; `((y, aux), jacobian)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.
        StructureError: If `split` is given and there is no mesh, or no such axis.
        TooLargeError: If the Jacobian, or the part of one device, would exceed the
            memory budget (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> y, J = hotk.value_and_jacobian(lambda x: x**2, jnp.array([1.0, 2.0]))
        >>> J.tolist()
        [[2.0, 0.0], [0.0, 4.0]]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _dense(f, x, mode, block_size, split)


@array_of_array
@operator(wants="inexact", candidates=_by_sizes, modes=(Forward, Reverse))
def jacobian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
    split: By | Division | None = None,
    mesh_axis: str | None = None,
) -> PyTree:
    r"""Compute the Jacobian $J_{ij} = \partial f_i / \partial x_j$.

    It can stand in for `jax.jacobian(f)(x)`. It is computed by columns in forward mode
    (one pass for each of the n numbers in `x`), by rows in reverse mode (one pass for
    each of the m numbers in the value) [1], `block_size` of them at once.
    `hotk.value_and_jacobian` returns the value as well.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if n <= m.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many columns or rows at once. Chosen from the program if left
            out.
        split: `"columns"` or `"rows"`: divide work and result among the devices of
            `mesh_axis`. A leaf without an axis whose length their number divides stays
            whole on each.
        mesh_axis: The axis of the mesh, for `split`; it may be left out if the mesh has
            one axis.

    Returns:
        The Jacobian, a tree of trees as from `jax.jacobian`: the structure of `y`, then
        that of `x`, with leaves of shape `y.shape + x.shape`; `(jacobian, aux)` with
        `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.
        StructureError: If `split` is given and there is no mesh, or no such axis.
        TooLargeError: If the Jacobian, or the part of one device, would exceed the
            memory budget (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> hotk.jacobian(lambda x: x**2, jnp.array([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 3.
            SIAM.
    """
    return _dense(f, x, mode, block_size, split)[1:]


def _dense(
    f: Function,
    x: Point,
    mode: AbstractMode,
    size: int | None,
    split: By | Division | None,
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `y`, its Jacobian, and `aux`."""
    block = split if isinstance(split, Division) else size
    refuse_complex("jacobian(f, x)", x, "jvp")
    check_budget("jacobian(f, x)", f, x, order=1, block=block)
    if isinstance(block, Division):
        y, _ = jax.eval_shape(f, x)
        refuse_complex("jacobian(f, x, split=...)", y, "jacobian(f, x)", name="f(x)")
    assert isinstance(mode, (Forward, Reverse))
    y, jacobian, aux = mode.jacobian(f, x, block)
    structure = jax.tree.structure(y)
    # Unit directions lose the weak type of a Python float, which `jax.jacobian` keeps.
    rows = [weak_like(row, x) for row in structure.flatten_up_to(jacobian)]
    return y, structure.unflatten(rows), aux
