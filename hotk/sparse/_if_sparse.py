"""`hessian_if_sparse` and others: a sparse matrix, or the answer that it is dense."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import StaticArrays
from hotk._core import Function, FunctionWithAux, Point, Where
from hotk._dense import dimension, is_complex
from hotk._mode import AUTO, Auto, Forward, Nested, second_order_candidates
from hotk._prepared import operator

from ._matrix import SparseMatrix
from ._sparse_hessian import hessian_task
from ._sparse_jacobian import jacobian_task
from ._stages import Task, by_algebra


# With a larger part of all entries the dense matrix is faster, and hardly larger.
_DENSEST = 0.1
# The algebra may make so many entries for each row on its way. With more, networks of
# some thousand weights took half a second until they were known to be dense.
_MOST_IN_A_ROW = 256


def hessian_if_sparse(
    f: Function, x: Point, *args: PyTree, where: Where = None
) -> SparseMatrix | None:
    """Compute the Hessian as `hotk.sparse_hessian` does, unless it is dense.

    Only the algebra is tried, and no coloring. The answer is part of the compiled
    program: for functions of the same code and captured structure it is found once.
    Captured integers and those in `args` are known by their content, as for
    `hotk.sparse_hessian`.

    Args:
        f: Function `f(x, *args)` that returns a real scalar.
        x: Point: any pytree.
        *args: Further arguments of `f`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        The matrix, known to be symmetric. `None` if more than a tenth of all entries
        would be in its pattern, if all products with the Hessian are cheaper than the
        way to it, or if a leaf is complex.

    Example:
        >>> hotk.sparse.hessian_if_sparse(lambda x: jnp.sum(x) ** 4, jnp.ones(50))
        >>> hotk.sparse.hessian_if_sparse(lambda x: jnp.sum(x**4), jnp.ones(50)).nnz
        50
    """
    result: Any = _if_sparse(f, x, *args, where=where)
    return result.matrix


@final
class _Answer(eqx.Module):
    matrix: SparseMatrix | None


@operator(
    candidates=second_order_candidates,
    modes=(Nested,),
    static_arrays=StaticArrays.ALL_INTEGERS,
    name="sparse_hessian",
)
def _if_sparse(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    where: Where = None,
):
    assert isinstance(mode, Nested)
    return _Answer(traced_hessian_if_sparse(f, x, mode)), ()


def traced_hessian_if_sparse(
    f: FunctionWithAux, x: Point, mode: Nested, *, however_dense: bool = False
) -> SparseMatrix | None:
    """Compute the Hessian within a trace, unless it is dense.

    Args:
        f: A function of one argument that returns a real scalar and an auxiliary
            output.
        x: The point: a tree of floating arrays.
        mode: How second derivatives are taken.
        however_dense: Whether a pattern with many entries is accepted too.

    Returns:
        The matrix, known to be symmetric, or `None`; see `hessian_if_sparse`.

    Example:
        >>> f = lambda x: (jnp.sum(x**4), None)
        >>> found = hotk.sparse.traced_hessian_if_sparse
        >>> mode = hotk.Nested(hotk.Forward(), hotk.Reverse())
        >>> jax.jit(lambda x: found(f, x, mode))(jnp.ones(50)).nnz
        50
    """
    if is_complex(x):
        return None
    task = hessian_task(f, x, mode)
    if however_dense:
        found = by_algebra(task)
        return None if found is None else found.symmetrized()
    return _unless_dense(task, dimension(x))


def traced_matrix_if_sparse(
    product: Callable[[PyTree], PyTree], like: PyTree
) -> SparseMatrix | None:
    """Compute the matrix of a symmetric linear map within a trace, unless it is dense.

    Args:
        product: The map.
        like: A vector that it takes, a tree of floating arrays.

    Returns:
        The matrix, known to be symmetric, or `None`; see `hessian_if_sparse`.

    Example:
        >>> found = hotk.sparse.traced_matrix_if_sparse
        >>> jax.jit(lambda x: found(lambda v: x * v, x))(jnp.ones(50)).nnz
        50
    """
    if is_complex(like):
        return None
    zeros = jax.tree.map(jnp.zeros_like, like)
    task = jacobian_task(lambda v: (product(v), None), zeros, Forward())
    return _unless_dense(task._replace(symmetric=True), dimension(like))


def _unless_dense(task: Task, n: int) -> SparseMatrix | None:
    # The pattern of what is cheaper by a coloring takes seconds to find: one who wants
    # no answer but a cheap one does not wait for it.
    found = by_algebra(task._replace(most=_MOST_IN_A_ROW * n))
    if found is None or found.nnz > _DENSEST * n**2:
        return None
    return found.symmetrized()
