"""Captured nodes of pytrees and their structures."""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import (
    default_registry,
    keystr,
    tree_flatten_with_path,
)

from hotk._core import PyTreeDef, peek

from ._captured_type import CAPTURED_TYPES, CapturedType, register, uncopied
from ._cause import Opaque, OpaqueCause
from ._classes import describe_class
from ._declared import Compared
from ._description import Description
from ._layout import attributes_of, describe_attributes, node_of, node_parts, slots_of
from ._library import is_library_class
from ._objects import OBJECT
from ._rebuild import Rebuild
from ._values import UNKNOWN


# What equinox lets a module say of the function that it stands for: static data.
_OF_WRAPPERS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


# ----- Children are captured, the rest is static


def describe_node(d: Description, value: object, here: str) -> None:
    """Describe a registered pytree."""
    if isinstance(value, eqx.Module):
        _describe_module(d, value, here)
        return
    cls = type(value)
    if _is_copy_in_parts(value):
        if not d.met(value, here):
            describe_class(d, cls, d.let(cls, "type({0})", here))
            describe_attributes(d, value, here)
        return
    children, treedef = node_parts(value)
    # One without children may be a constant of its library, as equinox has some.
    if d.met(value, here) if children else d.met_static(value, here):
        return
    d.counts_whole(value)
    data = treedef.node_data()
    if data is None:
        raise OpaqueCause.PYTREE.opaque(f"an empty node of type {cls.__name__}")
    describe_class(d, cls, d.let(cls, "type({0})", here))
    if data[1] is value:  # static as a whole
        with d.fixed():
            describe_attributes(d, value, here)
        return
    if not _is_whole(value, children, treedef):
        raise _lacks(cls)
    if isinstance(value, tuple):
        if "_fields" not in dir(cls) or peek(value, "__dict__") or data[1] is not None:
            d.unguarded()  # registered by the user, with what may be more
        each, both = here, ""
    else:
        # Flattened once: a class may make its children anew each time that it is asked.
        both = d.let(None, "{1}({0})", here, _one_level)
        each = d.let(children, "{0}[0]", both)
        _ask_whole(d, value, here, (children, each), (data[1], f"{both}[1]"))
    d.same("len({0}) == {1}", each, len(children))
    if not isinstance(value, tuple) or data[1] is not None:
        with d.fixed():
            _describe_static(d, data[1], both, 1)
    names = _child_names(value) if d.trail is not None else children
    for i, (name, child) in enumerate(zip(names, children, strict=True)):
        d.part(child, "{}", name, each, at=i)


def _describe_module(d: Description, value: eqx.Module, here: str) -> None:
    """Describe a module of equinox: by its fields, so that no code of it is run."""
    if d.met(value, here):
        return
    d.counts_whole(value)
    cls, own = type(value), vars(value)
    describe_class(d, cls, d.let(cls, "type({0})", here))
    fields: dict[bool, list[str]] = {True: [*_OF_WRAPPERS], False: []}
    for field in dataclasses.fields(value):
        fields[bool(field.metadata.get("static"))].append(field.name)
    if not own.keys() <= {*fields[True], *fields[False]}:
        raise _lacks(cls)
    space = d.let(own, "{0}.__dict__", here)
    d.ask("[*{0}] == {1}", space, list(own))
    # In the order of the fields, as those of a copy are.
    with d.fixed():
        for name in fields[True]:
            if name in own:
                d.note(name)
                _describe_static(d, own[name], space, name, ".{}", name)
    for name in fields[False]:
        if name in own:
            d.note(name)
            d.part(own[name], ".{}", name, space)


def _lacks(cls: type) -> Opaque:
    text = f"the class `{cls.__name__}` keeps what its tree lacks"
    return OpaqueCause.PYTREE.opaque(text)


def is_frozen_dataclass(cls: type) -> bool:
    """Whether a class, or the first base that is a dataclass, is a frozen one."""
    # not `getattr`: a metaclass of a user may answer any name
    noted = (vars(base).get("__dataclass_params__") for base in cls.__mro__)
    parameters = next((p for p in noted if p is not None), None)
    return parameters is not None and parameters.frozen


def _is_copy_in_parts(value: object) -> bool:
    """Whether a node is a copy with only those attributes that are read.

    A frozen dataclass that was made by its class has all of its fields.
    """
    cls = type(value)
    if not is_frozen_dataclass(cls) or isinstance(value, eqx.Module):
        return False
    own = peek(value, "__dict__")
    if own is None or slots_of(value):
        return False
    fields: Any = dataclasses.fields
    return any(field.name not in own for field in fields(cls))


def _is_whole(value: object, children: list[object], treedef: PyTreeDef) -> bool:
    """Whether a node's tree holds all that it holds.

    A class of the user registered by `jax.tree_util.register_dataclass` may leave
    fields out, and an object may have attributes besides its fields; what a library
    keeps of a property is none. A mapping may forget the order of its keys.
    """
    cls = type(value)
    fields = vars(cls).get("__dataclass_fields__")
    if fields is None and isinstance(value, tuple):
        items = list(tuple.__iter__(value))
        same = len(items) == len(children)
        return same and all(a is b for a, b in zip(items, children, strict=True))
    attributes = attributes_of(value)
    if is_library_class(cls):
        rebuilt = node_of(treedef, children)
        if isinstance(value, Mapping) and [*value] != [*rebuilt]:
            return False
        extra = attributes.keys() - attributes_of(rebuilt).keys()
        return all(any(name in vars(b) for b in cls.__mro__) for name in extra)
    # A class of the user: what its tree makes must have the very same attributes.
    rebuilt = attributes_of(node_of(treedef, children))
    return attributes.keys() == rebuilt.keys() and all(
        rebuilt[name] is item for name, item in attributes.items()
    )


def _child_names(value: object) -> list[str]:
    """Name the children of a registered pytree: `.weight`, `['a']`, `[0]`."""
    try:
        paths = tree_flatten_with_path(value, is_leaf=lambda node: node is not value)[0]
    except ValueError:  # a tuple that answers to every name, as those of a mock do
        return [f"[{i}]" for i in range(len(node_parts(value)[0]))]
    return [keystr(path) for path, _ in paths]


def describe_node_data(d: Description, cls: type, data: object, here: str) -> None:
    """Describe the static part of a pytree's node.

    Args:
        d: The description.
        cls: The class of the node.
        data: What the class keeps of it.
        here: The variable of the pair of both.
    """
    describe_class(d, cls, d.let(cls, "{0}[0]", here))
    with d.fixed():
        _describe_static(d, data, here, 1)


def _describe_static(
    d: Description,
    data: object,
    here: str,
    at: int | str,
    how: str = "{}",
    name: str = "<static>",
) -> None:
    """Describe static data: lists and tuples by their items.

    Args:
        d: The description.
        data: The data.
        here: The variable of what holds them.
        at: The place in this.
        how: How the user would write it, a format of `name`.
        name: Its name, if that is known.
    """
    # Exactly these: a subclass is a thing of its own.
    if type(data) is tuple or type(data) is list:
        own = d.let(data, "{0}[{1}]", here, at)
        d.same("type({0}) is {1} and len({0}) == {2}", own, type(data), len(data))
        if d.trail is not None:
            d.trail.static.append(data)
        for i, item in enumerate(data):
            _describe_static(d, item, own, i, how, name)
        return
    captured = CAPTURED_TYPES.get(type(data)) or d.find(data)
    ours = type(data).__module__.partition(".")[0] == "hotk"  # programs, immutable
    if captured is not UNKNOWN and not (ours and captured is OBJECT):
        d.part(data, how, name, here, at=at)
        return
    # What JAX compares by `==` and `hash` for `jax.jit` is compared so here too.
    try:
        hash(data)
    except TypeError as error:
        raise OpaqueCause.PYTREE.opaque(
            "static data of a pytree without a hash"
        ) from error
    if type(data).__hash__ is object.__hash__ and not ours:
        raise OpaqueCause.PYTREE.opaque(
            f"static data of type `{type(data).__qualname__}`"
        )
    d.note(Compared(data))
    d.unguarded()


# ----- Where the tree of a node may lack what the node holds


def _one_level(value: object) -> tuple[list[Any], Any]:
    """Return the children of a registered pytree, and its static data."""
    found: Any = default_registry.flatten_one_level(value)
    return list(found[0]), found[1]


def _names(value: object) -> list[list[Any]]:
    """List the attributes of a node, and its keys in order: what a tree may lack."""
    return [[*attributes_of(value)], [*value] if isinstance(value, Mapping) else []]


def _ask_whole(
    d: Description, value: object, here: str, *parts: tuple[object, str]
) -> None:
    """Write that the tree of a node holds all that the node holds."""
    if not d.writes:
        return
    if is_library_class(type(value)):
        d.ask("{2}({0}) == {1}", here, _names(value), _names)
        return
    if slots_of(value):
        d.unguarded()
    places: dict[int, tuple[str, int]] = {}
    for part, name in parts:
        for i, item in enumerate(part if isinstance(part, (tuple, list)) else ()):
            places.setdefault(id(item), (name, i))
    found = peek(value, "__dict__") or {}
    space = d.let(found, "{0}.__dict__", here)
    d.ask("[*{0}] == {1}", space, list(found))
    for name, item in found.items():
        if id(item) not in places:
            d.unguarded()
        variable, i = places[id(item)]
        d.ask(f"{{0}}[{{1}}] is {variable}[{i}]", space, name)


# ----- The copy


def rebuild_node(rebuild: Rebuild, value: object) -> object:
    """Copy a node of a tree with what it holds copied."""
    if _is_copy_in_parts(value):
        return rebuild.copy_object(value)
    children, treedef = node_parts(value)
    return node_of(treedef, [rebuild(child) for child in children])


NODE = CapturedType(
    describe=describe_node,
    rebuild=rebuild_node,
    treatment="traversed",
    mutable=False,
)


# ----- The structure of a tree: its nodes, with the static data of each


def _describe_treedef(d: Description, value: PyTreeDef, here: str) -> None:
    if d.met_static(value, here):
        return
    d.ask("type({0}) is {1}", here, type(value))
    nodes = _nodes_of(value)
    each = d.let(nodes, "{1}({0})", here, _nodes_of)
    d.ask("len({0}) == {1}", each, len(nodes))
    for i, (counts, data) in enumerate(nodes):
        d.same("{0}[{1}][0] == {2}", each, i, counts)
        if data is not None:
            cls, static = data
            pair = d.let(data, "{0}[{1}][1]", each, i)
            describe_node_data(d, cls, static, pair)


def _nodes_of(value: PyTreeDef) -> list[tuple[Hashable, Any]]:
    """List the nodes of a tree's structure: what they count, their class and data."""
    waiting: list[Any] = [value]
    found: list[tuple[Hashable, Any]] = []
    while waiting:
        here = waiting.pop()
        data = here.node_data()
        found.append(((here.num_nodes, here.num_leaves, data is None), data))
        waiting.extend(() if data is None else here.children())
    return found


register(uncopied(_describe_treedef, "static"), jax.tree_util.PyTreeDef)
