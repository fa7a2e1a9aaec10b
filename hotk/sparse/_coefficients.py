"""Coefficients of pieces: numbers, arrays, or nothing where only a pattern is asked."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from hotk._primitive import written

from ._positions import Positions, Shape, as_affine, size_of, strides, unravel


Coefficient: TypeAlias = Any
"""`None` for a pattern alone; a Python number; or an array whose axes are those of the
piece, some of them of length one."""


def is_number(a: Coefficient) -> bool:
    """Whether a coefficient is one number, or none is asked for."""
    return a is None or np.ndim(a) == 0


def is_concrete(a: object) -> bool:
    """Whether a value is known now, and not a tracer."""
    return isinstance(a, (np.ndarray, np.generic, bool, int, float, complex))


def times(a: Coefficient, b: Coefficient) -> Coefficient:
    """Return the product of two coefficients."""
    if a is None or b is None:
        return None
    if isinstance(a, float) and a == 1.0:
        return b
    if isinstance(b, float) and b == 1.0:
        return a
    return a * b


def plus(a: Coefficient, b: Coefficient) -> Coefficient:
    """Return the sum of two coefficients."""
    return None if a is None or b is None else a + b


def reshaped(
    a: Coefficient, shape: Sequence[int], change: Callable[[Any], Any]
) -> Coefficient:
    """Apply an operation on axes to a coefficient; one number has no axes.

    Args:
        a: The coefficient.
        shape: The shape of its piece.
        change: The operation.
    """
    if is_number(a):
        return a
    if a.shape != tuple(shape):
        a = jnp.broadcast_to(a, tuple(shape))
    return change(a)


def taken(
    a: Coefficient, positions: Positions, *, is_written: bool = False
) -> Coefficient:
    """Return `a.ravel()[positions]`, as a slice where the positions are a grid.

    XLA fuses a slice into what uses it; a gather it may compute its operand for, once
    for each number that is read.
    """
    if is_number(a):
        return a
    if isinstance(a, np.ndarray):
        return a.reshape(-1)[positions]
    if size_of(a.shape) == 1:
        return a.reshape(())
    shape = positions.shape
    if not positions.size:
        return jnp.zeros(shape, a.dtype)
    affine = as_affine(positions)
    if affine is not None:
        base, steps = affine
        own = strides(shape)
        axes = zip(steps, own, shape, strict=True)
        if a.size == positions.size and all(s == o for s, o, k in axes if k > 1):
            return a.reshape(shape)
        part = _window(a, shape, base, steps)
        if part is not None:
            return part
    small = a.size < np.iinfo(np.int32).max
    index = positions.astype(np.int32 if small else np.int64)
    flat = (a if is_written else written(a)).reshape(-1)
    return flat.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def read_at(a: Array, places: Positions) -> Array:
    """Return the entries of an array of one axis, which is `written`, at places."""
    return jnp.broadcast_to(taken(a, places, is_written=True), places.shape)


def _window(a: Array, shape: Shape, base: int, steps: Sequence[int]) -> Array | None:
    """Return `a.ravel()[grid(shape, steps, base)]` by a slice, `None` if it is none."""
    own = strides(a.shape)
    start = [int(i) for i in unravel(np.asarray(base, np.int64), a.shape)]
    axes: list[int | None] = []
    limits: dict[int, tuple[int, int]] = {}
    for step, count in zip(steps, shape, strict=True):
        if count == 1 or step == 0:
            axes.append(None)
            continue
        for axis, length in enumerate(a.shape):
            along = step // own[axis]
            if axis in limits or step % own[axis] or along <= 0:
                continue
            if start[axis] + (count - 1) * along < length:
                limits[axis] = (start[axis] + (count - 1) * along + 1, along)
                axes.append(axis)
                break
        else:
            return None
    bounds = [limits.get(d, (first + 1, 1)) for d, first in enumerate(start)]
    part = lax.slice(a, start, [b[0] for b in bounds], [b[1] for b in bounds])
    part = lax.squeeze(part, [d for d in range(a.ndim) if d not in limits])
    rank = {axis: i for i, axis in enumerate(sorted(limits))}
    part = lax.transpose(part, [rank[axis] for axis in axes if axis is not None])
    places = [d for d, axis in enumerate(axes) if axis is not None]
    return lax.broadcast_in_dim(part, shape, places)


def short_sum(a: Coefficient, axis: int, count: int) -> Coefficient:
    """Return the sum along an axis: of a few terms as additions, which XLA fuses."""
    if count > 16:
        return jnp.sum(a, axis)
    terms = [lax.index_in_dim(a, i, axis, keepdims=False) for i in range(count)]
    return sum(terms[1:], terms[0])


def masked(a: Coefficient, mask: Array, dtype: np.dtype) -> Coefficient:
    """Return a coefficient where a traced mask holds, zero elsewhere."""
    if a is None:
        return None
    return jnp.where(mask, jnp.asarray(a, dtype), jnp.zeros((), dtype))


def as_array(a: Coefficient, shape: Sequence[int], dtype: np.dtype) -> Array:
    """Return a coefficient as an array of the shape of its piece."""
    return jnp.broadcast_to(jnp.asarray(a, dtype), tuple(shape))


def number_of(a: Any) -> Any:
    """Return a known number as a Python number, so that no dtype is promoted.

    An array of one number, other than zero, is that number: it is not read then.
    """
    if not is_concrete(a):
        return a
    if np.ndim(a):
        first = a.reshape(-1)[0] if a.size else 0
        if first == 0 or not (a == first).all():
            return a
        a = first
    return complex(a) if np.iscomplexobj(a) else float(a)
