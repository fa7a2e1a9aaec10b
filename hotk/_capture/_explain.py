"""The table of what a callable captures and how hotk treats it."""

import enum
from decimal import Decimal
from fractions import Fraction

import numpy as np

from hotk._core import Function, describe, function_name, function_place, peek

from ._captured_type import Node, StaticArrays, Trail
from ._cause import TOO_DEEP, Opaque, OpaqueReason
from ._rebuild import survey
from ._walk import Walk


_VALUES = (np.generic, range, set, frozenset, enum.Enum, Fraction, Decimal)
_NUMBERS = (bool, int, float, complex, str)


def captures(
    f: Function, static_arrays: StaticArrays = StaticArrays.NONE
) -> tuple[tuple[tuple[str, str, str], ...], OpaqueReason | None, str]:
    """Walk a callable, and tell what was found.

    Args:
        f: The callable.
        static_arrays: Which captured arrays are static by content.

    Returns:
        A row for each thing: where it was found, what it is, how it is treated; why
        the walk calls `f` opaque, or `None`; and where the cause of that is.
    """
    name = function_name(f)
    trail = Trail()
    walk = Walk(trail=trail, static_arrays=static_arrays)
    reason, place = None, ""
    try:
        walk.visit(f)
    except Opaque as opaque:
        reason, place = opaque.reason, opaque_place(trail)
    except RecursionError:
        reason = TOO_DEEP
    rows = tuple(_row(node, path or name) for node, path in _places(trail))
    return rows, reason, place


def opaque_place(trail: Trail) -> str:
    """Name the innermost thing at which a walk ended, with file and line of code."""
    ended = [n for n in trail.nodes.values() if n.treatment.startswith("opaque")]
    if not ended:
        return ""
    return (ended[-1].path + function_place(ended[-1].value)).strip()


def _places(trail: Trail) -> list[tuple[Node, str]]:
    """List what was visited; the same number may stand at several places."""
    places = [(node, node.path.strip()) for node in trail.nodes.values()]
    # A small integer is one object in Python, so it has one node for all its places.
    for _, _, path, node in trail.visits:
        if path != node.path and isinstance(node.value, _NUMBERS):
            places.append((node, path.strip()))
    return places


def _row(node: Node, place: str) -> tuple[str, str, str]:
    value = node.value
    try:
        what = describe(value)
    except Exception:  # of an object that answers no name at all
        return (place, type(value).__name__, node.treatment)
    if isinstance(value, (*_NUMBERS, *_VALUES)):
        what = f"{type(value).__name__} {value!r}"[:40]
    elif isinstance(peek(value, "__qualname__") or peek(value, "__name__"), str):
        what = f"{type(value).__name__} {function_name(value)}"
    return (place, what, node.treatment)


def changes(f: Function, other: Function) -> tuple[str, ...]:
    """Say in a line each how the captured things of two callables differ."""
    try:
        (one, first), (two, second) = survey(f), survey(other)
    except (Opaque, RecursionError):
        return ("One of the two is opaque: it is traced at every call.",)
    a = {path: _row(node, "") for node, path in _places(first)}
    b = {path: _row(node, "") for node, path in _places(second)}
    found = [
        f"{path.strip() or 'itself'}: {a.get(path, ('', 'missing'))[1]} -> "
        f"{b.get(path, ('', 'missing'))[1]}"
        for path in dict.fromkeys((*a, *b))
        if a.get(path) != b.get(path)
    ]
    if not found and one.key != two.key:
        return ("Their code or its line differs, or something that has no row.",)
    return tuple(found) or ("Nothing that is static differs.",)
