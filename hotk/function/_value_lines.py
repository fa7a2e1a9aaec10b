"""The lines of a guard for arrays, plain values, containers and things of libraries."""

import math
import weakref
from typing import Any

from ._writer import Unguarded, Writer


_SIMPLE = (bool, int, str, bytes, type(None), type(...))


def leaf(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.frozen:
        raise Unguarded
    if not w.met(value, here, kind):
        w.unless(f"type({here}) is {w.constant(kind)}")
        w.leaves.append(here)


def static(w: Writer, value: Any, here: str) -> None:
    if type(value) not in _SIMPLE:
        raise Unguarded
    if value is None or isinstance(value, bool):
        w.unless(f"{here} is {value}")
    else:
        kind, equal = w.constant(type(value)), w.constant(value)
        w.unless(f"type({here}) is {kind} and {here} == {equal}")


def number(w: Writer, value: float, here: str) -> None:
    if not value or math.isnan(value):
        raise Unguarded
    equal = w.constant(value)
    w.unless(f"type({here}) is float and {here} == {equal}")


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
    if not all(type(name) is str for name in value):
        raise Unguarded
    names = w.constant(list(value))
    types_of = w.constant([str] * len(value))
    w.unless(
        f"type({here}) is {w.constant(kind)} and [*{here}] == {names} "
        f"and [*map(type, {here})] == {types_of}"
    )
    for name, item in list(value.items()):
        w.visit(item, f"{here}[{name!r}]")


def same(w: Writer, value: Any, here: str) -> None:
    """A thing of a library, which a walk's key holds as well."""
    w.unless(f"{here} is {w.constant(value)}")


def same_if_alive(w: Writer, value: Any, here: str) -> None:
    alive = w.constant(weakref.ref(value))  # which is `None` once it is dead
    w.unless(f"{here} is not None and {here} is {alive}()")
