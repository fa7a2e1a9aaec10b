"""Objects of the user by what is read off them: the rest cannot change a result.

A method is read through its class, so what only other methods use does not count. An
object counts as a whole where it escapes, and where its class decides by itself what an
attribute is.
"""

import abc
import types
import weakref
from collections.abc import Sequence
from typing import Final, NamedTuple

from hotk._core import peek

from ._captured_type import CAPTURED_TYPES, Visit
from ._code import facts_of, is_hidden
from ._frozen_nodes import (
    FROZEN_NODE,
    guard_node_begin,
    is_read_by_attributes,
    visit_node_begin,
)
from ._library import is_library_class
from ._objects import OBJECT, guard_object, visit_object
from ._reads import Chain, Reads
from ._walk import Walk
from ._writer import Writer, guard_identity, guard_weak_identity


# With one of these a class decides what an attribute is, or keeps it elsewhere.
_HOOKS: Final = frozenset(
    {"__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__del__"}
    | {"__slots__"}
)
_MISSING: Final = object()


class _Everything(Exception):
    """What is read off an object cannot be told: all of it counts."""


class _Found(NamedTuple):
    """Where Python finds an attribute, and what is there."""

    place: str
    item: object


def _user_bases(cls: type) -> list[type]:
    """List the classes of the user among the bases of a class."""
    return [base for base in cls.__mro__ if not is_library_class(base)]


def _is_read_by_parts(value: object) -> bool:
    """Whether the attributes of an object are found where Python finds them always."""
    cls = type(value)
    if cls in CAPTURED_TYPES or type(cls) not in (type, abc.ABCMeta):
        return False
    if is_library_class(cls) or Walk.find(value) is not OBJECT:
        return False
    return all(_HOOKS.isdisjoint(vars(base)) for base in _user_bases(cls))


def _grouped(chains: Sequence[Chain]) -> dict[str, list[Chain]]:
    """Group chains by their first name."""
    found: dict[str, list[Chain]] = {}
    for first, *rest in chains:
        found.setdefault(first, []).append(tuple(rest))
    return found


def _looked_up(value: object, name: str) -> _Found:
    """Find an attribute as Python does, without running code of the user.

    Raises:
        _Everything: If it is a descriptor that is not known.
    """
    if is_hidden(name) or (name[:2] == "__" and name[-2:] == "__"):
        raise _Everything
    found: object = _MISSING
    for base in type(value).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            break
    own = peek(value, "__dict__") or {}
    # A property comes before the object's own attribute, a method after it.
    if type(found) is property and found.fget is not None:
        return _Found("property", found.fget)
    if name in own:
        if found is not _MISSING and _has(found, "__set__", "__delete__"):
            raise _Everything
        return _Found("attribute", own[name])
    if found is _MISSING:
        return _Found("missing", None)
    if type(found) is types.FunctionType:
        return _Found("method", found)
    if type(found) is staticmethod:
        return _Found("static", found.__func__)
    if _has(found, "__get__", "__set__", "__delete__"):
        raise _Everything
    return _Found("constant", found)


def _has(value: object, *names: str) -> bool:
    bases = type(value).__mro__
    return any(name in vars(base) for base in bases for name in names)


def first_reads(function: object) -> Reads:
    """Return what a function reads off its first argument, `None` if it escapes."""
    if type(function) is not types.FunctionType:
        return None
    facts = facts_of(function.__code__)
    return None if facts.library else facts.reads[""]


# ----- The visit


def visit_read(
    walk: Walk, value: object, reads: Reads, how: str, name: object = ""
) -> None:
    """Visit what is captured, an object by the chains that are read off it."""
    if reads and not walk.static_depth and _is_read_by_parts(value):
        walk.visit_as(OBJECT, _reader(reads), value, how, name)
    elif reads and _is_node_in_parts(value, reads, walk):
        walk.visit_as(FROZEN_NODE, _node_reader(reads), value, how, name)
    else:
        walk.visit(value, how, name)


def _is_node_in_parts(value: object, reads: Sequence[Chain], at: Walk | Writer) -> bool:
    if at.static_depth or id(value) in at.whole:
        return False
    return is_read_by_attributes(value, _grouped(reads))


def _reader(chains: Sequence[Chain]) -> Visit:
    return lambda walk, value: _visit_chains(walk, value, chains)


def _node_reader(chains: Sequence[Chain]) -> Visit:
    return lambda walk, value: _visit_node_chains(walk, value, chains)


def _visit_node_chains(walk: Walk, value: object, chains: Sequence[Chain]) -> None:
    names, own = _grouped(chains), vars(value)
    visit_node_begin(walk, value, names)
    for name, rests in names.items():
        visit_read(walk, own[name], _whole_or(rests), ".{}", name)


def _whole_or(chains: list[Chain]) -> Reads:
    """Return chains, or `None` if one of them ends: the thing is used as it is."""
    return None if () in chains else tuple(chains)


def _visit_chains(walk: Walk, value: object, chains: Sequence[Chain]) -> None:
    # Not once only, as other things: each place reads other chains.
    walk.met(value)
    if id(value) in walk.whole:
        return
    names = _grouped(chains)
    try:
        found = {name: _looked_up(value, name) for name in names}
    except _Everything:
        visit_object(walk, value)
        return
    cls = type(value)
    walk.user_classes = True
    walk.key.append(weakref.ref(cls))
    walk.key.extend(map(weakref.ref, _user_bases(cls)))
    for name, (place, item) in found.items():
        if id(value) in walk.whole:  # a method that was gone into passes it on
            return
        walk.key.append((name, place))
        if walk.trail is not None:
            walk.trail.read.setdefault(id(value), set()).add(name)
        if place == "attribute":
            visit_read(walk, item, _whole_or(names[name]), ".{}", name)
        elif place != "missing":
            # Of the class: no copy of the object has another one.
            walk.static_depth += 1
            try:
                walk.visit(item, ".{}", name)
            finally:
                walk.static_depth -= 1
        if place in ("method", "property"):
            _enter(walk, value, item)


def _enter(walk: Walk, value: object, function: object) -> None:
    """Go on into a method or a getter with the object as its first argument."""
    # Methods call each other in circles.
    if (id(value), id(function)) in walk.entered:
        return
    walk.entered.add((id(value), id(function)))
    reads = first_reads(function)
    if reads is None:
        visit_object(walk, value)
    elif reads:
        _visit_chains(walk, value, reads)


# ----- The guard, step by step as the visit


def guard_read(w: Writer, value: object, reads: Reads, expression: str) -> None:
    """Write the check of what is captured, as `visit_read` visits it."""
    if reads and not w.static_depth and _is_read_by_parts(value):
        _guard_chains(w, value, w.assign(value, expression), reads)
    elif reads and _is_node_in_parts(value, reads, w):
        own = guard_node_begin(w, value, w.assign(value, expression))
        for name, rests in _grouped(reads).items():
            item = vars(value)[name]
            guard_read(w, item, _whole_or(rests), f"{own}[{name!r}]")
    else:
        w.visit(value, expression)


def _guard_chains(w: Writer, value: object, here: str, chains: Sequence[Chain]) -> None:
    w.met(value, here, "object")
    if id(value) in w.whole:
        return
    names = _grouped(chains)
    try:
        found = {name: _looked_up(value, name) for name in names}
    except _Everything:
        guard_object(w, value, here)
        return
    spaces = _guard_bases(w, value, here)
    own = w.assign(vars(value), f"{here}.__dict__")
    for name, (place, item) in found.items():
        if id(value) in w.whole:
            return
        expression = _guard_lookup(w, value, name, spaces, own)
        if place == "attribute":
            guard_read(w, item, _whole_or(names[name]), f"{own}[{name!r}]")
        elif place != "missing":
            part = {"property": ".fget", "static": ".__func__"}.get(place, "")
            w.static_depth += 1
            w.visit(item, f"{expression}{part}")
            w.static_depth -= 1
        if place in ("method", "property"):
            _guard_entered(w, value, item, here)


def _guard_entered(w: Writer, value: object, function: object, here: str) -> None:
    if (id(value), id(function)) in w.entered:
        return
    w.entered.add((id(value), id(function)))
    reads = first_reads(function)
    if reads is None:
        guard_object(w, value, here)
    elif reads:
        _guard_chains(w, value, here, reads)


def _guard_bases(w: Writer, value: object, here: str) -> dict[type, str]:
    """Write that the class has the bases that it had; return their namespaces."""
    cls = type(value)
    known = w.spaces.get(id(cls))
    if known is not None:
        w.require(f"type({here}) is {known[0]}")
        return known[1]
    name = w.assign(cls, f"type({here})")
    guard_weak_identity(w, cls, name)
    w.require(f"len({name}.__mro__) == {len(cls.__mro__)}")
    hooks = w.constant(_HOOKS)
    spaces: dict[type, str] = {}
    for i, base in enumerate(cls.__mro__):
        place = w.assign(base, f"{name}.__mro__[{i}]")
        if base not in _user_bases(cls):
            guard_identity(w, base, place)
            continue
        guard_weak_identity(w, base, place)
        spaces[base] = w.assign(vars(base), f"{place}.__dict__")
        # One that is added later decides what an attribute is.
        w.require(f"{hooks}.isdisjoint({spaces[base]})")
    w.spaces[id(cls)] = name, spaces
    return spaces


def _guard_lookup(
    w: Writer, value: object, name: str, spaces: dict[type, str], own: str
) -> str:
    """Write that an attribute is found where it was; return what reads it off a class.

    That of a class is looked at as well where an object has its own: it may have become
    a property.
    """
    place, _ = _looked_up(value, name)
    expression = ""
    for base, space in spaces.items():
        if name not in vars(base):
            w.require(f"{name!r} not in {space}")
            continue
        # The first base that has the name decides, and by the type of what it has.
        expression = f"{space}[{name!r}]"
        cls = w.constant(type(vars(base)[name]))
        w.require(f"type({expression}) is {cls}")
        break
    else:
        bases = [base for base in type(value).__mro__ if name in vars(base)]
        if bases:  # of a library: the same one, as was asked
            expression = f"{w.constant(bases[0])}.__dict__[{name!r}]"
    if place != "property":
        has = "in" if place == "attribute" else "not in"
        w.require(f"{name!r} {has} {own}")
    return expression
