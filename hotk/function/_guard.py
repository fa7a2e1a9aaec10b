"""Guards: what a walk found, written down as straight-line code for the next time.

A walk asks of each captured thing what it is. A guard asks only whether all is as the
walk left it, and takes the arrays that are there now. It knows functions, containers
and simple values; what it cannot vouch for is walked again.
"""

import functools
import math
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any

from . import _callables, _classes, _values
from ._callables import is_permanent
from ._recipe import is_library_module, recipe_of
from ._walk import VISITORS, Walk


_MOST_THINGS = 200
_MOST_GUARDS = 4
_MOST_TRIES = 32
_SIMPLE = (bool, int, str, bytes, type(None), type(...))


# From a function to its captured arrays, or `None` where a walk would find something
# else or where that is not sure; and the key that the walk found.
Guard = tuple[Callable[[Any], list[Any] | None], Sequence[Hashable]]


class Known:
    """What is known of all functions of one code object."""

    __slots__ = ("code", "guards", "tries")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.guards: tuple[Guard, ...] = ()
        self.tries = 0

    def learn(self, f: FunctionType) -> None:
        """Add a guard for `f` as it is now, if there can be one."""
        if self.tries >= _MOST_TRIES:
            return
        self.tries += 1
        try:
            check = _Writer().check_of(f)
        except Unguarded:
            self.tries += _MOST_TRIES // 4
            return
        walk = Walk()
        walk.visit(f)
        leaves = check(f)
        if leaves is not None and list(map(id, leaves)) == list(map(id, walk.leaves)):
            made = (check, tuple(walk.key))
            self.guards = (made, *self.guards[: _MOST_GUARDS - 1])


_KNOWN: dict[int, Known] = {}
_LIMIT = 4096


def look(f: Any) -> tuple[Sequence[Hashable], list[Any]]:
    """Return the key of a callable and its captured arrays, by a guard or by a walk.

    Raises:
        Opaque: If the callable can change unseen.
    """
    if type(f) is FunctionType:
        code = f.__code__
        known = _KNOWN.get(id(code))
        if known is not None and known.code is code:
            for check, key in known.guards:
                leaves = check(f)
                if leaves is not None:
                    return key, leaves
            known.learn(f)
        else:  # most functions are never seen again: learn at the second sight
            if len(_KNOWN) >= _LIMIT:
                _KNOWN.clear()
            _KNOWN[id(code)] = Known(code)
    walk = Walk()
    walk.visit(f)
    return walk.key, walk.leaves


class Unguarded(Exception):
    """A guard cannot vouch for something captured."""


class _Writer:
    """Writes the check of one function: a line or two for each thing that it reaches.

    Attributes:
        lines: The body of the check.
        constants: What it compares with, by the names that the lines use. Nothing of
            the user's is kept alive, as in the key of a walk.
        things: Where each thing with an identity was met, and the kind of things that
            it must be told apart from.
        leaves: The variables that hold the captured arrays.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.things: dict[int, tuple[str, Hashable]] = {}
        self.alive: list[Any] = []
        self.leaves: list[str] = []

    def check_of(self, f: FunctionType) -> Callable[[Any], list[Any] | None]:
        """Return the check of `f` and of all functions with its code."""
        self.visit(f, "f")
        self._tell_apart()
        body = "\n".join(f"  {line}" for line in self.lines)
        text = f"def check(f):\n try:\n{body}\n"
        text += f"  return [{', '.join(self.leaves)}]\n except Exception: return None"
        space: dict[str, Any] = dict(self.constants)
        exec(text, space)
        return space["check"]

    def visit(self, value: Any, expression: str) -> None:
        """Write the check of a thing that `expression` reads."""
        if len(self.alive) >= _MOST_THINGS:
            raise Unguarded
        self.alive.append(value)
        here = f"v{len(self.alive)}"
        self.lines.append(f"{here} = {expression}")
        write = _WRITERS.get(VISITORS.get(type(value)) or Walk.find(value))
        if write is None:
            raise Unguarded
        write(self, value, here)

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
        known = self.things.setdefault(id(value), (here, kind))
        if known[0] == here:
            return False
        self.unless(f"{here} is {known[0]}")
        return True

    def _tell_apart(self) -> None:
        kinds: dict[Hashable, list[str]] = {}
        for here, kind in self.things.values():
            kinds.setdefault(kind, []).append(here)
        for names in kinds.values():
            if len(names) == 2:
                self.unless(f"{names[0]} is not {names[1]}")
            elif len(names) > 2:
                identities = ", ".join(f"id({name})" for name in names)
                self.unless(f"len({{{identities}}}) == {len(names)}")

    # ----- One method for each visitor of a walk

    def leaf(self, value: Any, here: str) -> None:
        kind = type(value)
        if not self.met(value, here, kind):
            self.unless(f"type({here}) is {self.constant(kind)}")
            self.leaves.append(here)

    def static(self, value: Any, here: str) -> None:
        if type(value) not in _SIMPLE:
            raise Unguarded
        if value is None or isinstance(value, bool):
            self.unless(f"{here} is {value}")
        else:
            kind, equal = self.constant(type(value)), self.constant(value)
            self.unless(f"type({here}) is {kind} and {here} == {equal}")

    def number(self, value: float, here: str) -> None:
        if not value or math.isnan(value):
            raise Unguarded
        equal = self.constant(value)
        self.unless(f"type({here}) is float and {here} == {equal}")

    def sequence(self, value: Any, here: str) -> None:
        kind = type(value)
        if self.met(value, here, kind):
            return
        self.unless(
            f"type({here}) is {self.constant(kind)} and len({here}) == {len(value)}"
        )
        for i, item in enumerate(value):
            self.visit(item, f"{here}[{i}]")

    def mapping(self, value: dict[Any, Any], here: str) -> None:
        kind = type(value)
        if self.met(value, here, kind):
            return
        if not all(type(name) is str for name in value):
            raise Unguarded
        names = self.constant(list(value))
        types_of = self.constant([str] * len(value))
        self.unless(
            f"type({here}) is {self.constant(kind)} and [*{here}] == {names} "
            f"and [*map(type, {here})] == {types_of}"
        )
        for name, item in list(value.items()):
            self.visit(item, f"{here}[{name!r}]")

    def same(self, value: Any, here: str) -> None:
        """A thing of a library, which a walk's key holds as well."""
        self.unless(f"{here} is {self.constant(value)}")

    def same_if_alive(self, value: Any, here: str) -> None:
        self.unless(f"{here} is {self.constant(weakref.ref(value))}()")

    def library_class(self, value: type, here: str) -> None:
        if not _classes.is_library_class(value):
            raise Unguarded
        self.same(value, here)

    def builtin(self, value: Any, here: str) -> None:
        if not isinstance(value.__self__, types.ModuleType):
            raise Unguarded
        _callables.builtin(Walk(), value)
        self.same(value, here)

    def module(self, value: types.ModuleType, here: str) -> None:
        _callables.module(Walk(), value)
        self.same(value, here)

    def method(self, value: Any, here: str) -> None:
        if type(value) is not types.MethodType:
            raise Unguarded
        self.unless(f"type({here}) is {self.constant(types.MethodType)}")
        self.visit(value.__func__, f"{here}.__func__")
        self.visit(value.__self__, f"{here}.__self__")

    def partial(self, value: functools.partial, here: str) -> None:
        if type(value) is not functools.partial:
            raise Unguarded
        kind = self.constant(functools.partial)
        self.unless(f"type({here}) is {kind} and len({here}.args) == {len(value.args)}")
        self.visit(value.func, f"{here}.func")
        for i, item in enumerate(value.args):
            self.visit(item, f"{here}.args[{i}]")
        self.visit(value.keywords, f"{here}.keywords")

    def function(self, value: FunctionType, here: str) -> None:
        recipe, code = recipe_of(value.__code__), value.__code__
        if recipe.library and (value.__closure__ is None or is_permanent(value)):
            self.same_if_alive(value, here)
            return
        if self.met(value, here, code):
            return
        if len(self.things) > 1:  # the first is what it was looked up by
            kind, same = self.constant(FunctionType), self.constant(code)
            self.unless(f"type({here}) is {kind} and {here}.__code__ is {same}")
        self._cells(value, here)
        self._defaults(value, here)
        if recipe.library:
            return
        if recipe.writes is not None or recipe.imports:
            raise Unguarded
        if recipe.draws:
            setting = self.constant(_callables.random_setting)
            self.unless(f"{setting}() == {_callables.random_setting()!r}")
        if recipe.names:
            space = f"g{len(self.alive)}"
            self.lines.append(f"{space} = {here}.__globals__")
            for name in recipe.names:
                self._global(value, here, space, name)

    def _cells(self, value: FunctionType, here: str) -> None:
        if value.__closure__ is None:
            return  # by the code: it has no free names
        cells = f"k{len(self.alive)}"
        self.lines.append(f"{cells} = {here}.__closure__")
        for i, cell in enumerate(value.__closure__):
            try:
                content = cell.cell_contents
            except ValueError as error:
                raise Unguarded from error
            self.visit(content, f"{cells}[{i}].cell_contents")

    def _defaults(self, value: FunctionType, here: str) -> None:
        library = recipe_of(value.__code__).library
        if value.__dict__ and not library:
            raise Unguarded
        bare = "True" if library else f"not {here}.__dict__"
        defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
        if not defaults and not keywords:
            self.unless(
                f"not ({here}.__defaults__ or {here}.__kwdefaults__) and {bare}"
            )
            return
        names = self.constant(list(keywords))
        self.unless(
            f"len({here}.__defaults__ or ()) == {len(defaults)} and "
            f"[*({here}.__kwdefaults__ or ())] == {names} and {bare}"
        )
        for i, item in enumerate(defaults):
            self.visit(item, f"{here}.__defaults__[{i}]")
        for name, item in keywords.items():
            self.visit(item, f"{here}.__kwdefaults__[{name!r}]")

    def _global(self, value: FunctionType, here: str, space: str, name: str) -> None:
        found = value.__globals__.get(name, _callables.MISSING)
        if found is _callables.MISSING:
            found = value.__builtins__.get(name, _callables.MISSING)
            if not _callables.is_usual_builtin(name, found):
                raise Unguarded
            equal = self.constant(found)
            self.unless(
                f"{name!r} not in {space} and {here}.__builtins__[{name!r}] is {equal}"
            )
        elif type(found) is not types.ModuleType:
            self.visit(found, f"{space}[{name!r}]")
        else:
            self.alive.append(found)
            inner = f"v{len(self.alive)}"
            self.lines.append(f"{inner} = {space}[{name!r}]")
            self._module(found, inner, recipe_of(value.__code__), name)

    def _module(
        self, found: types.ModuleType, here: str, recipe: Any, name: str
    ) -> None:
        if found.__name__ in _callables.REFLECTION:
            raise Unguarded
        if is_library_module(found):
            self.same(found, here)
            return
        if name in recipe.bare:
            raise Unguarded
        self.same_if_alive(found, here)
        for chain in recipe.attributes[name]:
            self._chain(found, here, chain)

    def _chain(self, found: types.ModuleType, here: str, chain: Any) -> None:
        if not chain or chain[0] not in vars(found):
            raise Unguarded
        inner, expression = vars(found)[chain[0]], f"{here}.__dict__[{chain[0]!r}]"
        if type(inner) is types.ModuleType and not is_library_module(inner):
            self.alive.append(inner)
            name = f"v{len(self.alive)}"
            self.lines.append(f"{name} = {expression}")
            self.same_if_alive(inner, name)
            self._chain(inner, name, chain[1:])
        else:
            self.visit(inner, expression)


_WRITERS: dict[Any, Callable[[_Writer, Any, str], None]] = {
    _values.leaf: _Writer.leaf,
    _values.number: _Writer.number,
    _values.sequence: _Writer.sequence,
    _values.permanent: _Writer.same,
    _values.by_identity: _Writer.same_if_alive,
    _classes.static: _Writer.static,
    _classes.mapping: _Writer.mapping,
    _classes.a_class: _Writer.library_class,
    _callables.function: _Writer.function,
    _callables.method: _Writer.method,
    _callables.partial: _Writer.partial,
    _callables.builtin: _Writer.builtin,
    _callables.module: _Writer.module,
}
