"""Captured dicts, their read-only views, and containers of a library's class."""

import collections
import gc
import types
from collections.abc import ItemsView, Mapping
from typing import Any

from ._captured_type import CapturedType, register
from ._code import is_hidden
from ._description import Description
from ._layout import describe_attributes
from ._rebuild import Rebuild


def describe_dict(d: Description, value: Mapping[Any, object], here: str) -> None:
    """Describe a dict in the order in which it is iterated over."""
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    describe_entries(d, value, here)


def describe_entries(
    d: Description, value: Mapping[Any, object], here: str, how: str = "[{!r}]"
) -> None:
    """Describe a mapping's keys, in order, and what they stand for.

    Args:
        d: The description.
        value: The mapping.
        here: Its variable.
        how: How the user would write what a key stands for.
    """
    entries = list(value.items())  # another thread may add one meanwhile
    d.note(len(entries))
    if all(type(name) is str for name, _ in entries):
        if d.writes:
            # `==` alone would take a key of the user that says it is equal to a name.
            names, types_of = [name for name, _ in entries], [str] * len(entries)
            d.ask("[*{0}] == {1} and [*map(type, {0})] == {2}", here, names, types_of)
        for name, item in entries:
            d.note(name)
            d.part(item, how, name, here)
        return
    # A key of another type is a thing of its own: `1`, `1.0` and `True` are one key to
    # a dict, and three to a walk.
    d.ask("len({0}) == {1}", here, len(entries))
    names = d.let([name for name, _ in entries], "[*{0}]", here)
    items = d.let([item for _, item in entries], "[*{0}.values()]", here)
    for i, (name, item) in enumerate(entries):
        if type(name) is str:
            d.note(name)
            d.ask("type({0}[{1}]) is str and {0}[{1}] == {2}", names, i, name)
        else:  # it stays what it is when the dict is copied
            with d.fixed():
                d.part(name, " key {!r}", name, names, at=i)
        d.part(item, how, name, items, at=i)


def _rebuild_dict(
    rebuild: Rebuild, value: dict[object, object]
) -> dict[object, object]:
    copy = type(value)()
    rebuild.copies[id(value)] = copy
    # The keys are the same objects: a function may look one up by its own.
    for name, item in value.items():
        copy[name] = rebuild(item)
    return copy


DICT = CapturedType(
    describe=describe_dict,
    rebuild=_rebuild_dict,
    treatment="traversed",
    mutable=True,
)
register(DICT, dict)


def _proxied(value: types.MappingProxyType[object, object]) -> Any:
    """Return the mapping that a read-only view shows."""
    (found,) = gc.get_referents(value)
    return found


def _describe_proxy(
    d: Description, value: types.MappingProxyType[object, object], here: str
) -> None:
    """A read-only view of a mapping."""
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    shown = _proxied(value)
    d.part(shown, here=d.let(shown, "{1}({0})", here, _proxied), read="{0}")


def _rebuild_proxy(
    rebuild: Rebuild, value: types.MappingProxyType[object, object]
) -> types.MappingProxyType[object, object]:
    return type(value)(rebuild(_proxied(value)))


PROXY = CapturedType(
    describe=_describe_proxy,
    rebuild=_rebuild_proxy,
    treatment="traversed",
    mutable=False,
)
register(PROXY, types.MappingProxyType)


# ----- Dicts, lists and tuples of a library's class, with attributes of their own


def _entries(value: dict[object, object]) -> ItemsView[object, object]:
    """Return the entries of a dict in its order, whatever methods its class has."""
    if isinstance(value, collections.OrderedDict):
        return collections.OrderedDict.items(value)
    return dict.items(value)


def _describe_subclassed(d: Description, value: Any, here: str) -> None:
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    if isinstance(value, collections.defaultdict):
        d.attribute(value, "default_factory", here)
    if isinstance(value, dict):
        plain = _plain_dict(value)
        for name in plain:
            if type(name) is str and is_hidden(name):
                d.by_name(hidden=True)
        describe_entries(d, plain, d.let(plain, "{1}({0})", here, _plain_dict))
    else:  # a class may iterate otherwise
        base: Any = list if isinstance(value, list) else tuple
        items = list(base.__iter__(value))
        each = d.let(items, "[*{1}.__iter__({0})]", here, base)
        d.same("len({0}) == {1}", each, len(items))
        for i, item in enumerate(items):
            d.part(item, "[{}]", i, each)
    describe_attributes(d, value, here)


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
    rebuild.fill_attributes(value, copy)
    return copy


SUBCLASSED = CapturedType(
    describe=_describe_subclassed,
    rebuild=_rebuild_subclassed,
    treatment="traversed",
    mutable=True,
)
register(
    SUBCLASSED,
    collections.defaultdict,
    collections.Counter,
    collections.OrderedDict,
)
