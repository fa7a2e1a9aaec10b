"""Captured things that hold others and stay what they are: sets, getters, references.

What a set or a getter holds is not replaced, so an array in it is a constant.
"""

import functools
import operator
import types
import weakref
from collections.abc import Collection, Hashable
from typing import Any

from ._captured_type import CapturedType, register, uncopied
from ._rebuild import Rebuild
from ._walk import Walk
from ._writer import Unguarded, Writer


def visit_parts(walk: Walk, label: Hashable, parts: Collection[object]) -> None:
    """Visit what an immutable thing holds, which keeps its identity."""
    walk.key.append((label, len(parts)))
    walk.static_depth += 1
    try:
        for i, part in enumerate(parts):
            walk.visit(part, "[{}]", i)
    finally:
        walk.static_depth -= 1


def _visit_set(walk: Walk, value: set[object] | frozenset[object]) -> None:
    """A set, in the order in which it is iterated over."""
    # Two equal sets may differ in their order, and a function may loop over one.
    if not walk.met(value):
        visit_parts(walk, type(value), value)


def _guard_set(w: Writer, value: set[object] | frozenset[object], here: str) -> None:
    if w.met(value, here, type(value)):
        return
    cls, items = w.constant(type(value)), list(value)
    w.require(f"type({here}) is {cls} and len({here}) == {len(items)}")
    each = w.assign(items, f"[*{here}]")
    w.static_depth += 1
    for i, item in enumerate(items):
        w.visit(item, f"{each}[{i}]")
    w.static_depth -= 1


def _rebuild_set(_: Rebuild, value: set[object] | frozenset[object]) -> Any:
    return type(value)(value)


SET = CapturedType(
    visit=_visit_set,
    guard=_guard_set,
    rebuild=_rebuild_set,
    treatment="static",
    mutable=True,
    refilled=False,
)
FROZENSET = CapturedType(
    visit=_visit_set,
    guard=_guard_set,
    rebuild=_rebuild_set,
    treatment="static",
    mutable=False,
    refilled=False,
)
register(SET, set)
register(FROZENSET, frozenset)


def _visit_getter(walk: Walk, value: Any) -> None:
    """An `itemgetter`, an `attrgetter` or a `methodcaller`, by its arguments."""
    if walk.met_static(value):
        return
    function, arguments = value.__reduce__()
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    parts = (*arguments, tuple(keywords), *keywords.values())
    visit_parts(walk, type(value), parts)


def _guard_getter(w: Writer, value: Any, here: str) -> None:
    arguments = value.__reduce__()[1]
    if type(value) is operator.methodcaller or {str, int} < set(map(type, arguments)):
        raise Unguarded
    if w.met(value, here, type(value)):
        return
    w.require(f"type({here}) is {w.constant(type(value))}")
    w.visit(arguments, f"{here}.__reduce__()[1]")


register(
    uncopied(visit=_visit_getter, guard=_guard_getter, treatment="static"),
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
)


def _visit_type_form(walk: Walk, value: types.GenericAlias | types.UnionType) -> None:
    """A generic type with its arguments, or a union of types."""
    if walk.met_static(value):
        return
    origin = getattr(value, "__origin__", None)
    visit_parts(walk, type(value), (origin, *value.__args__))


register(
    uncopied(visit=_visit_type_form, guard=None, treatment="static"),
    types.GenericAlias,
    type(int | str),
)


def _visit_reference(walk: Walk, value: weakref.ref[object]) -> None:
    """A weak reference: what it refers to now."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(value(), "()")


def _guard_reference(w: Writer, value: weakref.ref[object], here: str) -> None:
    if not w.met(value, here, type(value)):
        w.require(f"type({here}) is {w.constant(type(value))}")
        w.visit(value(), f"{here}()")


def _rebuild_reference(
    rebuild: Rebuild, value: weakref.ref[object]
) -> weakref.ref[object]:
    copy = rebuild(value())
    # Nothing else keeps the copy alive: the default of the callback does.
    return weakref.ref(copy, lambda _, copy=copy: None)


REFERENCE = CapturedType(
    visit=_visit_reference,
    guard=_guard_reference,
    rebuild=_rebuild_reference,
    treatment="traversed",
    mutable=False,
    refilled=False,
)
register(REFERENCE, weakref.ref)
