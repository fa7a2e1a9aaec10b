"""`Writer`: how a guard is written, line by line.

A walk asks of each captured thing what it is. A guard asks only whether all is as the
walk left it: it is the source of one Python function, with a line or two for each
captured thing, compiled once and run in each call. Where a line asks for less than the
walk looks at, a call returns the derivative of a function that is no longer there; so
what cannot be asked in a line raises `Unguarded`, and is walked each time. Both follow
from one description of each type.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ._captured_type import CAPTURED_TYPES, Describe
from ._cause import Opaque
from ._description import ITEM, Description, SeenAs, is_mutable
from ._walk import Walk


_MOST_THINGS = 2000
_LITERALS = (bool, int, str, type(None))


# From a callable, the nodes of a tree and what is static among the arguments to the
# captured arrays, or `None` where a walk has to look.
Check = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any] | None]


class Unguarded(Exception):
    """A guard cannot vouch for something captured."""


class Writer(Description):
    """Writes the check of one function: a line or two for each thing that it reaches.

    Attributes:
        lines: The body of the check.
        constants: What it compares with, by the names that the lines use. Nothing of
            the user's is kept alive, as in the key of a walk.
        things: Where each thing with an identity was met, the group of things that it
            must be told apart from, and whether that was through a class.
        revisited: What was gone into a second time, as a walk does through a class.
        alive: What the variables hold, so that no two things have the same `id`.
        leaves: The expressions of the captured arrays.
    """

    writes = True

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, object] = {}
        self.things: dict[int, tuple[str, int, bool]] = {}
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
        self._ask_distinct()
        body = "\n".join(f"  {line}" for line in self.lines)
        text = f"def check(f, nodes, static_args):\n try:\n{body}\n"
        text += f"  return [{', '.join(self.leaves)}]\n except Exception: return None"
        space: dict[str, Any] = dict(self.constants)
        exec(text, space)
        return space["check"]

    def same(self, text: str, here: str, *constants: object) -> None:
        """Go on only if a line holds."""
        self.lines.append(f"if not ({self._line(text, here, constants)}): return None")

    ask = same

    def note(self, *constants: Hashable) -> None:
        """Do nothing: it is for a key."""

    def piece(
        self, of: Callable[[Any], tuple[Hashable, ...]], value: object, here: str
    ) -> None:
        """Go on only if `of` makes the same of a thing of the same type."""
        self.same(
            "type({0}) is {1} and {2}({0}) == {3}", here, type(value), of, of(value)
        )

    def identity(self, value: object, here: str) -> None:
        """Go on only if it is this very thing."""
        # A dead reference is `None`, and so could the thing be that is there now.
        self.same("{0} is not None and {0} is {1}()", here, weakref.ref(value))

    def unguarded(self) -> None:
        """Give up: a walk looks in each call.

        Raises:
            Unguarded: Always.
        """
        raise Unguarded

    def let(self, value: object, text: str, here: str, *constants: object) -> str:
        """Write what reads a thing into a variable, and return the variable's name."""
        return self._assign(value, self._line(text, here, constants))

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
        """Write the check of a part of a thing."""
        if seen_as is None:
            describe = (CAPTURED_TYPES.get(type(value)) or self.find(value)).describe
        else:
            describe = seen_as[1]
        expression = read.format(here, name if at is None else at)
        describe(self, value, self._assign(value, expression))

    def attempt(self, describe: Describe, value: object, here: str) -> bool:
        """Write the check of a thing if a walk meets nothing opaque in it."""
        walk = Walk()
        walk.static_depth = self.static_depth
        try:
            describe(walk, value, "")
        except Opaque:
            return False
        describe(self, value, here)
        return True

    def leaf(self, value: object, here: str) -> None:
        """Take an array of JAX."""
        self.same("type({0}) is {1}", here, type(value))
        self.leaves.append(here)

    def numpy_leaf(
        self, value: Any, copied: Callable[..., tuple[Any, bool]], here: str
    ) -> None:
        """Take an array of NumPy, as a copy."""
        self.same("type({0}) is {1}", here, type(value))
        both = self.let(None, "{1}({0})", here, copied)
        self.same("{0}[1] is {1}", both, copied(value)[1])
        self.leaves.append(f"{both}[0]")

    def pin(self, value: object, here: str) -> None:
        """Go on only if a class reaches this very array."""
        self.identity(value, here)

    def met(self, value: object, here: str, group: object = None) -> bool:
        """Whether a thing was met before; then it must be the same one now."""
        static = bool(self.static_depth)
        kind = id(type(value) if group is None else group)
        known = self.things.setdefault(id(value), (here, kind, static))
        if known[0] == here:
            return False
        self.same("{0} is {1}", here, _Name(known[0]))
        if known[2] is not static and not isinstance(value, type):
            if is_mutable(value):
                raise Unguarded
            if id(value) not in self.revisited:  # as a walk visits it once more
                self.revisited.add(id(value))
                return False
        return True

    def _line(self, text: str, here: str, constants: Sequence[object]) -> str:
        return text.format(here, *map(self._constant, constants))

    def _constant(self, value: object) -> str:
        """Return what stands in a line for something to compare with."""
        if type(value) is _Name:
            return value
        if type(value) in _LITERALS:
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _assign(self, value: object, expression: str) -> str:
        if len(self.alive) >= _MOST_THINGS:
            raise Unguarded
        self.alive.append(value)
        here = f"v{len(self.alive)}"
        self.lines.append(f"{here} = {expression}")
        return here

    def _ask_distinct(self) -> None:
        """Write that things that were two are not one now: a walk counts them."""
        groups: dict[int, list[str]] = {}
        for here, group, _ in self.things.values():
            groups.setdefault(group, []).append(here)
        for names in groups.values():
            if len(names) == 2:
                self.same("{0} is not {1}", names[0], _Name(names[1]))
            elif len(names) > 2:
                identities = ", ".join(f"id({name})" for name in names)
                self.same(f"len({{{{{identities}}}}}) == {len(names)}", "")


class _Name(str):
    """A variable of a check, in place of a constant."""

    __slots__ = ()
