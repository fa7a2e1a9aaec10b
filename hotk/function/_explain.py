"""`explain`: the table of what a callable captures and how hotk treats it."""

import enum
import html
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hotk._core import describe, function_name, html_table, peek, text_table

from ._rebuild import survey
from ._walk import Node, Opaque, Trail, Walk


_VALUES = (np.generic, range, set, frozenset, enum.Enum, Fraction, Decimal)
_NUMBERS = (bool, int, float, complex, str)


class Explanation(NamedTuple):
    """What a callable captures: one row a thing.

    Attributes:
        name: The callable's name.
        rows: Where each thing was found, what it is, and how it is treated.
        opaque: Why the callable is opaque, or `None`.
        changes: What differs from the callable it was compared with.
    """

    name: str
    rows: tuple[tuple[str, str, str], ...]
    opaque: str | None
    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write the table and one sentence on what it means."""
        table = text_table(("where", "what", "treated as"), self.rows)
        return "\n".join((table, self._verdict(), *self.changes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = html_table(("where", "what", "treated as"), self.rows)
        lines = map(html.escape, (self._verdict(), *self.changes))
        return table + "".join(f"<p>{line}</p>" for line in lines)

    def _verdict(self) -> str:
        if self.opaque is not None:
            return (
                f"`{self.name}` is opaque ({self.opaque}): it is traced at every call "
                "and compiled only when its program is new."
            )
        arrays = sum(row[2] == "leaf" for row in self.rows)
        return (
            f"`{self.name}` has {arrays} captured array(s) as leaves; all else is "
            "static: it is traced again when a static thing changes."
        )


def explain(
    f: Callable[..., Any], other: Callable[..., Any] | None = None
) -> Explanation:
    """Tell what a callable captures, where it was found and how it is treated.

    Args:
        f: Any callable.
        other: Another callable to compare with: what differs between the two, and so
            why the second one is traced again.

    Returns:
        A table that prints itself, in a terminal and in Jupyter. A `leaf` is an array
        whose values may change freely; a `static` thing is compared at each call and
        a new value is traced once more; an `opaque` thing makes `f` traced each time.

    Example:
        >>> scale = jnp.ones(3)
        >>> table = hotk.explain(lambda x: jnp.sum(scale * x))
        >>> [row[2] for row in table.rows if "scale" in row[0]]
        ['leaf']
    """
    name = function_name(f)
    trail = Trail()
    walk = Walk(trail=trail)
    reason = None
    try:
        walk.visit(f)
    except Opaque as opaque:
        reason = str(opaque)
    except RecursionError:
        reason = "it is nested too deeply to be walked"
    rows = tuple(_row(node, path or name) for node, path in _places(trail))
    changes = () if other is None else _changes(f, other)
    return Explanation(name, rows, reason, changes)


def _places(trail: Trail) -> list[tuple[Node, str]]:
    """List what was visited; the same number may stand at several places."""
    places = [(node, node.path.strip()) for node in trail.nodes.values()]
    for _, _, path, node in trail.visits:
        if path != node.path and isinstance(node.value, _NUMBERS):
            places.append((node, path.strip()))
    return places


def _row(node: Node, place: str) -> tuple[str, str, str]:
    value = node.value
    what = describe(value)
    if isinstance(value, (*_NUMBERS, *_VALUES)):
        what = f"{type(value).__name__} {value!r}"[:40]
    elif isinstance(peek(value, "__qualname__") or peek(value, "__name__"), str):
        what = f"{type(value).__name__} {function_name(value)}"
    return (place, what, node.treatment)


def _changes(f: Any, other: Any) -> tuple[str, ...]:
    try:
        (one, first), (two, second) = survey(f), survey(other)
    except (Opaque, RecursionError):
        return ("One of the two is opaque: they are traced at every call.",)
    a = {path: _row(node, "") for node, path in _places(first)}
    b = {path: _row(node, "") for node, path in _places(second)}
    found = [
        f"{path.strip() or 'itself'}: {a.get(path, ('', 'missing'))[1]} -> "
        f"{b.get(path, ('', 'missing'))[1]}"
        for path in dict.fromkeys((*a, *b))
        if a.get(path) != b.get(path)
    ]
    if not found and one.key != two.key:
        return ("It is other code or on another line, or differs where none is shown.",)
    return tuple(found) or ("Nothing that is static differs.",)
