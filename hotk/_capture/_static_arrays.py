"""`StaticArrays`: which captured arrays are static by content."""

from enum import IntEnum

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import Tracer


# Of so many numbers at most an array may be static by content in a direct call, where
# the content is read and compared each time.
SMALL_SIZE = 64


class StaticArrays(IntEnum):
    """Which captured arrays are static by content, and not leaves of a program.

    A function whose Python code needs the value of an array is traced with that array
    as a constant, and anew when its content changes. Which arrays Python needs cannot
    be told, so several choices are tried in turn (`LEVELS` in `hotk._prepared`).
    """

    NONE = 0
    """All captured arrays are leaves."""
    INTEGERS = 1
    """Integer scalars."""
    SCALARS = 2
    """All scalars."""
    SMALL = 3
    """All arrays of at most 64 numbers."""
    SMALL_NUMPY = 4
    """Those of NumPy among these."""
    ALL_NUMPY = 5
    """Arrays of NumPy of any size."""
    ALL_NUMPY_AND_SMALL = 6
    """Arrays of NumPy of any size, and all of at most 64 numbers."""
    ALL_INTEGERS = 7
    """Integers and Booleans of any size, for operators whose results have a structure
    that indices decide."""


def is_static(value: object, which: StaticArrays) -> bool:
    """Whether an array or a number is static by content."""
    if isinstance(value, Tracer):
        return False
    if which == StaticArrays.ALL_INTEGERS:
        return _is_integral(value)
    numpy = isinstance(value, (np.ndarray, np.generic))
    if numpy and which >= StaticArrays.ALL_NUMPY:
        return True
    if which == StaticArrays.ALL_NUMPY:
        return False
    if which == StaticArrays.SMALL_NUMPY and not numpy:
        return False
    # The size of a `Placeholder` is a number too: it has no array's shape.
    size = np.size(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if size > (SMALL_SIZE if which >= StaticArrays.SMALL else 1):
        return False
    if which >= StaticArrays.SCALARS or isinstance(value, (bool, int)):
        return True
    known = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return known and not jnp.issubdtype(value.dtype, jnp.inexact)


def _is_integral(value: object) -> bool:
    """Whether a value is an integer, a Boolean, or an array of them."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return getattr(value.dtype, "kind", "V") in "biu"  # random keys have no kind
    return isinstance(value, (bool, int))
