"""Vectors that are trees: linear combinations, inner products, norms, over devices."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Inexact, Num, PyTree

from hotk._core import Held, Scalar, Tracer, Vector, cond, held
from hotk._dense import is_explicit, parts, promoted
from hotk._prepared import jitted
from hotk._primitive import summed


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


# Sums and maxima over the leaves of a vector, and over the devices that share them. A
# leaf in a `Shard` is one device's part: what is reduced of it is reduced over the axes
# of the mesh as well, by one collective for each set of axes.

Reduce = Callable[[Any, Any], Any]


def added(terms: Sequence[Held], start: Any) -> Any:
    """Add one number, or array of one shape, for each leaf.

    Args:
        terms: The terms, those of parts with the axes to add over.
        start: What to add them to.
    """
    over = lambda a, axes: summed([a], axes)[0]
    return _reduced(terms, start, lambda a, b: a + b, over)


def largest(entries: Sequence[Held], start: Any) -> Any:
    """Return the largest of one number for each leaf; it has no derivative by parts."""
    # JAX has no derivative of `pmax`, and none is needed: it is the unit of a norm
    over = lambda a, axes: jax.lax.pmax(jax.lax.stop_gradient(a), axes)
    return _reduced(entries, start, jnp.maximum, over)


def is_finite(*trees: PyTree) -> Bool[Array, ""]:
    """Whether all numbers in these trees are finite, those of all devices.

    What is not finite, less itself, is NaN. One sum of that is one kernel; a logical
    one becomes a tree of reductions, each a kernel to compile.
    """
    leaves = [a for a in held(trees) if jnp.issubdtype(a.array.dtype, jnp.inexact)]
    sums = [jnp.sum(a - a) for a, axes in leaves if not axes]
    own = [
        Held(jnp.isnan(jnp.sum(a - a)).astype(jnp.float32), axes)
        for a, axes in leaves
        if axes
    ]
    flags = [jnp.isfinite(a) for a in sums]
    if own:
        flags.append(added(own, 0) == 0)
    return functools.reduce(jnp.logical_and, flags, jnp.array(True))


def _reduced(
    terms: Sequence[Held],
    start: Any,
    both: Reduce,
    over: Callable[[Any, tuple[str, ...]], Any],
) -> Any:
    total, by_axes = start, dict[tuple[str, ...], Any]()
    for term, axes in terms:
        if not axes:
            total = both(total, term)
        else:
            by_axes[axes] = both(by_axes[axes], term) if axes in by_axes else term
    for axes, part in by_axes.items():
        total = both(total, over(part, axes))
    return total


def lowest(v: PyTree) -> Scalar:
    """Return the smallest entry of a vector with real leaves, infinity if it is empty.

    Of all devices, for what is divided among them.
    """
    entries = [Held(jnp.min(a, initial=jnp.inf), axes) for a, axes in held(v)]
    every = jnp.stack([a for a, axes in entries if not axes] or [jnp.array(jnp.inf)])
    over = lambda a, axes: jax.lax.pmin(a, axes)
    own = [entry for entry in entries if entry.axes]
    return _reduced(own, jnp.min(every), jnp.minimum, over)


def is_same(u: PyTree, v: PyTree, dtype: DTypeLike) -> Bool[Array, ""]:
    """Whether two vectors are equal in all entries, those of all devices.

    Args:
        u: A vector.
        v: Another.
        dtype: That of the count of others: a sum is one kernel.
    """
    pairs = zip(held(u), held(v), strict=True)
    others = [Held(jnp.sum(a.array != b.array, dtype=dtype), a.axes) for a, b in pairs]
    return added(others, jnp.zeros((), dtype)) == 0


# Inner products and norms of vectors that are trees. Complex leaves stand for their
# real and imaginary parts: the inner product is $\mathrm{Re}(\bar u^T v)$.


def inner(u: Vector, v: Vector) -> Scalar:
    """Return the real inner product of two vectors."""
    dtype = scalar_dtype(u)
    terms = []
    for a, b in zip(held(u), held(v), strict=True):
        of_u = a.array.astype(wide(a.array.dtype))
        of_v = b.array.astype(wide(b.array.dtype))
        terms.append(Held(jnp.sum(_product(of_u, of_v)).astype(dtype), a.axes))
    return added(terms, jnp.zeros((), dtype))


# A step has it in nine places, with twenty operations each: so it is traced once.
@jitted
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
    return unit * plain_norm(jax.tree.map(lambda a: _over(a, unit), widened(v)))


def _over(a: Inexact[Array, "..."], unit: Scalar) -> Array:
    unit = unit.astype(real_dtype(a))
    if jnp.iscomplexobj(a):
        return jax.lax.complex(a.real / unit, a.imag / unit)
    return a / unit


def power_of_size(v: Vector) -> Scalar:
    """Return a power of two near the largest entry, 1 if that is 0 or not finite.

    A vector over it has a norm that neither overflows nor vanishes, and its digits. The
    least normal number in place of 1 would be zero where XLA flushes: 0 / 0.
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
    return cond(finite, same, other, *numbers)


def _largest(v: Vector) -> Scalar:
    """Return the largest magnitude of a real or imaginary part."""
    dtype = scalar_dtype(v)
    entries = [
        Held(jnp.max(jnp.abs(part), initial=0).astype(dtype), axes)
        for leaf, axes in held(v)
        for part in parts(leaf)
    ]
    return largest(entries, jnp.zeros((), dtype))


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
