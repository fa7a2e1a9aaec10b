"""Objects of the user by what is read off them: the rest cannot change a result.

A method is read through its class, so what only other methods use does not count. An
object counts as a whole where it escapes, and where its class decides by itself what an
attribute is.
"""

import abc
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hotk._core import peek

from ._captured_type import CAPTURED_TYPES, CapturedType, Describe
from ._classes import describe_class
from ._code import facts_of, is_hidden
from ._description import ITEM, Description
from ._layout import slots_of
from ._library import is_library_class
from ._nodes import NODE, describe_node, is_frozen_dataclass, rebuild_node
from ._objects import OBJECT, describe_object
from ._reads import Chain, Reads
from ._rebuild import Rebuild


# Frozen dataclasses that are nodes of trees, by what is read off them. A training state
# of flax counts its steps in a number of Python. A loss that reads `state.apply_fn`
# does not depend on it, and is not traced anew in each step.

# With one of these a class decides what an attribute is, or keeps it elsewhere.
_NODE_HOOKS: Final = frozenset({"__getattr__", "__getattribute__", "__del__"})
# What `dataclasses` writes into a frozen class: it raises.
_OF_FROZEN: Final = frozenset({"__setattr__", "__delattr__"})


def _is_plainly_frozen(base: type) -> bool:
    """Whether a class finds attributes as Python does, and lets none be written."""
    space = vars(base)
    own = "__dataclass_params__" in space and is_frozen_dataclass(base)
    return _NODE_HOOKS.isdisjoint(space) and (own or _OF_FROZEN.isdisjoint(space))


def is_read_by_attributes(value: object, names: Iterable[str]) -> bool:
    """Whether a node of a tree counts by some of its attributes alone.

    That is a frozen dataclass, of a library or of the user, that has all of the names
    in its `__dict__`. A property or a method may read whatever it likes: with one of
    these among the names the node counts as a whole.
    """
    cls = type(value)
    # A metaclass of a user may answer any name, so it is not asked for one.
    if type(cls) not in (type, abc.ABCMeta) or cls in CAPTURED_TYPES:
        return False
    bases = cls.__mro__[:-1]
    if not is_frozen_dataclass(cls) or Description.find(value) is not NODE:
        return False
    if not all(map(_is_plainly_frozen, bases)) or slots_of(value):
        return False
    own = peek(value, "__dict__") or {}
    return all(
        name in own and not _is_special(name) and not _is_descriptor(bases, name)
        for name in names
    )


def _is_special(name: str) -> bool:
    return is_hidden(name) or (name[:2] == "__" and name[-2:] == "__")


def _is_descriptor(bases: Iterable[type], name: str) -> bool:
    """Whether a class has something that comes before an object's own attribute."""
    found = next((vars(base)[name] for base in bases if name in vars(base)), None)
    spaces = [vars(base) for base in type(found).__mro__]
    return any(hook in space for space in spaces for hook in ("__set__", "__delete__"))


def describe_read_node(
    d: Description, value: object, here: str, names: Iterable[str]
) -> str:
    """Describe the class of a node that counts by the attributes of these names.

    Returns:
        The variable of its attributes.
    """
    cls = type(value)
    describe_class(d, cls, d.let(cls, "type({0})", here))
    d.note(tuple(names))
    d.counts_by(value, *names)
    return d.let(vars(value), "{0}.__dict__", here)


def _rebuild(rebuild: Rebuild, value: object) -> object:
    # What else met the node may have asked for all of it.
    if id(value) in rebuild.trail.read:
        return rebuild.copy_object(value)
    return rebuild_node(rebuild, value)


FROZEN_NODE = CapturedType(
    describe=describe_node,
    rebuild=_rebuild,
    treatment="traversed",
    mutable=False,
)


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
    if is_library_class(cls) or Description.find(value) is not OBJECT:
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


# ----- An object by the chains that are read off it


def describe_read(
    d: Description,
    value: object,
    reads: Reads,
    how: str,
    name: str,
    here: str,
    read: str = ITEM,
    at: int | str | None = None,
) -> None:
    """Describe a part of a thing, an object by the chains that are read off it.

    Args:
        d: The description.
        value: The part.
        reads: The chains; `None` if the part escapes.
        how: As the others, an argument of `Description.part`.
        name: Its name.
        here: The variable of the thing.
        read: How it is read.
        at: By what.
    """
    if not reads or d.static_depth:
        d.part(value, how, name, here, read, at)
    elif _is_read_by_parts(value):
        describe: Describe = lambda d, v, here: _describe_chains(d, v, here, reads)
        d.part(value, how, name, here, read, at, (OBJECT, describe))
    elif id(value) not in d.whole and is_read_by_attributes(value, _grouped(reads)):
        describe = lambda d, v, here: _describe_node_chains(d, v, here, reads)
        d.part(value, how, name, here, read, at, (FROZEN_NODE, describe))
    else:
        d.part(value, how, name, here, read, at)


def _describe_node_chains(
    d: Description, value: object, here: str, chains: Sequence[Chain]
) -> None:
    names = _grouped(chains)
    space = describe_read_node(d, value, here, names)
    for name, rests in names.items():
        describe_read(d, vars(value)[name], _whole_or(rests), ".{}", name, space)


def _whole_or(chains: list[Chain]) -> Reads:
    """Return chains, or `None` if one of them ends: the thing is used as it is."""
    return None if () in chains else tuple(chains)


def _describe_chains(
    d: Description, value: object, here: str, chains: Sequence[Chain]
) -> None:
    # Not once only, as other things: each place reads other chains.
    d.met(value, here)
    if id(value) in d.whole:
        return
    names = _grouped(chains)
    try:
        found = {name: _looked_up(value, name) for name in names}
    except _Everything:
        describe_object(d, value, here)
        return
    spaces = _describe_bases(d, type(value), here)
    own = d.let(vars(value), "{0}.__dict__", here)
    for name, (place, item) in found.items():
        if id(value) in d.whole:  # a method that was gone into passes it on
            return
        d.note((name, place))
        d.counts_by(value, name)
        _ask_lookup(d, value, name, place, spaces, own)
        if place == "attribute":
            describe_read(d, item, _whole_or(names[name]), ".{}", name, own)
        elif place != "missing":
            # Of the class: no copy of the object has another one.
            part = {"property": ".fget", "static": ".__func__"}.get(place, "")
            space = _space_of(d, value, name, spaces)
            with d.fixed():
                d.part(item, ".{}", name, space, ITEM + part)
        if place in ("method", "property"):
            _enter(d, value, here, item)


def _enter(d: Description, value: object, here: str, function: object) -> None:
    """Go on into a method or a getter with the object as its first argument."""
    # Methods call each other in circles.
    if (id(value), id(function)) in d.entered:
        return
    d.entered.add((id(value), id(function)))
    reads = first_reads(function)
    if reads is None:
        describe_object(d, value, here)
    elif reads:
        _describe_chains(d, value, here, reads)


def _describe_bases(d: Description, cls: type, here: str) -> dict[type, str]:
    """Describe a class by its bases; return the variables of their namespaces."""
    d.user_classes = True
    own = _user_bases(cls)
    d.note(weakref.ref(cls), *map(weakref.ref, own))
    if not d.writes:
        return {}
    known = d.spaces.get(id(cls))
    if known is not None:
        d.ask(f"type({{0}}) is {known[0]}", here)
        return known[1]
    name = d.let(cls, "type({0})", here)
    d.identity(cls, name)
    d.ask("len({0}.__mro__) == {1}", name, len(cls.__mro__))
    spaces: dict[type, str] = {}
    for i, base in enumerate(cls.__mro__):
        place = d.let(base, "{0}.__mro__[{1}]", name, i)
        if base not in own:
            d.ask("{0} is {1}", place, base)
            continue
        d.identity(base, place)
        spaces[base] = d.let(vars(base), "{0}.__dict__", place)
        # One that is added later decides what an attribute is.
        d.ask("{1}.isdisjoint({0})", spaces[base], _HOOKS)
    d.spaces[id(cls)] = name, spaces
    return spaces


def _ask_lookup(
    d: Description,
    value: object,
    name: str,
    place: str,
    spaces: dict[type, str],
    own: str,
) -> None:
    """Write that an attribute is found where it was.

    That of a class is looked at as well where an object has its own: it may have become
    a property.
    """
    for base, space in spaces.items():
        if name in vars(base):
            # The first base that has the name decides, and by the type of what it has.
            d.ask("type({0}[{1}]) is {2}", space, name, type(vars(base)[name]))
            break
        d.ask("{1} not in {0}", space, name)
    if place != "property":
        has = "in" if place == "attribute" else "not in"
        d.ask(f"{{1}} {has} {{0}}", own, name)


def _space_of(d: Description, value: object, name: str, spaces: dict[type, str]) -> str:
    """Return the variable of the namespace in which a class has a name."""
    if not d.writes:
        return ""
    base = next(base for base in type(value).__mro__ if name in vars(base))
    known = spaces.get(base)  # if not, of a library: the same one, as was asked
    return known or d.let(vars(base), "{1}.__dict__", "", base)
