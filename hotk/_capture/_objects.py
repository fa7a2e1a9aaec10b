"""Captured objects: by their attributes, or by identity if a library keeps them."""

import sys
import types
import weakref

from ._captured_type import CapturedType, uncopied
from ._classes import describe_class
from ._description import Description
from ._layout import describe_attributes
from ._library import is_library_class
from ._rebuild import Rebuild


# ----- Objects whose class is Python code


def describe_object(d: Description, value: object, here: str) -> None:
    """Describe an object of a class of Python code: its class and its attributes."""
    d.met(value, here)  # some of them may have been read before
    if d.counts_whole(value):
        return
    cls = type(value)
    describe_class(d, cls, d.let(cls, "type({0})", here))
    _ask_no_constant(d, cls, here)
    describe_attributes(d, value, here)


def _rebuild_object(rebuild: Rebuild, value: object) -> object:
    return rebuild.copy_object(value)


OBJECT = CapturedType(
    describe=describe_object,
    rebuild=_rebuild_object,
    treatment="traversed",
    mutable=True,
)


# ----- Constants of libraries: sentinels, default settings, flags


_CONSTANTS: weakref.WeakKeyDictionary[type, tuple[int, list[object]]] = (
    weakref.WeakKeyDictionary()
)


def is_constant(value: object) -> bool:
    """Whether an object is one that its library keeps, and compares with by identity.

    Such are sentinels and default settings: constants of the module of their class, or
    of the class.
    """
    return any(constant is value for constant in _constants_of(type(value)))


def _constants_of(cls: type) -> list[object]:
    """List the objects of a library's class that are constants of its module."""
    space = vars(sys.modules.get(cls.__module__, types))
    # A module that grows, as one that is still being imported, is looked at anew.
    size = len(space)
    known = _CONSTANTS.get(cls)
    if known is None or known[0] != size:
        places = (*list(space.values()), *list(vars(cls).values()))
        known = (size, [item for item in places if type(item) is cls])
        _CONSTANTS[cls] = known
    return known[1]


def _ask_no_constant(d: Description, cls: type, here: str) -> None:
    """Write that an object is no constant, which is known by its identity."""
    if d.writes and is_library_class(cls):
        for other in _constants_of(cls):
            d.ask("{0} is not {1}", here, other)


def _describe_constant(d: Description, value: object, here: str) -> None:
    """A constant of a library: by identity, and by what it holds now, as flags do."""
    if d.met_static(value, here):
        return
    d.note((type(value), id(value)))
    d.ask("{0} is {1}", here, value)
    with d.fixed():
        describe_attributes(d, value, here)


CONSTANT = uncopied(_describe_constant, "static by identity")


# ----- Objects of libraries without any attribute: there is nothing to copy


def _describe_empty(d: Description, value: object, here: str) -> None:
    if d.met_static(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    _ask_no_constant(d, type(value), here)
    describe_attributes(d, value, here)


EMPTY = uncopied(_describe_empty, "static")
