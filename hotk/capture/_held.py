"""What copies held when they were made, to be put back when their trace has ended."""

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from hotk._core import peek

from ._objects import slots_of


Left = Callable[[Any], Any]


class Held:
    """Records what mutable copies hold, each by a method for its kind.

    What is written into a copy during a trace is lost with `put_back`. Methods of the
    class that the copy is derived from are called: its own may do otherwise.
    """

    def __init__(self) -> None:
        self._each: list[Callable[[Left], None]] = []

    def put_back(self, left: Left) -> None:
        """Give each copy what it held, or what `left` makes of that, and forget it."""
        for put in self._each:
            put(left)
        self._each.clear()

    def items(self, made: Any, kind: Any) -> None:
        """Record a list or a deque."""
        held = list(kind.__iter__(made))

        def put(left: Left) -> None:
            kind.clear(made)
            kind.extend(made, map(left, held))

        self._each.append(put)

    def entries(self, made: Any, kind: Any) -> None:
        """Record a dict."""
        held = list(kind.items(made))

        def put(left: Left) -> None:
            kind.clear(made)
            for name, item in held:
                kind.__setitem__(made, name, left(item))

        self._each.append(put)

    def entry(self, space: dict[str, Any], name: str) -> None:
        """Record one entry of a dict."""
        held = space[name]

        def put(left: Left) -> None:
            space[name] = left(held)

        self._each.append(put)

    def content(self, made: CellType) -> None:
        """Record a cell."""
        held = made.cell_contents

        def put(left: Left) -> None:
            made.cell_contents = left(held)

        self._each.append(put)

    def attributes(self, made: Any) -> None:
        """Record what an object has in `__dict__` and in slots."""
        held = dict(peek(made, "__dict__") or {})
        filled = [(slot, slot.__get__(made)) for slot in slots_of(made).values()]

        def put(left: Left) -> None:
            for slot in slots_of(made).values():
                slot.__delete__(made)
            for slot, item in filled:
                slot.__set__(made, left(item))
            own = peek(made, "__dict__")
            if own is not None:
                own.clear()
                own.update((name, left(item)) for name, item in held.items())

        self._each.append(put)

    def defaults(self, made: FunctionType) -> None:
        """Record the defaults and the attributes of a function."""
        values, keywords = made.__defaults__, made.__kwdefaults__
        held = dict(vars(made))

        def put(left: Left) -> None:
            made.__defaults__ = None if values is None else tuple(map(left, values))
            made.__kwdefaults__ = keywords and {
                name: left(item) for name, item in keywords.items()
            }
            vars(made).clear()
            vars(made).update((name, left(item)) for name, item in held.items())

        self._each.append(put)
