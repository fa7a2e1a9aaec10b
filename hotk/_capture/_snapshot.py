"""`Snapshot`: what a function can write into, as it was, to be put back."""

import array
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from hotk._core import Tracer

from ._captured_type import Trail
from ._cause import KEEPS, WRITES, OpaqueReason
from ._layout import slots_of
from ._library import is_library_class
from ._walk import Walk


_CONTAINERS = (dict, list, set, deque)
_BUFFERS = (np.ndarray, bytearray, array.array)
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class Snapshot:
    """The content of all mutable things that a walk visited and that are not copied.

    What is reached through a class keeps its identity in a trace, and so do objects
    that hold no array. A function that writes into them would leave tracers behind.
    """

    def __init__(self, walk: Walk, trail: Trail, copied: Iterable[int]) -> None:
        copied = set(copied)
        static = {id(value) for value in trail.static}
        static |= {id(value) for _, value in walk.seen_static.values()}
        nodes = (*(node.value for node in trail.nodes.values()), *trail.static)
        found = {id(value): value for value in nodes if _may_be_written(value)}
        met = (*walk.seen.values(), *walk.seen_static.values())
        found |= {id(value): value for _, value in met}
        self._parts = [
            part
            for key, value in found.items()
            # What is copied, and held by a class as well, is written to through that.
            if key not in copied or key in static
            for part in _parts_of(value)
        ]

    def restore(self) -> OpaqueReason | None:
        """Put back what has changed; say what kind of change it was, if any."""
        reason = None
        for part in self._parts:
            changed = part.restore()
            # Worse than a write: a tracer that is kept would be read in a later call.
            if changed and reason is not KEEPS:
                reason = KEEPS if any(map(_holds_tracer, changed)) else WRITES
        return reason


def _may_be_written(value: object) -> bool:
    held = isinstance(value, (*_CONTAINERS, *_BUFFERS))
    return held or not is_library_class(type(value))


def _parts_of(value: object) -> Iterator["_Content | _Buffer | _Attributes"]:
    if isinstance(value, type):
        # A method may be replaced, or an array hung on a class, in its bases as well.
        for base in value.__mro__:
            if not is_library_class(base):
                yield _Attributes(base)
        return
    if isinstance(value, _CONTAINERS) and is_library_class(type(value)):
        yield _Content(value)
    elif isinstance(value, _BUFFERS):
        yield _Buffer(value)
    space = getattr(value, "__dict__", None)
    if type(space) is dict and not isinstance(value, ModuleType):
        yield _Content(space)
    if slots_of(value):
        yield _Attributes(value)


class _Content:
    """The content of a container."""

    __slots__ = ("before", "holder")

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.before: list[Any] = _items(holder)

    def restore(self) -> list[object]:
        """Put the content back; return what was there instead."""
        now = _items(self.holder)
        if len(now) == len(self.before) and all(map(_is, now, self.before)):
            return []
        # In place: others hold the container, too.
        self.holder.clear()
        if isinstance(self.holder, dict):
            for name, item in self.before:  # not `update`: a `Counter` adds
                self.holder[name] = item
        elif isinstance(self.holder, set):
            self.holder.update(self.before)
        else:
            self.holder.extend(self.before)
        return _changes(now, self.before)


class _Buffer:
    """The numbers of an array of NumPy, or the bytes of another buffer."""

    __slots__ = ("before", "holder")

    def __init__(self, holder: Any) -> None:
        self.holder = holder
        self.before = copy.copy(holder)

    def restore(self) -> list[object]:
        """Put the content back; return what was there instead."""
        now, before = map(_bytes_of, (self.holder, self.before))
        if now == before:
            return []
        whole = ... if isinstance(self.holder, np.ndarray) else slice(None)
        self.holder[whole] = self.before
        return [now]


def _bytes_of(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytearray) else value.tobytes()


class _Attributes:
    """The attributes of a class, or those of an object that stand in slots."""

    __slots__ = ("before", "holder")

    def __init__(self, holder: object) -> None:
        self.holder = holder
        self.before = self._now()

    def _now(self) -> dict[str, Any]:
        if isinstance(self.holder, type):
            return dict(vars(self.holder))
        slots = slots_of(self.holder).items()
        return {name: slot.__get__(self.holder) for name, slot in slots}

    def restore(self) -> list[object]:
        """Put the attributes back; return what was there instead."""
        now, before = self._now(), self.before
        names = [
            name
            for name in {**before, **now}
            if name not in now or name not in before or now[name] is not before[name]
        ]
        for name in names:
            self._put(name)
        # `self` stands for one that is missing: it is like no value.
        was = [before.get(name, self) for name in names]
        return _changes([now.get(name, self) for name in names], was)

    def _put(self, name: str) -> None:
        had = name in self.before
        if isinstance(self.holder, type):
            if had:
                type.__setattr__(self.holder, name, self.before[name])
            else:
                type.__delattr__(self.holder, name)
        elif had:
            object.__setattr__(self.holder, name, self.before[name])
        else:
            object.__delattr__(self.holder, name)


def _items(holder: Iterable[object]) -> list[object]:
    return list(holder.items()) if isinstance(holder, dict) else list(holder)


def _is(a: object, b: object) -> bool:
    """Whether two items are one; those of a dict are pairs, made anew each time."""
    if type(a) is tuple and type(b) is tuple and len(a) == len(b) == 2:
        return a[0] is b[0] and a[1] is b[1]
    return a is b


def _changes(now: list[object], before: list[object]) -> list[object]:
    """Return what is new: a plain value that is equal to the one before is not."""
    if len(now) != len(before):
        return [now]
    return [a for a, b in zip(now, before, strict=True) if not _alike(a, b)]


def _alike(a: object, b: object) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(_alike, a, b))
    return isinstance(a, _PLAIN) and repr(a) == repr(b)


def _holds_tracer(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tracer, value))
    return isinstance(value, Tracer)
