"""`Writer`: how a guard is written, line by line."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ._walk import VISITORS, Walk, is_mutable


_MOST_THINGS = 2000


# From a callable, the nodes of a tree and what is static among the arguments to the
# captured arrays, or `None` where a walk has to look.
Check = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any] | None]


class Unguarded(Exception):
    """A guard cannot vouch for something captured."""


class Writer:
    """Writes the check of one function: a line or two for each thing that it reaches.

    Attributes:
        lines: The body of the check.
        constants: What it compares with, by the names that the lines use. Nothing of
            the user's is kept alive, as in the key of a walk.
        things: Where each thing with an identity was met, and the kind of things that
            it must be told apart from.
        alive: What the variables hold, so that no two things have the same `id`.
        leaves: The variables that hold the captured arrays.
        frozen: How many classes and static fields the writer is inside of.
        root: The function whose code is known.
    """

    frozen = 0
    root: Any = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.things: dict[int, tuple[str, Hashable, bool]] = {}
        self.again: set[int] = set()
        self.alive: list[Any] = []
        self.whole: set[int] = set()  # as in a walk
        self.calls: set[tuple[int, int]] = set()
        self.spaces: dict[int, tuple[str, dict[type, str]]] = {}  # of classes
        self.leaves: list[str] = []

    def finished(self) -> Check:
        """Compile what was written."""
        self._tell_apart()
        body = "\n".join(f"  {line}" for line in self.lines)
        text = f"def check(f, nodes, fixed):\n try:\n{body}\n"
        text += f"  return [{', '.join(self.leaves)}]\n except Exception: return None"
        space: dict[str, Any] = dict(self.constants)
        exec(text, space)
        return space["check"]

    def visit(self, value: Any, expression: str) -> None:
        """Write the check of a thing that `expression` reads."""
        write = WRITERS.get(VISITORS.get(type(value)) or Walk.find(value))
        if write is None:
            raise Unguarded
        self.visit_as(value, expression, write)

    def visit_as(
        self,
        value: Any,
        expression: str,
        write: "Callable[[Writer, Any, str], None]",
    ) -> None:
        """Write the check of a thing by a writer that is not its own."""
        write(self, value, self.hold(value, expression))

    def hold(self, value: Any, expression: str) -> str:
        """Write what reads a thing into a variable, and return the variable's name."""
        if len(self.alive) >= _MOST_THINGS:
            raise Unguarded
        self.alive.append(value)
        here = f"v{len(self.alive)}"
        self.lines.append(f"{here} = {expression}")
        return here

    def unless(self, condition: str) -> None:
        """Go on only if a condition holds."""
        self.lines.append(f"if not ({condition}): return None")

    def constant(self, value: Any) -> str:
        """Return a name for something to compare with."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def met(self, value: Any, here: str, kind: Hashable) -> bool:
        """Whether a thing was met before; `kind` is shared by what could be it."""
        frozen = bool(self.frozen)
        known = self.things.setdefault(id(value), (here, kind, frozen))
        if known[0] == here:
            return False
        self.unless(f"{here} is {known[0]}")
        if known[2] is not frozen and not isinstance(value, type):
            if is_mutable(value):
                raise Unguarded
            if id(value) not in self.again:  # as a walk visits it once more
                self.again.add(id(value))
                return False
        return True

    def _tell_apart(self) -> None:
        kinds: dict[Hashable, list[str]] = {}
        for here, kind, _ in self.things.values():
            kinds.setdefault(kind, []).append(here)
        for names in kinds.values():
            if len(names) == 2:
                self.unless(f"{names[0]} is not {names[1]}")
            elif len(names) > 2:
                identities = ", ".join(f"id({name})" for name in names)
                self.unless(f"len({{{identities}}}) == {len(names)}")


# For each visitor of a walk what writes its line. Filled in by `_lines`.
WRITERS: dict[Any, Callable[[Writer, Any, str], None]] = {}
