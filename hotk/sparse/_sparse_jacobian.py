"""`sparse_jacobian`: the first derivatives that are not zero."""

from typing import Any

import jax
from jaxtyping import Array, PyTree

from hotk._capture import StaticArrays
from hotk._core import (
    Argnums,
    Function,
    FunctionWithAux,
    Keywords,
    Point,
    Where,
)
from hotk._first import refuse_complex
from hotk._mode import AUTO, AbstractMode, Auto, Forward, Reverse, forward_first
from hotk._prepared import check_budget, operator, with_aux

from ._causes import SparsityExplanation
from ._linear_program import linear_program
from ._matrix import SparseMatrix
from ._pattern import Pattern
from ._stages import Task, explained_pattern, sparse_matrix, sparsity_pattern


@with_aux
@operator(
    wants="inexact",
    candidates=forward_first,
    modes=(Forward, Reverse),
    static_arrays=StaticArrays.ALL_INTEGERS,
)
def sparse_jacobian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> SparseMatrix:
    r"""Compute the Jacobian $J_{ij} = \partial f_i / \partial x_j$ as a sparse matrix.

    You give no sparsity pattern and no coloring. `hotk.sparse_hessian` says how the
    matrix is computed and what decides the pattern. It costs a few evaluations of `f`
    if the Jacobian is sparse.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; floating ones that decide no index
            may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        A `hotk.SparseMatrix`: a row for each number in the value, leaf after leaf, two
        for each complex one (all real parts of a leaf, then all imaginary parts), and a
        column for each number in `x`; `(matrix, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.
        TooLargeError: If the Jacobian is dense and would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> J = hotk.sparse_jacobian(jnp.diff, jnp.array([1.0, 2.0, 4.0]))
        >>> J.nnz, J.todense().tolist()
        (4, [[-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7. SIAM.
    """
    results: Any = jacobian_of(f, x, mode)[1:]
    return results


@operator(
    wants="inexact",
    value=True,
    candidates=forward_first,
    modes=(Forward, Reverse),
    static_arrays=StaticArrays.ALL_INTEGERS,
)
def value_and_sparse_jacobian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its Jacobian as a sparse matrix.

    Computes $f(x)$ and $J_{ij} = \partial f_i / \partial x_j$, as a step of the
    Gauss-Newton method needs them. The Jacobian is that of `hotk.sparse_jacobian`; what
    it has in common with the value is computed once.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; floating ones that decide no index
            may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The pair `(y, jacobian)`, the Jacobian as a `hotk.SparseMatrix`;
        `((y, aux), jacobian)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no derivative in this mode.
        TooLargeError: If the Jacobian is dense and would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> y, J = hotk.value_and_sparse_jacobian(jnp.diff, jnp.array([1.0, 2.0, 4.0]))
        >>> y.tolist(), J.nnz
        ([1.0, 2.0], 4)

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7. SIAM.
    """
    return jacobian_of(f, x, mode)


def jacobian_of(
    f: FunctionWithAux, x: Point, mode: AbstractMode
) -> tuple[PyTree, SparseMatrix, PyTree]:
    """Return `y`, its Jacobian, and `aux`."""
    refuse_complex("sparse_jacobian(f, x)", x, "jvp")
    assert isinstance(mode, (Forward, Reverse))
    task = jacobian_task(f, x, mode)

    def dense() -> list[list[Array]]:
        check_budget("sparse_jacobian(f, x)", f, x, order=1)
        y, jacobian, _ = mode.jacobian(f, x, None)
        tree = jax.tree.structure(x)
        return [
            tree.flatten_up_to(row)
            for row in jax.tree.structure(y).flatten_up_to(jacobian)
        ]

    matrix = sparse_matrix("sparse_jacobian(f, x)", task, dense)
    return task.linear.value, matrix, task.linear.aux


def explained_jacobian(
    f: FunctionWithAux, x: Point, mode: AbstractMode
) -> SparsityExplanation:
    """Return the pattern of the Jacobian, and what makes rows of it dense."""
    return explained_pattern(jacobian_task(f, x, mode, valued=False))


def jacobian_pattern(f: FunctionWithAux, x: Point, mode: AbstractMode) -> Pattern:
    """Return the pattern of the Jacobian."""
    return sparsity_pattern(jacobian_task(f, x, mode, valued=False))


def jacobian_task(
    f: FunctionWithAux, x: Point, mode: AbstractMode, *, valued: bool = True
) -> Task:
    assert isinstance(mode, (Forward, Reverse))
    linear = linear_program(f, x, mode, valued=valued)
    return Task(linear, transposed=isinstance(mode, Reverse))
