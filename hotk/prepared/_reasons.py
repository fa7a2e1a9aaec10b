"""Why a call is new to the store: what differs from the nearest one that is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotk.function import Identity, Opaque, Recipe, Trail, Walk

from ._call import Call
from ._store import STORE


_HEADER = (
    *("operator", "structure of the arguments", "kind of arguments"),
    *("order of a dict among the arguments", "kind of random keys", "stage"),
)

_VALUES = (bool, int, float, complex, str, bytes, np.generic)


def what_is_new(call: Call) -> str:
    """Say in a few words what is new about a call that found no entry."""
    key: Any = call.store_key
    nearest: Any = None
    same = 0
    for known in list(STORE.entries):
        entry: Any = known
        count = _common(entry, key)
        if entry[0] is key[0] and count >= same:
            nearest, same = entry, count
    if nearest is None:
        return "a new skeleton or structure"
    if same < len(_HEADER):
        return f"another {_HEADER[same]}"
    if same == len(_HEADER):
        return "another function"
    things, skip = (*call.inputs.visited, call.f), call.marked
    header = len(_HEADER)
    return ": ".join(difference(nearest[header:], key[header:], things, skip))


def difference(
    was: Sequence[Any], now: Sequence[Any], things: Sequence[Any], skip: int = 0
) -> tuple[str, str]:
    """Say where two keys of walks differ first, and how.

    Args:
        was: The key of an earlier walk.
        now: The key of a walk through `things`.
        things: What was visited.
        skip: How many pieces stand before those of the walk.
    """
    same = _common(was, now)
    a, b = (key[same] if same < len(key) else "nothing" for key in (was, now))
    place, is_value = _place(things, same, skip)
    if not is_value and type(a) is type(b) is int:
        return place, f"it has {b} attributes or entries, not {a}"
    return place, f"{_text(a)} -> {_text(b)}"


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if type(one) is not type(other) or (one is not other and one != other):
            break
        count += 1
    return count


def _place(things: Sequence[Any], index: int, skip: int) -> tuple[str, bool]:
    """Name what a piece of the walk's key is about, and whether that is a value."""
    trail = Trail()
    walk = Walk(trail=trail)
    walk.key.extend([None] * skip)
    try:
        for thing in things:
            walk.visit(thing)
    except (Opaque, RecursionError):
        return "the function", True
    around = [v for v in trail.visits if v[0] <= index < v[1]]
    if not around:
        return "the function", True
    _, _, path, node = min(around, key=lambda visit: visit[1] - visit[0])
    return path.strip() or "the function", isinstance(node.value, _VALUES)


def _is_numpy(piece: tuple[Any, ...]) -> bool:
    kind = piece[0] if len(piece) == 3 else None
    return isinstance(kind, type) and issubclass(kind, np.generic)


def _text(piece: Any) -> str:
    if piece in ("<leaf>", "<NumPy leaf>"):
        return "an array"
    if isinstance(piece, Identity):
        return "an array held by a class"
    if isinstance(piece, Recipe):
        return f"function {piece.name}"
    if isinstance(piece, type):
        return piece.__name__
    if isinstance(piece, tuple) and _is_numpy(piece):
        return repr(np.frombuffer(piece[2], piece[1])[0])
    if isinstance(piece, tuple) and piece and isinstance(piece[0], type):
        return f"{piece[0].__name__} {', '.join(map(repr, piece[1:]))}"[:60]
    if isinstance(piece, (bool, int, float, complex, str, bytes, type(None))):
        return repr(piece)[:40]
    return type(piece).__name__
