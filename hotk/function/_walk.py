"""`Walk`: what is collected on the way through a callable."""

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator
from types import FunctionType
from typing import Any, Final

from hotk._core import JITTED


# Why a callable is opaque that was seen to write, or that keeps what it computes: it is
# run so that what does not depend on the point is computed at once, and is no tracer.
WRITES = "it changes an argument or what it captured"
KEEPS = "it keeps what it has computed"
# Another thread was at work between the walk and the trace: true of one call only.
CHANGED = "it was changed while it was called"


class Opaque(Exception):
    """A captured thing can change in a way that the walk cannot see."""


class Node:
    """One visited thing, recorded when a walk is asked to leave a trail."""

    __slots__ = ("name", "parents", "path", "treatment", "value")

    def __init__(self, value: Any, path: str, name: str, treatment: str) -> None:
        self.value = value
        self.path = path
        self.name = name
        self.treatment = treatment
        self.parents: list[Node] = []


class Trail:
    """The nodes of a walk in the order of visit, with their parents.

    `visits` has each visit, where a number may be the same object as another one: from
    which length of the key to which, and the path. `frozen` has what was reached
    through a class.
    """

    __slots__ = ("frozen", "nodes", "stack", "visits")

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.stack: list[Node] = []
        self.visits: list[tuple[int, int, str, Node]] = []
        self.frozen: list[Any] = []


_SEEN: Final = "<met before>"
_LEAF: Final = "<leaf>"
_NUMPY_LEAF: Final = "<NumPy leaf>"
# One that holds small integers only, which a program may count on.
_SHORT_LEAF: Final = "<NumPy leaf of small integers>"


class Walk:
    """What a walk collects: the skeleton's key and the captured arrays.

    Attributes:
        key: The skeleton as a flat list of hashable pieces, compared by value.
        leaves: The captured arrays: NumPy arrays as copies of their own.
        small: Which arrays are static by content: 0 is none, the other levels are
            those of `_values`.
    """

    find: "Callable[[Any], Visitor]"  # set by `_kinds`, for types that are in no table
    frozen = 0
    small = 0
    trail: Trail | None = None

    def __init__(self, *, small: int = 0, trail: Trail | None = None) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.originals = self.leaves  # another list once a NumPy array was copied
        self.seen: dict[int, tuple[int, Any, bool]] = {}
        if small:
            self.small = small
        if trail is not None:
            self.trail = trail

    def add_leaf(self, value: Any, original: Any, short: bool = False) -> None:
        """Take a captured array, which may be a copy of the original."""
        kind = _SHORT_LEAF if short else _NUMPY_LEAF
        self.key.append(_LEAF if value is original else kind)
        if value is not original and self.originals is self.leaves:
            self.originals = list(self.leaves)
        self.leaves.append(value)
        if self.originals is not self.leaves:
            self.originals.append(original)

    def attempt(self, visit: Callable[[], None]) -> bool:
        """Whether a visit meets nothing opaque; one that does leaves no trace."""
        before = len(self.key), len(self.leaves), len(self.originals), len(self.seen)
        trail = self.trail
        known = (0, 0) if trail is None else (len(trail.nodes), len(trail.visits))
        try:
            visit()
        except Opaque:
            parts = (self.key, self.leaves, self.originals)
            for part, length in zip(parts, before, strict=False):
                del part[length:]
            for things, length in (
                (self.seen, before[3]),
                ({} if trail is None else trail.nodes, known[0]),
            ):
                for added in list(things)[length:]:
                    del things[added]
            if trail is not None:
                del trail.visits[known[1] :]
                left = set(map(id, trail.nodes.values()))
                for node in trail.nodes.values():
                    node.parents = [p for p in node.parents if id(p) in left]
            return False
        return True

    def plain_key(self) -> list[Hashable]:
        """Return the key without the difference between NumPy's and JAX's arrays."""
        numpy = (_NUMPY_LEAF, _SHORT_LEAF)
        return [_LEAF if piece in numpy else piece for piece in self.key]

    def visit(self, value: Any, how: str = "", name: Any = "") -> None:
        """Visit one captured thing, which was reached by `how` and `name`."""
        visitor = VISITORS.get(type(value))
        if visitor is None:
            visitor = self.find(value)
        if self.trail is None:
            visitor(self, value)
        else:
            self._visit_with_trail(visitor, value, how, name)

    def _visit_with_trail(
        self, visitor: "Visitor", value: Any, how: str, name: Any
    ) -> None:
        trail = self.trail
        assert trail is not None
        if self.frozen:
            trail.frozen.append(value)
        parent = trail.stack[-1] if trail.stack else None
        node = trail.nodes.get(id(value))
        fresh = node is None or node.value is not value
        place = how.format(name) if how else str(name)
        path = (parent.path if parent else "") + place
        begin = len(self.key)
        if node is None or fresh:
            node = Node(
                value, path, visitor.__name__, TREATMENTS.get(visitor, "static")
            )
            trail.nodes[id(value)] = node
        if parent is not None:
            node.parents.append(parent)
        trail.stack.append(node)
        before = len(self.leaves)
        try:
            visitor(self, value)
            if node.treatment == "leaf" and len(self.leaves) == before and fresh:
                node.treatment = "static by content"
        except Opaque as reason:
            if not str(node.treatment).startswith("opaque"):
                node.treatment = f"opaque: {reason}"
            raise
        finally:
            trail.stack.pop()
            trail.visits.append((begin, len(self.key), path, node))

    @contextlib.contextmanager
    def inside(self, value: Any, path: str) -> Iterator[None]:
        """Record a thing that is only passed through on the way to others."""
        trail = self.trail
        if trail is None:
            yield
            return
        node = trail.nodes.get(id(value))
        if node is None:
            node = Node(value, path, "module", "walked")
            trail.nodes[id(value)] = node
        if trail.stack:
            node.parents.append(trail.stack[-1])
        trail.stack.append(node)
        try:
            yield
        finally:
            trail.stack.pop()

    def met_fixed(self, value: Any) -> bool:
        """Whether a thing was met before that is never copied, wherever it is met."""
        frozen, self.frozen = self.frozen, 1
        known = self.met(value)
        self.frozen = frozen
        return known

    def met(self, value: Any) -> bool:
        """Whether a thing was met before; if so its number goes into the key."""
        number = self.seen.get(id(value))
        if number is not None:
            if number[2] is not bool(self.frozen) and is_mutable(value):
                raise Opaque("something mutable is shared with a class")
            self.key.append(_SEEN)
            self.key.append(number[0])
            return True
        self.seen[id(value)] = (len(self.seen), value, bool(self.frozen))
        return False


def is_mutable(value: Any) -> bool:
    """Whether a thing may change in place, besides classes and functions."""
    return not isinstance(value, (type, FunctionType, tuple, JITTED))


class Placeholder:
    """Stands where an array was, in the template of a closure."""

    __slots__ = ("number",)
    size = sys.maxsize

    def __init__(self, number: int) -> None:
        self.number = number


Visitor = Callable[[Walk, Any], None]
# Filled in by `_kinds`, which knows all visitors.
VISITORS: dict[type, Visitor] = {}
TREATMENTS: dict[Visitor, str] = {}
