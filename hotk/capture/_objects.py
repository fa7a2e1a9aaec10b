"""Captured objects: by their attributes, or by identity if a library keeps them."""

import sys
import types
import weakref

from ._attributes import guard_contents, visit_attributes
from ._captured_type import CapturedType, uncopied
from ._classes import visit_class
from ._library import is_library_class
from ._rebuild import Rebuild
from ._walk import Walk
from ._writer import Writer, guard_identity


# ----- Objects whose class is Python code


def visit_object(walk: Walk, value: object) -> None:
    """Visit an object of a class of Python code: its class and its attributes."""
    walk.met(value)  # some of them may have been read before
    if id(value) in walk.whole:
        return
    walk.whole.add(id(value))
    if walk.trail is not None:
        walk.trail.read.pop(id(value), None)
    visit_class(walk, type(value))
    visit_attributes(walk, value)


def guard_object(w: Writer, value: object, here: str) -> None:
    """Write the check of an object of a class of Python code."""
    w.met(value, here, "object")
    if id(value) in w.whole:
        return
    w.whole.add(id(value))
    cls = type(value)
    w.visit(cls, f"type({here})")
    if is_library_class(cls):
        for other in _constants_of(cls):  # one of these is known by its identity
            w.require(f"{here} is not {w.constant(other)}")
    guard_contents(w, value, here)


def _rebuild_object(rebuild: Rebuild, value: object) -> object:
    return rebuild.copy_object(value)


OBJECT = CapturedType(
    visit=visit_object,
    guard=guard_object,
    rebuild=_rebuild_object,
    treatment="traversed",
    mutable=True,
    refilled=True,
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


def _visit_constant(walk: Walk, value: object) -> None:
    """A constant of a library: by identity, and by what it holds now, as flags do."""
    if walk.met_static(value):
        return
    walk.key.append((type(value), id(value)))
    walk.static_depth += 1
    try:
        visit_attributes(walk, value)
    finally:
        walk.static_depth -= 1


def _guard_constant(w: Writer, value: object, here: str) -> None:
    guard_identity(w, value, here)
    w.static_depth += 1
    guard_contents(w, value, here)
    w.static_depth -= 1


CONSTANT = uncopied(
    visit=_visit_constant, guard=_guard_constant, treatment="static by identity"
)


# ----- Objects of libraries without any attribute: there is nothing to copy


def _visit_empty(walk: Walk, value: object) -> None:
    if not walk.met_static(value):
        walk.key.append((type(value), 0))


EMPTY = uncopied(visit=_visit_empty, guard=guard_object, treatment="static")
