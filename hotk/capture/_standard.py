"""Visitors of values and containers of the standard library and of JAX."""

import collections
import datetime
import decimal
import fractions
import functools
import gc
import math
import operator
import pathlib
import re
import types
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from hotk._core import jit_options

from ._callables import is_permanent
from ._classes import a_name, mapping
from ._objects import attributes
from ._values import by_identity, tree_data, tree_node
from ._walk import Opaque, Walk


# ----- Values that cannot change: by a piece that is equal only if they are the same


# What makes of a value a tuple that only the same value has.
Piece = Callable[[Any], tuple[Hashable, ...]]


def moment_piece(value: Any) -> tuple[Hashable, ...]:
    """Return all that a date or a time says but its zone, in the quickest way."""
    return (value.__reduce_ex__(4)[1][0],)  # its bytes, with the hour that is twice


def _text(value: Any) -> tuple[Hashable, ...]:
    return (repr(value),)


def _complex(value: complex) -> tuple[Hashable, ...]:
    return value.real.hex(), value.imag.hex()


def _numpy_number(value: np.generic) -> tuple[Hashable, ...]:
    return value.dtype.str, value.tobytes()


def _dtype(value: np.dtype) -> tuple[Hashable, ...]:
    if value.metadata or value.hasobject:
        raise Opaque(f"the dtype {value}")
    return value, value.isalignedstruct


def _limits(value: Any) -> tuple[Hashable, ...]:
    return (value.dtype,)


def _pattern(value: re.Pattern[Any]) -> tuple[Hashable, ...]:
    return type(value.pattern), value.pattern, value.flags


def _path(value: pathlib.PurePath) -> tuple[Hashable, ...]:
    return (str(value),)


def _zone(value: zoneinfo.ZoneInfo) -> tuple[Hashable, ...]:
    if value.key is None:
        raise Opaque("a time zone from a file")
    return (value.key,)


def _axes(value: Any) -> tuple[Hashable, ...]:
    return tuple(value), value.unreduced, value.reduced


PIECES: dict[type, Piece] = {
    complex: _complex,
    decimal.Decimal: _text,
    fractions.Fraction: _text,
    range: _text,
    re.Pattern: _pattern,
    uuid.UUID: operator.attrgetter("int", "is_safe"),
    datetime.date: _text,
    datetime.timedelta: _text,
    datetime.timezone: _text,
    zoneinfo.ZoneInfo: _zone,
    np.finfo: _limits,
    np.iinfo: _limits,
    jax.numpy.finfo: _limits,
    jax.numpy.iinfo: _limits,
    jax.sharding.PartitionSpec: _axes,
    pathlib.PurePosixPath: _path,
    pathlib.PureWindowsPath: _path,
    pathlib.PosixPath: _path,
    pathlib.WindowsPath: _path,
}


def piece_of(kind: type) -> Piece:
    """Return what makes of a value of a class a tuple that only the same value has."""
    known = PIECES.get(kind)
    if known is not None:
        return known
    return _dtype if issubclass(kind, np.dtype) else _numpy_number


def number(walk: Walk, value: float) -> None:
    """A float, told apart from its other zero and from an integer."""
    walk.key.append(float)
    walk.key.append(value if value and not math.isnan(value) else value.hex())


def by_piece(walk: Walk, value: Any) -> None:
    """A value that cannot change, told apart from equal values of another meaning."""
    kind = type(value)
    walk.key.append((kind, *piece_of(kind)(value)))


def logger_piece(value: Any) -> tuple[Any, ...]:
    """Return what a logger is asked for before something is logged."""
    levels = (value.level, value.getEffectiveLevel(), value.manager.disable)
    return (*levels, value.disabled)


def a_logger(walk: Walk, value: Any) -> None:
    """A logger: by identity, and by what it lets through."""
    by_identity(walk, value)
    walk.key.append(logger_piece(value))


def moment(walk: Walk, value: Any) -> None:
    """A date with time, or a time of day: two of different zones may be equal."""
    text = value.replace(tzinfo=None).isoformat()
    walk.key.append((type(value), text, value.fold))
    walk.visit(value.tzinfo, ".tzinfo")


def a_buffer(walk: Walk, value: Any) -> None:
    """A `bytearray` or an `array.array`, by its content."""
    if walk.met(value):
        return
    code = getattr(value, "typecode", "B")
    content = bytes(value) if code == "B" else value.tobytes()
    walk.key.append((type(value), code, content))


# ----- Things that hold others and cannot change: what they hold is not replaced


def held_fixed(walk: Walk, kind: Hashable, parts: Any) -> None:
    """Visit what an immutable thing holds, which keeps its identity."""
    walk.key.append((kind, len(parts)))
    walk.frozen += 1
    try:
        for i, part in enumerate(parts):
            walk.visit(part, "[{}]", i)
    finally:
        walk.frozen -= 1


def a_set(walk: Walk, value: Any) -> None:
    """A set, in the order in which it is iterated over."""
    if not walk.met(value):
        held_fixed(walk, type(value), value)


def getter(walk: Walk, value: Any) -> None:
    """An `itemgetter`, an `attrgetter` or a `methodcaller`, by its arguments."""
    if walk.met_fixed(value):
        return
    made, arguments = value.__reduce__()
    keywords = made.keywords if isinstance(made, functools.partial) else {}
    parts = (*arguments, tuple(keywords), *keywords.values())
    held_fixed(walk, type(value), parts)


def type_form(walk: Walk, value: Any) -> None:
    """A generic type with its arguments, or a union of types."""
    if walk.met_fixed(value):
        return
    origin = getattr(value, "__origin__", None)
    held_fixed(walk, type(value), (origin, *value.__args__))


def array_type(walk: Walk, value: Any) -> None:
    """A type of jaxtyping, made anew each time that it is written."""
    parts = (value.__name__, value.dtypes, value.dim_str)
    walk.key.append((type(value), *parts))
    walk.visit(value.array_type, ".array_type")


def treedef(walk: Walk, value: Any) -> None:
    """The structure of a tree: its nodes, with the static data of each."""
    if walk.met_fixed(value):
        return
    for counts, data in nodes_of(value):
        walk.key.append(counts)
        if data is None:
            continue
        if data[0] in (tuple, list, dict, type(None)):
            held_fixed(walk, data[0], data[1] or ())
        else:
            tree_data(walk, *data)


def nodes_of(value: Any) -> list[tuple[Hashable, Any]]:
    """List the nodes of a tree's structure: what they count, their class and data."""
    waiting, found = [value], []
    while waiting:
        here = waiting.pop()
        data = here.node_data()
        found.append(((here.num_nodes, here.num_leaves, data is None), data))
        waiting.extend(() if data is None else here.children())
    return found


# ----- Containers


def a_deque(walk: Walk, value: collections.deque[Any]) -> None:
    """A deque, by its content and its greatest length."""
    if walk.met(value):
        return
    walk.key.append((type(value), value.maxlen, len(value)))
    for i, item in enumerate(list(value)):
        walk.visit(item, "[{}]", i)


def proxied(value: types.MappingProxyType[Any, Any]) -> Any:
    """Return the mapping that a read-only view shows."""
    (found,) = gc.get_referents(value)
    return found


def a_proxy(walk: Walk, value: types.MappingProxyType[Any, Any]) -> None:
    """A read-only view of a mapping."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(proxied(value))


def entries(value: dict[Any, Any]) -> Any:
    """Return the entries of a dict in its order, whatever methods its class has."""
    if isinstance(value, collections.OrderedDict):
        return collections.OrderedDict.items(value)
    return dict.items(value)


def subclassed(walk: Walk, value: Any) -> None:
    """A dict, a list or a tuple of a library's class, with its attributes."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    if isinstance(value, collections.defaultdict):
        walk.visit(value.default_factory, ".default_factory")
    if isinstance(value, dict):
        walk.key.append(dict.__len__(value))
        for name, item in list(entries(value)):
            a_name(walk, name)
            walk.visit(item, "[{!r}]", name)
    else:
        base: Any = list if isinstance(value, list) else tuple
        items = list(base.__iter__(value))
        walk.key.append(len(items))
        for i, item in enumerate(items):
            walk.visit(item, "[{}]", i)
    attributes(walk, value)


def a_reference(walk: Walk, value: weakref.ref[Any]) -> None:
    """A weak reference: what it refers to now."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(value(), "()")


# ----- Jitted functions


def jitted(walk: Walk, value: Any) -> None:
    """A jitted function: the function inside and its options, if it can be seen.

    One that cannot is known by its identity, with what JAX remembers of it.
    """
    if walk.met(value):
        return
    options = None if is_permanent(value) else jit_options(value)
    if options is None or not walk.attempt(lambda: _jitted(walk, value, options)):
        by_identity(walk, value)
        if walk.trail is not None:
            walk.trail.nodes[id(value)].treatment = "static by identity"


def _jitted(walk: Walk, value: Any, options: Hashable) -> None:
    walk.key.append(options)
    walk.visit(value.__wrapped__, ".__wrapped__")
    own = jit_attributes(value)
    if own:
        mapping(walk, own)


def jit_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that the user gave to a jitted function."""
    found = vars(value).items()
    kept = ("_fun", "_jit_info")
    return {k: v for k, v in found if k[:2] != "__" and k not in kept}


FILTER_JITTED: type = type(eqx.filter_jit(math.sin))


def filter_jitted(walk: Walk, value: Any) -> None:
    """A function of `equinox.filter_jit`: what is inside, if a like one can be made."""
    inner = value.__wrapped__
    if not isinstance(inner, types.FunctionType) or not is_usual(value, inner):
        tree_node(walk, value)
        return
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(inner, ".__wrapped__")


def is_usual(value: Any, inner: Any) -> bool:
    """Whether a function of `equinox.filter_jit` was made without options."""
    like: Any = eqx.filter_jit(inner)
    options = jit_options(value._cached), jit_options(like._cached)
    same = filter_options(like) == filter_options(value)
    return same and options[0] is not None and options[0] == options[1]


def filter_options(value: Any) -> tuple[Any, ...]:
    """Return what a function of `equinox.filter_jit` was told besides the function."""
    return value.filter_warning, value.donate_first, value.donate_rest
