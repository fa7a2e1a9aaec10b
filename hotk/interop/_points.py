"""`Points`: what is known at the point that was asked for last."""

from collections.abc import Callable
from typing import Any

from ._coordinates import Coordinates


class Point:
    """One point and what was computed there.

    Attributes:
        content: The vector, byte by byte.
        parts: The same as the real arrays of the tree.
        known: Results, by name.
    """

    __slots__ = ("content", "known", "parts")

    def __init__(self, content: bytes, parts: list[Any]) -> None:
        self.content = content
        self.parts = parts
        self.known: dict[str, Any] = {}

    def get(self, name: str, compute: Callable[[list[Any]], Any]) -> Any:
        """Return a result, computed at the first call."""
        if name not in self.known:
            self.known[name] = compute(self.parts)
        return self.known[name]


class Points:
    """Remembers the last point, by its content: bit by bit, so NaN is NaN and 0 not -0.

    Solvers ask for the value and the gradient at the same point one after the other,
    and write to the vector that they gave.
    """

    __slots__ = ("_coordinates", "_last")

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self._last: Point | None = None

    def at(self, z: Any) -> Point:
        """Return the point of a vector."""
        own = self._coordinates.vector("z", z)
        content, last = own.tobytes(), self._last
        if last is not None and last.content == content:
            return last
        self._last = point = Point(content, self._coordinates.point(own))
        return point
