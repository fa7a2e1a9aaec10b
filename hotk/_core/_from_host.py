"""Numbers of the host as arrays of JAX, without a program for each shape and dtype."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike

from ._compat import Tracer, in_trace


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
