"""Linear combinations of vectors that are trees, leaf by leaf, in their dtypes."""

import contextlib
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Inexact, Num

from hotk._core import Tracer, Vector
from hotk._dense import is_explicit, promoted


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


def times(factor: Factor, v: Vector) -> Vector:
    """Return a multiple of a vector, leaf by leaf in the leaf's dtype."""
    return jax.tree.map(lambda a: _scaled(factor, a), v)


def _scaled(factor: Factor, a: Inexact[Array, "..."]) -> Array:
    factor = jnp.asarray(factor, real_dtype(a))
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


def real_dtype(a: Inexact[Array, "..."]) -> jnp.dtype:
    """Return the dtype of the real parts of an array."""
    return jnp.finfo(a.dtype).dtype
