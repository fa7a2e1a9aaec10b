"""The code of the user: where it is, and what is remembered of it."""

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hotk._capture import is_library_file
from hotk._core import file_name, peek


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


def user_level() -> int:
    """Return how far above the caller the code of the user is."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def error_line(error: BaseException | None) -> str:
    """Say which line of the user's function an error is about.

    Where none of its own lines is the user's, the cause is asked: JAX makes it the
    traceback of the code that it transforms.
    """
    if error is None:
        return ""
    line, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            line = f" in {file_name(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line or error_line(error.__cause__)
