"""`static`: classes and objects that their author declares to be compared by `==`."""

import weakref
from typing import Any, TypeVar

from hotk._core import HotkError, message

from ._captured_type import CAPTURED_TYPES, uncopied
from ._description import Description


_T = TypeVar("_T")
_CLASSES: weakref.WeakSet[type] = weakref.WeakSet()
_OBJECTS: dict[int, weakref.ref[Any]] = {}


def static(thing: _T) -> _T:
    """Declare that a class's objects, or one object, are compared by equality.

    A captured object whose state hotk cannot track makes a function opaque, so that it
    is traced at each call. A declared object is compared with that of the last trace by
    its own `==` and `hash`, as `jax.jit` compares its static arguments. hotk does not
    read, copy or visit it.

    Equal objects have to compute the same, now and later: everything that a function
    reads of the object takes part in its `==`; the object does not change once it is
    captured; it has no array whose values matter; and its methods read nothing else
    that changes. Otherwise results are silently those of the first object. An equal
    object is kept alive until `hotk.clear_cache()`.

    Args:
        thing: A class, also as its decorator; or an object that can be hashed and
            weakly referenced. A subclass of a declared class is not declared.

    Returns:
        The same thing.

    Raises:
        HotkError: If the thing has no hash, or is of a type that hotk always visits.

    Example:
        >>> @hotk.static
        ... class Unit:
        ...     def __init__(self, name): self.name = name
        ...     def __eq__(self, other): return self.name == other.name
        ...     def __hash__(self): return hash(self.name)
        >>> meter = Unit("m")
        >>> table = hotk.explain(lambda x: jnp.sum(x) if meter.name else x)
        >>> [row[2] for row in table.rows if "meter" in row[0]]
        ['static']
    """
    if isinstance(thing, type):
        if thing in CAPTURED_TYPES or thing.__hash__ is None:
            raise _refusal(f"class {thing.__qualname__}")
        _CLASSES.add(thing)
        return thing
    name, key = f"{type(thing).__qualname__} object", id(thing)
    if type(thing) in CAPTURED_TYPES:
        raise _refusal(f"{name}, which is looked into anyway")
    try:
        hash(thing)
        _OBJECTS[key] = weakref.ref(thing, lambda _: _OBJECTS.pop(key, None))
    except TypeError as error:
        raise _refusal(f"{name}: {error}") from error
    return thing


def _refusal(got: str) -> HotkError:
    return HotkError(
        message(
            "static(thing)",
            "`thing` cannot be declared.",
            expected="a class of your own with `__eq__` and `__hash__`, or an object "
            "of one that can be weakly referenced",
            got=got,
            fix="Define both, as `dataclass(frozen=True)` does.",
        )
    )


def is_declared(value: object) -> bool:
    """Whether a value is to be compared by its own equality."""
    if type(value) in _CLASSES:
        return True
    known = _OBJECTS.get(id(value))
    return known is not None and known() is value


class Compared:
    """A value that is equal to those of its class that its own `==` says are equal."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether the other one holds an equal value; nothing else is asked for it."""
        if not isinstance(other, Compared) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        """Return the hash of the value."""
        return hash(self.value)


def _describe_declared(d: Description, value: object, here: str) -> None:
    d.note(Compared(value))
    cls = type(value)
    d.ask("type({0}) is {1} and {2}({0}) and {0} == {3}", here, cls, is_declared, value)


DECLARED = uncopied(_describe_declared, "static")
