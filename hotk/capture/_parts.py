"""Objects of the user by what is read off them: the rest cannot change a result.

A method is read through its class, so what only other methods use does not count. An
object counts as a whole where it escapes, and where its class decides by itself what an
attribute is.
"""

import abc
import types
import weakref
from collections.abc import Sequence
from typing import Any, Final

from hotk._core import peek

from ._classes import is_library_class
from ._objects import plain_object
from ._reads import Chain, Reads
from ._recipe import is_hidden, recipe_of
from ._walk import VISITORS, Visitor, Walk


# With one of these a class decides what an attribute is, or keeps it elsewhere.
HOOKS: Final = frozenset(
    {"__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__del__"}
    | {"__slots__"}
)
_MISSING: Final = object()


class Everything(Exception):
    """What is read off an object cannot be told: all of it counts."""


def user_bases(kind: type) -> list[type]:
    """List the classes of the user among the bases of a class."""
    return [base for base in kind.__mro__ if not is_library_class(base)]


def is_read_by_parts(walk: Walk, value: Any) -> bool:
    """Whether the attributes of an object are found where Python finds them always."""
    kind = type(value)
    if kind in VISITORS or type(kind) not in (type, abc.ABCMeta):
        return False
    if is_library_class(kind) or walk.find(value) is not plain_object:
        return False
    return all(HOOKS.isdisjoint(vars(base)) for base in user_bases(kind))


def grouped(chains: Sequence[Chain]) -> dict[str, list[Chain]]:
    """Group chains by their first name."""
    found: dict[str, list[Chain]] = {}
    for first, *rest in chains:
        found.setdefault(first, []).append(tuple(rest))
    return found


def looked_up(value: Any, name: str) -> tuple[str, Any]:
    """Return where an attribute is found, and what is there.

    Raises:
        Everything: If it is a descriptor that is not known.
    """
    if is_hidden(name) or (name[:2] == "__" and name[-2:] == "__"):
        raise Everything
    found = _MISSING
    for base in type(value).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            break
    own = peek(value, "__dict__") or {}
    if type(found) is property and found.fget is not None:
        return "property", found.fget
    if name in own:
        if found is not _MISSING and _has(found, "__set__", "__delete__"):
            raise Everything
        return "attribute", own[name]
    if found is _MISSING:
        return "missing", None
    if type(found) is types.FunctionType:
        return "method", found
    if type(found) is staticmethod:
        return "static", found.__func__
    if _has(found, "__get__", "__set__", "__delete__"):
        raise Everything
    return "constant", found


def _has(value: Any, *names: str) -> bool:
    bases = type(value).__mro__
    return any(name in vars(base) for base in bases for name in names)


def first_reads(function: types.FunctionType) -> Reads:
    """Return what a function reads off its first argument."""
    recipe = recipe_of(function.__code__)
    return None if recipe.library else recipe.reads[""]


def visit_read(walk: Walk, value: Any, reads: Reads, how: str, name: Any = "") -> None:
    """Visit what is captured, an object by the chains that are read off it."""
    if reads and not walk.frozen and is_read_by_parts(walk, value):
        walk.visit_as(_reader(reads), value, how, name)
    else:
        walk.visit(value, how, name)


def _reader(chains: Sequence[Chain]) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        _read(walk, value, chains)

    visitor.__name__ = plain_object.__name__
    return visitor


def _read(walk: Walk, value: Any, chains: Sequence[Chain]) -> None:
    walk.met(value)
    if id(value) in walk.whole:
        return
    names = grouped(chains)
    try:
        found = {name: looked_up(value, name) for name in names}
    except Everything:
        plain_object(walk, value)
        return
    kind = type(value)
    walk.classes = True
    walk.key.append(weakref.ref(kind))
    walk.key.extend(map(weakref.ref, user_bases(kind)))
    for name, (place, item) in found.items():
        if id(value) in walk.whole:  # a method that was gone into passes it on
            return
        walk.key.append((name, place))
        if walk.trail is not None:
            walk.trail.read.setdefault(id(value), set()).add(name)
        if place == "attribute":
            rests = names[name]
            whole = () in rests
            visit_read(walk, item, None if whole else tuple(rests), ".{}", name)
        elif place != "missing":
            walk.frozen += 1
            try:
                walk.visit(item, ".{}", name)
            finally:
                walk.frozen -= 1
        if place in ("method", "property"):
            _called(walk, value, item)


def _called(walk: Walk, value: Any, function: Any) -> None:
    """Go on into a method or a getter with the object as its first argument."""
    if (id(value), id(function)) in walk.calls:
        return
    walk.calls.add((id(value), id(function)))
    reads = None
    if type(function) is types.FunctionType:
        reads = first_reads(function)
    if reads is None:
        plain_object(walk, value)
    elif reads:
        _read(walk, value, reads)
