"""Captured lists, tuples, deques and buffers.

They are walked anew at each call. A container that is mutable is copied for a trace
even where it holds no array, so that a function that writes into it is found out; the
copies are given back what they held when the trace has ended.
"""

import array
import collections
from collections.abc import Sequence
from typing import Any

from ._captured_type import CapturedType, register
from ._rebuild import Rebuild
from ._walk import Walk
from ._writer import Writer


def _visit_sequence(walk: Walk, value: Sequence[object]) -> None:
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    for i, item in enumerate(value):
        walk.visit(item, "[{}]", i)


def _guard_sequence(w: Writer, value: Sequence[object], here: str) -> None:
    cls = type(value)
    if w.met(value, here, cls):
        return
    w.require(f"type({here}) is {w.constant(cls)} and len({here}) == {len(value)}")
    for i, item in enumerate(value):
        w.visit(item, f"{here}[{i}]")


def _rebuild_list(rebuild: Rebuild, value: list[object]) -> list[object]:
    copy: list[object] = []
    rebuild.copies[id(value)] = copy  # before it is filled: a list may hold itself
    copy.extend(map(rebuild, value))
    rebuild.undo_log.items(copy, list)
    return copy


def _rebuild_tuple(rebuild: Rebuild, value: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(map(rebuild, value))


LIST = CapturedType(
    visit=_visit_sequence,
    guard=_guard_sequence,
    rebuild=_rebuild_list,
    treatment="traversed",
    mutable=True,
    refilled=True,
)
TUPLE = CapturedType(
    visit=_visit_sequence,
    guard=_guard_sequence,
    rebuild=_rebuild_tuple,
    treatment="traversed",
    mutable=False,
    refilled=False,
)
register(LIST, list)
register(TUPLE, tuple)


def _visit_deque(walk: Walk, value: collections.deque[object]) -> None:
    """A deque, by its content and its greatest length."""
    if walk.met(value):
        return
    walk.key.append((type(value), value.maxlen, len(value)))
    for i, item in enumerate(list(value)):
        walk.visit(item, "[{}]", i)


def _guard_deque(w: Writer, value: collections.deque[object], here: str) -> None:
    if w.met(value, here, type(value)):
        return
    cls = w.constant(type(value))
    w.require(f"type({here}) is {cls} and len({here}) == {len(value)}")
    w.require(f"{here}.maxlen == {value.maxlen}")
    for i, item in enumerate(list(value)):
        w.visit(item, f"{here}[{i}]")


def _rebuild_deque(
    rebuild: Rebuild, value: collections.deque[object]
) -> collections.deque[object]:
    copy = type(value)(maxlen=value.maxlen)
    rebuild.copies[id(value)] = copy
    copy.extend(map(rebuild, value))
    rebuild.undo_log.items(copy, collections.deque)
    return copy


DEQUE = CapturedType(
    visit=_visit_deque,
    guard=_guard_deque,
    rebuild=_rebuild_deque,
    treatment="traversed",
    mutable=True,
    refilled=True,
)
register(DEQUE, collections.deque)


def _visit_buffer(walk: Walk, value: bytearray | array.array) -> None:
    """A `bytearray` or an `array.array`, by its content."""
    if walk.met(value):
        return
    # The same bytes are other numbers under another type code.
    code = getattr(value, "typecode", "B")
    content = value.tobytes() if isinstance(value, array.array) else bytes(value)
    walk.key.append((type(value), code, content))


def _rebuild_buffer(_: Rebuild, value: bytearray | array.array) -> Any:
    return value[:]


BUFFER = CapturedType(
    visit=_visit_buffer,
    guard=None,
    rebuild=_rebuild_buffer,
    treatment="static",
    mutable=True,
    refilled=False,
)
register(BUFFER, bytearray, array.array)
