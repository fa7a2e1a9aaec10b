"""What is computed from the matrix by LAPACK, where the matrix is cheap.

On the host, by NumPy: a first call compiles the matrix, which is one product with
several vectors, and nothing else.
"""

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    RealNumber,
    Tracer,
    Vector,
    from_host,
    in_trace,
    manual_axes,
)

from . import space
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution


# Up to this dimension all products, several at once, are cheaper than an iteration that
# must also look for the copies of a multiple eigenvalue.
LARGEST = 128

Matrix: TypeAlias = Float[np.ndarray, "n n"]


def is_concrete(operator: PyTree) -> bool:
    """Whether an operator has numbers, on one device, and no trace is going on."""
    leaves = jax.tree.leaves((operator, getattr(operator, "like", None)))
    if in_trace() or any(isinstance(a, Tracer) for a in leaves):
        return False
    arrays = [a for a in leaves if isinstance(a, jax.Array)]
    return all(len(a.devices()) == 1 for a in arrays)


def is_small(operator: AbstractLinearMap) -> bool:
    """Whether the matrix is cheaper than an iteration, which has to be compiled."""
    return not operator.on_host and _has_few_rows(operator)


def _has_few_rows(operator: AbstractLinearMap) -> bool:
    if not is_concrete(operator):
        return False
    return 0 < space.dimension(operator.like) <= LARGEST


def matrix_on_host(operator: AbstractLinearMap) -> Matrix:
    """Return the matrix in double precision, whatever that of the operator."""
    return np.asarray(operator.matrix()).astype(np.float64)


def spectrum_of(
    operator: AbstractLinearMap, *, over_data: bool = False
) -> Float[Array, " n"] | None:
    """Return all eigenvalues of a symmetric operator whose matrix is cheap.

    Args:
        operator: A symmetric operator.
        over_data: Whether a product may be a pass over data.

    Returns:
        The eigenvalues, by LAPACK, in ascending order. `None` if the space has more
        than 128 dimensions, a product is a pass over data and may be none, or inside of
        a transformation: an iteration is the way then.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(2))
        >>> hotk.linop.spectrum_of(H).tolist()
        [-2.0, 2.0]
    """
    small = _has_few_rows(operator) if over_data else is_small(operator)
    if not small:
        return None
    values = decomposed(matrix_on_host(operator))[0]
    like = operator.like
    return on_device(values, space.scalar_dtype(like), like)


def small_matrix(operator: AbstractLinearMap) -> Float[Array, "n n"] | None:
    """Return the matrix inside of a transformation, where it is cheap.

    Args:
        operator: An operator.

    Returns:
        The matrix, in at least single precision. `None` outside of a transformation, if
        the space has more than 128 dimensions, and inside of `shard_map`, where there
        may be no unit directions.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.ones(2))
        >>> hotk.linop.small_matrix(H) is None
        True
    """
    if is_concrete(operator) or operator.on_host or manual_axes():
        return None
    if not 0 < space.dimension(operator.like) <= LARGEST:
        return None
    return operator.matrix().astype(space.scalar_dtype(operator.like))


def decomposed(a: Matrix) -> tuple[Float[np.ndarray, " n"], Matrix]:
    """Return eigenvalues and vectors as columns; NaN if the matrix is not finite."""
    if not np.isfinite(a).all():
        return np.full(len(a), np.nan), np.full_like(a, np.nan)
    return np.linalg.eigh(a)


def solved(
    operator: AbstractLinearMap, b: Vector, tol: RealNumber, by_cg: Solution
) -> Solution | None:
    """Solve `A x = b` by the eigenvectors of the matrix, for an indefinite operator.

    Args:
        operator: A symmetric operator whose matrix is cheap.
        b: The right-hand side, in working precision.
        tol: The largest residual over the norm of `b` that counts as converged.
        by_cg: Where conjugate gradients met that the operator is indefinite.

    Returns:
        The solution, that of least norm of the least-squares problem if eigenvalues are
        zero up to rounding. `None` if the matrix is not finite.
    """
    matrix, like = matrix_on_host(operator), operator.like
    values, vectors = decomposed(matrix)
    if not np.isfinite(values).all():
        return None
    n, dtype = len(values), space.scalar_dtype(b)
    right = as_rows(jax.tree.map(lambda a: np.asarray(a)[None], b))[0]
    precision = jnp.finfo(jax.tree.leaves(like)[0].dtype).eps
    is_zero = np.abs(values) <= float(precision) * n * np.max(np.abs(values))
    inverse = np.where(is_zero, 0, 1 / np.where(is_zero, 1, values))
    x = as_vectors(vectors @ (inverse * (vectors.T @ right)), like)
    # of the solution in its own precision
    rounded = as_rows(jax.tree.map(lambda a: np.asarray(a)[None], x))[0]
    r = right - matrix @ rounded
    residual, length = np.linalg.norm(r), np.linalg.norm(right)
    relative = residual / (length or 1)
    singular = Reason.least_squares if is_zero.any() else Reason.stagnated
    number = lambda a: on_device(a, dtype, like)
    return dataclasses.replace(
        by_cg,
        x=x,
        iterations=from_host(int(by_cg.iterations) + n, by_cg.iterations.dtype),
        residual=number(residual),
        relative=number(relative),
        model=number(-rounded @ (right + r) / 2),
        reason=Reason.converged if relative <= 1.5 * float(tol) else singular,
        method=Method.direct,
    )


def is_on_host(a: Array) -> bool:
    """Whether a matrix has numbers in the memory that NumPy works on."""
    if isinstance(a, Tracer):
        return False
    devices = a.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def eigenvalues(a: Array | np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the eigenvalues, in at least single precision; NaN if one is not finite.

    Args:
        a: A symmetric matrix in the memory of the host.
    """
    a = np.asarray(a)
    a = a.astype(space.wide(a.dtype), copy=False)
    if not np.isfinite(a).all():
        return np.full(len(a), np.nan, a.dtype)
    return np.linalg.eigvalsh(a)


def on_device(a: npt.ArrayLike, dtype: DTypeLike, like: Vector) -> Array:
    """Return a NumPy array as one of JAX, on the device of a vector."""
    a = np.asarray(a).astype(dtype)
    first = jax.tree.leaves(like)[0]
    if isinstance(first, jax.Array) and first.committed:
        return jax.device_put(a, next(iter(first.devices())))
    return from_host(a)


def as_vectors(rows: Float[np.ndarray, "*k n"], like: Vector) -> PyTree:
    """Return the rows of a matrix as vectors: a tree with one leading axis.

    One flat array becomes one vector.
    """
    leaves, start = [], 0
    for leaf in jax.tree.leaves(like):
        size, shape = leaf.size, (*rows.shape[:-1], *leaf.shape)
        piece = rows[..., start : start + size].reshape(shape)
        start += size
        if jnp.iscomplexobj(leaf):
            piece = piece + 1j * rows[..., start : start + size].reshape(shape)
            start += size
        leaves.append(on_device(piece, leaf.dtype, like))
    return jax.tree.structure(like).unflatten(leaves)


def as_rows(vectors: PyTree) -> Float[np.ndarray, "k n"]:
    """Return vectors, a tree with one leading axis, as the rows of a matrix."""
    pieces = []
    for leaf in jax.tree.leaves(vectors):
        a: Any = np.asarray(leaf)
        a = a.reshape(len(a), -1)
        pieces += [a.real, a.imag] if np.iscomplexobj(a) else [a]
    return np.concatenate([piece.astype(np.float64) for piece in pieces], axis=1)
