"""Why a call is new to the store: what differs from the nearest one that is known."""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hotk._capture import CodeFacts, Opaque, SameThing, Skeleton, Trail, Walk
from hotk._core import function_name, function_place, peek

from ._call import Call
from ._store import STORE
from .warnings import PerCode, note_change


_HEADER = (
    *("operator", "structure of the arguments", "kind of arguments"),
    *("order of a dict among the arguments", "kind of random keys", "stage"),
)

_WHOLE = "the function"
_VALUES = (bool, int, float, complex, str, bytes, np.generic)


_MOST_KEPT = 4
_ZEROS = {"0x0.0p+0": "0.0", "-0x0.0p+0": "-0.0"}  # as they stand in a key


class _Difference(NamedTuple):
    """Where two keys of walks differ first, and how.

    Attributes:
        piece: At which piece, by its number.
        place: Where in the function.
        is_value: Whether it is a plain value that differs, such as a number.
        was: What it was, in a few words.
        now: What it is.
        text: Both, or how many things there are of which there were others.
    """

    piece: int
    place: str
    is_value: bool
    was: str
    now: str
    text: str


class _Last:
    """The last calls of one code object by one operator."""

    def __init__(self) -> None:
        self.keys: deque[tuple[Hashable, ...]] = deque(maxlen=_MOST_KEPT)
        self.named: _Difference | None = None  # between the last two of them


# What a new key is compared with: comparing it with all that the store holds would take
# as long as a short trace.
_LAST: PerCode[dict[Hashable, _Last]] = PerCode(dict)


def what_is_new(call: Call) -> str:
    """Say in a few words what is new about a call that found no entry.

    It is compared with the last calls of the same code by the same operator.
    """
    key = call.store_key
    with _LAST.lock:
        last = _LAST.of(call.f).setdefault(key[0], _Last())
        known, named = list(last.keys), last.named
        last.keys.append(key)
        last.named = None
    if not known:
        others = any(other[0] is key[0] for other in list(STORE.entries))
        return "another function" if others else "a new skeleton or structure"
    counts = [_common(k, key) for k in known]
    same, header = max(counts), len(_HEADER)
    if same < header:
        return f"another {_HEADER[same]}"
    if same == header:
        return "another function"
    nearest = max(i for i, count in enumerate(counts) if count == same)
    # All three keys begin alike: the place has the same name.
    previous = named if nearest == len(known) - 1 else None
    if previous is not None and previous.piece != same - header:
        previous = None
    things, skip = (*call.inputs.visited, call.f), call.placed
    found = _difference(known[nearest][header:], key[header:], things, skip, previous)
    with _LAST.lock:
        if last.keys[-1] is key:  # no other thread has come between
            last.named = found
    note_change(call.f, found.place, (found.was, found.now), found.is_value)
    return f"{found.place}: {found.text}"


def difference(
    was: Sequence[object],
    now: Sequence[object],
    things: Sequence[object],
    skip: int = 0,
) -> tuple[str, str]:
    """Say where two keys of walks differ first, and how.

    Args:
        was: The key of an earlier walk.
        now: The key of a walk through `things`.
        things: What was visited.
        skip: How many pieces stand before those of the walk.
    """
    found = _difference(was, now, things, skip, None)
    return found.place, found.text


def _difference(
    was: Sequence[object],
    now: Sequence[object],
    things: Sequence[object],
    skip: int,
    named: _Difference | None,
) -> _Difference:
    """Compare two keys; `named` has the place, if it is known."""
    same = _common(was, now)
    a, b = (key[same] if same < len(key) else "nothing" for key in (was, now))
    if isinstance(a, Skeleton) and isinstance(b, Skeleton):  # of a held function
        where, one, other = compared(a, b, b.template)
        holder = _place(things, same, skip)[0].removesuffix(".skeleton")
        place = f"{holder}, {where.removeprefix('function, ')}"
        text = f"{one} -> {other}"
        return _Difference(same, place, False, one, other, text)
    if named is not None:
        place, is_value = named.place, named.is_value
    else:
        place, is_value = _place(things, same, skip)
    if not is_value and type(a) is type(b) is int:
        text = f"it has {b} attributes or entries, not {a}"
        return _Difference(same, place, False, f"{a} entries", f"{b} entries", text)
    one, other = _text(a), _text(b)
    return _Difference(same, place, is_value, one, other, f"{one} -> {other}")


class _Reached(Exception):
    """The piece of the key that is asked for has been written."""


class _Until(Walk):
    """A walk that ends as soon as its key is longer than an index."""

    def __init__(self, index: int) -> None:
        super().__init__(trail=Trail())
        self.index = index

    def part(self, value: object, *place: Any, **seen_as: Any) -> None:
        """Go through a thing if the key is still too short."""
        if len(self.key) > self.index:
            raise _Reached
        super().part(value, *place, **seen_as)


def compared(was: Skeleton, now: Skeleton, f: object) -> tuple[str, str, str]:
    """Say where two skeletons differ first, and what is there in each.

    Args:
        was: One of them.
        now: The other.
        f: The function that `now` is of.
    """
    if was.opaque is not None or now.opaque is not None:
        return "function", _shown(was, was.template), _shown(now, f)
    same = _common(was.key, now.key)
    pieces = [key[same] if same < len(key) else "nothing" for key in (was.key, now.key)]
    place, is_value = _place((f,), same)
    where = "function" if place == _WHOLE else f"function, {place}"
    if not is_value and {type(piece) for piece in pieces} == {int}:
        return where, f"{pieces[0]} attributes or entries", str(pieces[1])
    things = _at(was.template, same), _at(f, same)
    texts = [_text_of(*pair) for pair in zip(pieces, things, strict=True)]
    if texts[0] == texts[1] and isinstance(pieces[0], CodeFacts):  # on one line
        texts = [
            t + _code(*pair)
            for t, pair in zip(texts, (things, things[::-1]), strict=True)
        ]
    return where, texts[0], texts[1]


def _shown(skeleton: Skeleton, f: object) -> str:
    """Name the function of a skeleton, and say why no walk sees through it."""
    why = "" if skeleton.opaque is None else f", opaque: {skeleton.opaque}"
    return f"{skeleton.name}{function_place(f)}{why}"


def _text_of(piece: object, thing: object) -> str:
    """Say what a piece of a key is, and of a function where it was written."""
    if isinstance(piece, CodeFacts):
        return f"{_text(piece)}{function_place(thing)}"
    named = callable(thing) and not isinstance(thing, type)
    return function_name(thing) if named else _text(piece)


def _code(one: object, other: object) -> str:
    """Say what the code of one function has that another's has not."""
    a, b = (peek(peek(g, "__func__") or g, "__code__") for g in (one, other))
    for kind, what in (("co_consts", "constants"), ("co_names", "names")):
        mine, theirs = peek(a, kind), peek(b, kind)
        if mine != theirs:
            return f" with {what} {mine!r:.60}"
    same = peek(a, "co_code") == peek(b, "co_code")
    return " in another column" if same else " with other code"


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if type(one) is not type(other) or (one is not other and one != other):
            break
        count += 1
    return count


def _place(things: Sequence[object], index: int, skip: int = 0) -> tuple[str, bool]:
    """Name what a piece of the walk's key is about, and whether that is a value."""
    found = _visit(things, index, skip)
    if found is None:
        return _WHOLE, False
    return found[0].strip() or _WHOLE, isinstance(found[1], _VALUES)


def _at(thing: object, index: int) -> object:
    """Return what a piece of the key of a walk through a thing is about."""
    found = _visit((thing,), index, 0)
    return None if found is None else found[1]


def _visit(
    things: Sequence[object], index: int, skip: int
) -> tuple[str, object] | None:
    """Return path and value of the smallest thing that a piece of a key is of."""
    walk = _Until(index)
    trail = walk.trail
    assert trail is not None
    walk.key.extend([None] * skip)
    try:
        for thing in things:
            walk.visit(thing)
    except _Reached:
        pass
    except (Opaque, RecursionError):
        return None
    around = [v for v in trail.visits if v[0] <= index < v[1]]
    if not around:
        return None
    _, _, path, node = min(around, key=lambda visit: visit[1] - visit[0])
    return path, node.value


def _is_numpy(piece: tuple[object, ...]) -> bool:
    kind = piece[0] if len(piece) == 3 else None
    known = isinstance(kind, type) and issubclass(kind, np.generic)
    return known and isinstance(piece[2], bytes)  # and not the place of an argument


def _text(piece: object) -> str:
    if piece in ("<leaf>", "<NumPy leaf>"):
        return "an array"
    if isinstance(piece, SameThing):
        return "an array held by a class"
    if isinstance(piece, str) and piece in _ZEROS:
        return _ZEROS[piece]
    if isinstance(piece, CodeFacts):
        return f"function {piece.name}"
    if isinstance(piece, type):
        return piece.__name__
    if isinstance(piece, tuple) and _is_numpy(piece):
        return repr(np.frombuffer(piece[2], piece[1])[0])
    if isinstance(piece, tuple) and piece[:1] == ("content",):
        return _content(*piece[1:])
    if isinstance(piece, tuple) and piece and isinstance(piece[0], type):
        return f"{piece[0].__name__} {', '.join(map(repr, piece[1:]))}"[:60]
    if isinstance(piece, (bool, int, float, complex, str, bytes, type(None))):
        return repr(piece)[:40]
    return type(piece).__name__


def _content(*piece: Any) -> str:
    """Say what an array is that is static by its content."""
    if isinstance(piece[0], str):  # a random key has its own dtype first
        return "the content of a random key"
    shape, dtype, content = piece[0], np.dtype(piece[1]), piece[-1]
    if len(content) != dtype.itemsize * math.prod(shape):  # it is a hash
        return f"a content of {dtype.name}{list(shape)}"
    numbers = np.frombuffer(content, dtype).reshape(shape)
    return f"the content {' '.join(repr(numbers).split())}"[:60]
