"""The lines of a guard for classes, their objects, and the nodes of trees."""

import abc
import collections
import dataclasses
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import equinox as eqx

from hotk._core import peek

from . import _classes
from ._classes import is_library_class
from ._objects import attributes_of, kept_instances, members, slots_of
from ._standard import entries as entries_of, nodes_of
from ._value_lines import entries, same, same_if_alive
from ._values import OF_WRAPPERS, one_level
from ._writer import Unguarded, Writer


def a_class(w: Writer, value: type, here: str) -> None:
    if is_library_class(value):
        same(w, value, here)
        return
    if w.met(value, here, "class"):
        return
    if not is_library_class(type(value)):
        raise Unguarded
    same_if_alive(w, value, here)
    if isinstance(value, abc.ABCMeta):
        token = w.constant(abc.get_cache_token)  # another one once a class registers
        w.unless(f"{token}() == {abc.get_cache_token()}")
    w.unless(f"len({here}.__mro__) == {len(value.__mro__)}")
    w.frozen += 1
    for i, base in enumerate(value.__mro__):
        _base(w, base, f"{here}.__mro__[{i}]")
    w.frozen -= 1


def _base(w: Writer, base: type, expression: str) -> None:
    here = w.hold(base, expression)
    if is_library_class(base):
        same(w, base, here)
        return
    same_if_alive(w, base, here)
    members: dict[str, Any] = dict(_classes.members_of(base))
    place = w.hold(members, f"{here}.__members__") if members else ""
    if members:
        w.unless(f"[*{place}] == {w.constant(list(members))}")
    for name, known in members.items():
        member_data(w, known, f"{place}[{name!r}]")
    here = w.hold(vars(base), f"{here}.__dict__")
    w.unless(f"[*{here}] == {w.constant(list(vars(base)))}")
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
        place = f"{here}['__dataclass_fields__'][{name!r}]"
        entries(w, field.metadata, f"{place}.metadata")
        for part in _classes.own_defaults(field):
            w.visit(getattr(field, part), f"{place}.{part}")
    own = dict(_classes.own_items(base))
    for name, item in vars(base).items():
        if name in own:
            continue
        if isinstance(item, FunctionType):  # written by Python
            w.visit_as(item, f"{here}[{name!r}]", same_if_alive)
        elif issubclass(base, tuple) and _classes.is_of_named_tuple(item):
            same(w, item, f"{here}[{name!r}]")
    for name, item in own.items():
        _class_item(w, item, f"{here}[{name!r}]")


def member_data(w: Writer, value: Any, expression: str) -> None:
    """Write the check of what a member of an enumeration carries."""
    here = w.hold(value, expression)
    space = w.hold(vars(value), f"{here}.__dict__")
    w.unless(f"[*{space}] == {w.constant(list(vars(value)))}")
    for name, item in vars(value).items():
        if name == "_value_" or not _classes.is_sunder(name):
            w.visit(item, f"{space}[{name!r}]")


def member(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if is_library_class(kind):
        same(w, value, here)
        return
    w.visit(kind, f"type({here})")
    w.unless(f"{here} is type({here}).__members__[{value.name!r}]")
    if kind.__members__.get(value.name) is not value:
        raise Unguarded  # a combination of flags


def _class_item(w: Writer, item: Any, expression: str) -> None:
    parts = _classes.parts_of(item)
    if parts is None:
        w.visit(item, expression)
        return
    here = w.hold(item, expression)
    w.unless(f"type({here}) is {w.constant(type(item))}")
    for part in parts:
        w.visit(getattr(item, part), f"{here}.{part}")


def plain_object(w: Writer, value: Any, here: str) -> None:
    w.met(value, here, "object")
    if id(value) in w.whole:
        return
    w.whole.add(id(value))
    kind = type(value)
    w.visit(kind, f"type({here})")
    if is_library_class(kind):
        for other in kept_instances(kind):  # one of these is known by its identity
            w.unless(f"{here} is not {w.constant(other)}")
    _contents(w, value, here)


def named_scope(w: Writer, value: Any, here: str) -> None:
    kind, name = w.constant(type(value)), w.constant(value.name)
    w.unless(f"type({here}) is {kind} and {here}.name == {name}")


def kept(w: Writer, value: Any, here: str) -> None:
    """Write the check of a constant of a library, and of what it holds now."""
    same(w, value, here)
    w.frozen += 1
    _contents(w, value, here)
    w.frozen -= 1


def _contents(w: Writer, value: Any, here: str) -> None:
    slots = slots_of(value)
    if len(slots) != sum(len(members(base)) for base in type(value).__mro__):
        raise Unguarded  # one that is filled later would be missed
    if peek(value, "__dict__") is not None:
        _attributes(w, vars(value), here, static=())
    for name, descriptor in slots.items():
        bases = enumerate(type(value).__mro__)
        at = next(i for i, base in bases if vars(base).get(name) is descriptor)
        read = f"type({here}).__mro__[{at}].__dict__[{name!r}].__get__({here})"
        w.visit(descriptor.__get__(value), read)


def _attributes(w: Writer, found: dict[str, Any], here: str, static: Any) -> None:
    space = w.hold(found, f"{here}.__dict__")
    w.unless(f"[*{space}] == {w.constant(list(found))}")
    for name, item in found.items():
        _plain_name(name)
        w.frozen += name in static
        w.visit(item, f"{space}[{name!r}]")
        w.frozen -= name in static


def _plain_name(name: Any) -> None:
    if type(name) is not str:
        raise Unguarded


def tree_node(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    if not isinstance(value, (tuple, eqx.Module)) and library != "equinox":
        _registered(w, value, here)
        return
    if w.met(value, here, "node"):
        return
    w.visit(kind, f"type({here})")
    if isinstance(value, tuple):
        if "_fields" not in dir(kind) or peek(value, "__dict__"):
            raise Unguarded  # registered by the user, with what may be more
        w.unless(f"len({here}) == {len(value)}")
        for i, item in enumerate(value):
            w.visit(item, f"{here}[{i}]")
        return
    if not isinstance(value, eqx.Module):
        same_if_alive(w, value, here)  # a sentinel in its static fields
        return
    fields = {field.name: field for field in dataclasses.fields(value)}
    if not set(vars(value)) <= {*fields, *OF_WRAPPERS}:
        raise Unguarded
    static = {n for n, field in fields.items() if field.metadata.get("static")}
    _attributes(w, vars(value), here, {*static, *OF_WRAPPERS})


def _registered(w: Writer, value: Any, here: str) -> None:
    """Write the check of a node of another library, or of a dataclass of the user."""
    kind = type(value)
    children, data = one_level(value)
    w.frozen += not children
    known = w.met(value, here, "node")
    w.frozen -= not children
    if known:
        return
    w.visit(kind, f"type({here})")
    if data is value:
        w.frozen += 1
        _contents(w, value, here)
        w.frozen -= 1
        return
    both = w.hold(None, f"{w.constant(one_level)}({here})")
    each, static = w.hold(children, f"{both}[0]"), w.hold(data, f"{both}[1]")
    w.unless(f"len({each}) == {len(children)}")
    if is_library_class(kind):
        names = w.constant(_names(value))
        w.unless(f"{w.constant(_names)}({here}) == {names}")
    else:
        _whole(w, value, here, (children, each), (data, static))
    w.frozen += 1
    _static_data(w, data, static)
    w.frozen -= 1
    for i, child in enumerate(children):
        w.visit(child, f"{each}[{i}]")


def _names(value: Any) -> list[list[Any]]:
    """List the attributes of a node, and its keys in order: what a tree may lack."""
    return [[*attributes_of(value)], [*value] if isinstance(value, Mapping) else []]


def _whole(w: Writer, value: Any, here: str, *parts: tuple[Any, str]) -> None:
    """Write that the tree of a dataclass holds all that the object holds."""
    if slots_of(value):
        raise Unguarded
    places = {}
    for part, name in parts:
        for i, item in enumerate(part if isinstance(part, (tuple, list)) else ()):
            places.setdefault(id(item), f"{name}[{i}]")
    found = peek(value, "__dict__") or {}
    space = w.hold(found, f"{here}.__dict__")
    w.unless(f"[*{space}] == {w.constant(list(found))}")
    for name, item in found.items():
        if id(item) not in places:
            raise Unguarded
        w.unless(f"{space}[{name!r}] is {places[id(item)]}")


def node(w: Writer, kind: type, data: Any, expression: str) -> None:
    """Write the check of the class and the static data of a tree's node."""
    here = w.hold(data, expression)
    w.visit(kind, f"{here}[0]")
    w.frozen += 1
    _static_data(w, data, f"{here}[1]")
    w.frozen -= 1


def subclassed(w: Writer, value: Any, here: str) -> None:
    """A tuple or a dict of a library's class."""
    kind = type(value)
    if isinstance(value, list):
        raise Unguarded
    if w.met(value, here, kind):
        return
    same_if_alive(w, kind, f"type({here})")
    _contents(w, value, here)
    if isinstance(value, tuple):  # a class may iterate otherwise
        items = list(tuple.__iter__(value))
        each = w.hold(items, f"[*{w.constant(tuple)}.__iter__({here})]")
        w.unless(f"len({each}) == {len(items)}")
        for i, item in enumerate(items):
            w.visit(item, f"{each}[{i}]")
        return
    plain = plain_dict(value)
    entries(w, plain, w.hold(plain, f"{w.constant(plain_dict)}({here})"))
    if kind is collections.defaultdict:
        w.visit(value.default_factory, f"{here}.default_factory")


def plain_dict(value: Any) -> dict[Any, Any]:
    """Return the entries of a dict, whatever methods its class has."""
    return dict(entries_of(value))


def treedef(w: Writer, value: Any, here: str) -> None:
    if w.met(value, here, type(value)):
        return
    nodes = nodes_of(value)
    w.unless(f"type({here}) is {w.constant(type(value))}")
    each = w.hold(nodes, f"{w.constant(nodes_of)}({here})")
    counts = [counts for counts, _ in nodes]
    w.unless(f"[n[0] for n in {each}] == {w.constant(counts)}")
    for i, (_, data) in enumerate(nodes):
        if data is not None:
            kind, held = data
            node(w, kind, held, f"{each}[{i}][1]")


def _static_data(w: Writer, data: Any, expression: str) -> None:
    if type(data) in (tuple, list):
        here = w.hold(data, expression)
        kind = w.constant(type(data))
        w.unless(f"type({here}) is {kind} and len({here}) == {len(data)}")
        for i, item in enumerate(data):
            _static_data(w, item, f"{here}[{i}]")
    else:
        w.visit(data, expression)
