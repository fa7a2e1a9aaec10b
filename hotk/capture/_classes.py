"""Visitors of classes, their objects, enumerations and mappings."""

import abc
import dataclasses
import enum
import functools
import sys
import types
import weakref
from collections import namedtuple
from typing import Any

from hotk._core import peek

from ._recipe import MADE_BY_DATACLASSES, is_hidden, is_library_name
from ._walk import Opaque, Walk


_CLASSES: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_HEAP_TYPE = 1 << 9
_CLASS_NOISE = frozenset(
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
DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)
# The wrappers of functions that a class may hold, and what is inside.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}
_FIELD_OF_TUPLE: type = type(vars(namedtuple("One", "a"))["a"])


# Modules of Python that make classes for others and put their own name into them.
_MAKERS = ("abc", "types", "typing", "dataclasses", "collections", "enum", "functools")


def is_library_class(kind: type) -> bool:
    """Whether a class belongs to Python, to an installed package or to hotk."""
    known = _CLASSES.get(kind)
    if known is None:
        name = kind.__module__
        known = is_library_name(name)
        if name == "builtins" and kind.__flags__ & _HEAP_TYPE:
            known = False  # made by `exec` in a namespace without a name
        if known and name in _MAKERS:  # it may have been made there for the user
            known = vars(sys.modules[name]).get(kind.__qualname__) is kind
        _CLASSES[kind] = known
    return known


def unknown(walk: Walk, value: Any) -> None:
    """Anything else: it may change unseen."""
    raise Opaque(
        f"an object of type `{type(value).__module__}.{type(value).__qualname__}`"
    )


def static(walk: Walk, value: Any) -> None:
    """A value that cannot change: by type and value."""
    if type(value) is str and is_hidden(value):
        walk.by_name(hidden=True)
    walk.key.append(type(value))
    walk.key.append(value)


def mapping(walk: Walk, value: Any) -> None:
    """A dict, in the order in which it is iterated over."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    for name, item in list(value.items()):
        if type(name) is str:
            walk.key.append(name)
        else:
            a_name(walk, name)
        walk.visit(item, "[{!r}]", name)


def a_name(walk: Walk, name: Any) -> None:
    """A key of a dict, which stays what it is when the dict is copied."""
    walk.frozen += 1
    try:
        walk.visit(name, " key {!r}", name)
    finally:
        walk.frozen -= 1


def member(walk: Walk, value: enum.Enum) -> None:
    """A member of an enumeration, by its class, its name, and its number if any."""
    number = value.value if isinstance(value.value, int) else None
    walk.key.append((type(value), value.name, number))
    if not is_library_class(type(value)):
        a_class(walk, type(value))


def _member_data(walk: Walk, value: enum.Enum) -> None:
    """What a member of an enumeration carries besides its name."""
    items = vars(value).items()
    mapping(walk, {k: v for k, v in items if k == "_value_" or not is_sunder(k)})


def a_class(walk: Walk, value: type) -> None:
    """A class: by identity, and its functions like the user's own."""
    if is_library_class(value):
        walk.key.append(type(value))  # `jnp.float32 == np.float32`
        walk.key.append(value)
        return
    if walk.met(value):
        return
    walk.key.append(weakref.ref(value))
    walk.classes = True
    walk.frozen += 1
    try:
        if not is_library_class(type(value)):
            a_class(walk, type(value))
        if isinstance(value, abc.ABCMeta):
            walk.key.append(_registered(value))
        for base in value.__mro__:
            if is_library_class(base):
                walk.key.append(base)
                continue
            walk.key.append(weakref.ref(base))
            for field in vars(base).get("__dataclass_fields__", {}).values():
                if field.metadata:
                    mapping(walk, dict(field.metadata))
                for part in own_defaults(field):
                    walk.key.append(part)
                    walk.visit(getattr(field, part), ".{}", field.name)
            for known in members_of(base).values():
                _member_data(walk, known)
            for name, item in own_items(base):
                walk.key.append(name)
                _class_item(walk, name, item)
    finally:
        walk.frozen -= 1


def _registered(value: abc.ABCMeta) -> frozenset[Any]:
    """Return weak references to the classes registered with an abstract class.

    There is no public reader, and this one is named for looking into the registry.
    """
    return frozenset(abc._get_dump(value)[0])  # pyright: ignore


def own_defaults(field: Any) -> list[str]:
    """List which of `default` and `default_factory` a field of a dataclass has."""
    missing = dataclasses.MISSING
    both = ("default", "default_factory")
    return [part for part in both if getattr(field, part) is not missing]


def members_of(base: type) -> Any:
    """Return the members of an enumeration by name; a class of another kind has none.

    A metaclass of the user may have an answer to every name.
    """
    return base.__members__ if isinstance(base, enum.EnumMeta) else {}


def is_sunder(name: str) -> bool:
    """Whether a name is one of those that Python gives to an enumeration's parts."""
    return name[:1] == name[-1:] == "_"


def own_items(base: type) -> list[tuple[str, Any]]:
    """List what a class says itself: not what Python or `dataclasses` wrote into it."""
    generated = "__dataclass_fields__" in vars(base) or "__attrs_attrs__" in vars(base)
    members = members_of(base)
    is_tuple = issubclass(base, tuple)
    found = []
    for name, item in list(vars(base).items()):
        if name in _CLASS_NOISE or name in members:
            continue
        if is_tuple and is_of_named_tuple(item):
            continue
        if name.startswith("__pydantic_") and name != "__pydantic_fields__":
            continue  # made from the fields and from methods, which are visited
        if members and is_sunder(name) and not isinstance(item, types.FunctionType):
            continue
        if generated and _is_generated(name, item):
            continue
        found.append((name, item))
    return found


def _is_generated(name: str, item: Any) -> bool:
    """Whether `dataclasses` or attrs wrote a method, from fields that are visited."""
    item = peek(item, "__wrapped__") or item  # `__repr__` is wrapped by a library
    code = peek(item, "__code__")
    if code is None or name[:2] != "__":
        return False
    if code.co_filename.startswith("<attrs generated"):
        return name != "__call__"
    text = code.co_filename == "<string>"
    return text and code.co_qualname.startswith(MADE_BY_DATACLASSES)


def is_of_named_tuple(item: Any) -> bool:
    """Whether `typing.NamedTuple` made an item of a class, and not its author."""
    if type(item) is _FIELD_OF_TUPLE:
        return True
    function = peek(item, "__func__") or item
    if not isinstance(function, types.FunctionType):
        return False
    name = function.__globals__.get("__name__")
    made = function.__code__.co_qualname
    if made == "<lambda>":  # `__new__`, in a namespace of its own
        return isinstance(name, str) and name.startswith("namedtuple_")
    return name == "collections" and made.startswith("namedtuple.<locals>.")


def _class_item(walk: Walk, name: str, item: Any) -> None:
    parts = parts_of(item)
    if parts is None:
        walk.visit(item, ".{}", name)
        return
    walk.key.append(type(item))
    for part in parts:
        walk.visit(getattr(item, part), ".{}", name)


def parts_of(item: Any) -> tuple[str, ...] | None:
    """Name what is inside of a descriptor; `None` if it is none that is known."""
    if isinstance(item, DESCRIPTORS):
        return ()
    kind = type(item)
    for wrapper, parts in _WRAPPERS.items():
        # One of the user may have methods and attributes of its own.
        if kind is wrapper or (isinstance(item, wrapper) and is_library_class(kind)):
            return parts
    return None
