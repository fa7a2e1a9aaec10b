"""What is remembered of the code of a function, which is not kept alive."""

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hotk._core import peek

from ._store import STORE


_MOST_WRAPPERS = 8

T = TypeVar("T")


def code_of(f: Any) -> Any:
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
            found = (vars(kind).get("__call__") for kind in type(f).__mro__)
            inner = next((call for call in found if call is not None), None)
        if inner is None or inner is f:
            break
        f = inner
    kind = type(f)
    return kind if type(kind).__hash__ is type.__hash__ else object


class PerCode(Generic[T]):
    """A table by code object: emptied with the store, and by the death of the code."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._table: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()
        self.lock = threading.Lock()
        STORE.others.append(self)

    def of(self, f: Any) -> T:
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
