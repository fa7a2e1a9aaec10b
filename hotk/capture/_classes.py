"""Captured classes, by what they say, and the members of enumerations."""

import abc
import dataclasses
import enum
import functools
import types
import weakref
from collections import namedtuple
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from hotk._core import peek

from ._captured_type import register, uncopied
from ._code import MADE_BY_DATACLASSES
from ._library import is_library_class
from ._mappings import guard_entries, visit_dict
from ._walk import Walk
from ._writer import Unguarded, Writer, guard_identity, guard_weak_identity


# What Python keeps in a class for itself: it says nothing of what the class computes.
_NOT_OWN = frozenset(
    {
        *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
        *("__dataclass_fields__", "__dataclass_params__"),
        *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__"),
        *("__abstractvars__", "__abstractclassvars__", "__qualname__", "__slots__"),
        *("__static_attributes__", "__firstlineno__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__type_params__"),
        *("__protocol_attrs__", "_is_protocol", "_is_runtime_protocol"),
        *("__non_callable_proto_members__", "__classcell__", "__signature__"),
    }
)


# What Python makes for a slot, `__dict__` and the like.
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# The wrappers of functions that a class may hold, and what is inside.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}
_FIELD_OF_TUPLE: type = type(vars(namedtuple("One", "a"))["a"])


# ----- What a class says


def _registered(cls: abc.ABCMeta) -> frozenset[weakref.ref[type]]:
    """Return weak references to the classes registered with an abstract class.

    There is no public reader, and this one is named for looking into the registry.
    """
    return frozenset(abc._get_dump(cls)[0])  # pyright: ignore


def _own_defaults(field: dataclasses.Field[object]) -> list[str]:
    """List which of `default` and `default_factory` a field of a dataclass has."""
    missing = dataclasses.MISSING
    both = ("default", "default_factory")
    return [part for part in both if getattr(field, part) is not missing]


def _members_of(base: type) -> Mapping[str, Any]:
    """Return the members of an enumeration by name; a class of another kind has none.

    A metaclass of the user may have an answer to every name.
    """
    return base.__members__ if isinstance(base, enum.EnumMeta) else {}


def _is_sunder(name: str) -> bool:
    """Whether a name is one of those that Python gives to an enumeration's parts."""
    return name[:1] == name[-1:] == "_"


def _own_items(base: type) -> list[tuple[str, object]]:
    """List what a class says itself: not what Python or `dataclasses` wrote into it."""
    generated = "__dataclass_fields__" in vars(base) or "__attrs_attrs__" in vars(base)
    members = _members_of(base)
    is_tuple = issubclass(base, tuple)
    found = []
    for name, item in list(vars(base).items()):
        if name in _NOT_OWN or name in members:
            continue
        if is_tuple and _is_of_named_tuple(item):
            continue
        if name.startswith("__pydantic_") and name != "__pydantic_fields__":
            continue  # made from the fields and from methods, which are visited
        if members and _is_sunder(name) and not isinstance(item, FunctionType):
            continue
        if generated and _is_generated(name, item):
            continue
        found.append((name, item))
    return found


def _is_generated(name: str, item: object) -> bool:
    """Whether `dataclasses` or attrs wrote a method, from fields that are visited."""
    item = peek(item, "__wrapped__") or item  # `__repr__` is wrapped by a library
    code = peek(item, "__code__")
    if code is None or name[:2] != "__":
        return False
    if code.co_filename.startswith("<attrs generated"):
        return name != "__call__"
    text = code.co_filename == "<string>"
    return text and code.co_qualname.startswith(MADE_BY_DATACLASSES)


def _is_of_named_tuple(item: object) -> bool:
    """Whether `typing.NamedTuple` made an item of a class, and not its author."""
    if type(item) is _FIELD_OF_TUPLE:
        return True
    function = peek(item, "__func__") or item
    if not isinstance(function, FunctionType):
        return False
    name = function.__globals__.get("__name__")
    qualname = function.__code__.co_qualname
    if qualname == "<lambda>":  # `__new__`, in a namespace of its own
        return isinstance(name, str) and name.startswith("namedtuple_")
    return name == "collections" and qualname.startswith("namedtuple.<locals>.")


def _parts_of(item: object) -> tuple[str, ...] | None:
    """Name what is inside of a descriptor; `None` if it is none that is known."""
    if isinstance(item, _DESCRIPTORS):
        return ()
    cls = type(item)
    for wrapper, parts in _WRAPPERS.items():
        # One of the user may have methods and attributes of its own.
        if cls is wrapper or (isinstance(item, wrapper) and is_library_class(cls)):
            return parts
    return None


# ----- Classes


def visit_class(walk: Walk, value: type) -> None:
    """Visit a class: by identity, and its functions like the user's own.

    By identity alone a method that is replaced in a notebook would not be seen
    (`tests/promises/test_never_stale.py`). A class is never copied, so all that it
    reaches is static.
    """
    if is_library_class(value):
        walk.key.append(type(value))  # `jnp.float32 == np.float32`
        walk.key.append(value)
        return
    if walk.met(value):
        return
    walk.key.append(weakref.ref(value))
    walk.user_classes = True
    walk.static_depth += 1
    try:
        if not is_library_class(type(value)):
            visit_class(walk, type(value))
        if isinstance(value, abc.ABCMeta):
            walk.key.append(_registered(value))
        for base in value.__mro__:
            if is_library_class(base):
                walk.key.append(base)
                continue
            walk.key.append(weakref.ref(base))
            for field in vars(base).get("__dataclass_fields__", {}).values():
                if field.metadata:
                    visit_dict(walk, dict(field.metadata))
                for part in _own_defaults(field):
                    walk.key.append(part)
                    walk.visit(getattr(field, part), ".{}", field.name)
            for known in _members_of(base).values():
                _visit_member_data(walk, known)
            for name, item in _own_items(base):
                walk.key.append(name)
                _visit_class_item(walk, name, item)
    finally:
        walk.static_depth -= 1


def _visit_class_item(walk: Walk, name: str, item: object) -> None:
    parts = _parts_of(item)
    if parts is None:
        walk.visit(item, ".{}", name)
        return
    walk.key.append(type(item))
    for part in parts:
        walk.visit(getattr(item, part), ".{}", name)


def _guard_class(w: Writer, value: type, here: str) -> None:
    if is_library_class(value):
        guard_identity(w, value, here)
        return
    if w.met(value, here, "class"):
        return
    if not is_library_class(type(value)):
        raise Unguarded
    guard_weak_identity(w, value, here)
    if isinstance(value, abc.ABCMeta):
        token = w.constant(abc.get_cache_token)  # another one once a class registers
        w.require(f"{token}() == {abc.get_cache_token()}")
    w.require(f"len({here}.__mro__) == {len(value.__mro__)}")
    w.static_depth += 1
    for i, base in enumerate(value.__mro__):
        _guard_base(w, base, f"{here}.__mro__[{i}]")
    w.static_depth -= 1


def _guard_base(w: Writer, base: type, expression: str) -> None:
    here = w.assign(base, expression)
    if is_library_class(base):
        guard_identity(w, base, here)
        return
    guard_weak_identity(w, base, here)
    members = dict(_members_of(base))
    place = w.assign(members, f"{here}.__members__") if members else ""
    if members:
        w.require(f"[*{place}] == {w.constant(list(members))}")
    for name, known in members.items():
        _guard_member_data(w, known, f"{place}[{name!r}]")
    here = w.assign(vars(base), f"{here}.__dict__")
    # All names, where a walk takes those of the author: it is quicker to ask.
    w.require(f"[*{here}] == {w.constant(list(vars(base)))}")
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
        place = f"{here}['__dataclass_fields__'][{name!r}]"
        guard_entries(w, field.metadata, f"{place}.metadata")
        for part in _own_defaults(field):
            w.visit(getattr(field, part), f"{place}.{part}")
    own = dict(_own_items(base))
    for name, item in vars(base).items():
        if name in own:
            continue
        # A method of the author may have come in place of one that was generated.
        if isinstance(item, FunctionType):
            w.visit_as(item, f"{here}[{name!r}]", guard_weak_identity)
        elif issubclass(base, tuple) and _is_of_named_tuple(item):
            guard_identity(w, item, f"{here}[{name!r}]")
    for name, item in own.items():
        _guard_class_item(w, item, f"{here}[{name!r}]")


def _guard_class_item(w: Writer, item: object, expression: str) -> None:
    parts = _parts_of(item)
    if parts is None:
        w.visit(item, expression)
        return
    here = w.assign(item, expression)
    w.require(f"type({here}) is {w.constant(type(item))}")
    for part in parts:
        w.visit(getattr(item, part), f"{here}.{part}")


CLASS = uncopied(visit=visit_class, guard=_guard_class, treatment="traversed")
register(CLASS, type)


# ----- Members of enumerations


def _visit_member(walk: Walk, value: enum.Enum) -> None:
    """A member of an enumeration, by its class, its name, and its number if any."""
    number = value.value if isinstance(value.value, int) else None
    walk.key.append((type(value), value.name, number))
    if not is_library_class(type(value)):
        visit_class(walk, type(value))


def _visit_member_data(walk: Walk, value: enum.Enum) -> None:
    """What a member of an enumeration carries besides its name."""
    items = vars(value).items()
    visit_dict(walk, {k: v for k, v in items if k == "_value_" or not _is_sunder(k)})


def _guard_member(w: Writer, value: enum.Enum, here: str) -> None:
    cls = type(value)
    if is_library_class(cls):
        guard_identity(w, value, here)
        return
    w.visit(cls, f"type({here})")
    w.require(f"{here} is type({here}).__members__[{value.name!r}]")
    if cls.__members__.get(value.name) is not value:
        raise Unguarded  # a combination of flags


def _guard_member_data(w: Writer, value: enum.Enum, expression: str) -> None:
    here = w.assign(value, expression)
    space = w.assign(vars(value), f"{here}.__dict__")
    w.require(f"[*{space}] == {w.constant(list(vars(value)))}")
    for name, item in vars(value).items():
        if name == "_value_" or not _is_sunder(name):
            w.visit(item, f"{space}[{name!r}]")


MEMBER = uncopied(visit=_visit_member, guard=_guard_member, treatment="static")
