"""Vectors that are trees as one flat array of real numbers, and back.

A complex leaf has its real parts first, then its imaginary parts.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num, PyTree

from hotk._core import (
    StructureError,
    Tracer,
    Vector,
    describe,
    has_shards,
    held,
    is_divided_by_type,
    message,
    typed_as,
)


def promoted(*dtypes: DTypeLike) -> jnp.dtype:
    """Return the dtype that holds numbers of all of these, whatever JAX is set to."""
    different = {jnp.dtype(dtype) for dtype in dtypes}
    if len(different) == 1:
        return different.pop()
    # JAX promotes no floats of eight bits or less; each fits into a bfloat16.
    dtypes = tuple(jnp.bfloat16 if _is_tiny(d) else d for d in dtypes)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.dtype(functools.reduce(jnp.promote_types, dtypes))


def _is_tiny(dtype: DTypeLike) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.finfo(dtype).bits <= 8


def dimension(v: Vector) -> int:
    """Count the real numbers in a vector: two for each complex one.

    Those of all devices, for what is divided among them by hand.
    """
    sizes = [
        a.size * (2 if jnp.iscomplexobj(a) else 1) * math.prod(map(_devices, axes))
        for a, axes in held(v)
    ]
    return sum(sizes)


def _devices(axis: str) -> int:
    return jax.lax.axis_size(axis)


def is_explicit(a: Array) -> bool:
    """Whether the type of an array says how it is split among devices."""
    return is_divided_by_type(a)


def gathered(a: Array) -> Array:
    """Return an array whole on each device, if its type would forbid to reshape it."""
    if not is_explicit(a):
        return a
    sharding: Any = jax.typeof(a).sharding if isinstance(a, Tracer) else a.sharding
    whole = PartitionSpec(*[None] * a.ndim)
    return jax.sharding.reshard(a, NamedSharding(sharding.mesh, whole))


def parts(v: Vector) -> list[Array]:
    """List the real arrays of a vector: two for a complex leaf.

    Raises:
        StructureError: If this device holds only a part of one.
    """
    refuse_shards(v)
    made = []
    for leaf in jax.tree.leaves(v):
        made += [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]
    return made


def refuse_shards(v: PyTree) -> None:
    """Refuse a vector of which this device holds only a part.

    Raises:
        StructureError: If it has a `Shard`.
    """
    if has_shards(v):
        raise StructureError(
            message(
                "a dense result or a flat vector",
                "a leaf is one device's part of an array, a `Shard`: the directions "
                "and entries of the other devices are not here.",
                expected="arrays that each device holds whole",
                got="a tree with `Shard` nodes",
                fix="Call it outside of `shard_map`, where JAX divides the arrays; or "
                "use what takes products only: `H @ v`, `solve`, `eigh`, "
                "`hotk.estimate`, `newton_cg`.",
            )
        )


def whole(arrays: Iterable[Array | np.ndarray], like: Vector) -> Vector:
    """Put real arrays together again to a vector."""
    remaining = iter(arrays)
    made = [
        jax.lax.complex(next(remaining), next(remaining))
        if jnp.iscomplexobj(leaf)
        else next(remaining)
        for leaf in jax.tree.leaves(like)
    ]
    return jax.tree.structure(like).unflatten(made)


def flattened(v: Vector) -> Float[Array, " n"]:
    """Return a vector as one array, in the order of the index."""
    arrays = parts(v)
    dtype = promoted(*[a.dtype for a in arrays])
    return jnp.concatenate([gathered(a).ravel().astype(dtype) for a in arrays])


def unflattened(flat: Num[Array | np.ndarray, " n"], like: Vector) -> Vector:
    """Return one array as a vector; of the leaves of `like` only the types matter.

    Along explicit axes it is divided as these are. An array of NumPy becomes arrays of
    NumPy.

    Raises:
        StructureError: If the numbers are complex, whose imaginary parts a cast drops.
    """
    refuse_shards(like)
    if jnp.iscomplexobj(flat):
        raise StructureError(
            f"a flat vector of complex numbers, {describe(flat)}, for a space of "
            f"{dimension(like)} real ones: write `A @ v.real` and `A @ v.imag`."
        )
    made, start = [], 0
    for leaf in jax.tree.leaves(like):
        for _ in range(2 if jnp.iscomplexobj(leaf) else 1):
            piece = flat[start : start + leaf.size].reshape(leaf.shape)
            made.append(piece.astype(jnp.finfo(leaf.dtype).dtype))
            start += leaf.size
    v = whole(made, like)
    typed = lambda a, b: typed_as(a, b) if isinstance(b, Tracer) else a
    return jax.tree.map(typed, v, like)
