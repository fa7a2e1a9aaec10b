"""`LastEvaluation`: the results at the point that a solver asked for last."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy.typing as npt

from hotk._core import Leaf

from ._coordinates import Coordinates


T = TypeVar("T")


class Evaluation:
    """One point and what was computed there.

    Attributes:
        content: The bytes of the flat vector.
        parts: The vector as the real arrays of the tree.
        results: What was computed, by name.
    """

    __slots__ = ("content", "parts", "results")

    def __init__(self, content: bytes, parts: list[Leaf]) -> None:
        self.content = content
        self.parts = parts
        self.results: dict[str, Any] = {}

    def get(self, name: str, compute: Callable[[list[Leaf]], T]) -> T:
        """Return the result of a name, and compute it at the first call."""
        if name not in self.results:
            self.results[name] = compute(self.parts)
        return self.results[name]


class LastEvaluation:
    """The last point with its results: solvers ask for value and gradient by turns."""

    __slots__ = ("_coordinates", "_last")

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self._last: Evaluation | None = None

    def at(self, z: npt.ArrayLike) -> Evaluation:
        """Return the evaluation at a vector: the last one, or a new one."""
        vector = self._coordinates.vector("z", z)
        # By content, as solvers write to the array that they passed. By bytes, as NaN
        # is not equal to itself, and `0.0 == -0.0` although `1 / x` differs.
        content, last = vector.tobytes(), self._last
        if last is not None and last.content == content:
            return last
        self._last = Evaluation(content, self._coordinates.parts(vector))
        return self._last
