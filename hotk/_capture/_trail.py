"""`Trail`: what a walk has visited, and from where."""

import weakref

import numpy as np

from ._captured_type import CapturedType


class SameThing:
    """Stands in a key for a thing without a hash: equal to that of the same thing.

    It does not keep the thing alive; once that is gone it is equal to itself alone.
    """

    __slots__ = ("_hash", "reference")

    def __init__(self, value: object) -> None:
        self.reference = weakref.ref(value)
        self._hash = hash((SameThing, id(value)))

    def __eq__(self, other: object) -> bool:
        """Whether the other one stands for the same thing, which is alive."""
        if self is other:
            return True
        mine = self.reference()
        same = isinstance(other, SameThing) and mine is other.reference()
        return same and mine is not None

    def __hash__(self) -> int:
        """Return the hash of the identity."""
        return self._hash


class Node:
    """One visited thing, recorded when a walk is asked to leave a trail.

    Attributes:
        value: The thing.
        path: Where it was met first.
        captured: How its type is handled.
        treatment: What became of it, in words: that of its type, or why it is opaque.
        parents: The nodes from which it was reached.
    """

    __slots__ = ("captured", "parents", "path", "treatment", "value")

    def __init__(
        self, value: object, path: str, captured: CapturedType, treatment: str
    ) -> None:
        self.value = value
        self.path = path
        self.captured = captured
        self.treatment = treatment
        self.parents: list[Node] = []


class Trail:
    """The nodes of a walk in the order of visit, with their parents.

    Attributes:
        nodes: The nodes by the `id` of what they stand for.
        stack: The nodes that the walk is inside of.
        visits: Each visit: from which length of the key to which, the path, the node. A
            small integer is one object at many places, so a node has more than one.
        static: What was reached through a class or a static field.
        read: The names of the attributes that count of an object; one that counts as a
            whole is not in it.
    """

    __slots__ = ("nodes", "read", "stack", "static", "visits")

    def __init__(self) -> None:
        self.read: dict[int, set[str]] = {}
        self.nodes: dict[int, Node] = {}
        self.stack: list[Node] = []
        self.visits: list[tuple[int, int, str, Node]] = []
        self.static: list[object] = []

    def numpy_copies(self) -> dict[int, np.ndarray]:
        """Return a copy of each array of NumPy, by the `id` of the array."""
        values = [node.value for node in self.nodes.values()]
        return {id(a): a.copy("K") for a in values if type(a) is np.ndarray}
