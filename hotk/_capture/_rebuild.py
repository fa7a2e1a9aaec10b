"""The way back: a callable with other arrays in place of those it captured.

How a copy of a captured thing is made stands beside its visit. Here is what all of them
share: what must be copied at all, which copies there are, and how they end.
"""

import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx

from hotk._core import JITTED, Tracer, peek

from ._captured_tracer import EndedTracer
from ._captured_type import Node, StaticArrays, Trail
from ._code import facts_of
from ._layout import is_empty, new_object, slots_of
from ._library import is_library_function
from ._walk import Walk


FILTER_JITTED: type = type(eqx.filter_jit(math.sin))


def survey(
    f: object,
    *,
    static_arrays: StaticArrays = StaticArrays.NONE,
    chosen: Sequence[int] = (),
    copy_numpy: bool = True,
) -> tuple[Walk, Trail]:
    """Walk a callable and record what was visited from where; arguments of `Walk`.

    What is chosen is said by numbers here, among all arrays that the callable captured.
    """
    trail = Trail()
    walk = Walk(
        static_arrays=static_arrays,
        chosen=chosen_of(f, chosen),
        trail=trail,
        copy_numpy=copy_numpy,
    )
    walk.visit(f)
    return walk, trail


def chosen_of(f: object, numbers: Sequence[int]) -> frozenset[int]:
    """Return the `id`s of captured arrays, by their numbers among all of them."""
    if not numbers:
        return frozenset()
    walk = Walk(copy_numpy=False)
    walk.visit(f)
    return frozenset(id(walk.originals[i]) for i in numbers)


class Rebuild:
    """Puts replacements in place of captured arrays, copying only what holds them.

    What holds no array and nothing mutable keeps its identity, unless every function
    is asked for: JAX finds its programs by identity. Mutable containers are copied, so
    that a callable that writes into them is found out without harm.

    Attributes:
        trail: What was visited from where.
        copies: What stands for what, by the `id` of the original. A copy enters here
            before it is filled, so that what holds itself finds it.
        to_copy: What must be copied, by `id`.
        namespaces: The globals of the copied functions, one for each module.
        cells: The copies of the cells, which functions share.
        has_rules: Whether a rule of `jax.custom_jvp` or `jax.custom_vjp` was copied.
    """

    def __init__(
        self, trail: Trail, replacements: Mapping[int, object], *, every: bool = False
    ) -> None:
        self.trail = trail
        self.copies: dict[int, Any] = dict(replacements)
        self.to_copy = _to_copy(trail, replacements, every)
        self.namespaces: dict[int, dict[str, object]] = {}
        self.cells: dict[int, types.CellType] = {}
        self._filled: set[int] = set()
        self.has_rules = False

    def __call__(self, value: Any) -> Any:
        """Return `value` with the replacements inside."""
        key = id(value)
        if key in self.copies:
            return self.copies[key]
        if key not in self.to_copy:
            return value
        node = self.trail.nodes[key]
        build = node.captured.rebuild
        # A module that was passed through is copied; one that is a value is not.
        if build is None or node.treatment == "static by identity":
            copy = value
        else:
            copy = build(self, value)
        self.copies[key] = copy
        return copy

    def release(self) -> None:
        """Let go of the tracers that functions hold, now that their trace has ended.

        A function that calls itself would keep them until the collector comes.
        """
        for space in self.namespaces.values():
            space |= {n: EndedTracer() for n, a in space.items() if _is_tracer(a)}
        for cell in self.cells.values():
            if not is_empty(cell) and _is_tracer(cell.cell_contents):
                cell.cell_contents = EndedTracer()
        self.copies.clear()

    def copy_object(self, value: object) -> Any:
        """Copy an object of a class of Python code."""
        copy = new_object(type(value))
        self.copies[id(value)] = copy
        self.fill_attributes(value, copy)
        return copy

    def fill_attributes(self, value: object, copy: object) -> None:
        """Copy the attributes, without those of which it is known that nothing reads.

        Were one read all the same, that would be an error, and not an old value
        (`tests/capture/test_reads.py`).
        """
        read = self.trail.read.get(id(value))
        for name, item in (peek(value, "__dict__") or {}).items():
            if read is None or name in read:
                vars(copy)[name] = self(item)
        for descriptor in slots_of(value).values():
            descriptor.__set__(copy, self(descriptor.__get__(value)))

    def copy_cell(self, cell: types.CellType) -> types.CellType:
        """Return the one new cell for an old one, still empty when it is new.

        Two functions that share a variable share its copy, too.
        """
        return self.cells.setdefault(id(cell), types.CellType())

    def fill_cell(self, cell: types.CellType, copy: types.CellType) -> None:
        """Put what a cell holds into its copy, which may hold it already."""
        if id(copy) in self._filled:
            return
        self._filled.add(id(copy))
        if not is_empty(cell):
            copy.cell_contents = self(cell.cell_contents)

    def namespace(self, space: dict[str, object]) -> dict[str, object]:
        """Return the globals of the copies of all functions of one module.

        It begins with what Python itself reads of a module while a function runs; the
        names that the code reads are added with each function.
        """
        copy = self.namespaces.get(id(space))
        if copy is None:
            names = ("__builtins__", "__name__", "__file__", "__package__", "__spec__")
            copy = {name: space[name] for name in names if name in space}
            self.namespaces[id(space)] = copy
        return copy


def _is_tracer(value: object) -> bool:
    return issubclass(type(value), Tracer)  # not `isinstance`: it asks the thing


def _is_mutable(node: Node) -> bool:
    """Whether a thing may be written into, or is seen anew where JAX remembers it."""
    value = node.value
    if isinstance(value, types.FunctionType):
        # `jax.vmap` and its like are functions with attributes as well, and must stay
        # what JAX knows.
        if is_library_function(value):
            return False
        if value.__dict__ and not facts_of(value.__code__).library:
            return True
    # A list may have been registered as the node of a tree, and is one all the same.
    mutable = node.captured.mutable or isinstance(value, (list, set))
    # JAX keeps the program of a jitted function by identity: with what it read then.
    return mutable or any(map(_is_seen_jitted, (node, *node.parents)))


def _is_seen_jitted(node: Node) -> bool:
    jitted = type(node.value) in (JITTED, FILTER_JITTED)
    return jitted and node.treatment == "traversed"


def _is_of_user(node: Node) -> bool:
    value = node.value
    return isinstance(value, types.FunctionType) and not (
        facts_of(value.__code__).library
    )


def _to_copy(
    trail: Trail, replacements: Mapping[int, object], every: bool = False
) -> set[int]:
    """Find what must be copied: all that reaches an array or something mutable.

    Args:
        trail: What was visited from where.
        replacements: What stands for what, by identity.
        every: Whether all functions of the user are copied, with the numbers they
            read: in a function that keeps its identity they could change.
    """
    nodes = trail.nodes.items()
    waiting = [
        n
        for key, n in nodes
        if key in replacements or _is_mutable(n) or (every and _is_of_user(n))
    ]
    reached: set[int] = set()
    while waiting:
        node = waiting.pop()
        # Classes are never copied: objects that exist are of the class they are of.
        if id(node.value) in reached or isinstance(node.value, type):
            continue
        reached.add(id(node.value))
        waiting.extend(node.parents)
    return reached
