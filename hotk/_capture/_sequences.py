"""Captured lists, tuples, deques and buffers.

They are walked anew at each call. A container that is mutable is copied for a trace
even where it holds no array, so that a function that writes into it is found out.
"""

import array
import collections
from collections.abc import Hashable, Sequence
from typing import Any

from ._captured_type import CapturedType, register
from ._description import Description
from ._rebuild import Rebuild


def _describe_sequence(d: Description, value: Sequence[object], here: str) -> None:
    if d.met(value, here):
        return
    d.same("type({0}) is {1} and len({0}) == {2}", here, type(value), len(value))
    for i, item in enumerate(value):
        d.part(item, "[{}]", i, here)


def _rebuild_list(rebuild: Rebuild, value: list[object]) -> list[object]:
    copy: list[object] = []
    rebuild.copies[id(value)] = copy  # before it is filled: a list may hold itself
    copy.extend(map(rebuild, value))
    return copy


def _rebuild_tuple(rebuild: Rebuild, value: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(map(rebuild, value))


LIST = CapturedType(
    describe=_describe_sequence,
    rebuild=_rebuild_list,
    treatment="traversed",
    mutable=True,
)
TUPLE = CapturedType(
    describe=_describe_sequence,
    rebuild=_rebuild_tuple,
    treatment="traversed",
    mutable=False,
)
register(LIST, list)
register(TUPLE, tuple)


def _describe_deque(
    d: Description, value: collections.deque[object], here: str
) -> None:
    """A deque, by its content and its greatest length."""
    if d.met(value, here):
        return
    d.same("type({0}) is {1} and len({0}) == {2}", here, type(value), len(value))
    d.same("{0}.maxlen == {1}", here, value.maxlen)
    for i, item in enumerate(list(value)):
        d.part(item, "[{}]", i, here)


def _rebuild_deque(
    rebuild: Rebuild, value: collections.deque[object]
) -> collections.deque[object]:
    copy = type(value)(maxlen=value.maxlen)
    rebuild.copies[id(value)] = copy
    copy.extend(map(rebuild, value))
    return copy


DEQUE = CapturedType(
    describe=_describe_deque,
    rebuild=_rebuild_deque,
    treatment="traversed",
    mutable=True,
)
register(DEQUE, collections.deque)


def _bytes(value: bytearray | array.array) -> tuple[Hashable, ...]:
    # The same bytes are other numbers under another type code.
    code = getattr(value, "typecode", "B")
    return code, value.tobytes() if isinstance(value, array.array) else bytes(value)


def _describe_buffer(d: Description, value: bytearray | array.array, here: str) -> None:
    """A `bytearray` or an `array.array`, by its content."""
    if not d.met(value, here):
        d.piece(_bytes, value, here)


def _rebuild_buffer(_: Rebuild, value: bytearray | array.array) -> Any:
    return value[:]


BUFFER = CapturedType(
    describe=_describe_buffer,
    rebuild=_rebuild_buffer,
    treatment="static",
    mutable=True,
)
register(BUFFER, bytearray, array.array)
