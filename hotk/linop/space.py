r"""Vectors that are trees: inner products, combinations and bases, leaf by leaf.

Nothing is ravelled, so each leaf keeps its dtype and its sharding. Complex leaves stand
for their real and imaginary parts: the inner product is $\mathrm{Re}(\bar u^T v)$.
What a `Shard` holds is one device's part: sums and norms are those over all devices.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import (
    Held,
    RandomKey,
    Vector,
    has_shards as has_shards,
    held,
)
from hotk._dense import (
    dimension as dimension,
    flattened as flattened,
    gathered as gathered,
    is_explicit as is_explicit,
    parts as parts,
    promoted as promoted,
    refuse_shards as refuse_shards,
    unflattened as unflattened,
    whole as whole,
)

from ._algebra import (
    Factor as Factor,
    added,
    choose as choose,
    inner as inner,
    is_finite as is_finite,
    is_same as is_same,
    lowest as lowest,
    mesh_of as mesh_of,
    minus as minus,
    narrowed as narrowed,
    norm as norm,
    placed as placed,
    plain_norm as plain_norm,
    plus as plus,
    power_of_size as power_of_size,
    scalar_dtype as scalar_dtype,
    scaled_norm as scaled_norm,
    settled as settled,
    times as times,
    wide as wide,
    widened as widened,
    zeros as zeros,
)


# A draw takes long to compile: leaves up to this size are cut from one; larger ones,
# which may be sharded, are drawn in their own shape, those of one shape in a loop.
_SMALL = 1 << 16


def random(key: RandomKey, like: Vector, *, signs: bool = False) -> Vector:
    """Draw independent entries, normal or signs, in at least single precision.

    Real and imaginary parts are drawn one by one, so the covariance is the identity of
    the real space in either case.
    """
    if has_shards(like):
        return _random_by_device(key, like, signs)
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


def _random_by_device(key: RandomKey, like: Vector, signs: bool) -> Vector:
    """Draw the same entries on all devices, others for each part of an array."""
    leaves = held(like)
    arrays = [leaf.array for leaf in leaves]
    for number, axes in enumerate(dict.fromkeys(leaf.axes for leaf in leaves)):
        own = jax.random.fold_in(key, number)
        for axis in axes:
            own = jax.random.fold_in(own, jax.lax.axis_index(axis))
        places = [i for i, leaf in enumerate(leaves) if leaf.axes == axes]
        drawn = random(own, [arrays[i] for i in places], signs=signs)
        for i, a in zip(places, drawn, strict=True):
            arrays[i] = a
    return jax.tree.structure(like).unflatten(arrays)


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
    terms = [
        Held(_contracted(b.array, a.array).astype(dtype), a.axes)
        for b, a in zip(held(vectors), held(v), strict=True)
    ]
    return added(terms, 0)


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
