"""The attributes of captured objects."""

from collections.abc import Collection, Mapping

from hotk._core import peek

from ._description import Description
from ._layout import members, slots_of


def describe_attributes(
    d: Description, value: object, here: str, static: Collection[str] = ()
) -> None:
    """Describe what an object has in `__dict__` and in slots.

    Args:
        d: The description.
        value: The object.
        here: Its variable.
        static: Which attributes are static: arrays in these are constants.
    """
    own, slots = peek(value, "__dict__"), slots_of(value)
    d.note(len(own or ()) + len(slots))
    if own is not None:
        describe_own(d, dict(own), here, static)
    if d.writes and len(slots) != sum(map(len, map(members, type(value).__mro__))):
        d.unguarded()  # one that is filled later would be missed
    for name, descriptor in slots.items():
        bases = enumerate(type(value).__mro__)
        at = next(i for i, base in bases if vars(base).get(name) is descriptor)
        read = f"type({{0}}).__mro__[{at}].__dict__[{{1!r}}].__get__({{0}})"
        d.note(name)
        d.part(descriptor.__get__(value), ".{}", name, here, read)


def describe_own(
    d: Description, own: Mapping[str, object], here: str, static: Collection[str]
) -> None:
    """Describe what stands in `__dict__`; arguments of `describe_attributes`."""
    space = d.let(own, "{0}.__dict__", here)
    d.ask("[*{0}] == {1}", space, list(own))
    for name, item in own.items():
        if type(name) is not str:
            d.unguarded()
        d.note(name)
        if name in static:
            with d.fixed():
                d.part(item, ".{}", name, space)
        else:
            d.part(item, ".{}", name, space)
