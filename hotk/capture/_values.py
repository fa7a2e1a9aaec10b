"""Visitors of arrays, values and containers."""

import dataclasses
import hashlib
import sys
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import (
    default_registry,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
)

from hotk._core import SHORT, Tracer

from ._classes import a_class, is_library_class, unknown
from ._objects import attributes, attributes_of, plain_object
from ._registry import Compared
from ._walk import VISITORS, Identity, Opaque, Placeholder, Walk


_SMALL = 64
_DIGESTED = 1 << 22  # of this many bytes a walk reads the content at each call
_TEXT = "SUMm"  # kinds of dtype that JAX has no numbers for: strings and dates
# Which captured arrays are static by content, level by level: integer scalars, all
# scalars, all arrays of at most 64 numbers, only those of NumPy; and, for what is held
# rather than looked up at each call, NumPy's of any size.
INTEGERS, SCALARS, SMALL, SMALL_NUMPY, ALL_NUMPY, ALL_NUMPY_AND_SMALL = range(1, 7)


def is_small(value: Any, level: int) -> bool:
    """Whether an array or a number is static by content at a level; see `Walk`."""
    if isinstance(value, Tracer):
        return False
    numpy = isinstance(value, (np.ndarray, np.generic))
    if numpy and level in (ALL_NUMPY, ALL_NUMPY_AND_SMALL):
        return True
    if level == ALL_NUMPY or (level == SMALL_NUMPY and not numpy):
        return False
    if np.size(value) > (_SMALL if level >= SMALL else 1):
        return False
    if level >= SCALARS or isinstance(value, (bool, int)):
        return True
    known = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return known and not jnp.issubdtype(value.dtype, jnp.inexact)


def is_numeric(dtype: np.dtype) -> bool:
    """Whether JAX has numbers of a NumPy dtype, in this machine's byte order."""
    if dtype.kind in "biu":
        return dtype.isnative
    known = jnp.issubdtype(dtype, np.inexact)
    return (
        known and dtype.isnative and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    )


def own_copy(array: np.ndarray) -> np.ndarray:
    """Copy a NumPy array in the dtype that JAX will give it."""
    return np.array(array, dtype=jax.dtypes.canonicalize_dtype(array.dtype), copy=True)


def _content(array: Any) -> Hashable:
    weak = bool(getattr(array, "weak_type", False))
    if isinstance(array, jax.Array) and _is_key(array):
        data = np.asarray(jax.random.key_data(array))
        return ("content", str(array.dtype), data.shape, data.tobytes())
    data = np.asarray(array)
    form = None
    if isinstance(array, np.ndarray):
        form = (array.strides, array.flags.num, type(array))
    content: Any = data.tobytes()
    if data.size > _SMALL:  # a key holds no copy of a user's data set
        content = hashlib.blake2b(content, digest_size=32).digest()
    return ("content", data.shape, data.dtype.str, weak, form, content)


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


# ----- Leaves


def leaf(walk: Walk, value: Any) -> None:
    """A JAX array or a tracer."""
    if walk.frozen:
        if isinstance(value, Placeholder):
            walk.key.append(value.number)
        else:
            _pin(walk, value)
        return
    if walk.met(value):
        return
    if walk.small and is_small(value, walk.small):
        walk.key.append(_content(value))
        return
    walk.add_leaf(value)


def _pin(walk: Walk, value: Any) -> None:
    """Take an array that a class reaches, which no copy of the class can replace.

    It cannot change, so it is known by its identity.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        raise Opaque("a tracer reached through a class or a static field")
    if value.is_deleted():
        raise Opaque("a deleted array reached through a class or a static field")
    try:
        walk.key.append(Identity(value))
    except TypeError as error:
        raise Opaque(f"a `{type(value).__name__}` reached through a class") from error
    walk.pinned.append(value)


def numpy_leaf(walk: Walk, value: np.ndarray) -> None:
    """A NumPy array."""
    if walk.frozen:
        _pin_numpy(walk, value)
        return
    if walk.met(value):
        return
    if value.dtype.kind in _TEXT:
        walk.key.append(_content(value))
        return
    if walk.small and is_numeric(value.dtype) and is_small(value, walk.small):
        walk.key.append(_content(value))
        return
    copy, short = copied(value, light=walk.light)
    walk.add_numpy(copy, value, short)


def copied(value: np.ndarray, *, light: bool = False) -> tuple[np.ndarray, bool]:
    """Return a copy of a captured NumPy array as JAX takes it, and whether it is short.

    It is short if JAX has its integers in fewer bits, and each is at most `SHORT`.

    Args:
        value: The array.
        light: Whether to return the array itself, which a walk before has copied.

    Raises:
        Opaque: If JAX has no such numbers.
    """
    if not is_numeric(value.dtype):
        raise Opaque(f"a NumPy array of dtype {value.dtype}")
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    try:
        with np.errstate(over="raise"):
            copy = value if light else own_copy(value)
    except TypeError as error:
        raise Opaque(f"a NumPy array of dtype {value.dtype}") from error
    except FloatingPointError as error:  # NumPy sees a number where JAX has infinity
        raise Opaque("a NumPy array with numbers beyond float32") from error
    short = False
    if dtype != value.dtype and value.dtype.kind in "iu" and value.size:
        limits = np.iinfo(dtype)
        most, least = int(value.max()), int(value.min())
        if most > limits.max or least < limits.min:
            raise Opaque(f"a NumPy array with integers beyond {dtype}")
        short = max(most, -least) <= SHORT
    return copy, short


def _pin_numpy(walk: Walk, value: np.ndarray) -> None:
    """Take a NumPy array that a class reaches, by its content: it can change."""
    walk.key.append(numpy_piece(value))
    walk.copies = walk.copies or value.dtype.kind not in _TEXT


def numpy_piece(value: np.ndarray) -> Hashable:
    """Return what stands in a key for a NumPy array that is known by its content.

    Raises:
        Opaque: If it is too large, or holds what is no number.
    """
    if value.dtype.kind in _TEXT:
        return _content(value)
    if not is_numeric(value.dtype):
        raise Opaque(f"a NumPy array of dtype {value.dtype}")
    if value.nbytes > _DIGESTED:
        raise Opaque(
            "a NumPy array of more than 4 MiB reached through a class or a static field"
        )
    data: Any = np.ascontiguousarray(value)
    content = hashlib.blake2b(data, digest_size=32).digest()
    form = (value.shape, value.dtype.str, value.strides, value.flags.num)
    return ("digest", *form, content)


# ----- Static by value or identity


def a_slice(walk: Walk, value: slice) -> None:
    """A slice, by its parts."""
    walk.key.append(slice)
    for part in (value.start, value.stop, value.step):
        walk.visit(part)


def permanent(walk: Walk, value: Any) -> None:
    """A thing of an installed library: static by identity."""
    walk.key.append(type(value))
    walk.key.append(value)


def ufunc(walk: Walk, value: np.ufunc) -> None:
    """A function of NumPy or SciPy; one made of Python code may read anything."""
    special = sys.modules.get("scipy.special")
    if not any(getattr(m, value.__name__, None) is value for m in (np, special)):
        raise Opaque("a ufunc made of a Python function")
    permanent(walk, value)


def by_identity(walk: Walk, value: Any) -> None:
    """A thing known by its identity alone, not kept alive."""
    walk.key.append(weakref.ref(value))


# ----- Containers


def sequence(walk: Walk, value: Any) -> None:
    """A list or a tuple."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    for i, item in enumerate(value):
        walk.visit(item, "[{}]", i)


def tree_node(walk: Walk, value: Any) -> None:
    """A registered pytree: children are captured, the rest is static."""
    children, treedef = tree_flatten(value, is_leaf=lambda node: node is not value)
    # One without children may be a constant of its library, as equinox has some.
    if walk.met(value) if children else walk.met_fixed(value):
        return
    data = treedef.node_data()
    if data is None:
        raise Opaque(f"an empty node of type {type(value).__name__}")
    if data[1] is value:
        fixed_node(walk, value)
        return
    if not _is_whole(value, children, treedef):
        raise Opaque(f"the class `{type(value).__name__}` keeps what its tree lacks")
    told = () if walk.trail is None else _static_names(value, data[1])
    tree_data(walk, data[0], data[1], told)
    walk.key.append(len(children))
    names = child_names(value) if walk.trail is not None else children
    for name, child in zip(names, children, strict=True):
        walk.visit(child, "{}", name)


def one_level(value: Any) -> tuple[list[Any], Any]:
    """Return the children of a registered pytree, and its static data."""
    found: Any = default_registry.flatten_one_level(value)
    return list(found[0]), found[1]


def fixed_node(walk: Walk, value: Any) -> None:
    """A node that is static as a whole: by its class and its attributes."""
    walk.frozen += 1
    try:
        a_class(walk, type(value))
        attributes(walk, value)
    finally:
        walk.frozen -= 1


# What equinox lets a module say of the function that it stands for: static data.
OF_WRAPPERS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


def _is_whole(value: Any, children: list[Any], treedef: Any) -> bool:
    """Whether a node's tree holds all that it holds.

    A class of the user registered by `jax.tree_util.register_dataclass` may leave
    fields out, and an object may have attributes besides its fields; what a library
    keeps of a property is none. A mapping may forget the order of its keys.
    """
    kind = type(value)
    fields = vars(kind).get("__dataclass_fields__")
    if fields is None and isinstance(value, tuple):
        items = list(tuple.__iter__(value))
        same = len(items) == len(children)
        return same and all(a is b for a, b in zip(items, children, strict=True))
    attributes = attributes_of(value)
    if is_library_class(kind):
        again = treedef.unflatten(children)
        if isinstance(value, Mapping) and [*value] != [*again]:
            return False
        extra = attributes.keys() - attributes_of(again).keys()
        return all(any(name in vars(b) for b in kind.__mro__) for name in extra)
    if isinstance(value, eqx.Module):
        return attributes.keys() <= {*(fields or {}), *OF_WRAPPERS}
    again = attributes_of(treedef.unflatten(children))
    return attributes.keys() == again.keys() and all(
        again[name] is item for name, item in attributes.items()
    )


def child_names(value: Any) -> list[str]:
    """Name the children of a registered pytree: `.weight`, `['a']`, `[0]`."""
    inside = lambda node: node is not value
    try:
        paths = tree_flatten_with_path(value, is_leaf=inside)[0]
    except ValueError:  # a tuple that answers to every name, as those of a mock do
        return [f"[{i}]" for i in range(len(tree_flatten(value, is_leaf=inside)[0]))]
    return [keystr(path) for path, _ in paths]


def _static_names(value: Any, data: Any) -> list[str]:
    """Name the static data of a node of equinox, `.depth`, if the names are sure."""
    if not isinstance(value, eqx.Module) or type(data) is not tuple:
        return []
    fields = [f.name for f in dataclasses.fields(value) if f.metadata.get("static")]
    ahead = len(data) - len(fields)
    held = [getattr(value, name, data) for name in fields]
    if ahead < 0 or any(a is not b for a, b in zip(held, data[ahead:], strict=True)):
        return []
    return [*["<static>"] * ahead, *(f".{name}" for name in fields)]


def tree_data(walk: Walk, kind: type, data: Any, names: Sequence[str] = ()) -> None:
    """The static part of a pytree's node: its class and what the class keeps.

    Args:
        walk: The walk.
        kind: The class.
        data: What it keeps.
        names: What the parts of `data` are called, if that is known.
    """
    walk.key.append(kind if is_library_class(kind) else weakref.ref(kind))
    walk.frozen += 1
    try:
        if not is_library_class(kind):
            a_class(walk, kind)
        _static_data(walk, data, names)
    finally:
        walk.frozen -= 1


def _static_data(walk: Walk, data: Any, names: Sequence[str] = ()) -> None:
    if type(data) in (tuple, list):
        walk.key.append((type(data), len(data)))
        for i, item in enumerate(data):
            if i < len(names) and type(item) not in (tuple, list):
                _static_item(walk, item, names[i])
            else:
                _static_data(walk, item)
        return
    _static_item(walk, data, "<static>")


def _static_item(walk: Walk, data: Any, name: str) -> None:
    visitor = VISITORS.get(type(data)) or walk.find(data)
    own = type(data).__module__.partition(".")[0] == "hotk"  # programs, immutable
    if visitor is unknown or (own and visitor is plain_object):
        try:
            hash(data)
        except TypeError as error:
            raise Opaque("static data of a pytree without a hash") from error
        if type(data).__hash__ is object.__hash__ and not own:
            raise Opaque(f"static data of type `{type(data).__qualname__}`")
        walk.key.append(Compared(data))
    else:
        walk.visit(data, "{}", name)
