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
from ._description import ATTRIBUTE, Description
from ._library import is_library_class
from ._mappings import describe_entries


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
        "__slotnames__",  # kept there by the first `copy.copy` of an object
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


def describe_class(d: Description, value: type, here: str) -> None:
    """Describe a class: by identity, and its functions like the user's own.

    By identity alone a method that is replaced in a notebook would not be seen
    (`tests/promises/test_never_stale.py`). A class is never copied, so all that it
    reaches is static.
    """
    if is_library_class(value):
        d.library(value, here)
        return
    if d.met(value, here):
        return
    d.identity(value, here)
    d.user_classes = True
    with d.fixed():
        if not is_library_class(type(value)):
            describe_class(d, type(value), d.let(type(value), "type({0})", here))
        if isinstance(value, abc.ABCMeta):
            d.note(_registered(value))
            token = abc.get_cache_token()  # another one once a class registers
            d.ask("{2}() == {1}", here, token, abc.get_cache_token)
        d.ask("len({0}.__mro__) == {1}", here, len(value.__mro__))
        for i, base in enumerate(value.__mro__):
            _describe_base(d, base, d.let(base, "{0}.__mro__[{1}]", here, i))


def _describe_base(d: Description, base: type, here: str) -> None:
    if is_library_class(base):
        d.same("{0} is {1}", here, base)
        return
    d.identity(base, here)
    members = _members_of(base)
    if members:
        each = d.let(members, "{0}.__members__", here)
        d.ask("[*{0}] == {1}", each, list(members))
        for name, known in members.items():
            _describe_member_data(d, known, d.let(known, "{0}[{1}]", each, name))
    space = d.let(vars(base), "{0}.__dict__", here)
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
        place = d.let(field, "{0}['__dataclass_fields__'][{1}]", space, name)
        if field.metadata:
            found = d.let(field.metadata, "{0}.metadata", place)
            describe_entries(d, field.metadata, found)
        else:
            d.ask("not {0}.metadata", place)
        for part in _own_defaults(field):
            d.note(part)
            d.part(getattr(field, part), ".{}", field.name, place, ATTRIBUTE, part)
    own = _own_items(base)
    if d.writes:
        _ask_namespace(d, base, space, {name for name, _ in own})
    for name, item in own:
        parts = _parts_of(item)
        if parts is None:
            d.note(name)
            d.part(item, ".{}", name, space)
            continue
        d.same("type({0}[{1}]) is {2}", space, name, type(item))
        for part in parts:
            read = f"{{0}}[{{1!r}}].{part}"
            d.part(getattr(item, part), ".{}", name, space, read)


def _ask_namespace(d: Description, base: type, space: str, own: set[str]) -> None:
    """Write that a class has the names that it had, where a key has its author's."""
    d.ask("[*{0}] == {1}", space, list(vars(base)))
    for name, item in vars(base).items():
        if name in own:
            continue
        # A method of the author may have come in place of one that was generated.
        if isinstance(item, FunctionType):
            d.identity(item, d.let(item, "{0}[{1}]", space, name))
        elif issubclass(base, tuple) and _is_of_named_tuple(item):
            d.ask("{0}[{1}] is {2}", space, name, item)


CLASS = uncopied(describe_class, "traversed")
register(CLASS, type)


# ----- Members of enumerations


def _describe_member(d: Description, value: enum.Enum, here: str) -> None:
    """A member of an enumeration, by its class, its name, and its number if any."""
    cls = type(value)
    number = value.value if isinstance(value.value, int) else None
    d.note((cls, value.name, number))
    if is_library_class(cls):
        d.ask("{0} is {1}", here, value)
        return
    if cls.__members__.get(value.name) is not value:
        d.unguarded()  # a combination of flags
    d.ask("{0} is type({0}).__members__[{1}]", here, value.name)
    describe_class(d, cls, d.let(cls, "type({0})", here))


def _describe_member_data(d: Description, value: enum.Enum, here: str) -> None:
    """What a member of an enumeration carries besides its name."""
    space = d.let(vars(value), "{0}.__dict__", here)
    d.ask("[*{0}] == {1}", space, list(vars(value)))
    for name, item in vars(value).items():
        if name == "_value_" or not _is_sunder(name):
            d.note(name)
            d.part(item, ".{}", name, space)


MEMBER = uncopied(_describe_member, "static")
