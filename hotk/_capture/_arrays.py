"""Captured arrays: leaves, static by content, or pinned as constants of a program."""

import hashlib
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import ARRAY, SHORT, Tracer

from ._captured_type import SMALL_SIZE, StaticArrays, register, uncopied
from ._cause import OpaqueCause
from ._description import Description
from ._walk import Placeholder


_DIGESTED = 1 << 22  # of this many bytes a walk reads the content at each call
_BY_CLASS = "reached through a class or a static field"
_TEXT = "SUMm"  # kinds of dtype that JAX has no numbers for: strings and dates


def is_numeric(dtype: np.dtype) -> bool:
    """Whether JAX has numbers of a NumPy dtype, in this machine's byte order."""
    if dtype.kind in "biu":
        return dtype.isnative
    known = jnp.issubdtype(dtype, np.inexact)
    return (
        known and dtype.isnative and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    )


def own_copy(array: np.ndarray) -> np.ndarray:
    """Copy a NumPy array in the dtype that JAX will give it.

    A copy also where JAX would take the memory as it is: the user may write into it
    between this call and the next.
    """
    return np.array(array, dtype=jax.dtypes.canonicalize_dtype(array.dtype), copy=True)


def _content(
    array: jax.Array | np.ndarray, *, layout: bool = True
) -> tuple[Hashable, ...]:
    """Return what stands in a key for an array that is static by content.

    Args:
        array: The array.
        layout: Whether code may read how an array of NumPy lies in memory. The copy
            that stands for a view of another array lies otherwise, so a function with
            a view would seem to write.
    """
    weak = bool(getattr(array, "weak_type", False))
    if isinstance(array, jax.Array) and _is_key(array):
        data = np.asarray(jax.random.key_data(array))
        return ("content", str(array.dtype), data.shape, data.tobytes())
    data = np.asarray(array)
    form = None
    if isinstance(array, np.ndarray) and layout:
        form = (array.strides, array.flags.num, type(array))
    content = data.tobytes()
    if data.size > SMALL_SIZE:  # a key holds no copy of a user's data set
        content = hashlib.blake2b(content, digest_size=32).digest()
    return ("content", data.shape, data.dtype.str, weak, form, content)


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


# ----- Arrays of JAX, and what stands for one


def _describe_array(d: Description, value: Any, here: str) -> None:
    """An array of JAX, a tracer or a placeholder."""
    if d.static_depth:
        if isinstance(value, Placeholder):
            d.note(value.number)
        else:
            _pin(d, value, here)
        return
    if d.met(value, here):
        return
    if d.by_content(value):
        d.note(_content(value))
        return
    d.leaf(value, here)


def _pin(d: Description, value: object, here: str) -> None:
    """Take an array that a class reaches, which no copy of the class can replace.

    It cannot change, so it is known by its identity.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        raise OpaqueCause.HELD_BY_CLASS.opaque(f"a tracer {_BY_CLASS}")
    if value.is_deleted():
        raise OpaqueCause.HELD_BY_CLASS.opaque(f"a deleted array {_BY_CLASS}")
    d.pin(value, here)


# Arrays are never copied: a `Rebuild` is given what stands for them.
JAX_ARRAY = uncopied(_describe_array, "leaf")
register(JAX_ARRAY, ARRAY, Placeholder)


# ----- Arrays of NumPy


def _describe_numpy(d: Description, value: np.ndarray, here: str) -> None:
    text = value.dtype.kind in _TEXT
    if d.static_depth:
        # By its content: unlike an array of JAX it can change.
        d.piece(_numpy_piece, value, here)
        d.pins_numpy = d.pins_numpy or not text
        return
    if d.met(value, here):
        return
    if text:
        d.piece(_content, value, here)
    elif is_numeric(value.dtype) and d.by_content(value):
        layout = d.static_arrays != StaticArrays.ALL_INTEGERS
        d.note(_content(value, layout=layout))
    else:
        d.numpy_leaf(value, copied, here)


def copied(value: np.ndarray, *, copy: bool = True) -> tuple[np.ndarray, bool]:
    """Return a copy of a captured NumPy array as JAX takes it, and whether it is short.

    It is short if JAX has its integers in fewer bits, and each is at most `SHORT`.

    Args:
        value: The array.
        copy: Whether to copy; if not, the array itself is returned, which a walk
            before has copied.

    Raises:
        Opaque: If JAX has no such numbers.
    """
    if not is_numeric(value.dtype):
        raise OpaqueCause.DTYPE.opaque(f"a NumPy array of dtype {value.dtype}")
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    try:
        with np.errstate(over="raise"):
            own = own_copy(value) if copy else value
    except TypeError as error:
        raise OpaqueCause.DTYPE.opaque(
            f"a NumPy array of dtype {value.dtype}"
        ) from error
    except FloatingPointError as error:  # NumPy sees a number where JAX has infinity
        raise OpaqueCause.DTYPE.opaque(
            "a NumPy array with numbers beyond float32"
        ) from error
    short = False
    if dtype != value.dtype and value.dtype.kind in "iu" and value.size:
        limits = np.iinfo(dtype)
        most, least = int(value.max()), int(value.min())
        if most > limits.max or least < limits.min:
            raise OpaqueCause.DTYPE.opaque(
                f"a NumPy array with integers beyond {dtype}"
            )
        short = max(most, -least) <= SHORT
    return own, short


def _numpy_piece(value: np.ndarray) -> tuple[Hashable, ...]:
    """Return what stands in a key for a NumPy array that is known by its content.

    Raises:
        Opaque: If it is too large, or holds what is not a number.
    """
    if value.dtype.kind in _TEXT:
        return _content(value)
    if not is_numeric(value.dtype):
        raise OpaqueCause.DTYPE.opaque(f"a NumPy array of dtype {value.dtype}")
    if value.nbytes > _DIGESTED:
        raise OpaqueCause.HELD_BY_CLASS.opaque(
            f"a NumPy array of more than 4 MiB {_BY_CLASS}"
        )
    data: Any = np.ascontiguousarray(value)
    content = hashlib.blake2b(data, digest_size=32).digest()
    form = (value.shape, value.dtype.str, value.strides, value.flags.num)
    return ("digest", *form, content)


class IndexedByJax(np.ndarray):
    """An array of NumPy that JAX indexes where NumPy cannot: by a traced index."""

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tracer) for part in parts):
            return jnp.asarray(np.asarray(self))[index]
        return super().__getitem__(index)


NUMPY_ARRAY = uncopied(_describe_numpy, "leaf")
register(NUMPY_ARRAY, np.ndarray, IndexedByJax)
