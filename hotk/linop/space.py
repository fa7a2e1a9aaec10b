r"""Vectors that are trees: inner products, combinations and bases, leaf by leaf.

Nothing is ravelled, so each leaf keeps its dtype and its sharding. Complex leaves stand
for their real and imaginary parts: the inner product is $\mathrm{Re}(\bar u^T v)$.
"""

import contextlib
import functools
import itertools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Inexact, Int, Num, PyTree

from hotk._core import RandomKey, Scalar, Tracer, Vector
from hotk.dense import (
    dimension as dimension,
    flattened as flattened,
    gathered as gathered,
    is_explicit as is_explicit,
    parts as parts,
    promoted as promoted,
    unflattened as unflattened,
    whole as whole,
)


Factor: TypeAlias = float | Num[Array, ""]
"""What a vector may be multiplied with: a real number, traced or not."""


def wide(dtype: DTypeLike) -> jnp.dtype:
    """Return the dtype in which sums over numbers of a dtype are taken."""
    return promoted(dtype, jnp.float32)


def widened(v: Vector) -> Vector:
    """Convert a vector's low-precision leaves to `float32`."""
    return jax.tree.map(lambda a: _cast(a, wide(a.dtype)), v)


def narrowed(v: Vector, like: Vector) -> Vector:
    """Convert a vector's leaves to the dtypes of another vector."""
    return jax.tree.map(lambda a, b: _cast(a, b.dtype), v, like)


def _cast(a: Array, dtype: DTypeLike) -> Array:
    # outside of a trace a cast that changes nothing still takes a call of JAX
    return a if a.dtype == dtype else a.astype(dtype)


def scalar_dtype(v: Vector) -> jnp.dtype:
    """Return the real dtype of inner products."""
    dtypes = [jnp.finfo(wide(a.dtype)).dtype for a in jax.tree.leaves(v)]
    return promoted(jnp.float32, *dtypes)


def inner(u: Vector, v: Vector) -> Scalar:
    """Return the real inner product of two vectors."""
    dtype = scalar_dtype(u)
    total = jnp.zeros((), dtype)
    for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(v), strict=True):
        a, b = a.astype(wide(a.dtype)), b.astype(wide(b.dtype))
        total += jnp.sum(_product(a, b)).astype(dtype)
    return total


def norm(v: Vector) -> Scalar:
    """Return the Euclidean norm of a vector, whatever its size.

    Over a power of two near its largest entry nothing overflows and no digit is lost.
    It reads the vector twice: a branch for what overflows would be ten kernels to
    compile, at each of the many places.
    """
    if not jax.tree.leaves(v):
        return inner(v, v)
    (unit,) = settled(v, power_of_size(v))
    return unit * plain_norm(times(1 / unit, widened(v)))


def plain_norm(v: Vector) -> Scalar:
    """As `norm`, of a vector whose square neither overflows nor vanishes."""
    return jnp.sqrt(inner(v, v))


def scaled_norm(v: Vector) -> Scalar:
    """As `norm`, and reads the vector twice."""
    (size,) = settled(v, _largest(v))
    unit = jnp.where(jnp.isfinite(size) & (size > 0), size, 1)
    return unit * plain_norm([a / unit.astype(a.dtype) for a in parts(widened(v))])


def power_of_size(v: Vector) -> Scalar:
    """Return a power of two near the largest entry, 1 if that is 0 or not finite.

    A vector over it has a norm that neither overflows nor vanishes, and its digits.
    """
    largest = _largest(v)
    least = max([float(jnp.finfo(a.dtype).tiny) for a in jax.tree.leaves(v)], default=1)
    sensible = jnp.isfinite(largest) & (largest > 0)
    power = _power_below(jnp.where(sensible, largest, 1))
    return jnp.clip(power, least, 1 / least)


def settled(v: Vector, *numbers: Scalar) -> tuple[Scalar, ...]:
    """Return numbers that a program computes once.

    A sum over many leaves would be computed anew in each kernel that reads it, once for
    each leaf: the compiler's work grew with the square of their number. Branches that
    differ keep it apart; a barrier is gone before kernels are made.
    """
    if len(jax.tree.leaves(v)) <= 2:
        return numbers
    same, other = lambda *a: a, lambda *a: tuple(x + x for x in a)
    # twice what is infinite or NaN is the same
    finite = functools.reduce(jnp.logical_or, map(jnp.isfinite, numbers))
    return jax.lax.cond(finite, same, other, *numbers)


def _largest(v: Vector) -> Scalar:
    """Return the largest magnitude of a real or imaginary part."""
    dtype = scalar_dtype(v)
    largest = jnp.zeros((), dtype)
    for part in parts(v):
        entry = jnp.max(jnp.abs(part), initial=0).astype(dtype)
        largest = jnp.maximum(largest, entry)
    return largest


def _power_below(number: Scalar) -> Scalar:
    """Return the largest power of two that is not above a positive number.

    By its bits: a logarithm and an exponential would be programs of their own in each
    of the many places.
    """
    limits = jnp.finfo(number.dtype)
    integers = jnp.dtype(f"int{limits.bits}")
    mantissa = jnp.asarray((1 << limits.nmant) - 1, integers)
    bits = jax.lax.bitcast_convert_type(number, integers)
    return jax.lax.bitcast_convert_type(bits & ~mantissa, number.dtype)


def _product(a: Inexact[Array, "..."], b: Inexact[Array, "..."]) -> Array:
    if jnp.iscomplexobj(a) or jnp.iscomplexobj(b):
        return jnp.real(a) * jnp.real(b) + jnp.imag(a) * jnp.imag(b)
    return a * b


def times(factor: Factor, v: Vector) -> Vector:
    """Return a multiple of a vector, leaf by leaf in the leaf's dtype."""
    return jax.tree.map(lambda a: _scaled(factor, a), v)


def _scaled(factor: Factor, a: Inexact[Array, "..."]) -> Array:
    factor = jnp.asarray(factor, _real(a))
    if jnp.iscomplexobj(a):
        return jax.lax.complex(factor * a.real, factor * a.imag)
    return factor * a


def plus(u: Vector, v: Vector, factor: Factor = 1) -> Vector:
    """Return `u + factor v`."""
    return jax.tree.map(lambda a, b: a + _scaled(factor, b), u, v)


def minus(u: Vector, v: Vector) -> Vector:
    """Return `u - v`."""
    return jax.tree.map(jnp.subtract, u, v)


def choose(condition: bool | Bool[Array, ""], u: Vector, v: Vector) -> Vector:
    """Return `u` where a scalar condition holds, else `v`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), u, v)


def zeros(like: Vector) -> Vector:
    """Return the zero vector."""
    with mesh_of(like):
        return jax.tree.map(jnp.zeros_like, like)


def mesh_of(v: Vector) -> contextlib.AbstractContextManager[Any]:
    """Enter the mesh that a traced vector is split over explicitly, if it is.

    The zeros that a program begins with belong to no mesh otherwise.
    """
    for a in jax.tree.leaves(v):
        if isinstance(a, Tracer) and is_explicit(a):
            return jax.sharding.use_abstract_mesh(jax.typeof(a).sharding.mesh)
    return contextlib.nullcontext()


def placed(v: Vector, like: Vector) -> Vector:
    """Split a vector among devices as another one is, unless it is being traced."""

    def one(a: Array, b: Array) -> Array:
        if isinstance(a, Tracer) or isinstance(b, Tracer):
            return a
        return jax.device_put(a, b.sharding) if len(b.devices()) > 1 else a

    return jax.tree.map(one, v, like)


def _real(a: Inexact[Array, "..."]) -> jnp.dtype:
    return jnp.finfo(a.dtype).dtype


# A draw takes long to compile: leaves up to this size are cut from one; larger ones,
# which may be sharded, are drawn in their own shape, those of one shape in a loop.
_SMALL = 1 << 16


def random(key: RandomKey, like: Vector, *, signs: bool = False) -> Vector:
    """Draw independent entries, normal or signs, in at least single precision.

    Real and imaginary parts are drawn one by one, so the covariance is the identity of
    the real space in either case.
    """
    like = widened(like)
    arrays = parts(like)
    groups: dict[tuple[str, tuple[int, ...] | None], list[int]] = {}
    for i, a in enumerate(arrays):
        shape = a.shape if a.size > _SMALL else None
        groups.setdefault((str(a.dtype), shape), []).append(i)
    keys = jax.random.split(key, max(len(groups), 1))
    draw = jax.random.rademacher if signs else jax.random.normal
    made, blank = list(arrays), zeros(arrays)
    for one, ((_, shape), group) in zip(keys, groups.items(), strict=False):
        dtype = arrays[group[0]].dtype
        if shape is None:
            sizes = [arrays[i].size for i in group]
            # without the barrier each leaf would draw for itself
            flat = jax.lax.optimization_barrier(draw(one, (sum(sizes),), dtype))
            bounds = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
            pieces = [flat[a:b] for a, b in itertools.pairwise(bounds)]
        else:
            each = lambda k, shape=shape, dtype=dtype: draw(k, shape, dtype)
            pieces = jax.lax.map(each, jax.random.split(one, len(group)))
            pieces = jax.lax.optimization_barrier(pieces)
        for i, piece in zip(group, pieces, strict=True):
            # zeros like the leaf give its sharding, whatever kind its axes are
            made[i] = piece.reshape(arrays[i].shape) + blank[i]
    return whole(made, like)


# ----- Bases: the same tree with one leading axis

_FULL = jax.lax.Precision.HIGHEST


def basis(like: Vector, count: int) -> PyTree:
    """Return `count` zero vectors."""
    rows = lambda a: jnp.broadcast_to(a[None], (count, *a.shape))
    return jax.tree.map(rows, zeros(like))


def put(vectors: PyTree, index: int | Int[Array, ""], v: Vector) -> PyTree:
    """Replace one vector of a basis."""
    return jax.tree.map(
        lambda b, a: jax.lax.dynamic_update_index_in_dim(b, a, index, 0), vectors, v
    )


def take(vectors: PyTree, index: int | Int[Array, ""]) -> Vector:
    """Return one vector of a basis."""
    return jax.tree.map(
        lambda b: jax.lax.dynamic_index_in_dim(b, index, 0, keepdims=False), vectors
    )


def coefficients(vectors: PyTree, v: Vector) -> Float[Array, " count"]:
    """Return the inner products of all vectors of a basis with one."""
    dtype = scalar_dtype(v)
    total: Any = 0
    for b, a in zip(jax.tree.leaves(vectors), jax.tree.leaves(v), strict=True):
        total += _contracted(b, a).astype(dtype)
    return total


def _contracted(b: Array, a: Array) -> Float[Array, " count"]:
    if jnp.iscomplexobj(a):
        return _contracted(b.real, a.real) + _contracted(b.imag, a.imag)
    if is_explicit(a):  # a product of matrices would ask how the result is split
        return jnp.sum(b * a[None], axis=tuple(range(1, b.ndim)))
    axes = (tuple(range(1, b.ndim)), tuple(range(a.ndim)))
    return jnp.tensordot(b, a, axes=axes, precision=_FULL)


def combination(weights: Float[Array, "*rows count"], vectors: PyTree) -> PyTree:
    """Combine the vectors of a basis, once or for each row of a matrix of weights."""
    return jax.tree.map(
        lambda b: jnp.tensordot(weights.astype(b.dtype), b, axes=1, precision=_FULL),
        vectors,
    )


def orthogonal(basis: PyTree, w: Vector) -> tuple[Vector, Float[Array, " count"]]:
    """Subtract from a vector its part in the span of a basis; return both."""
    found = coefficients(basis, w)
    return minus(w, combination(found, basis)), found
