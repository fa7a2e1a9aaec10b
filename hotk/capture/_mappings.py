"""Captured dicts, their read-only views, and containers of a library's class."""

import collections
import gc
import types
from collections.abc import ItemsView, Mapping
from typing import Any

from ._attributes import guard_contents, visit_attributes
from ._captured_type import CapturedType, register
from ._rebuild import Rebuild
from ._walk import Walk
from ._writer import Unguarded, Writer, guard_weak_identity


def visit_dict(walk: Walk, value: Mapping[Any, object]) -> None:
    """Visit a dict in the order in which it is iterated over."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    # A list of the items: another thread may add one meanwhile.
    for name, item in list(value.items()):
        if type(name) is str:
            walk.key.append(name)
        else:
            _visit_name(walk, name)
        walk.visit(item, "[{!r}]", name)


def _visit_name(walk: Walk, name: object) -> None:
    """Visit a key of a dict, which stays what it is when the dict is copied."""
    walk.static_depth += 1
    try:
        walk.visit(name, " key {!r}", name)
    finally:
        walk.static_depth -= 1


def _guard_dict(w: Writer, value: dict[object, object], here: str) -> None:
    cls = type(value)
    if w.met(value, here, cls):
        return
    w.require(f"type({here}) is {w.constant(cls)}")
    guard_entries(w, value, here)


def guard_entries(w: Writer, value: Mapping[Any, object], here: str) -> None:
    """Write the check of a mapping's keys, in order, and of what they stand for."""
    if all(type(name) is str for name in value):
        # `==` alone would take a key of the user that says that it is equal to a name.
        names, types_of = w.constant(list(value)), w.constant([str] * len(value))
        w.require(f"[*{here}] == {names} and [*map(type, {here})] == {types_of}")
        for name, item in list(value.items()):
            w.visit(item, f"{here}[{name!r}]")
        return
    # A key of another type is checked as a thing of its own: `1`, `1.0` and `True` are
    # one key to a dict, and three to a walk.
    names, items = list(value), list(value.values())
    w.require(f"len({here}) == {len(names)}")
    each = w.assign(names, f"[*{here}]")
    w.static_depth += 1
    for i, name in enumerate(names):
        w.visit(name, f"{each}[{i}]")
    w.static_depth -= 1
    each = w.assign(items, f"[*{here}.values()]")
    for i, item in enumerate(items):
        w.visit(item, f"{each}[{i}]")


def _rebuild_dict(
    rebuild: Rebuild, value: dict[object, object]
) -> dict[object, object]:
    copy = type(value)()
    rebuild.copies[id(value)] = copy
    # The keys are the same objects: a function may look one up by its own.
    for name, item in value.items():
        copy[name] = rebuild(item)
    rebuild.undo_log.entries(copy, dict)
    return copy


DICT = CapturedType(
    visit=visit_dict,
    guard=_guard_dict,
    rebuild=_rebuild_dict,
    treatment="traversed",
    mutable=True,
    refilled=True,
)
register(DICT, dict)


def _proxied(value: types.MappingProxyType[object, object]) -> Any:
    """Return the mapping that a read-only view shows."""
    (found,) = gc.get_referents(value)
    return found


def _visit_proxy(walk: Walk, value: types.MappingProxyType[object, object]) -> None:
    """A read-only view of a mapping."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(_proxied(value))


def _guard_proxy(
    w: Writer, value: types.MappingProxyType[object, object], here: str
) -> None:
    if not w.met(value, here, type(value)):
        w.require(f"type({here}) is {w.constant(type(value))}")
        w.visit(_proxied(value), f"{w.constant(_proxied)}({here})")


def _rebuild_proxy(
    rebuild: Rebuild, value: types.MappingProxyType[object, object]
) -> types.MappingProxyType[object, object]:
    return type(value)(rebuild(_proxied(value)))


PROXY = CapturedType(
    visit=_visit_proxy,
    guard=_guard_proxy,
    rebuild=_rebuild_proxy,
    treatment="traversed",
    mutable=False,
    refilled=False,
)
register(PROXY, types.MappingProxyType)


# ----- Dicts, lists and tuples of a library's class, with attributes of their own


def _entries(value: dict[object, object]) -> ItemsView[object, object]:
    """Return the entries of a dict in its order, whatever methods its class has."""
    if isinstance(value, collections.OrderedDict):
        return collections.OrderedDict.items(value)
    return dict.items(value)


def _visit_subclassed(walk: Walk, value: Any) -> None:
    if walk.met(value):
        return
    walk.key.append(type(value))
    if isinstance(value, collections.defaultdict):
        walk.visit(value.default_factory, ".default_factory")
    if isinstance(value, dict):
        walk.key.append(dict.__len__(value))
        for name, item in list(_entries(value)):
            _visit_name(walk, name)
            walk.visit(item, "[{!r}]", name)
    else:
        base: Any = list if isinstance(value, list) else tuple
        items = list(base.__iter__(value))
        walk.key.append(len(items))
        for i, item in enumerate(items):
            walk.visit(item, "[{}]", i)
    visit_attributes(walk, value)


def _guard_subclassed(w: Writer, value: Any, here: str) -> None:
    cls = type(value)
    if isinstance(value, list):
        raise Unguarded
    if w.met(value, here, cls):
        return
    guard_weak_identity(w, cls, f"type({here})")
    guard_contents(w, value, here)
    if isinstance(value, tuple):  # a class may iterate otherwise
        items = list(tuple.__iter__(value))
        each = w.assign(items, f"[*{w.constant(tuple)}.__iter__({here})]")
        w.require(f"len({each}) == {len(items)}")
        for i, item in enumerate(items):
            w.visit(item, f"{each}[{i}]")
        return
    plain = _plain_dict(value)
    guard_entries(w, plain, w.assign(plain, f"{w.constant(_plain_dict)}({here})"))
    if cls is collections.defaultdict:
        w.visit(value.default_factory, f"{here}.default_factory")


def _plain_dict(value: dict[object, object]) -> dict[object, object]:
    return dict(_entries(value))


def _rebuild_subclassed(rebuild: Rebuild, value: Any) -> Any:
    cls = type(value)
    if isinstance(value, tuple):
        copy: Any = tuple.__new__(cls, map(rebuild, tuple.__iter__(value)))
        rebuild.copies[id(value)] = copy
    elif isinstance(value, list):
        copy = list.__new__(cls)
        rebuild.copies[id(value)] = copy
        list.extend(copy, map(rebuild, list.__iter__(value)))
        rebuild.undo_log.items(copy, list)
    else:
        # `OrderedDict` keeps its order beside the dict, and only its own methods do so.
        ordered = isinstance(value, collections.OrderedDict)
        base = collections.OrderedDict if ordered else dict
        copy = base.__new__(cls)
        rebuild.copies[id(value)] = copy
        if isinstance(value, collections.defaultdict):
            copy.default_factory = rebuild(value.default_factory)
        for name, item in _entries(value):
            base.__setitem__(copy, name, rebuild(item))
        rebuild.undo_log.entries(copy, base)
    rebuild.fill_attributes(value, copy)
    rebuild.undo_log.attributes(copy)
    return copy


SUBCLASSED = CapturedType(
    visit=_visit_subclassed,
    guard=_guard_subclassed,
    rebuild=_rebuild_subclassed,
    treatment="traversed",
    mutable=True,
    refilled=True,
)
register(
    SUBCLASSED,
    collections.defaultdict,
    collections.Counter,
    collections.OrderedDict,
)
