"""`sparse_hessian`: the second derivatives that are not zero."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import StaticArrays
from hotk._core import (
    Argnums,
    ClosedJaxpr,
    Function,
    FunctionWithAux,
    Keywords,
    Point,
    Where,
    crosses_devices,
    equations,
    has_users_rule,
    manual_axes,
    varying_axes,
)
from hotk._dense import dimension
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Nested,
    second_order_candidates,
)
from hotk._prepared import check_budget, operator, with_aux

from ._causes import SparsityExplanation
from ._congruence import congruence
from ._entries import entries
from ._linear import Budget, TooDense
from ._linear_program import linear_program
from ._matrix import SparseMatrix
from ._pattern import Pattern
from ._stages import Task, explained_pattern, sparse_matrix, sparsity_pattern
from ._vectors import unflattened
from ._work import entries_worth


@with_aux
@operator(
    candidates=second_order_candidates,
    modes=(Nested,),
    static_arrays=StaticArrays.ALL_INTEGERS,
)
def sparse_hessian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> SparseMatrix:
    r"""Compute the Hessian $H_{ij} = \partial^2 f / \partial x_i \partial x_j$, sparse.

    You give no sparsity pattern and no coloring. Pattern and values are computed in one
    pass over the program of $v \mapsto H v$, in which each intermediate result is a sum
    of values on known positions. It costs a few gradients if the Hessian is sparse, as
    for chains, grids, meshes, control problems and sums of terms with few variables
    each. If the Hessian is dense, it is computed as by `hotk.hessian`.

    The pattern belongs to the program and is the same for all values of `x`, so it may
    have entries that are zero at this point. Captured integers and those in `args`
    decide it (`x[indices]`), and floating arrays from which indices are computed
    (`jnp.interp`): they are static by content, and others compile again. Indices that
    are computed from `x` are not known, and make rows dense.

    Args:
        f: Function `f(x, *args)` that returns a real scalar, twice differentiable.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; floating ones that decide no index
            may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        A `hotk.SparseMatrix`, whose rows and columns are the numbers in `x`, leaf after
        leaf; `(matrix, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If the Hessian is dense and would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> chain = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2)
        >>> H = hotk.sparse_hessian(chain, jnp.ones(4))
        >>> H.nnz, H.todense().tolist()[0]
        (10, [8.0, -4.0, 0.0, 0.0])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7. SIAM.
    """
    results: Any = hessian_of(f, x, mode)[2:]
    return results


@operator(
    value=True,
    candidates=second_order_candidates,
    modes=(Nested,),
    static_arrays=StaticArrays.ALL_INTEGERS,
)
def value_gradient_and_sparse_hessian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> tuple[PyTree, ...]:
    r"""Compute value, gradient and sparse Hessian of a function.

    Computes $f(x)$, $\nabla f(x)$ and $H_{ij} = \partial^2 f / \partial x_i \partial
    x_j$, as a step of Newton's method needs them. The Hessian is that of
    `hotk.sparse_hessian`, which says how it is computed and what decides its pattern;
    the gradient is an intermediate result of it and costs nothing more.

    Args:
        f: Function `f(x, *args)` that returns a real scalar, twice differentiable.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; floating ones that decide no index
            may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The triple `(y, gradient, hessian)`: the gradient with the structure of `x`, the
        Hessian as a `hotk.SparseMatrix`; `((y, aux), gradient, hessian)` with
        `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If the Hessian is dense and would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> chain = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2)
        >>> y, g, H = hotk.value_gradient_and_sparse_hessian(chain, 2 * jnp.ones(3))
        >>> y.item(), g.tolist(), H.todense().tolist()[1]
        (8.0, [16.0, 12.0, -4.0], [-8.0, 42.0, -8.0])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7. SIAM.
    """
    return hessian_of(f, x, mode)


def hessian_of(
    f: FunctionWithAux, x: Point, mode: AbstractMode
) -> tuple[PyTree, PyTree, SparseMatrix, PyTree]:
    """Return `y`, its gradient, its Hessian, and `aux`."""
    refuse_complex("sparse_hessian(f, x)", x, "hvp")
    assert isinstance(mode, Nested)

    def dense() -> list[list[jax.Array]]:
        check_budget("sparse_hessian(f, x)", f, x, order=2)
        rows = mode.hessian(f, x, None)[2]
        tree = jax.tree.structure(x)
        return [tree.flatten_up_to(row) for row in tree.flatten_up_to(rows)]

    task = hessian_task(f, x, mode)
    y, aux = task.linear.aux
    return y, task.linear.value, sparse_matrix("sparse_hessian(f, x)", task, dense), aux


def explained_hessian(
    f: FunctionWithAux, x: Point, mode: AbstractMode
) -> SparsityExplanation:
    """Return the pattern of the Hessian, and what makes rows of it dense."""
    found = explained_pattern(hessian_task(f, x, mode, valued=False))
    return SparsityExplanation(found.pattern, found.causes, found.dense_blocks, "x")


def hessian_pattern(f: FunctionWithAux, x: Point, mode: AbstractMode) -> Pattern:
    """Return the pattern of the Hessian."""
    return sparsity_pattern(hessian_task(f, x, mode, valued=False))


def hessian_task(
    f: FunctionWithAux, x: Point, mode: AbstractMode, *, valued: bool = True
) -> Task:
    """Linearize the gradient: the program of Hessian-vector products."""
    assert isinstance(mode, Nested)

    def gradient(x: Point) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        inner = mode.inner
        forward = isinstance(inner, Forward)
        y, g, aux = forward_gradient(f, x, inner) if forward else inner.gradient(f, x)
        return g, (y, aux)

    closed = jax.make_jaxpr(f)(x)
    symmetric = _is_symmetric(closed, x)
    linear = linear_program(gradient, x, mode.outer, valued=valued)
    found = congruence(closed, x, mode, valued=valued)
    return Task(linear, symmetric=symmetric, congruence=found)


def _is_symmetric(closed: ClosedJaxpr, x: Point) -> bool:
    """Whether one half of the Hessian may be mirrored.

    The derivative of a rule of the user may be no Hessian. And where a function adds
    over an axis along which its point varies, what is differentiated twice is the
    value of one part by the points of all, whose own block is not symmetric.
    """
    if any(map(has_users_rule, equations(closed.jaxpr))):
        return False
    if not any(map(crosses_devices, closed.jaxpr.eqns)):
        return True
    held = [not varying_axes(jax.typeof(leaf)) for leaf in jax.tree.leaves(x)]
    return bool(manual_axes()) and all(held)  # a `vmap` does not tell what varies


def forward_gradient(
    f: FunctionWithAux, x: Point, mode: Forward
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `y`, the gradient of a scalar function, and `aux`.

    Products along all directions would be dense: that most derivatives of an
    intermediate result are zero is only known to the algebra.
    """
    linear = linear_program(f, x, mode)
    n = dimension(linear.inputs)
    try:
        budget = Budget(entries_worth(linear.program.jaxpr, n))
        found = entries(linear, budget, valued=True)
    except TooDense:
        return mode.gradient(f, x)
    assert found.values is not None
    flat = jnp.zeros(n, found.values.dtype)
    flat = flat.at[found.cols].set(found.values, unique_indices=True)
    return linear.value, unflattened(flat, linear.inputs), linear.aux
