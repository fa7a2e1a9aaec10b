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
import zoneinfo
from collections.abc import Callable, Hashable
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

from ._captured_type import register, uncopied
from ._cause import OpaqueCause, state_of
from ._code import is_hidden
from ._description import Description
from ._library import is_library_class


_T = TypeVar("_T")

# ----- What no one knows


def _describe_unknown(_: Description, value: object, here: str) -> NoReturn:
    cls = type(value)
    text = f"an object of type `{cls.__module__}.{cls.__qualname__}`"
    raise state_of(cls).opaque(text)


UNKNOWN = uncopied(_describe_unknown, "static")


def _describe_reference(_: Description, value: object, here: str) -> NoReturn:
    # Its attributes would lead to the array that it holds now, which no copy of a
    # reference can stand for (`test_a_captured_reference_is_read_at_each_call`).
    raise OpaqueCause.REFERENCE.opaque("a `jax.Ref`, which can change at any time")


REFERENCE = uncopied(_describe_reference, "static")


# ----- Immutable values, by type and value


_SIMPLE = (bool, int, str, bytes, type(None), type(...))


def _describe_static(d: Description, value: Hashable, here: str) -> None:
    cls = type(value)
    # `getattr(f, name)` with such a name reads what the walk leaves out.
    if cls is str and is_hidden(value):  # pyright: ignore[reportArgumentType]
        d.by_name(hidden=True)
    if d.writes and cls not in _SIMPLE and not is_library_class(cls):
        d.unguarded()
    if value is None or cls is bool:
        d.same("{0} is {2}", here, cls, value)
    else:
        d.same("type({0}) is {1} and {0} == {2}", here, cls, value)


STATIC = uncopied(_describe_static, "static")
register(STATIC, type(None), bool, int, str, bytes, type(...), type(NotImplemented))


def _describe_float(d: Description, value: float, here: str) -> None:
    """A float, told apart from its other zero and from an integer."""
    if value and not math.isnan(value):
        d.same("type({0}) is {1} and {0} == {2}", here, float, value)
    else:  # `nan` is not equal to itself, so its key would never be found again
        d.same("type({0}) is {1} and {0}.hex() == {2}", here, float, value.hex())


register(uncopied(_describe_float, "static"), float)


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
        raise OpaqueCause.DTYPE.opaque(f"the dtype {value}")
    return value, value.isalignedstruct


def _limits(value: Any) -> tuple[Hashable, ...]:
    return (value.dtype,)


def _pattern(value: re.Pattern[str]) -> tuple[Hashable, ...]:
    return type(value.pattern), value.pattern, value.flags


def _path(value: pathlib.PurePath) -> tuple[Hashable, ...]:
    return (str(value),)


def _zone(value: zoneinfo.ZoneInfo) -> tuple[Hashable, ...]:
    if value.key is None:
        raise OpaqueCause.STATE.opaque("a time zone from a file")
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


def _describe_by_piece(d: Description, value: object, here: str) -> None:
    d.piece(_piece_of(type(value)), value, here)


BY_PIECE = uncopied(_describe_by_piece, "static")
register(BY_PIECE, *_PIECES)


def _moment(value: datetime.datetime | datetime.time) -> tuple[Hashable, ...]:
    return value.replace(tzinfo=None).isoformat(), value.fold


def _describe_moment(
    d: Description, value: datetime.datetime | datetime.time, here: str
) -> None:
    """A date with time, or a time of day: two of different zones may be equal."""
    d.piece(_moment, value, here)
    d.attribute(value, "tzinfo", here)


register(uncopied(_describe_moment, "static"), datetime.datetime, datetime.time)


def _describe_slice(d: Description, value: slice, here: str) -> None:
    d.same("type({0}) is {1}", here, slice)
    for part in ("start", "stop", "step"):
        d.attribute(value, part, here)


register(uncopied(_describe_slice, "static"), slice)


# ----- Things of libraries, by identity


def _describe_permanent(d: Description, value: Hashable, here: str) -> None:
    d.library(value, here)


PERMANENT = uncopied(_describe_permanent, "static by identity")
register(
    PERMANENT,
    object,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def _describe_ufunc(d: Description, value: np.ufunc, here: str) -> None:
    """A function of NumPy or SciPy; one made of Python code may read anything."""
    special = sys.modules.get("scipy.special")
    if not any(getattr(m, value.__name__, None) is value for m in (np, special)):
        raise OpaqueCause.UFUNC.opaque("a ufunc made of a Python function")
    d.library(value, here)


register(uncopied(_describe_ufunc, "static"), np.ufunc)


def describe_identity(d: Description, value: object, here: str) -> None:
    """Describe a thing that is not kept alive by its identity alone."""
    d.identity(value, here)


BY_IDENTITY = uncopied(describe_identity, "static by identity")
register(BY_IDENTITY, typing.TypeVar, typing.ParamSpec)


def by_identity(cls: type[_T]) -> type[_T]:
    """Know the objects of a class of hotk by identity, whatever they hold."""
    register(BY_IDENTITY, cls)
    return cls


def _levels(value: logging.Logger) -> tuple[Hashable, ...]:
    """Return what a logger is asked for before something is logged."""
    levels = (value.level, value.getEffectiveLevel(), value.manager.disable)
    return (*levels, value.disabled)


def _describe_logger(d: Description, value: logging.Logger, here: str) -> None:
    """A logger: by identity, and by what it lets through."""
    d.identity(value, here)
    d.piece(_levels, value, here)


LOGGER = uncopied(_describe_logger, "static by identity")


# ----- Things of libraries, by what they say


def _describe_mark(d: Description, value: object, here: str) -> None:
    """A number that tells objects apart, and says nothing else of them."""
    d.same("type({0}) is {1}", here, type(value))


MARK = uncopied(_describe_mark, "static")


def _name(value: Any) -> tuple[Hashable, ...]:
    return (value.name,)


def _describe_named_scope(d: Description, value: Any, here: str) -> None:
    """A scope of `jax.named_scope`, which keeps where it was entered: by its name."""
    d.piece(_name, value, here)


NAMED_SCOPE = uncopied(_describe_named_scope, "static")


def _array_type(value: Any) -> tuple[Hashable, ...]:
    return value.__name__, value.dtypes, value.dim_str


def _describe_array_type(d: Description, value: Any, here: str) -> None:
    """A type of jaxtyping, made anew each time that it is written."""
    d.piece(_array_type, value, here)
    d.attribute(value, "array_type", here)


ARRAY_TYPE = uncopied(_describe_array_type, "static")
