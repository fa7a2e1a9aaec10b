"""What is remembered of the code of a function, which is not kept alive."""

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hotk._core import peek


_MOST_WRAPPERS = 8

T = TypeVar("T")


def code_of(f: object) -> object:
    """Return the code object that a callable runs first, or its class if it has none.

    Code objects are compared by value: a function defined again is the same one.
    """
    for _ in range(_MOST_WRAPPERS):
        code = peek(f, "__code__")
        if isinstance(code, types.CodeType):
            return code
        inner = f.func if isinstance(f, functools.partial) else peek(f, "__func__")
        inner = peek(f, "__wrapped__") if inner is None else inner
        if inner is None:
            bases: tuple[type, ...] = type(f).__mro__  # pyright: ignore
            found = (vars(base).get("__call__") for base in bases)
            inner = next((call for call in found if call is not None), None)
        if inner is None or inner is f:
            break
        f = inner
    # A metaclass with an `__eq__` of its own may leave its classes without a hash.
    cls = type(f)
    return cls if type(cls).__hash__ is type.__hash__ else object


class PerCode(Generic[T]):
    """A table by code object: emptied with the store, and by the death of the code."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._table: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()
        self.lock = threading.Lock()
        _TABLES.append(self)

    def of(self, f: object) -> T:
        """Return what is remembered of a callable; to be called under the lock."""
        code = code_of(f)
        found = self._table.get(code)
        if found is None:
            found = self._table[code] = self._make()
        return found

    def clear(self) -> None:
        """Forget everything."""
        with self.lock:
            self._table.clear()


_TABLES: list[PerCode[Any]] = []


def clear_notes() -> None:
    """Forget all that is remembered of functions."""
    for table in _TABLES:
        table.clear()
