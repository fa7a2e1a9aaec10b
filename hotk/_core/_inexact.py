"""What can be differentiated: floating and complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np

from ._compat import AbstractValue


_ARRAYS = (jax.Array, np.ndarray, np.generic, AbstractValue)


def is_inexact(leaf: object) -> bool:
    """Whether a number, an array or the type of one is floating or complex.

    Anything else is not, whatever attributes it has: asking a user's object for its
    `dtype` may run code. A `jax.ShapeDtypeStruct` in a tree is such an object too.
    """
    if isinstance(leaf, (float, complex)):
        return True
    return isinstance(leaf, _ARRAYS) and _has_inexact_dtype(leaf)


def is_inexact_or_shape(leaf: object) -> bool:
    """The same where a `jax.ShapeDtypeStruct` stands for an array of its dtype."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _has_inexact_dtype(leaf)
    return is_inexact(leaf)


def _has_inexact_dtype(array: object) -> bool:
    dtype = getattr(array, "dtype", None)  # a token or a reference has none
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
