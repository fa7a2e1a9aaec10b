"""`Writer`: how a guard is written, line by line.

A walk asks of each captured thing what it is. A guard asks only whether all is as the
walk left it: it is the source of one Python function, with a line or two for each
captured thing, compiled once and run in each call. Where a line asks for less than the
walk looks at, a call returns the derivative of a function that is no longer there; so
what cannot be asked in a line raises `Unguarded`, and is walked each time. The guard of
each type stands beside its visit, and asks for the same in the same order.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ._captured_type import CAPTURED_TYPES, WriteGuard
from ._walk import Walk, is_mutable


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
        things: Where each thing with an identity was met, the group of things that it
            must be told apart from, and whether that was through a class.
        revisited: What was gone into a second time, as a walk does through a class.
        alive: What the variables hold, so that no two things have the same `id`.
        whole: The objects of which all attributes count, as in a walk.
        entered: The methods that were gone into, as in a walk.
        spaces: The variables of a class and of the namespaces of its bases.
        leaves: The expressions of the captured arrays.
        static_depth: How many classes and static fields the writer is inside of.
        root: The function whose code is known.
    """

    static_depth = 0
    root: object = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, object] = {}
        self.things: dict[int, tuple[str, Hashable, bool]] = {}
        self.revisited: set[int] = set()
        self.alive: list[object] = []
        self.whole: set[int] = set()
        self.entered: set[tuple[int, int]] = set()
        self.spaces: dict[int, tuple[str, dict[type, str]]] = {}
        self.leaves: list[str] = []

    def compiled(self) -> Check:
        """Compile what was written.

        Whatever a line raises, such as for an attribute that is gone, means that the
        function is not what it was: then a walk looks, and says it better.
        """
        self._require_distinct()
        body = "\n".join(f"  {line}" for line in self.lines)
        text = f"def check(f, nodes, static_args):\n try:\n{body}\n"
        text += f"  return [{', '.join(self.leaves)}]\n except Exception: return None"
        space: dict[str, Any] = dict(self.constants)
        exec(text, space)
        return space["check"]

    def visit(self, value: object, expression: str) -> None:
        """Write the check of a thing that `expression` reads."""
        guard = (CAPTURED_TYPES.get(type(value)) or Walk.find(value)).guard
        if guard is None:
            raise Unguarded
        self.visit_as(value, expression, guard)

    def visit_as(self, value: object, expression: str, guard: WriteGuard) -> None:
        """Write the check of a thing in another way than its type is checked."""
        guard(self, value, self.assign(value, expression))

    def assign(self, value: object, expression: str) -> str:
        """Write what reads a thing into a variable, and return the variable's name."""
        if len(self.alive) >= _MOST_THINGS:
            raise Unguarded
        self.alive.append(value)
        here = f"v{len(self.alive)}"
        self.lines.append(f"{here} = {expression}")
        return here

    def require(self, condition: str) -> None:
        """Go on only if a condition holds."""
        self.lines.append(f"if not ({condition}): return None")

    def constant(self, value: object) -> str:
        """Return a name for something to compare with."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def met(self, value: object, here: str, group: Hashable) -> bool:
        """Whether a thing was met before; `group` is shared by what could be it."""
        static = bool(self.static_depth)
        known = self.things.setdefault(id(value), (here, group, static))
        if known[0] == here:
            return False
        self.require(f"{here} is {known[0]}")
        if known[2] is not static and not isinstance(value, type):
            if is_mutable(value):
                raise Unguarded
            if id(value) not in self.revisited:  # as a walk visits it once more
                self.revisited.add(id(value))
                return False
        return True

    def _require_distinct(self) -> None:
        """Write that things that were two are not one now: a walk counts them."""
        groups: dict[Hashable, list[str]] = {}
        for here, group, _ in self.things.values():
            groups.setdefault(group, []).append(here)
        for names in groups.values():
            if len(names) == 2:
                self.require(f"{names[0]} is not {names[1]}")
            elif len(names) > 2:
                identities = ", ".join(f"id({name})" for name in names)
                self.require(f"len({{{identities}}}) == {len(names)}")


def guard_identity(w: Writer, value: object, here: str) -> None:
    """Write that a thing of a library is the same one; a walk's key holds it too."""
    w.require(f"{here} is {w.constant(value)}")


def guard_weak_identity(w: Writer, value: object, here: str) -> None:
    """Write that a thing of the user is the same one, which is not kept alive."""
    alive = w.constant(weakref.ref(value))
    # A dead reference is `None`, and so could the thing be that is there now.
    w.require(f"{here} is not None and {here} is {alive}()")
