"""Operators whose matrix is sparse: the matrix, and systems by its factors."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, PyTree

from hotk._core import RealNumber, Tracer, called_on_host
from hotk._prepared import STORE, jitted
from hotk.sparse import (
    Factorization,
    SparseMatrix,
    factorization_work,
    is_worth_factors,
)

from . import space
from ._direct import is_concrete
from ._driver import End, check_system, finished
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution


# Below this dimension all products take milliseconds, and whether the matrix is sparse
# takes longer to find out, in a first call.
LEAST = 2000
# Operators without a sparse matrix, by structure and shapes, but not by the content of
# integers: with the labels of another batch the question would take a trace again
# (tests/linop/test_sparse.py). An answer that is kept in error costs time alone.
_FOUND_DENSE: dict[Hashable, None] = {}
STORE.others.append(_FOUND_DENSE)
_MOST_FOUND = 256
# Where factors take no more work than so many products, there is no better way.
FEW_PRODUCTS = 100


def sparse_if_large(operator: AbstractLinearMap) -> SparseMatrix | None:
    """Return the sparse matrix of a large operator, `None` if it has none.

    Nothing is asked inside of a trace, where indices may not be known.
    """
    if operator.on_host or space.dimension(operator.like) < LEAST:
        return None
    if not is_concrete(operator):
        return None
    leaves, treedef = jax.tree.flatten(operator)
    kind = (treedef, *((jnp.shape(a), jnp.result_type(a)) for a in leaves))
    if kind in _FOUND_DENSE:
        return None
    matrix = operator.sparse_or_none(operator.like)
    if matrix is None:
        while len(_FOUND_DENSE) >= _MOST_FOUND:
            _FOUND_DENSE.pop(next(iter(_FOUND_DENSE)), None)
        _FOUND_DENSE[kind] = None
    return matrix


# Each as one program: by themselves they are a dozen, to be compiled one by one.
dense_of = jitted(SparseMatrix.todense)
diagonal_of = jitted(SparseMatrix.diagonal)


def sparse_of(call: str, operator: AbstractLinearMap) -> SparseMatrix:
    """Return the sparse matrix of an operator that was asked for.

    Raises:
        TypeError: If the operator is none of those that have one.
    """
    method = getattr(operator, "sparse", None)
    matrix = operator.sparse_or_none(operator.like) if method is None else method()
    if matrix is None:
        raise TypeError(
            f'`{call}`: method "sparse" is for Hessians, Gauss-Newton and Fisher '
            "matrices whose pattern is sparse, and for sums of them with `Diagonal` "
            "and multiples of `Identity()`."
        )
    return matrix


def is_banded(matrix: SparseMatrix) -> bool:
    """Whether factors take hardly more work than the products of an iteration."""
    return factorization_work(matrix.pattern) <= FEW_PRODUCTS * matrix.nnz


def solve_by_factors(
    operator: AbstractLinearMap,
    matrix: SparseMatrix,
    b: PyTree,
    tol: RealNumber,
    *,
    batched: bool = False,
) -> Solution:
    """Solve `A x = b` by factors of the sparse matrix, on the host.

    Args:
        operator: The operator.
        matrix: Its matrix.
        b: The right-hand side.
        tol: The largest residual over the norm of `b` that counts as converged.
        batched: Whether `b` has a leading axis, one right-hand side each.
    """
    count = len(jax.tree.leaves(b)[0]) if batched else 1
    rights = [space.take(b, i) if batched else b for i in range(count)]
    systems = [
        check_system("solve(A, b)", operator, right, None, tol, None)
        for right in rights
    ]
    rights = [right for right, _, _ in systems]
    flat = jnp.stack([space.flattened(right) for right in rights])
    found = _on_host(matrix, flat)
    solutions = []
    for i, (right, (_, _, limits)) in enumerate(zip(rights, systems, strict=True)):
        x, curvature, direction = (a[i] for a in found)
        x = x.astype(flat.dtype)
        r = flat[i] - matrix.astype(flat.dtype) @ x
        finite = jnp.all(jnp.isfinite(x))
        end = End(
            space.unflattened(x, right),
            space.unflattened(r, right),
            jnp.zeros((), jnp.int32),
            curvature.astype(limits.tol.dtype),
            space.unflattened(direction.astype(flat.dtype), right),
            Reason.where(finite, Reason.converged, Reason.not_finite),
        )
        unit = jnp.ones_like(limits.tol)
        solutions.append(
            finished(right, end, limits.tol, Method.sparse, operator.like, unit)
        )
    if not batched:
        return solutions[0]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *solutions)


def _on_host(
    matrix: SparseMatrix, b: Float[Array, "k n"]
) -> tuple[Float[Array, "k n"], Float[Array, " k"], Float[Array, "k n"]]:
    """Return solutions, the smallest curvatures known, and their directions if bad.

    The matrix is factorized once for all right-hand sides.
    """
    pattern, dtype = matrix.pattern, np.dtype(space.wide(matrix.dtype))

    def host(values: npt.ArrayLike, b: npt.ArrayLike) -> tuple[np.ndarray, ...]:
        # In double precision: it costs the host hardly more, and saves the digits.
        rights = np.asarray(b, np.float64)
        none, zeros = np.zeros(rights.shape, dtype), np.zeros(len(rights), dtype)
        try:
            factors = Factorization(pattern, np.asarray(values, np.float64))
            factors.check_regular("H.solve(b)", dtype)
            x = factors.solve_flat(rights.T).T
        except (RuntimeError, ValueError):  # singular, or not finite
            return np.full_like(none, np.nan), zeros, none
        if factors.is_definite():
            sizes = np.sum(x * x, axis=1)
            along = np.sum(rights * x, axis=1)
            safe = np.where(sizes > 0, sizes, 1)
            curvatures = np.where(sizes > 0, along / safe, np.inf)
            return x.astype(dtype), curvatures.astype(dtype), none
        curvature, p = factors.negative_curvature()
        alike = np.full_like(zeros, curvature), np.broadcast_to(p, x.shape)
        return x.astype(dtype), alike[0], alike[1].astype(dtype)

    arguments: Any = matrix.values, b
    if not any(isinstance(a, Tracer) for a in arguments):
        x, curvature, p = map(jnp.asarray, host(*arguments))
        return x, curvature, p
    vectors = jax.ShapeDtypeStruct(b.shape, dtype)
    types = vectors, jax.ShapeDtypeStruct(b.shape[:1], dtype), vectors
    return called_on_host(host, types, *arguments)


def inertia_by_factors(
    operator: AbstractLinearMap,
) -> tuple[int, int, int] | None:
    """Count eigenvalues of each sign by sparse factors, `None` if they do not tell."""
    matrix = sparse_if_large(operator)
    if matrix is None or not is_worth_factors(matrix.pattern):
        return None
    try:
        return matrix.factorize().inertia()
    except (ValueError, RuntimeError):  # pivots off the diagonal, or none
        return None
