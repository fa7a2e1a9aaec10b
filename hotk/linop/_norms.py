r"""Inner products and norms of vectors that are trees.

Complex leaves stand for their real and imaginary parts: the inner product is
$\mathrm{Re}(\bar u^T v)$.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from hotk._core import Held, Scalar, Vector, cond, held
from hotk._dense import parts
from hotk._prepared import jitted

from ._algebra import real_dtype, scalar_dtype, times, wide, widened
from ._over_devices import added, largest


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
