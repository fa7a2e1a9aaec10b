"""`Walk`: what is collected on the way through a callable."""

import contextlib
import functools
import sys
from collections.abc import Callable, Hashable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar

import equinox as eqx

from hotk._core import JITTED, peek

from ._captured_type import CAPTURED_TYPES, VISITS, CapturedType, Visit
from ._code import METADATA
from ._static_arrays import StaticArrays
from ._trail import Node, Trail


_P = ParamSpec("_P")
_T = TypeVar("_T")

# Why a callable is opaque that was seen to write, or that keeps what it computes: it is
# run so that what does not depend on the point is computed at once, and is no tracer.
WRITES = "it changes an argument or what it captured"
KEEPS = "it keeps what it has computed"
# Another thread was at work between the walk and the trace: true of one call only.
CHANGED = "it was changed while it was called"


class Opaque(Exception):
    """A captured thing can change in a way that the walk cannot see."""


def opaque_if_it_fails(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a class that cannot be taken apart or made anew make a function opaque."""

    @functools.wraps(function)
    def run(*args: _P.args, **keywords: _P.kwargs) -> _T:
        try:
            return function(*args, **keywords)
        except Exception as error:
            raise Opaque(f"a copy of it cannot be made: {error}") from error

    return run


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
        originals: The same, NumPy arrays themselves.
        copy_numpy: Whether NumPy arrays are copied; not if only the key is asked for.
        pinned: The arrays reached through classes and static fields: they stay what
            they are, as constants of the traced program.
        pins_numpy: Whether a NumPy array is among these: programs need copies of it.
        user_classes: Whether a class of the user was met.
        static_depth: How many classes and static fields the walk is inside of.
        static_arrays: Which captured arrays are static by content.
        whole: The objects of which all attributes count, by `id`.
        entered: The methods that were gone into, each with its object.
        trail: Where each visited thing is recorded, if that is asked for.
    """

    # Set by `_dispatch`, for classes that are not registered by themselves.
    find: Callable[[object], CapturedType]
    # What most walks leave as it is stands in the class: a walk is made in each call.
    reads_by_name = hidden_names = reads_metadata = False
    user_classes = False
    pins_numpy = False
    copy_numpy = True
    static_depth = 0
    static_arrays = StaticArrays.NONE
    trail: Trail | None = None

    def __init__(
        self,
        *,
        static_arrays: StaticArrays = StaticArrays.NONE,
        trail: Trail | None = None,
        copy_numpy: bool = True,
    ) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.originals = self.leaves  # another list once a NumPy array was copied
        if not copy_numpy:
            self.copy_numpy = False
        self.pinned: list[Any] = []
        self.whole: set[int] = set()
        self.entered: set[tuple[int, int]] = set()
        # By `id`, with the thing itself: while it is alive no other one has its `id`.
        self.seen: dict[int, tuple[int, object]] = {}
        self.seen_static: dict[int, tuple[int, object]] = {}
        if static_arrays:
            self.static_arrays = static_arrays
        if trail is not None:
            self.trail = trail

    def add_numpy(self, value: object, original: object, short: bool) -> None:
        """Take a captured array of NumPy, which may be a copy of the original."""
        self.key.append(_SHORT_LEAF if short else _NUMPY_LEAF)
        self._add(value, original)

    def add_leaf(self, value: object) -> None:
        """Take a captured array of JAX."""
        self.key.append(_LEAF)
        self._add(value, value)

    def _add(self, value: object, original: object) -> None:
        if value is not original and self.originals is self.leaves:
            self.originals = list(self.leaves)
        self.leaves.append(value)
        if self.originals is not self.leaves:
            self.originals.append(original)

    def attempt(self, visit: Callable[[], None]) -> bool:
        """Whether a visit meets nothing opaque; one that does leaves no trace.

        Every field is put back: a leaf that stayed would be one argument too many
        (`test_what_was_attempted_inside_a_jitted_function_leaves_nothing`).
        """
        before = len(self.key), len(self.leaves), len(self.originals), len(self.pinned)
        tables = [dict(self.seen), dict(self.seen_static)]
        sets = set(self.whole), set(self.entered)
        flags = (
            *(self.user_classes, self.pins_numpy, self.reads_metadata),
            *(self.reads_by_name, self.hidden_names),
        )
        trail = self.trail
        known = (0, 0) if trail is None else (len(trail.nodes), len(trail.visits))
        read = {} if trail is None else {k: set(v) for k, v in trail.read.items()}
        try:
            visit()
        except Opaque:
            parts = (self.key, self.leaves, self.originals, self.pinned)
            for part, length in zip(parts, before, strict=True):
                del part[length:]
            self.seen, self.seen_static = tables
            self.whole, self.entered = sets
            self.user_classes, self.pins_numpy, self.reads_metadata = flags[:3]
            self.reads_by_name, self.hidden_names = flags[3:]
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
        if self.reads_metadata:
            for table in (self.seen, self.seen_static):
                self.key.extend(metadata_of(value) for _, value in table.values())

    def by_name(self, *, reads: bool = False, hidden: bool = False) -> None:
        """Note code that reads attributes by name, or a name that a walk leaves out.

        Raises:
            Opaque: If both were met: they may belong together.
        """
        self.reads_by_name = self.reads_by_name or reads
        self.hidden_names = self.hidden_names or hidden
        if self.reads_by_name and self.hidden_names:
            raise Opaque("it may read by `getattr` what hotk cannot track")

    def plain_key(self) -> list[Hashable]:
        """Return the key without what a copy with other arrays inside differs in.

        That is whether an array is NumPy's, and what is copied here but not in a class.
        """
        numpy = (_NUMPY_LEAF, _SHORT_LEAF)
        pieces = [piece for piece in self.key if not _is_shared(piece)]
        return [_LEAF if piece in numpy else piece for piece in pieces]

    def visit(self, value: object, how: str = "", name: object = "") -> None:
        """Visit one captured thing, which was reached by `how` and `name`.

        The path is put together only for a trail: a direct call does without.
        """
        if self.trail is None:
            visit = VISITS.get(type(value))
            if visit is None:
                visit = self.find(value).visit
            visit(self, value)
        else:
            captured = CAPTURED_TYPES.get(type(value)) or self.find(value)
            self._visit_with_trail(captured, captured.visit, value, how, name)

    def visit_as(
        self,
        captured: CapturedType,
        visit: Visit,
        value: object,
        how: str = "",
        name: object = "",
    ) -> None:
        """Visit one captured thing in another way than its type is visited."""
        if self.trail is None:
            visit(self, value)
        else:
            self._visit_with_trail(captured, visit, value, how, name)

    def _visit_with_trail(
        self,
        captured: CapturedType,
        visit: Visit,
        value: object,
        how: str,
        name: object,
    ) -> None:
        trail = self.trail
        assert trail is not None
        if self.static_depth:
            self.note_static(value)
        parent = trail.stack[-1] if trail.stack else None
        node = trail.nodes.get(id(value))
        # The `id` of a thing that was made on the way, and is gone, may be taken again.
        fresh = node is None or node.value is not value
        place = how.format(name) if how else str(name)
        path = (parent.path if parent else "") + place
        begin = len(self.key)
        if node is None or fresh:
            node = Node(value, path, captured, captured.treatment)
            trail.nodes[id(value)] = node
        if parent is not None:
            node.parents.append(parent)
        trail.stack.append(node)
        before = len(self.leaves)
        try:
            visit(self, value)
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

    def note_static(self, value: object) -> None:
        """Record what is reached through a class or a static field, for a trail."""
        if self.trail is not None:
            self.trail.static.append(value)

    @contextlib.contextmanager
    def inside(self, module: ModuleType, path: str) -> Iterator[None]:
        """Record a module that is only passed through on the way to what it holds."""
        trail = self.trail
        if trail is None:
            yield
            return
        node = trail.nodes.get(id(module))
        if node is None:
            # Not "static by identity", as a module that is a value: it is copied where
            # it leads to an array.
            node = Node(module, path, CAPTURED_TYPES[ModuleType], "traversed")
            trail.nodes[id(module)] = node
        if trail.stack:
            node.parents.append(trail.stack[-1])
        trail.stack.append(node)
        try:
            yield
        finally:
            trail.stack.pop()

    def met_static(self, value: object) -> bool:
        """Whether a thing was met before that is never copied, wherever it is met."""
        depth, self.static_depth = self.static_depth, 1
        known = self.met(value)
        self.static_depth = depth
        return known

    def met(self, value: object) -> bool:
        """Whether a thing was met before; if so its number goes into the key.

        A function and a tuple are visited twice if a class reaches them as well: there
        the arrays that they hold are constants, elsewhere they are leaves.

        Raises:
            Opaque: If the thing is mutable and met both ways: its copy would not be
                seen by the class.
        """
        seen, other = self.seen, self.seen_static
        if self.static_depth and not isinstance(value, type):
            seen, other = other, seen
        known = seen.get(id(value))
        if known is not None:
            # Which one it is, and not only that it was met: `a * b` over two arrays
            # is not `a * a` (`test_which_array_is_met_again_is_part_of_the_key`).
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


def metadata_of(value: object) -> Hashable:
    """Return what a function or a class says of itself: its names and its docstring.

    Raises:
        Opaque: If that is not a string.
    """
    found = tuple(peek(value, name) for name in METADATA)
    if any(type(text) not in _TEXTS for text in found):
        raise Opaque("a name or a docstring that is not a string")
    return found


_TEXTS = (str, type(None))


def _is_shared(piece: Hashable) -> bool:
    return type(piece) is tuple and len(piece) == 2 and piece[0] is _SHARED


def is_mutable(value: object) -> bool:
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
    size = sys.maxsize  # larger than any array that is static by content

    def __init__(self, number: int) -> None:
        self.number = number
