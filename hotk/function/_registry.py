"""`static`: classes and objects that their author declares to be compared by `==`."""

import weakref
from typing import Any, TypeVar

from hotk._core import HotkError, message

from ._walk import Walk


_T = TypeVar("_T")
_CLASSES: weakref.WeakSet[type] = weakref.WeakSet()
_OBJECTS: dict[int, weakref.ref[Any]] = {}


def static(thing: _T) -> _T:
    """Declare that a class's objects, or one object, are compared by equality.

    A captured object that hotk cannot look into makes a function opaque: it is traced
    at each call. One that is declared is compared with that of the last trace by its
    own `==` and `hash`, as `jax.jit` compares its static arguments, and never looked
    into, copied or walked.

    Args:
        thing: A class, also as its decorator; or an object that can be hashed and
            weakly referenced. A subclass of a declared class is not declared.

    Returns:
        The same thing.

    Warning:
        You promise that two objects that are equal compute the same, now and later:
        that whatever a function reads of the object takes part in its `==`; that it
        does not change once it is captured; that it holds no array whose values
        matter, and that its methods read nothing else that changes. Where that does
        not hold, results are silently those of the first object. An equal object is
        kept alive until `hotk.clear_cache()`.

    Raises:
        HotkError: If the thing has no hash.

    Example:
        >>> @hotk.static
        ... class Unit:
        ...     def __init__(self, name): self.name = name
        ...     def __eq__(self, other): return self.name == other.name
        ...     def __hash__(self): return hash(self.name)
        >>> meter = Unit("m")
        >>> hotk.explain(lambda x: jnp.sum(x) if meter.name else x).rows[1][2]
        'static'
    """
    if isinstance(thing, type):
        _check(thing, thing.__hash__ is not None, f"class {thing.__qualname__}")
        _CLASSES.add(thing)
        return thing
    name = f"{type(thing).__qualname__} object"
    try:
        hash(thing)
        reference = weakref.ref(thing, lambda _, key=id(thing): _OBJECTS.pop(key, None))
    except TypeError as error:
        _check(thing, False, f"{name}: {error}")
        raise  # pragma: no cover
    _OBJECTS[id(thing)] = reference
    return thing


def _check(thing: Any, holds: bool, got: str) -> None:
    if not holds:
        raise HotkError(
            message(
                "static(thing)",
                "`thing` cannot be compared by equality.",
                expected="a class with `__hash__`, or an object with a hash that can "
                "be weakly referenced",
                got=got,
                fix="Define `__eq__` and `__hash__`, as `dataclass(frozen=True)` does.",
            )
        )


def is_declared(value: Any) -> bool:
    """Whether a value is to be compared by its own equality."""
    if type(value) in _CLASSES:
        return True
    known = _OBJECTS.get(id(value))
    return known is not None and known() is value


def declared(walk: Walk, value: Any) -> None:
    """A thing that its author has declared static."""
    walk.key.append(type(value))
    walk.key.append(value)
