"""The lines of a guard for objects of which only what is read counts."""

import types
from collections.abc import Sequence
from typing import Any

from ._class_lines import plain_object
from ._parts import (
    HOOKS,
    Everything,
    first_reads,
    grouped,
    is_read_by_parts,
    looked_up,
    user_bases,
)
from ._reads import Chain, Reads
from ._value_lines import same, same_if_alive
from ._walk import Walk
from ._writer import Writer


def visit_read(w: Writer, value: Any, reads: Reads, expression: str) -> None:
    """Write the check of what is captured, as `_parts.visit_read` visits it."""
    if reads and not w.frozen and is_read_by_parts(Walk(), value):
        _read(w, value, w.hold(value, expression), reads)
    else:
        w.visit(value, expression)


def _read(w: Writer, value: Any, here: str, chains: Sequence[Chain]) -> None:
    w.met(value, here, "object")
    if id(value) in w.whole:
        return
    names = grouped(chains)
    try:
        found = {name: looked_up(value, name) for name in names}
    except Everything:
        plain_object(w, value, here)
        return
    spaces = _spaces(w, value, here)
    own = w.hold(vars(value), f"{here}.__dict__")
    for name, (place, item) in found.items():
        if id(value) in w.whole:
            return
        expression = _lookup(w, value, name, spaces, own)
        if place == "attribute":
            rests = names[name]
            whole = () in rests
            reads = None if whole else tuple(rests)
            visit_read(w, item, reads, f"{own}[{name!r}]")
        elif place != "missing":
            part = {"property": ".fget", "static": ".__func__"}.get(place, "")
            w.frozen += 1
            w.visit(item, f"{expression}{part}")
            w.frozen -= 1
        if place in ("method", "property"):
            _called(w, value, item, here)


def _called(w: Writer, value: Any, function: Any, here: str) -> None:
    if (id(value), id(function)) in w.calls:
        return
    w.calls.add((id(value), id(function)))
    reads = None
    if type(function) is types.FunctionType:
        reads = first_reads(function)
    if reads is None:
        plain_object(w, value, here)
    elif reads:
        _read(w, value, here, reads)


def _spaces(w: Writer, value: Any, here: str) -> dict[type, str]:
    """Write that the class has the bases that it had; return their namespaces."""
    kind = type(value)
    known = w.spaces.get(id(kind))
    if known is not None:
        w.unless(f"type({here}) is {known[0]}")
        return known[1]
    name = w.hold(kind, f"type({here})")
    same_if_alive(w, kind, name)
    w.unless(f"len({name}.__mro__) == {len(kind.__mro__)}")
    hooks, spaces = w.constant(HOOKS), {}
    for i, base in enumerate(kind.__mro__):
        place = w.hold(base, f"{name}.__mro__[{i}]")
        if base not in user_bases(kind):
            same(w, base, place)
            continue
        same_if_alive(w, base, place)
        spaces[base] = w.hold(vars(base), f"{place}.__dict__")
        w.unless(f"{hooks}.isdisjoint({spaces[base]})")
    w.spaces[id(kind)] = name, spaces
    return spaces


def _lookup(w: Writer, value: Any, name: str, spaces: dict[type, str], own: str) -> str:
    """Write that an attribute is found where it was; return what reads it off a class.

    That of a class is looked at as well where an object has its own: it may have become
    a property.
    """
    place, _ = looked_up(value, name)
    expression = ""
    for base, space in spaces.items():
        if name not in vars(base):
            w.unless(f"{name!r} not in {space}")
            continue
        expression = f"{space}[{name!r}]"
        kind = w.constant(type(vars(base)[name]))
        w.unless(f"type({expression}) is {kind}")
        break
    else:
        bases = [base for base in type(value).__mro__ if name in vars(base)]
        if bases:  # of a library: the same one, as was asked
            expression = f"{w.constant(bases[0])}.__dict__[{name!r}]"
    if place != "property":
        has = "in" if place == "attribute" else "not in"
        w.unless(f"{name!r} {has} {own}")
    return expression
