"""Random vectors of a space, by few draws: a draw takes long to compile."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from hotk.linop import space


# Leaves up to this size are cut from one draw; larger ones, which may be sharded, are
# drawn in their own shape, those of one shape in a loop.
_SMALL = 1 << 16


def entries(key: Any, like: Any, *, signs: bool) -> Any:
    """Draw independent entries, normal or signs, in at least single precision.

    Real and imaginary parts are drawn one by one, so the covariance is the identity of
    the real space in either case.
    """
    like = space.widened(like)
    arrays = space.parts(like)
    groups: dict[Any, list[int]] = {}
    for i, a in enumerate(arrays):
        shape = a.shape if a.size > _SMALL else None
        groups.setdefault((str(a.dtype), shape), []).append(i)
    keys = jax.random.split(key, max(len(groups), 1))
    draw = jax.random.rademacher if signs else jax.random.normal
    made = list(arrays)
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
            made[i] = piece.reshape(arrays[i].shape) + jnp.zeros_like(arrays[i])
    return space.whole(made, like)
