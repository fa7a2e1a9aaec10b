"""Operations of programs that NumPy does as JAX does, to the last bit."""

from collections.abc import Callable
from typing import Any

import numpy as np


def _broadcast(array: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, array.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(array.reshape(sizes), shape)


def _slice(
    array: Any, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> Any:
    steps = strides or [1] * array.ndim
    bounds = zip(start_indices, limit_indices, steps, strict=True)
    return array[tuple(slice(*b) for b in bounds)]


def _split(array: Any, sizes: Any, axis: int, **_: Any) -> Any:
    return np.split(array, np.cumsum(sizes)[:-1], axis)


# Operations that only move numbers, by NumPy: it and JAX do the same with any content.
MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *arrays, dimension, **_: np.concatenate(arrays, dimension),
    "copy": lambda array, **_: array,
    "reshape": lambda array, new_sizes, **_: array.reshape(new_sizes),
    "rev": lambda array, dimensions, **_: np.flip(array, dimensions),
    "slice": _slice,
    "split": _split,
    "squeeze": lambda array, dimensions, **_: np.squeeze(array, tuple(dimensions)),
    "transpose": lambda array, permutation, **_: np.transpose(array, permutation),
    "unstack": lambda array, axis, **_: list(np.moveaxis(array, axis, 0)),
}
# Exact where JAX has the numbers that NumPy has.
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}
LOGIC: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "not": np.bitwise_not,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "reduce_and": lambda array, axes, **_: np.all(array, axis=tuple(axes)),
    "reduce_or": lambda array, axes, **_: np.any(array, axis=tuple(axes)),
}
# The last bits of integers: those of a result are given by those of what it is made of.
RING: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "neg": np.negative,
    "sub": np.subtract,
}
# Of floats these are exact, also once digits were dropped.
ORDERED: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "reduce_max": lambda array, axes, **_: np.max(array, axis=tuple(axes)),
    "reduce_min": lambda array, axes, **_: np.min(array, axis=tuple(axes)),
}
# With all digits NumPy and JAX round these alike.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    **RING,
    "div": np.divide,
    "sqrt": np.sqrt,
    "square": np.square,
}
