"""`UndoLog`: what copies held when they were made, to be put back after their trace."""

from collections import deque
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from hotk._core import peek

from ._layout import slots_of


# What makes of a thing that a copy held what is put back in its place.
Replace = Callable[[Any], Any]


class UndoLog:
    """Records what mutable copies hold, each by a method for its type.

    A function that is traced may write tracers into the copies that it is called with.
    With `undo` that is lost: no tracer outlives its trace, and a derivative rule that
    was made in the trace finds what it would have found
    (`tests/reliability/test_rules_made_in_calls.py`).

    The methods `clear`, `extend` and the like are those of the class that a copy is
    derived from: its own may do otherwise, or run code of the user.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[Replace], None]] = []

    def undo(self, replace: Replace) -> None:
        """Give each copy what it held, or what `replace` makes of that; forget it."""
        for step in self._steps:
            step(replace)
        self._steps.clear()

    def items(self, copy: Any, base: type[list[object]] | type[deque[object]]) -> None:
        """Record a list or a deque."""
        recorded = list(base.__iter__(copy))

        def step(replace: Replace) -> None:
            base.clear(copy)
            base.extend(copy, map(replace, recorded))

        self._steps.append(step)

    def entries(
        self, copy: dict[object, object], base: type[dict[object, object]]
    ) -> None:
        """Record a dict."""
        recorded = list(base.items(copy))

        def step(replace: Replace) -> None:
            base.clear(copy)
            for name, item in recorded:
                base.__setitem__(copy, name, replace(item))

        self._steps.append(step)

    def entry(self, space: dict[str, object], name: str) -> None:
        """Record one entry of a dict."""
        recorded = space[name]

        def step(replace: Replace) -> None:
            space[name] = replace(recorded)

        self._steps.append(step)

    def cell(self, copy: CellType) -> None:
        """Record a cell."""
        recorded = copy.cell_contents

        def step(replace: Replace) -> None:
            copy.cell_contents = replace(recorded)

        self._steps.append(step)

    def attributes(self, copy: object) -> None:
        """Record what an object has in `__dict__` and in slots."""
        recorded = dict(peek(copy, "__dict__") or {})
        filled = [(slot, slot.__get__(copy)) for slot in slots_of(copy).values()]

        def step(replace: Replace) -> None:
            # One that was filled in the trace must be empty again, so all are emptied.
            for slot in slots_of(copy).values():
                slot.__delete__(copy)
            for slot, item in filled:
                slot.__set__(copy, replace(item))
            own = peek(copy, "__dict__")
            if own is not None:
                own.clear()
                own.update((name, replace(item)) for name, item in recorded.items())

        self._steps.append(step)

    def defaults(self, copy: FunctionType) -> None:
        """Record the defaults and the attributes of a function."""
        values, keywords = copy.__defaults__, copy.__kwdefaults__
        recorded = dict(vars(copy))

        def step(replace: Replace) -> None:
            copy.__defaults__ = None if values is None else tuple(map(replace, values))
            copy.__kwdefaults__ = keywords and {
                name: replace(item) for name, item in keywords.items()
            }
            vars(copy).clear()
            vars(copy).update((name, replace(item)) for name, item in recorded.items())

        self._steps.append(step)
