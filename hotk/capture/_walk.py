"""`Walk`: what is collected on the way through a callable."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator
from types import FunctionType
from typing import Any, Final

import equinox as eqx

from hotk._core import JITTED, peek

from ._recipe import TOLD


# Why a callable is opaque that was seen to write, or that keeps what it computes: it is
# run so that what does not depend on the point is computed at once, and is no tracer.
WRITES = "it changes an argument or what it captured"
KEEPS = "it keeps what it has computed"
# Another thread was at work between the walk and the trace: true of one call only.
CHANGED = "it was changed while it was called"


class Opaque(Exception):
    """A captured thing can change in a way that the walk cannot see."""


class Identity:
    """Stands in a key for a thing without a hash: equal to that of the same thing.

    It does not keep the thing alive; once that is gone it is equal to itself alone.
    """

    __slots__ = ("_hash", "reference")

    def __init__(self, value: Any) -> None:
        self.reference = weakref.ref(value)
        self._hash = hash((Identity, id(value)))

    def __eq__(self, other: object) -> bool:
        """Whether the other one stands for the same thing, which is alive."""
        if self is other:
            return True
        mine = self.reference()
        same = isinstance(other, Identity) and mine is other.reference()
        return same and mine is not None

    def __hash__(self) -> int:
        """Return the hash of the identity."""
        return self._hash


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
    through a class. `read` has the names of the attributes that count of an object; one
    that counts as a whole is not in it.
    """

    __slots__ = ("frozen", "nodes", "read", "stack", "visits")

    def __init__(self) -> None:
        self.read: dict[int, set[str]] = {}
        self.nodes: dict[int, Node] = {}
        self.stack: list[Node] = []
        self.visits: list[tuple[int, int, str, Node]] = []
        self.frozen: list[Any] = []


_SEEN: Final = "<met before>"
_SHARED: Final = "<shared with a class>"
_LEAF: Final = "<leaf>"
_NUMPY_LEAF: Final = "<NumPy leaf>"
# One that holds small integers only, which a program may count on.
_SHORT_LEAF: Final = "<NumPy leaf of small integers>"


class Walk:
    """What a walk collects: the skeleton's key and the captured arrays.

    Attributes:
        key: The skeleton as a flat list of hashable pieces, compared by value.
        leaves: The captured arrays: NumPy arrays as copies of their own.
        light: Whether only the key is asked for: NumPy arrays are not copied.
        pinned: The arrays reached through classes and static fields: they stay what
            they are, as constants of the traced program.
        classes: Whether a class of the user was met.
        copies: Whether a NumPy array is among such constants: programs need copies.
        small: Which arrays are static by content: 0 is none, the other levels are
            those of `_values`.
    """

    find: "Callable[[Any], Visitor]"  # set by `_kinds`, for types that are in no table
    reads_by_name = hidden_names = False
    tells = False  # whether code was met that reads the names of functions or classes
    classes = False
    copies = False
    light = False
    frozen = 0
    small = 0
    trail: Trail | None = None

    def __init__(
        self, *, small: int = 0, trail: Trail | None = None, light: bool = False
    ) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.originals = self.leaves  # another list once a NumPy array was copied
        if light:
            self.light = True
        self.pinned: list[Any] = []
        self.whole: set[int] = set()  # objects of which all counts
        self.calls: set[tuple[int, int]] = set()  # methods that were gone into
        self.seen: dict[int, tuple[int, Any]] = {}
        self.fixed: dict[int, tuple[int, Any]] = {}  # the same, of what a class reaches
        if small:
            self.small = small
        if trail is not None:
            self.trail = trail

    def add_numpy(self, value: Any, original: Any, short: bool) -> None:
        """Take a captured array of NumPy, which may be a copy of the original."""
        self.key.append(_SHORT_LEAF if short else _NUMPY_LEAF)
        self._add(value, original)

    def add_leaf(self, value: Any) -> None:
        """Take a captured array of JAX."""
        self.key.append(_LEAF)
        self._add(value, value)

    def _add(self, value: Any, original: Any) -> None:
        if value is not original and self.originals is self.leaves:
            self.originals = list(self.leaves)
        self.leaves.append(value)
        if self.originals is not self.leaves:
            self.originals.append(original)

    def attempt(self, visit: Callable[[], None]) -> bool:
        """Whether a visit meets nothing opaque; one that does leaves no trace."""
        before = len(self.key), len(self.leaves), len(self.originals), len(self.pinned)
        tables = [dict(self.seen), dict(self.fixed)]
        sets = set(self.whole), set(self.calls)
        flags = self.classes, self.copies, self.reads_by_name, self.hidden_names
        tells = self.tells
        trail = self.trail
        known = (0, 0) if trail is None else (len(trail.nodes), len(trail.visits))
        read = {} if trail is None else {k: set(v) for k, v in trail.read.items()}
        try:
            visit()
        except Opaque:
            parts = (self.key, self.leaves, self.originals, self.pinned)
            for part, length in zip(parts, before, strict=True):
                del part[length:]
            self.seen, self.fixed = tables
            self.whole, self.calls = sets
            self.tells = tells
            self.classes, self.copies, self.reads_by_name, self.hidden_names = flags
            if trail is not None:
                trail.read = read
                for added in list(trail.nodes)[known[0] :]:
                    del trail.nodes[added]
                del trail.visits[known[1] :]
                left = set(map(id, trail.nodes.values()))
                for node in trail.nodes.values():
                    node.parents = [p for p in node.parents if id(p) in left]
            return False
        return True

    def close(self) -> None:
        """Put what functions and classes say of themselves into the key, if it is read.

        Which ones are asked cannot be told, so it is that of all that were met.
        """
        if self.tells:
            for table in (self.seen, self.fixed):
                self.key.extend(told(value) for _, value in table.values())

    def by_name(self, *, reads: bool = False, hidden: bool = False) -> None:
        """Note code that reads attributes by name, or a name that a walk leaves out.

        Raises:
            Opaque: If both were met: they may belong together.
        """
        self.reads_by_name = self.reads_by_name or reads
        self.hidden_names = self.hidden_names or hidden
        if self.reads_by_name and self.hidden_names:
            raise Opaque("it may read by `getattr` what no walk follows")

    def plain_key(self) -> list[Hashable]:
        """Return the key without what a copy with other arrays inside differs in.

        That is whether an array is NumPy's, and what is copied here but not in a class.
        """
        numpy = (_NUMPY_LEAF, _SHORT_LEAF)
        kept = [piece for piece in self.key if not _is_shared(piece)]
        return [_LEAF if piece in numpy else piece for piece in kept]

    def visit(self, value: Any, how: str = "", name: Any = "") -> None:
        """Visit one captured thing, which was reached by `how` and `name`."""
        visitor = VISITORS.get(type(value))
        if visitor is None:
            visitor = self.find(value)
        if self.trail is None:
            visitor(self, value)
        else:
            self._visit_with_trail(visitor, value, how, name)

    def visit_as(
        self, visitor: "Visitor", value: Any, how: str = "", name: Any = ""
    ) -> None:
        """Visit one captured thing by a visitor that is not that of its type."""
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
            treatment = TREATMENTS.get(visitor, "static")
            if visitor.__name__ == "plain_object":  # also one that is read by parts
                treatment = "walked"
            node = Node(value, path, visitor.__name__, treatment)
            trail.nodes[id(value)] = node
        if parent is not None:
            node.parents.append(parent)
        trail.stack.append(node)
        before = len(self.leaves)
        try:
            visitor(self, value)
            if node.treatment == "leaf" and len(self.leaves) == before and fresh:
                pinned = any(value is array for array in self.pinned[-1:])
                how = "identity" if pinned else "content"
                node.treatment = f"static by {how}"
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
        """Whether a thing was met before; if so its number goes into the key.

        A function and a tuple are visited twice if a class reaches them as well: there
        the arrays that they hold are constants, elsewhere they are leaves.
        """
        seen, other = self.seen, self.fixed
        if self.frozen and not isinstance(value, type):
            seen, other = other, seen
        known = seen.get(id(value))
        if known is not None:
            self.key.append(_SEEN)
            self.key.append(known[0])
            return True
        known = other.get(id(value))
        if known is not None:
            if is_mutable(value):
                raise Opaque("something mutable is shared with a class")
            self.key.append((_SHARED, known[0]))
        seen[id(value)] = (len(seen), value)
        return False


def told(value: Any) -> Hashable:
    """Return what a function or a class says of itself: its names and its docstring.

    Raises:
        Opaque: If that is no text.
    """
    found = tuple(peek(value, name) for name in TOLD)
    if any(type(text) not in _TEXTS for text in found):
        raise Opaque("a name or a docstring that is no text")
    return found


_TEXTS = (str, type(None))


def _is_shared(piece: Hashable) -> bool:
    return type(piece) is tuple and len(piece) == 2 and piece[0] is _SHARED


def is_mutable(value: Any) -> bool:
    """Whether a thing may change in place, besides classes and functions."""
    if isinstance(value, eqx.Module):
        return False
    settings = getattr(type(value), "__dataclass_params__", None)
    if settings is not None and settings.frozen:
        return False
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
