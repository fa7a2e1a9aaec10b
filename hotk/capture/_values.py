"""Captured values that hold nothing else: numbers, dates, names, things of libraries.

They are static. Each is in the key with its type, as a piece that is equal only if the
value means the same: `1`, `True` and `1.0` are equal in Python, and so are `0.0` and
`-0.0`, and a program computes something else for each of them.
"""

import datetime
import decimal
import fractions
import logging
import math
import operator
import pathlib
import re
import sys
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Hashable
from typing import Any, NoReturn

import jax
import numpy as np

from ._captured_type import register, uncopied
from ._code import is_hidden
from ._library import is_library_class
from ._walk import Opaque, Walk
from ._writer import Unguarded, Writer, guard_identity, guard_weak_identity


# ----- What no one knows


def _visit_unknown(_: Walk, value: object) -> NoReturn:
    cls = type(value)
    raise Opaque(f"an object of type `{cls.__module__}.{cls.__qualname__}`")


UNKNOWN = uncopied(visit=_visit_unknown, guard=None, treatment="static")


def _visit_reference(_: Walk, value: object) -> NoReturn:
    # Its attributes would lead to the array that it holds now, which no copy of a
    # reference can stand for (`test_a_captured_reference_is_read_at_each_call`).
    raise Opaque("a `jax.Ref`, which can change at any time")


REFERENCE = uncopied(visit=_visit_reference, guard=None, treatment="static")


# ----- Immutable values, by type and value


def _visit_static(walk: Walk, value: Hashable) -> None:
    # `getattr(f, name)` with such a name reads what the walk leaves out.
    if type(value) is str and is_hidden(value):
        walk.by_name(hidden=True)
    walk.key.append(type(value))
    walk.key.append(value)


_SIMPLE = (bool, int, str, bytes, type(None), type(...))


def _guard_static(w: Writer, value: object, here: str) -> None:
    if type(value) not in _SIMPLE and not is_library_class(type(value)):
        raise Unguarded
    if value is None or isinstance(value, bool):
        w.require(f"{here} is {value}")
    else:
        cls, equal = w.constant(type(value)), w.constant(value)
        w.require(f"type({here}) is {cls} and {here} == {equal}")


STATIC = uncopied(visit=_visit_static, guard=_guard_static, treatment="static")
register(STATIC, type(None), bool, int, str, bytes, type(...), type(NotImplemented))


def _visit_float(walk: Walk, value: float) -> None:
    """A float, told apart from its other zero and from an integer."""
    walk.key.append(float)
    # `nan` is not equal to itself, so its key would never be found again.
    walk.key.append(value if value and not math.isnan(value) else value.hex())


def _guard_float(w: Writer, value: float, here: str) -> None:
    if value and not math.isnan(value):
        w.require(f"type({here}) is float and {here} == {w.constant(value)}")
    else:
        text = w.constant(value.hex())
        w.require(f"type({here}) is float and {here}.hex() == {text}")


register(uncopied(visit=_visit_float, guard=_guard_float, treatment="static"), float)


# ----- Immutable values by a piece that is equal only if they are the same


# What makes of a value a tuple that only the same value has.
Piece = Callable[[Any], tuple[Hashable, ...]]


def _text(value: object) -> tuple[Hashable, ...]:
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


def _pattern(value: re.Pattern[str]) -> tuple[Hashable, ...]:
    return type(value.pattern), value.pattern, value.flags


def _path(value: pathlib.PurePath) -> tuple[Hashable, ...]:
    return (str(value),)


def _zone(value: zoneinfo.ZoneInfo) -> tuple[Hashable, ...]:
    if value.key is None:
        raise Opaque("a time zone from a file")
    return (value.key,)


def _axes(value: Any) -> tuple[Hashable, ...]:
    return tuple(value), value.unreduced, value.reduced


_PIECES: dict[type, Piece] = {
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


def _piece_of(cls: type) -> Piece:
    known = _PIECES.get(cls)
    if known is not None:
        return known
    return _dtype if issubclass(cls, np.dtype) else _numpy_number


def _visit_by_piece(walk: Walk, value: object) -> None:
    cls = type(value)
    walk.key.append((cls, *_piece_of(cls)(value)))


def _guard_by_piece(w: Writer, value: object, here: str) -> None:
    cls = w.constant(type(value))
    piece = _piece_of(type(value))
    now = f"{w.constant(piece)}({here})"
    w.require(f"type({here}) is {cls} and {now} == {w.constant(piece(value))}")


BY_PIECE = uncopied(visit=_visit_by_piece, guard=_guard_by_piece, treatment="static")
register(BY_PIECE, *_PIECES)


def _visit_moment(walk: Walk, value: datetime.datetime | datetime.time) -> None:
    """A date with time, or a time of day: two of different zones may be equal."""
    text = value.replace(tzinfo=None).isoformat()
    walk.key.append((type(value), text, value.fold))
    walk.visit(value.tzinfo, ".tzinfo")


def _moment_piece(value: datetime.datetime | datetime.time) -> tuple[Hashable, ...]:
    """Return all that a date or a time says but its zone, in the quickest way."""
    state: Any = value.__reduce_ex__(4)
    return (state[1][0],)  # its bytes, with the hour that is twice


def _guard_moment(
    w: Writer, value: datetime.datetime | datetime.time, here: str
) -> None:
    cls, piece = w.constant(type(value)), w.constant(_moment_piece(value))
    now = f"{w.constant(_moment_piece)}({here})"
    w.require(f"type({here}) is {cls} and {now} == {piece}")
    w.visit(value.tzinfo, f"{here}.tzinfo")


register(
    uncopied(visit=_visit_moment, guard=_guard_moment, treatment="static"),
    datetime.datetime,
    datetime.time,
)


def _visit_slice(walk: Walk, value: slice) -> None:
    walk.key.append(slice)
    for part in (value.start, value.stop, value.step):
        walk.visit(part)


def _guard_slice(w: Writer, value: slice, here: str) -> None:
    w.require(f"type({here}) is {w.constant(slice)}")
    for part in ("start", "stop", "step"):
        w.visit(getattr(value, part), f"{here}.{part}")


register(uncopied(visit=_visit_slice, guard=_guard_slice, treatment="static"), slice)


# ----- Things of libraries, by identity


def visit_identity(walk: Walk, value: Hashable) -> None:
    """Put a thing of an installed library into the key, which keeps it alive."""
    walk.key.append(type(value))
    walk.key.append(value)


PERMANENT = uncopied(
    visit=visit_identity, guard=guard_identity, treatment="static by identity"
)
register(
    PERMANENT,
    object,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def _visit_ufunc(walk: Walk, value: np.ufunc) -> None:
    """A function of NumPy or SciPy; one made of Python code may read anything."""
    special = sys.modules.get("scipy.special")
    if not any(getattr(m, value.__name__, None) is value for m in (np, special)):
        raise Opaque("a ufunc made of a Python function")
    visit_identity(walk, value)


register(
    uncopied(visit=_visit_ufunc, guard=guard_identity, treatment="static"), np.ufunc
)


def visit_weak_identity(walk: Walk, value: object) -> None:
    """Put a reference to a thing into the key: the thing is not kept alive."""
    walk.key.append(weakref.ref(value))


BY_IDENTITY = uncopied(
    visit=visit_weak_identity,
    guard=guard_weak_identity,
    treatment="static by identity",
)
register(BY_IDENTITY, typing.TypeVar, typing.ParamSpec)


def _logger_piece(value: logging.Logger) -> tuple[Hashable, ...]:
    """Return what a logger is asked for before something is logged."""
    levels = (value.level, value.getEffectiveLevel(), value.manager.disable)
    return (*levels, value.disabled)


def _visit_logger(walk: Walk, value: logging.Logger) -> None:
    """A logger: by identity, and by what it lets through."""
    visit_weak_identity(walk, value)
    walk.key.append(_logger_piece(value))


def _guard_logger(w: Writer, value: logging.Logger, here: str) -> None:
    guard_weak_identity(w, value, here)
    piece = w.constant(_logger_piece(value))
    w.require(f"{w.constant(_logger_piece)}({here}) == {piece}")


LOGGER = uncopied(
    visit=_visit_logger, guard=_guard_logger, treatment="static by identity"
)


# ----- Things of libraries, by what they say


def _visit_mark(walk: Walk, value: object) -> None:
    """A number that tells objects apart, and says nothing else of them."""
    walk.key.append(type(value))


def _guard_mark(w: Writer, value: object, here: str) -> None:
    w.require(f"type({here}) is {w.constant(type(value))}")


MARK = uncopied(visit=_visit_mark, guard=_guard_mark, treatment="static")


def _visit_named_scope(walk: Walk, value: Any) -> None:
    """A scope of `jax.named_scope`, which keeps where it was entered: by its name."""
    walk.key.append((type(value), value.name))


def _guard_named_scope(w: Writer, value: Any, here: str) -> None:
    cls, name = w.constant(type(value)), w.constant(value.name)
    w.require(f"type({here}) is {cls} and {here}.name == {name}")


NAMED_SCOPE = uncopied(
    visit=_visit_named_scope, guard=_guard_named_scope, treatment="static"
)


def _visit_array_type(walk: Walk, value: Any) -> None:
    """A type of jaxtyping, made anew each time that it is written."""
    parts = (value.__name__, value.dtypes, value.dim_str)
    walk.key.append((type(value), *parts))
    walk.visit(value.array_type, ".array_type")


ARRAY_TYPE = uncopied(visit=_visit_array_type, guard=guard_identity, treatment="static")
