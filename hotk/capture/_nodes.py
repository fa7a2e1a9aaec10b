"""Captured nodes of pytrees and their structures."""

import dataclasses
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import (
    default_registry,
    keystr,
    tree_flatten_with_path,
)

from hotk._core import PyTreeDef, peek

from ._attributes import guard_attributes, guard_contents, visit_attributes
from ._captured_type import CAPTURED_TYPES, CapturedType, register, uncopied
from ._classes import visit_class
from ._declared import Compared
from ._layout import attributes_of, node_of, node_parts, slots_of
from ._library import is_library_class
from ._objects import OBJECT
from ._rebuild import Rebuild
from ._sets import visit_parts
from ._values import UNKNOWN
from ._walk import Opaque, Walk
from ._writer import Unguarded, Writer, guard_weak_identity


# What equinox lets a module say of the function that it stands for: static data.
_OF_WRAPPERS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


# ----- The visit: children are captured, the rest is static


def visit_node(walk: Walk, value: object) -> None:
    """Visit a registered pytree."""
    if _is_copy_in_parts(value):
        if not walk.met(value):
            visit_node_class(walk, type(value))
            visit_attributes(walk, value)
        return
    children, treedef = node_parts(value)
    # One without children may be a constant of its library, as equinox has some.
    if walk.met(value) if children else walk.met_static(value):
        return
    walk.whole.add(id(value))
    if walk.trail is not None:  # of which some attributes may have been read before
        walk.trail.read.pop(id(value), None)
    data = treedef.node_data()
    if data is None:
        raise Opaque(f"an empty node of type {type(value).__name__}")
    if data[1] is value:
        _visit_static_node(walk, value)
        return
    if not _is_whole(value, children, treedef):
        raise Opaque(f"the class `{type(value).__name__}` keeps what its tree lacks")
    # Names are for a trail alone: making them takes longer than the visit.
    static_names = () if walk.trail is None else _static_names(value, data[1])
    visit_node_data(walk, data[0], data[1], static_names)
    walk.key.append(len(children))
    names = _child_names(value) if walk.trail is not None else children
    for name, child in zip(names, children, strict=True):
        walk.visit(child, "{}", name)


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


def _visit_static_node(walk: Walk, value: object) -> None:
    """Visit a node that is static as a whole: by its class and its attributes."""
    walk.static_depth += 1
    try:
        visit_class(walk, type(value))
        visit_attributes(walk, value)
    finally:
        walk.static_depth -= 1


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
    if isinstance(value, eqx.Module):
        return attributes.keys() <= {*(fields or {}), *_OF_WRAPPERS}
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


def _static_names(value: object, data: object) -> list[str]:
    """Name the static data of a node of equinox, `.depth`, if the names are sure."""
    if not isinstance(value, eqx.Module) or type(data) is not tuple:
        return []
    fields = [f.name for f in dataclasses.fields(value) if f.metadata.get("static")]
    ahead = len(data) - len(fields)
    items = [getattr(value, name, data) for name in fields]
    if ahead < 0 or any(a is not b for a, b in zip(items, data[ahead:], strict=True)):
        return []
    return [*["<static>"] * ahead, *(f".{name}" for name in fields)]


def visit_node_data(
    walk: Walk, cls: type, data: object, names: Sequence[str] = ()
) -> None:
    """Visit the static part of a pytree's node: its class and what the class keeps.

    Args:
        walk: The walk.
        cls: The class.
        data: What it keeps.
        names: What the parts of `data` are called, if that is known.
    """
    visit_node_class(walk, cls)
    walk.static_depth += 1
    try:
        _visit_static_data(walk, data, names)
    finally:
        walk.static_depth -= 1


def visit_node_class(walk: Walk, cls: type) -> None:
    """Visit the class of a node: one of a library is known by itself."""
    library = is_library_class(cls)
    walk.key.append(cls if library else weakref.ref(cls))
    if not library:
        walk.static_depth += 1
        try:
            visit_class(walk, cls)
        finally:
            walk.static_depth -= 1


def _visit_static_data(walk: Walk, data: object, names: Sequence[str] = ()) -> None:
    # Exactly these: a subclass is a thing of its own.
    if type(data) is tuple or type(data) is list:
        walk.key.append((type(data), len(data)))
        walk.note_static(data)
        for i, item in enumerate(data):
            if i < len(names) and type(item) not in (tuple, list):
                _visit_static_item(walk, item, names[i])
            else:
                _visit_static_data(walk, item)
        return
    _visit_static_item(walk, data, "<static>")


def _visit_static_item(walk: Walk, data: object, name: str) -> None:
    captured = CAPTURED_TYPES.get(type(data)) or walk.find(data)
    own = type(data).__module__.partition(".")[0] == "hotk"  # programs, immutable
    if captured is UNKNOWN or (own and captured is OBJECT):
        # What JAX compares by `==` and `hash` for `jax.jit` is compared so here too.
        try:
            hash(data)
        except TypeError as error:
            raise Opaque("static data of a pytree without a hash") from error
        if type(data).__hash__ is object.__hash__ and not own:
            raise Opaque(f"static data of type `{type(data).__qualname__}`")
        walk.key.append(Compared(data))
    else:
        walk.visit(data, "{}", name)


# ----- The guard: by the attributes where it is known that these are all


def guard_node(w: Writer, value: object, here: str) -> None:
    """Write the check of a registered pytree."""
    cls = type(value)
    library = cls.__module__.partition(".")[0]
    w.whole.add(id(value))
    if _is_copy_in_parts(value):
        if not w.met(value, here, "node"):
            w.visit(cls, f"type({here})")
            guard_attributes(w, vars(value), here, static=())
        return
    # Of these two it is known where they keep things, so no code of theirs is run.
    if not isinstance(value, (tuple, eqx.Module)) and library != "equinox":
        _guard_registered(w, value, here)
        return
    if w.met(value, here, "node"):
        return
    w.visit(cls, f"type({here})")
    if isinstance(value, tuple):
        if "_fields" not in dir(cls) or peek(value, "__dict__"):
            raise Unguarded  # registered by the user, with what may be more
        w.require(f"len({here}) == {len(value)}")
        for i, item in enumerate(value):
            w.visit(item, f"{here}[{i}]")
        return
    if not isinstance(value, eqx.Module):
        guard_weak_identity(w, value, here)  # a sentinel in its static fields
        return
    fields = {field.name: field for field in dataclasses.fields(value)}
    if not set(vars(value)) <= {*fields, *_OF_WRAPPERS}:
        raise Unguarded
    static = {n for n, field in fields.items() if field.metadata.get("static")}
    guard_attributes(w, vars(value), here, {*static, *_OF_WRAPPERS})


def _one_level(value: object) -> tuple[list[Any], Any]:
    """Return the children of a registered pytree, and its static data."""
    found: Any = default_registry.flatten_one_level(value)
    return list(found[0]), found[1]


def _guard_registered(w: Writer, value: object, here: str) -> None:
    """Write the check of a node of another library, or of a dataclass of the user."""
    cls = type(value)
    children, data = _one_level(value)
    w.static_depth += not children
    known = w.met(value, here, "node")
    w.static_depth -= not children
    if known:
        return
    w.visit(cls, f"type({here})")
    if data is value:
        w.static_depth += 1
        guard_contents(w, value, here)
        w.static_depth -= 1
        return
    # Flattened once: a class may make its children anew each time that it is asked.
    both = w.assign(None, f"{w.constant(_one_level)}({here})")
    each, static = w.assign(children, f"{both}[0]"), w.assign(data, f"{both}[1]")
    w.require(f"len({each}) == {len(children)}")
    if is_library_class(cls):
        names = w.constant(_names(value))
        w.require(f"{w.constant(_names)}({here}) == {names}")
    else:
        _guard_whole(w, value, here, (children, each), (data, static))
    w.static_depth += 1
    _guard_static_data(w, data, static)
    w.static_depth -= 1
    for i, child in enumerate(children):
        w.visit(child, f"{each}[{i}]")


def _names(value: object) -> list[list[Any]]:
    """List the attributes of a node, and its keys in order: what a tree may lack."""
    return [[*attributes_of(value)], [*value] if isinstance(value, Mapping) else []]


def _guard_whole(
    w: Writer, value: object, here: str, *parts: tuple[object, str]
) -> None:
    """Write that the tree of a dataclass holds all that the object holds."""
    if slots_of(value):
        raise Unguarded
    places: dict[int, str] = {}
    for part, name in parts:
        for i, item in enumerate(part if isinstance(part, (tuple, list)) else ()):
            places.setdefault(id(item), f"{name}[{i}]")
    found = peek(value, "__dict__") or {}
    space = w.assign(found, f"{here}.__dict__")
    w.require(f"[*{space}] == {w.constant(list(found))}")
    for name, item in found.items():
        if id(item) not in places:
            raise Unguarded
        w.require(f"{space}[{name!r}] is {places[id(item)]}")


def guard_node_data(w: Writer, cls: type, data: object, expression: str) -> None:
    """Write the check of the class and the static data of a tree's node."""
    here = w.assign(data, expression)
    w.visit(cls, f"{here}[0]")
    w.static_depth += 1
    _guard_static_data(w, data, f"{here}[1]")
    w.static_depth -= 1


def _guard_static_data(w: Writer, data: object, expression: str) -> None:
    if type(data) is tuple or type(data) is list:
        here = w.assign(data, expression)
        cls = w.constant(type(data))
        w.require(f"type({here}) is {cls} and len({here}) == {len(data)}")
        for i, item in enumerate(data):
            _guard_static_data(w, item, f"{here}[{i}]")
    else:
        w.visit(data, expression)


# ----- The copy


def rebuild_node(rebuild: Rebuild, value: object) -> object:
    """Copy a node of a tree with what it holds copied."""
    if _is_copy_in_parts(value):
        return rebuild.copy_object(value, recorded=False)
    children, treedef = node_parts(value)
    return node_of(treedef, [rebuild(child) for child in children])


NODE = CapturedType(
    visit=visit_node,
    guard=guard_node,
    rebuild=rebuild_node,
    treatment="traversed",
    mutable=False,
    refilled=False,
)


# ----- The structure of a tree: its nodes, with the static data of each


def _visit_treedef(walk: Walk, value: PyTreeDef) -> None:
    if walk.met_static(value):
        return
    for counts, data in _nodes_of(value):
        walk.key.append(counts)
        if data is None:
            continue
        if data[0] in (tuple, list, dict, type(None)):
            visit_parts(walk, data[0], data[1] or ())
        else:
            visit_node_data(walk, *data)


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


def _guard_treedef(w: Writer, value: PyTreeDef, here: str) -> None:
    if w.met(value, here, type(value)):
        return
    nodes = _nodes_of(value)
    w.require(f"type({here}) is {w.constant(type(value))}")
    each = w.assign(nodes, f"{w.constant(_nodes_of)}({here})")
    counts = [counts for counts, _ in nodes]
    w.require(f"[n[0] for n in {each}] == {w.constant(counts)}")
    for i, (_, data) in enumerate(nodes):
        if data is not None:
            cls, static = data
            guard_node_data(w, cls, static, f"{each}[{i}][1]")


register(
    uncopied(visit=_visit_treedef, guard=_guard_treedef, treatment="static"),
    jax.tree_util.PyTreeDef,
)
