"""The lines of a guard for arrays, plain values, containers and things of libraries."""

import math
import operator
import weakref
from typing import Any

import numpy as np

from ._classes import is_library_class
from ._registry import is_declared
from ._standard import (
    logger_piece,
    moment_piece,
    piece_of,
    proxied,
)
from ._values import copied, numpy_piece
from ._writer import Unguarded, Writer


_SIMPLE = (bool, int, str, bytes, type(None), type(...))


def leaf(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.frozen:
        same_if_alive(w, value, here)
        return
    if not w.met(value, here, kind):
        w.unless(f"type({here}) is {w.constant(kind)}")
        w.leaves.append(here)


def static(w: Writer, value: Any, here: str) -> None:
    if type(value) not in _SIMPLE and not is_library_class(type(value)):
        raise Unguarded
    if value is None or isinstance(value, bool):
        w.unless(f"{here} is {value}")
    else:
        kind, equal = w.constant(type(value)), w.constant(value)
        w.unless(f"type({here}) is {kind} and {here} == {equal}")


def numpy_leaf(w: Writer, value: np.ndarray, here: str) -> None:
    if w.frozen:
        kind, piece = w.constant(np.ndarray), w.constant(numpy_piece(value))
        w.unless(f"type({here}) is {kind}")
        w.unless(f"{w.constant(numpy_piece)}({here}) == {piece}")
        return
    if value.dtype.kind in "SUMm":
        raise Unguarded
    if not w.met(value, here, np.ndarray):
        w.unless(f"type({here}) is {w.constant(np.ndarray)}")
        both = w.hold(None, f"{w.constant(copied)}({here})")
        w.unless(f"{both}[1] is {copied(value)[1]}")
        w.leaves.append(f"{both}[0]")


def number(w: Writer, value: float, here: str) -> None:
    if value and not math.isnan(value):
        w.unless(f"type({here}) is float and {here} == {w.constant(value)}")
    else:
        text = w.constant(value.hex())
        w.unless(f"type({here}) is float and {here}.hex() == {text}")


def by_piece(w: Writer, value: Any, here: str) -> None:
    kind = w.constant(type(value))
    piece = piece_of(type(value))
    made = f"{w.constant(piece)}({here})"
    w.unless(f"type({here}) is {kind} and {made} == {w.constant(piece(value))}")


def a_logger(w: Writer, value: Any, here: str) -> None:
    same_if_alive(w, value, here)
    piece = w.constant(logger_piece(value))
    w.unless(f"{w.constant(logger_piece)}({here}) == {piece}")


def moment(w: Writer, value: Any, here: str) -> None:
    kind, piece = w.constant(type(value)), w.constant(moment_piece(value))
    w.unless(
        f"type({here}) is {kind} and {w.constant(moment_piece)}({here}) == {piece}"
    )
    w.visit(value.tzinfo, f"{here}.tzinfo")


def declared(w: Writer, value: Any, here: str) -> None:
    kind, equal = w.constant(type(value)), w.constant(value)
    w.unless(f"type({here}) is {kind} and {w.constant(is_declared)}({here})")
    w.unless(f"{here} == {equal}")


def a_slice(w: Writer, value: slice, here: str) -> None:
    w.unless(f"type({here}) is {w.constant(slice)}")
    for part in ("start", "stop", "step"):
        w.visit(getattr(value, part), f"{here}.{part}")


def a_set(w: Writer, value: Any, here: str) -> None:
    if w.met(value, here, type(value)):
        return
    kind, items = w.constant(type(value)), list(value)
    w.unless(f"type({here}) is {kind} and len({here}) == {len(items)}")
    each = w.hold(items, f"[*{here}]")
    w.frozen += 1
    for i, item in enumerate(items):
        w.visit(item, f"{each}[{i}]")
    w.frozen -= 1


def getter(w: Writer, value: Any, here: str) -> None:
    arguments = value.__reduce__()[1]
    if type(value) is operator.methodcaller or {str, int} < set(map(type, arguments)):
        raise Unguarded
    if w.met(value, here, type(value)):
        return
    w.unless(f"type({here}) is {w.constant(type(value))}")
    w.visit(arguments, f"{here}.__reduce__()[1]")


def sequence(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.met(value, here, kind):
        return
    w.unless(f"type({here}) is {w.constant(kind)} and len({here}) == {len(value)}")
    for i, item in enumerate(value):
        w.visit(item, f"{here}[{i}]")


def mapping(w: Writer, value: dict[Any, Any], here: str) -> None:
    kind = type(value)
    if w.met(value, here, kind):
        return
    w.unless(f"type({here}) is {w.constant(kind)}")
    entries(w, value, here)


def entries(w: Writer, value: Any, here: str) -> None:
    """Write the check of a mapping's keys, in order, and of what they stand for."""
    if all(type(name) is str for name in value):
        names, types_of = w.constant(list(value)), w.constant([str] * len(value))
        w.unless(f"[*{here}] == {names} and [*map(type, {here})] == {types_of}")
        for name, item in list(value.items()):
            w.visit(item, f"{here}[{name!r}]")
        return
    names, items = list(value), list(value.values())
    w.unless(f"len({here}) == {len(names)}")
    each = w.hold(names, f"[*{here}]")
    w.frozen += 1
    for i, name in enumerate(names):
        w.visit(name, f"{each}[{i}]")
    w.frozen -= 1
    each = w.hold(items, f"[*{here}.values()]")
    for i, item in enumerate(items):
        w.visit(item, f"{each}[{i}]")


def mark(w: Writer, value: Any, here: str) -> None:
    w.unless(f"type({here}) is {w.constant(type(value))}")


def a_deque(w: Writer, value: Any, here: str) -> None:
    if w.met(value, here, type(value)):
        return
    kind = w.constant(type(value))
    w.unless(f"type({here}) is {kind} and len({here}) == {len(value)}")
    w.unless(f"{here}.maxlen == {value.maxlen}")
    for i, item in enumerate(list(value)):
        w.visit(item, f"{here}[{i}]")


def a_proxy(w: Writer, value: Any, here: str) -> None:
    if not w.met(value, here, type(value)):
        w.unless(f"type({here}) is {w.constant(type(value))}")
        w.visit(proxied(value), f"{w.constant(proxied)}({here})")


def a_reference(w: Writer, value: Any, here: str) -> None:
    if not w.met(value, here, type(value)):
        w.unless(f"type({here}) is {w.constant(type(value))}")
        w.visit(value(), f"{here}()")


def same(w: Writer, value: Any, here: str) -> None:
    """A thing of a library, which a walk's key holds as well."""
    w.unless(f"{here} is {w.constant(value)}")


def same_if_alive(w: Writer, value: Any, here: str) -> None:
    alive = w.constant(weakref.ref(value))  # which is `None` once it is dead
    w.unless(f"{here} is not None and {here} is {alive}()")
