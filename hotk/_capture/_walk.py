"""`Walk`: what is collected on the way through a callable."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Container, Hashable, Iterator
from types import ModuleType
from typing import Any, Final

import jax
import numpy as np

from hotk._core import peek

from ._captured_type import (
    CAPTURED_TYPES,
    DESCRIPTIONS,
    CapturedType,
    Describe,
    Node,
    SameThing,
    StaticArrays,
    Trail,
)
from ._cause import Opaque, OpaqueCause
from ._code import METADATA
from ._description import ITEM, Description, SeenAs, is_mutable


_SEEN: Final = "<met before>"
_SHARED: Final = "<shared with a class>"
_LEAF: Final = "<leaf>"
_NUMPY_LEAF: Final = "<NumPy leaf>"
# One that holds small integers only, which a program may count on.
_SHORT_LEAF: Final = "<NumPy leaf of small integers>"


class Walk(Description):
    """What a walk collects: the skeleton's key and the captured arrays.

    Attributes:
        key: The skeleton as a flat list of hashable pieces, compared by value.
        leaves: The captured arrays: NumPy arrays as copies of their own.
        originals: The same, NumPy arrays themselves.
        copy_numpy: Whether NumPy arrays are copied; not if only the key is asked for.
        pinned: The arrays reached through classes and static fields: they stay what
            they are, as constants of the traced program. Those of NumPy are not here.
    """

    copy_numpy = True

    def __init__(
        self,
        *,
        static_arrays: StaticArrays = StaticArrays.NONE,
        chosen: Container[int] = (),
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
        if chosen:
            self.chosen = chosen
        if trail is not None:
            self.trail = trail

    def same(self, text: str, here: str, *constants: Hashable) -> None:
        """Put the constants into the key."""
        self.key += constants

    def ask(self, text: str, here: str, *constants: object) -> None:
        """Do nothing: it is a line of a guard alone."""

    def note(self, *constants: Hashable) -> None:
        """Put the constants into the key."""
        self.key += constants

    def piece(
        self, of: Callable[[Any], tuple[Hashable, ...]], value: object, here: str
    ) -> None:
        """Put the type and what `of` makes of a thing into the key, as one piece."""
        self.key.append((type(value), *of(value)))

    def identity(self, value: object, here: str) -> None:
        """Put a reference to a thing into the key: the thing is not kept alive."""
        self.key.append(weakref.ref(value))

    def unguarded(self) -> None:
        """Do nothing: a walk looks."""

    def let(self, value: object, text: str, here: str, *constants: object) -> str:
        """Return nothing: a walk has no variables."""
        return ""

    def leaf(self, value: object, here: str) -> None:
        """Take a captured array of JAX."""
        self.key.append(_LEAF)
        self._add(value, value)

    def numpy_leaf(
        self, value: Any, copied: Callable[..., tuple[Any, bool]], here: str
    ) -> None:
        """Take a captured array of NumPy, as a copy."""
        copy, short = copied(value, copy=self.copy_numpy)
        self.key.append(_SHORT_LEAF if short else _NUMPY_LEAF)
        self._add(copy, value)

    def pin(self, value: object, here: str) -> None:
        """Take an array that a class reaches, by its identity."""
        try:
            self.key.append(SameThing(value))
        except TypeError as error:
            text = f"a `{type(value).__name__}` reached through a class"
            raise OpaqueCause.HELD_BY_CLASS.opaque(text) from error
        self.pinned.append(value)

    def _add(self, value: object, original: object) -> None:
        if value is not original and self.originals is self.leaves:
            self.originals = list(self.leaves)
        self.leaves.append(value)
        if self.originals is not self.leaves:
            self.originals.append(original)

    def attempt(self, describe: Describe, value: object, here: str) -> bool:
        """Whether a description meets nothing opaque; one that does leaves no trace.

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
            describe(self, value, here)
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

    def plain_key(self) -> list[Hashable]:
        """Return the key without what a copy with other arrays inside differs in.

        That is whether an array is NumPy's, and what is copied here but not in a class.
        """
        numpy = (_NUMPY_LEAF, _SHORT_LEAF)
        pieces = [piece for piece in self.key if not _is_shared(piece)]
        return [_LEAF if piece in numpy else piece for piece in pieces]

    def visit(self, value: object) -> None:
        """Go through a callable, or something else at which a walk begins."""
        self.part(value)

    def part(
        self,
        value: object,
        how: str = "",
        name: object = "",
        here: str = "",
        read: str = ITEM,
        at: object = None,
        seen_as: SeenAs | None = None,
    ) -> None:
        """Go through one captured thing, which was reached by `how` and `name`.

        The path is put together only for a trail: a direct call does without.
        """
        if self.trail is not None:
            captured = CAPTURED_TYPES.get(type(value)) or self.find(value)
            captured, describe = seen_as or (captured, captured.describe)
            self._part_with_trail(captured, describe, value, how, name)
            return
        describe = DESCRIPTIONS.get(type(value)) if seen_as is None else seen_as[1]
        if describe is None:
            describe = self.find(value).describe
        describe(self, value, "")

    def _part_with_trail(
        self,
        captured: CapturedType,
        describe: Describe,
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
            describe(self, value, "")
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

    def met(self, value: object, here: str, group: object = None) -> bool:
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
                text = "something mutable is shared with a class"
                raise OpaqueCause.SHARED.opaque(text)
            self.key.append((_SHARED, known[0]))
        seen[id(value)] = (len(seen), value)
        return False


def metadata_of(value: object) -> Hashable:
    """Return what a function or a class says of itself: its names and its docstring.

    Raises:
        Opaque: If that is not a string.
    """
    # Arrays say nothing of themselves; the class of one is not that of its tracer.
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return ()
    found = tuple(peek(value, name) for name in METADATA)
    if any(type(text) not in _TEXTS for text in found):
        raise OpaqueCause.NAME.opaque("a name or a docstring that is not a string")
    return found


_TEXTS = (str, type(None))


def _is_shared(piece: Hashable) -> bool:
    return type(piece) is tuple and len(piece) == 2 and piece[0] is _SHARED


class Placeholder:
    """Stands where an array was, in the template of a closure."""

    __slots__ = ("number",)
    size = sys.maxsize  # larger than any array that is static by content

    def __init__(self, number: int) -> None:
        self.number = number
