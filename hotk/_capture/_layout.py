"""Where objects keep what they hold: `__dict__`, slots, and memory that none sees."""

import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jax.tree_util import tree_flatten

from hotk._core import PyTreeDef, peek

from ._description import Description, opaque_if_it_fails


_HEAP_TYPE = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: made while Python runs
_MANAGED_DICT = 1 << 4  # `Py_TPFLAGS_MANAGED_DICT`: not counted in `__basicsize__`
_MEMBER = types.MemberDescriptorType
_WORD = object.__basicsize__ // 2
# Classes of C whose objects keep all that they have in `__dict__` or nothing at all.
_EMPTY = (object, types.SimpleNamespace)
_NO_STATE = (tuple, types.GetSetDescriptorType, _MEMBER)


def keeps_all_in_attributes(cls: type, base: type = object) -> bool:
    """Whether an object of a class is what its attributes and its base say.

    A class of Python code adds slots, `__dict__` and a list of weak references to the
    memory of an object of its base; what is larger keeps what no walk sees.
    """
    if "__del__" in dir(cls):
        return False
    words, solid = 0, None
    for here in cls.__mro__:
        if not here.__flags__ & _HEAP_TYPE:
            solid = solid or here
        words += len(members(here))
        if not isinstance(vars(here).get("__dict__", ()), _NO_STATE):
            return False  # a proxy: its `__dict__` is another object's
    if solid is not base and not (base is object and solid in _EMPTY):
        return False
    words += _words(cls) - _words(base)
    return cls.__basicsize__ == base.__basicsize__ + words * _WORD


def _words(cls: type) -> int:
    """Count the pointers to `__dict__` and to weak references in an object itself."""
    own_dict = cls.__dictoffset__ != 0 and not cls.__flags__ & _MANAGED_DICT
    return own_dict + (cls.__weakrefoffset__ > 0)


def members(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """List the slots that a class of Python code adds."""
    if "__slots__" not in vars(cls):
        return []
    # Not the names in `__slots__`: a private one is stored under another name.
    return [(name, item) for name, item in vars(cls).items() if type(item) is _MEMBER]


def new_object(cls: type) -> Any:
    """Make an object of a class without any attribute."""
    bases: tuple[Any, ...] = cls.__mro__
    for base in bases:
        # The `__new__` of a class of Python code may compute, or want arguments.
        if not base.__flags__ & _HEAP_TYPE:
            return base.__new__(cls)
    raise TypeError(cls)  # pragma: no cover


def slots_of(value: object) -> dict[str, types.MemberDescriptorType]:
    """Return the descriptors of all slots of an object that are filled."""
    found: dict[str, types.MemberDescriptorType] = {}
    for base in type(value).__mro__:
        for name, descriptor in members(base):
            try:
                descriptor.__get__(value)
            except AttributeError:
                continue
            found.setdefault(name, descriptor)
    return found


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes of a plain object, those in slots included."""
    found = dict(peek(value, "__dict__") or {})
    for name, descriptor in slots_of(value).items():
        found[name] = descriptor.__get__(value)
    return found


def is_empty(cell: types.CellType) -> bool:
    """Whether a cell holds nothing: the name is not assigned yet, or was deleted."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


@opaque_if_it_fails
def node_parts(value: object) -> tuple[list[Any], PyTreeDef]:
    """Return the children of a node, and its structure."""
    return tree_flatten(value, is_leaf=lambda node: node is not value)


@opaque_if_it_fails
def node_of(treedef: PyTreeDef, children: Iterable[object]) -> Any:
    """Make a node anew: a class may want other children, or arrays that have values."""
    return treedef.unflatten(children)


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
