"""Visitors of objects whose class is Python code: by their attributes."""

import sys
import types
import weakref
from typing import Any

from hotk._core import peek

from ._classes import a_class, is_library_class
from ._recipe import recipe_of
from ._walk import Walk


_HEAP_TYPE = 1 << 9
_MANAGED_DICT = 1 << 4
_MEMBER = types.MemberDescriptorType
_WORD = object.__basicsize__ // 2
# Classes of C whose objects keep all that they have in `__dict__` or nothing at all.
_EMPTY = (object, types.SimpleNamespace)
_INSTANCES: weakref.WeakKeyDictionary[type, tuple[int, list[Any]]] = (
    weakref.WeakKeyDictionary()
)


def makes_new(kind: type, base: type = object) -> bool:
    """Whether an object of a class is what its attributes and its base say.

    A class of Python code adds slots, `__dict__` and a list of weak references to the
    memory of an object of its base; what is larger keeps what no walk sees.
    """
    if "__del__" in dir(kind):
        return False
    words, solid = 0, None
    for here in kind.__mro__:
        if not here.__flags__ & _HEAP_TYPE:
            solid = solid or here
        words += len(members(here))
        if not isinstance(vars(here).get("__dict__", ()), _NO_STATE):
            return False  # a proxy: its `__dict__` is another object's
    if solid is not base and not (base is object and solid in _EMPTY):
        return False
    words += _words(kind) - _words(base)
    return kind.__basicsize__ == base.__basicsize__ + words * _WORD


def _words(kind: type) -> int:
    """Count the pointers to `__dict__` and to weak references in an object itself."""
    own_dict = kind.__dictoffset__ != 0 and not kind.__flags__ & _MANAGED_DICT
    return own_dict + (kind.__weakrefoffset__ > 0)


_NO_STATE = (tuple, types.GetSetDescriptorType, _MEMBER)


def members(kind: type) -> list[tuple[str, Any]]:
    """List the slots that a class of Python code adds."""
    if "__slots__" not in vars(kind):
        return []
    found = vars(kind).items()
    return [(name, item) for name, item in found if type(item) is _MEMBER]


def new_object(kind: type) -> Any:
    """Make an object of a class without any attribute."""
    bases: tuple[Any, ...] = kind.__mro__
    for base in bases:
        if not base.__flags__ & _HEAP_TYPE:
            return base.__new__(kind)
    raise TypeError(kind)  # pragma: no cover


def is_kept(value: Any) -> bool:
    """Whether an object is one that its library keeps, and compares with by identity.

    Such are sentinels and default settings: constants of the module of their class, or
    of the class.
    """
    return any(kept is value for kept in kept_instances(type(value)))


def kept_instances(kind: type) -> list[Any]:
    """List the objects of a library's class that are constants of its module."""
    space = vars(sys.modules.get(kind.__module__, types))
    size = len(space)
    known = _INSTANCES.get(kind)
    if known is None or known[0] != size:
        places = (*list(space.values()), *list(vars(kind).values()))
        known = (size, [item for item in places if type(item) is kind])
        _INSTANCES[kind] = known
    return known[1]


def kept(walk: Walk, value: Any) -> None:
    """A constant of a library: by identity, and by what it holds now, as flags do."""
    if walk.met_fixed(value):
        return
    walk.key.append((type(value), id(value)))
    walk.frozen += 1
    try:
        attributes(walk, value)
    finally:
        walk.frozen -= 1


def mark(walk: Walk, value: Any) -> None:
    """A number that tells objects apart, and says nothing else of them."""
    walk.key.append(type(value))


def bare(walk: Walk, value: Any) -> None:
    """An object of a library that has no attributes: there is nothing to copy."""
    if not walk.met_fixed(value):
        walk.key.append((type(value), 0))


def named_scope(walk: Walk, value: Any) -> None:
    """A scope of `jax.named_scope`, which keeps where it was entered: by its name."""
    walk.key.append((type(value), value.name))


def plain_object(walk: Walk, value: Any) -> None:
    """An object of a class of Python code: its class and its attributes."""
    walk.met(value)  # some of them may have been read before
    if id(value) in walk.whole:
        return
    walk.whole.add(id(value))
    if walk.trail is not None:
        walk.trail.read.pop(id(value), None)
    a_class(walk, type(value))
    attributes(walk, value)


def attributes(walk: Walk, value: Any) -> None:
    """Visit the attributes of an object."""
    found = attributes_of(value)
    walk.key.append(len(found))
    for name, item in found.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def slots_of(value: Any) -> dict[str, Any]:
    """Return the descriptors of all slots of an object that are filled."""
    found = {}
    for base in type(value).__mro__:
        for name, descriptor in members(base):
            try:
                descriptor.__get__(value)
            except AttributeError:
                continue
            found.setdefault(name, descriptor)
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a plain object, those in slots included."""
    found = dict(peek(value, "__dict__") or {})
    for name, descriptor in slots_of(value).items():
        found[name] = descriptor.__get__(value)
    return found


def is_value(kind: type) -> bool:
    """Whether objects of a class are compared by value, and so are never changed.

    Dataclasses, flax modules and what libraries hash are; a method `__hash__` of the
    user says nothing of whether the object may change.
    """
    method: Any = kind.__hash__
    if method is None or method is object.__hash__:
        return False
    code = getattr(method, "__code__", None)
    if code is None:
        return is_library_class(kind)
    return code.co_filename == "<string>" or recipe_of(code).library
