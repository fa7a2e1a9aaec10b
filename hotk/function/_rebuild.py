"""The way back: a callable with other arrays in place of those it captured."""

import functools
import types
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax
from jax.tree_util import tree_flatten

from hotk._core import Tracer

from . import _classes, _kinds
from ._callables import Ruled
from ._recipe import recipe_of
from ._walk import Node, Trail, Walk


_MUTABLE = ("mapping", "plain_object")


def survey(f: Any, *, small: int = 0) -> tuple[Walk, Trail]:
    """Walk a callable and record what was visited from where."""
    trail = Trail()
    walk = Walk(small=small, trail=trail)
    walk.visit(f)
    return walk, trail


class Rebuild:
    """Puts replacements in place of captured arrays, copying only what holds them.

    What holds no array and nothing mutable keeps its identity, unless every function
    is asked for. Mutable containers are copied, so that a callable that writes into
    them is found out without harm.
    """

    def __init__(
        self, trail: Trail, replacements: Mapping[int, Any], *, every: bool = False
    ) -> None:
        self.trail = trail
        self.made: dict[int, Any] = dict(replacements)
        self.holders: list[tuple[Any, Any]] = []
        self.touched = _touched(trail, replacements, every)
        self.spaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, types.CellType] = {}
        self.filled: set[int] = set()
        self.rules = False
        self.ruled = Ruled.calls  # how many there were before

    def __call__(self, value: Any) -> Any:
        """Return `value` with the replacements inside."""
        key = id(value)
        if key in self.made:
            return self.made[key]
        if key not in self.touched:
            return value
        made = self._make(value)
        self.made[key] = made
        return made

    def release(self) -> None:
        """Let go of the replacements, so that no tracer outlives its trace.

        A rule is run once more when its program is lowered: it finds what is no tracer.
        """
        for holder, name in self.holders:
            if Ruled.calls > self.ruled and not _holds_tracer(holder, name):
                continue
            if isinstance(holder, types.CellType):
                holder.cell_contents = None
            elif isinstance(holder, types.FunctionType):
                holder.__defaults__ = holder.__kwdefaults__ = None
                holder.__dict__.clear()
            elif name is None:
                holder.clear()
            else:
                holder[name] = None
        self.holders.clear()
        self.made.clear()

    def _make(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, set):
            return set(value)
        if type(value) is tuple:
            return tuple(map(self, value))
        if type(value) in (dict, OrderedDict):
            return self._dict(value)
        if isinstance(value, functools.partial):
            keywords = {name: self(item) for name, item in value.keywords.items()}
            made = type(value)(self(value.func), *map(self, value.args), **keywords)
            vars(made).update((name, self(item)) for name, item in vars(value).items())
            return made
        if isinstance(value, types.MethodType) or _kinds.is_equinox_method(value):
            return types.MethodType(self(value.__func__), self(value.__self__))
        if isinstance(value, _kinds.CUSTOM_RULES):
            self.rules = self.rules or not isinstance(value, Ruled)
            return self._attributes(value, dict(vars(value)))
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if _kinds.is_tree_node(value):
            children, treedef = tree_flatten(value, is_leaf=lambda n: n is not value)
            return treedef.unflatten(map(self, children))
        return self._attributes(value, _classes.attributes_of(value))

    def _list(self, value: list[Any]) -> list[Any]:
        made = type(value)()
        self.made[id(value)] = made
        made.extend(map(self, value))
        self.holders.append((made, None))
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = type(value)()
        self.made[id(value)] = made
        for name, item in value.items():
            made[name] = self(item)
        self.holders.append((made, None))
        return made

    def _attributes(self, value: Any, attributes: dict[str, Any]) -> Any:
        made = object.__new__(type(value))
        self.made[id(value)] = made
        for name, item in attributes.items():
            object.__setattr__(made, name, self(item))
        if hasattr(made, "__dict__") and not isinstance(made, _kinds.CUSTOM_RULES):
            self.holders.append((vars(made), None))
        return made

    def _module(self, value: types.ModuleType) -> types.ModuleType:
        made = types.ModuleType(value.__name__)
        self.made[id(value)] = made
        for name, item in list(vars(value).items()):
            if id(item) in self.touched or id(item) in self.made:
                vars(made)[name] = self(item)
                self.holders.append((vars(made), name))
            else:
                vars(made)[name] = item
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Return the one new cell for an old one, still empty when it is new."""
        return self.cells.setdefault(id(cell), types.CellType())

    def _fill(self, cell: types.CellType, made: types.CellType) -> None:
        if id(made) in self.filled:
            return
        self.filled.add(id(made))
        try:
            content = cell.cell_contents
        except ValueError:
            return
        made.cell_contents = self(content)
        if made.cell_contents is not content:
            self.holders.append((made, "contents"))

    def _space(self, space: dict[str, Any]) -> dict[str, Any]:
        made = self.spaces.get(id(space))
        if made is None:
            kept = ("__builtins__", "__name__", "__file__", "__package__", "__spec__")
            made = {name: space[name] for name in kept if name in space}
            self.spaces[id(space)] = made
        return made

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        recipe = recipe_of(value.__code__)
        space = value.__globals__ if recipe.library else self._space(value.__globals__)
        closure = value.__closure__
        cells = None if closure is None else tuple(map(self._cell, closure))
        made = types.FunctionType(value.__code__, space, value.__name__, None, cells)
        self.made[id(value)] = made
        for old, new in zip(closure or (), cells or (), strict=True):
            self._fill(old, new)
        made.__qualname__ = value.__qualname__
        made.__module__ = value.__module__
        made.__doc__ = value.__doc__
        if value.__defaults__ is not None:
            made.__defaults__ = tuple(map(self, value.__defaults__))
        if value.__kwdefaults__:
            keywords = value.__kwdefaults__.items()
            made.__kwdefaults__ = {name: self(item) for name, item in keywords}
        for name, item in vars(value).items():
            made.__dict__[name] = self(item)
        if made.__defaults__ or made.__kwdefaults__ or made.__dict__:
            self.holders.append((made, "defaults"))
        if not recipe.library:
            for name in recipe.names:
                if name in value.__globals__:
                    self._global(space, name, value.__globals__[name])
        return made

    def _global(self, space: dict[str, Any], name: str, value: Any) -> None:
        if name not in space:
            space[name] = value  # stops the recursion of functions that call each other
            made = self(value)
            space[name] = made
            if made is not value:
                self.holders.append((space, name))


def _holds_tracer(holder: Any, name: Any) -> bool:
    """Whether what is to be emptied holds a tracer itself."""
    if isinstance(holder, types.CellType):
        held = holder.cell_contents
    elif isinstance(holder, types.FunctionType):
        held = (holder.__defaults__, holder.__kwdefaults__, vars(holder))
    else:
        held = holder if name is None else holder[name]
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(held))


def _is_mutable(node: Node) -> bool:
    value = node.value
    if isinstance(value, types.FunctionType):
        return bool(value.__dict__) and not recipe_of(value.__code__).library
    return node.name in _MUTABLE or isinstance(value, (list, set))


def _is_of_user(node: Node) -> bool:
    value = node.value
    return isinstance(value, types.FunctionType) and not (
        recipe_of(value.__code__).library
    )


def _touched(
    trail: Trail, replacements: Mapping[int, Any], every: bool = False
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
    touched: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node.value) in touched or isinstance(node.value, type):
            continue
        touched.add(id(node.value))
        waiting.extend(node.parents)
    return touched
