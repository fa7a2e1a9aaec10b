"""Captured things that hold others and stay what they are: sets, getters, references.

What a set or a getter holds is not replaced, so an array in it is a constant.
"""

import functools
import operator
import types
import weakref
from collections.abc import Callable, Collection
from typing import Any

from ._captured_type import CapturedType, register, uncopied
from ._description import Description
from ._rebuild import Rebuild


def _describe_parts(
    d: Description, value: object, here: str, parts: Callable[[Any], Collection[object]]
) -> None:
    """Describe what an immutable thing holds, which keeps its identity."""
    found = parts(value)
    each = d.let(found, "{1}({0})", here, parts)
    d.same("type({0}) is {1}", here, type(value))
    d.same("len({0}) == {1}", each, len(found))
    with d.fixed():
        for i, part in enumerate(found):
            d.part(part, "[{}]", i, each)


def _describe_set(
    d: Description, value: set[object] | frozenset[object], here: str
) -> None:
    """A set, in the order in which it is iterated over."""
    # Two equal sets may differ in their order, and a function may loop over one.
    if not d.met(value, here):
        _describe_parts(d, value, here, list)


def _rebuild_set(_: Rebuild, value: set[object] | frozenset[object]) -> Any:
    return type(value)(value)


SET = CapturedType(
    describe=_describe_set,
    rebuild=_rebuild_set,
    treatment="static",
    mutable=True,
)
FROZENSET = CapturedType(
    describe=_describe_set,
    rebuild=_rebuild_set,
    treatment="static",
    mutable=False,
)
register(SET, set)
register(FROZENSET, frozenset)


def _arguments(value: Any) -> tuple[object, ...]:
    function, arguments = value.__reduce__()
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    return (*arguments, tuple(keywords), *keywords.values())


def _describe_getter(d: Description, value: Any, here: str) -> None:
    """An `itemgetter`, an `attrgetter` or a `methodcaller`, by its arguments."""
    if not d.met_static(value, here):
        _describe_parts(d, value, here, _arguments)


register(
    uncopied(_describe_getter, "static"),
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
)


def _origin_and_arguments(
    value: types.GenericAlias | types.UnionType,
) -> tuple[object, ...]:
    return (getattr(value, "__origin__", None), *value.__args__)


def _describe_type_form(
    d: Description, value: types.GenericAlias | types.UnionType, here: str
) -> None:
    """A generic type with its arguments, or a union of types."""
    if not d.met_static(value, here):
        _describe_parts(d, value, here, _origin_and_arguments)


register(
    uncopied(_describe_type_form, "static"),
    types.GenericAlias,
    type(int | str),
)


def _describe_reference(d: Description, value: weakref.ref[object], here: str) -> None:
    """A weak reference: what it refers to now."""
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    d.part(value(), "()", "", here, "{0}()")


def _rebuild_reference(
    rebuild: Rebuild, value: weakref.ref[object]
) -> weakref.ref[object]:
    copy = rebuild(value())
    # Nothing else keeps the copy alive: the default of the callback does.
    return weakref.ref(copy, lambda _, copy=copy: None)


REFERENCE = CapturedType(
    describe=_describe_reference,
    rebuild=_rebuild_reference,
    treatment="traversed",
    mutable=False,
)
register(REFERENCE, weakref.ref)
