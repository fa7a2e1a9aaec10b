"""Frozen dataclasses that are nodes of trees, by what is read off them.

A training state of flax counts its steps in a number of Python. A loss that reads
`state.apply_fn` does not depend on it, and is not traced anew in each step.
"""

import abc
from collections.abc import Iterable
from typing import Final

from hotk._core import peek

from ._captured_type import CAPTURED_TYPES, CapturedType
from ._classes import describe_class
from ._code import is_hidden
from ._description import Description
from ._layout import slots_of
from ._nodes import NODE, describe_node, is_frozen_dataclass, rebuild_node
from ._rebuild import Rebuild


# With one of these a class decides what an attribute is, or keeps it elsewhere.
_HOOKS: Final = frozenset({"__getattr__", "__getattribute__", "__del__"})
# What `dataclasses` writes into a frozen class: it raises.
_OF_FROZEN: Final = frozenset({"__setattr__", "__delattr__"})


def _is_plainly_frozen(base: type) -> bool:
    """Whether a class finds attributes as Python does, and lets none be written."""
    space = vars(base)
    own = "__dataclass_params__" in space and is_frozen_dataclass(base)
    return _HOOKS.isdisjoint(space) and (own or _OF_FROZEN.isdisjoint(space))


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
