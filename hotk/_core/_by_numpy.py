"""NumPy in place of JAX: operations that agree to the last bit, and host numbers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike

from ._compat import Tracer, in_trace


Arrays: TypeAlias = np.ndarray | list[np.ndarray]


def _broadcast(
    array: np.ndarray,
    shape: Sequence[int],
    broadcast_dimensions: Sequence[int],
    **_: object,
) -> np.ndarray:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, array.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(array.reshape(sizes), shape)


def _slice(
    array: np.ndarray,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
    **_: object,
) -> np.ndarray:
    steps = strides or [1] * array.ndim
    bounds = zip(start_indices, limit_indices, steps, strict=True)
    return array[tuple(slice(*b) for b in bounds)]


def _split(
    array: np.ndarray, sizes: Sequence[int], axis: int, **_: object
) -> list[np.ndarray]:
    return np.split(array, np.cumsum(sizes)[:-1], axis)


def _reshape(
    array: np.ndarray,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    **_: object,
) -> np.ndarray:
    # in another order of axes, as `jnp.ravel(a, order="F")` writes it
    ordered = array if dimensions is None else np.transpose(array, dimensions)
    return ordered.reshape(new_sizes)


def _iota(
    shape: Sequence[int], dimension: int, dtype: np.dtype, **_: object
) -> np.ndarray:
    axis = [1] * len(shape)
    axis[dimension] = shape[dimension]
    return np.broadcast_to(
        np.arange(shape[dimension], dtype=dtype).reshape(axis), shape
    )


def _select(which: np.ndarray, *cases: np.ndarray, **_: object) -> np.ndarray:
    if len(cases) == 2:
        return np.where(np.asarray(which).astype(bool), cases[1], cases[0])
    return np.choose(which, cases)


# Operations that only move numbers, by NumPy: it and JAX do the same with any content.
MOVES: dict[str, Callable[..., Arrays]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *arrays, dimension, **_: np.concatenate(arrays, dimension),
    "copy": lambda array, **_: array,
    "reshape": _reshape,
    "rev": lambda array, dimensions, **_: np.flip(array, dimensions),
    "slice": _slice,
    "split": _split,
    "squeeze": lambda array, dimensions, **_: np.squeeze(array, tuple(dimensions)),
    "transpose": lambda array, permutation, **_: np.transpose(array, permutation),
    "unstack": lambda array, axis, **_: list(np.moveaxis(array, axis, 0)),
}
# Exact where JAX has the numbers that NumPy has.
COMPARISONS: dict[str, Callable[..., Arrays]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}
LOGIC: dict[str, Callable[..., Arrays]] = {
    "and": np.bitwise_and,
    "not": np.bitwise_not,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "reduce_and": lambda array, axes, **_: np.all(array, axis=tuple(axes)),
    "reduce_or": lambda array, axes, **_: np.any(array, axis=tuple(axes)),
}
# The last bits of integers: those of a result are given by those of what it is made of.
RING: dict[str, Callable[..., Arrays]] = {
    "add": np.add,
    "mul": np.multiply,
    "neg": np.negative,
    "sub": np.subtract,
}
# Of floats these are exact, also once digits were dropped.
ORDERED: dict[str, Callable[..., Arrays]] = {
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "reduce_max": lambda array, axes, **_: np.max(array, axis=tuple(axes)),
    "reduce_min": lambda array, axes, **_: np.min(array, axis=tuple(axes)),
}
# With all digits NumPy and JAX round these alike.
ARITHMETIC: dict[str, Callable[..., Arrays]] = {
    **RING,
    "div": np.divide,
    "sqrt": np.sqrt,
    "square": np.square,
}
# Exact as well, once dtypes are as JAX has them.
SELECTED: dict[str, Callable[..., Arrays]] = {"iota": _iota, "select_n": _select}


_OF_HOST = (bool, int, float, complex, np.generic, np.ndarray)


def from_host(number: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return `jnp.asarray` of a number: that compiles a program, and this does not.

    Args:
        number: A number, or an array of NumPy, which is copied. Anything else is left
            to `jnp.asarray`, but for one number in an array of JAX that gets another
            dtype, which goes by the host.
        dtype: The dtype of the result; a number of Python is weakly typed without it.
    """
    if in_trace():  # where it compiles nothing, and an array is a constant
        return jnp.asarray(number, dtype)
    array = number if isinstance(number, jax.Array) and dtype is not None else None
    if array is not None and array.ndim == 0 and not array.committed:
        number = np.asarray(array)
    if not isinstance(number, _OF_HOST):
        return jnp.asarray(number, dtype)
    if dtype is None and not isinstance(number, np.ndarray):
        return jax.device_put(number)
    return jax.device_put(np.array(number, dtype))


def is_known(a: Any) -> bool:
    """Whether the values of an array are known, and all of them in this process."""
    return not isinstance(a, Tracer) and getattr(a, "is_fully_addressable", True)
