"""The attributes of captured objects: their visit and their guard."""

from collections.abc import Collection, Mapping

from hotk._core import peek

from ._layout import attributes_of, members, slots_of
from ._walk import Walk
from ._writer import Unguarded, Writer


def visit_attributes(walk: Walk, value: object) -> None:
    """Visit the attributes of an object."""
    found = attributes_of(value)
    walk.key.append(len(found))
    for name, item in found.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def guard_contents(w: Writer, value: object, here: str) -> None:
    """Write the check of what an object has in `__dict__` and in slots."""
    slots = slots_of(value)
    if len(slots) != sum(len(members(base)) for base in type(value).__mro__):
        raise Unguarded  # one that is filled later would be missed
    if peek(value, "__dict__") is not None:
        guard_attributes(w, vars(value), here, static=())
    for name, descriptor in slots.items():
        bases = enumerate(type(value).__mro__)
        at = next(i for i, base in bases if vars(base).get(name) is descriptor)
        read = f"type({here}).__mro__[{at}].__dict__[{name!r}].__get__({here})"
        w.visit(descriptor.__get__(value), read)


def guard_attributes(
    w: Writer, found: Mapping[str, object], here: str, static: Collection[str]
) -> None:
    """Write the check of the names in `__dict__`, in order, and of what they hold.

    Args:
        w: The writer.
        found: The attributes.
        here: The variable of the object.
        static: Which attributes are static: arrays in these are constants.
    """
    space = w.assign(found, f"{here}.__dict__")
    w.require(f"[*{space}] == {w.constant(list(found))}")
    for name, item in found.items():
        if type(name) is not str:
            raise Unguarded
        w.static_depth += name in static
        w.visit(item, f"{space}[{name!r}]")
        w.static_depth -= name in static
