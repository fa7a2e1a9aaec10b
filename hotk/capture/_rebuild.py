"""The way back: a callable with other arrays in place of those it captured."""

import collections
import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
from jax.tree_util import tree_flatten

from hotk._core import Tracer, jit_like, peek

from . import _kinds, _objects, _standard
from ._callables import Ruled, is_fixed
from ._gone import GONE
from ._held import Held
from ._recipe import recipe_of
from ._walk import Node, Trail, Walk


_MUTABLE = frozenset({"mapping", "plain_object", "subclassed", "a_deque", "a_buffer"})
_HOLDERS = _MUTABLE - {"a_buffer"} | {"function", "module"}


def survey(f: Any, *, small: int = 0, light: bool = False) -> tuple[Walk, Trail]:
    """Walk a callable and record what was visited from where; `light` as for `Walk`."""
    trail = Trail()
    walk = Walk(small=small, trail=trail, light=light)
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
        self.held = Held()
        self.touched = _touched(trail, replacements, every)
        self.spaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, types.CellType] = {}
        self.filled: set[int] = set()
        self.rules = False

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
        """Let go of the tracers among the replacements: none outlives its trace.

        The copies are what they were otherwise: derivative rules that were made in the
        trace may hold them, and are run later.
        """
        tracers = [n for n in self.trail.nodes.values() if self._is_tracer(n)]
        ending = _reached(tracers, until=_is_holder)
        ended = {id(self.made[key]) for key in ending if key in self.made}
        self.held.put_back(lambda item: GONE if id(item) in ended else item)
        self.made.clear()

    def _is_tracer(self, node: Node) -> bool:
        return isinstance(self.made.get(id(node.value)), Tracer)

    def _make(self, value: Any) -> Any:
        node = self.trail.nodes[id(value)]
        build = BUILDERS.get(node.name)
        if build is None or node.treatment == "static by identity":
            return value
        return build(self, value)

    def _items(self, value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(self, value))
        made = type(value)()
        self.made[id(value)] = made
        made.extend(map(self, value))
        self.held.items(made, list)
        return made

    def _deque(self, value: collections.deque[Any]) -> Any:
        made = type(value)(maxlen=value.maxlen)
        self.made[id(value)] = made
        made.extend(map(self, value))
        self.held.items(made, collections.deque)
        return made

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        made = type(value)()
        self.made[id(value)] = made
        for name, item in value.items():
            made[name] = self(item)
        self.held.entries(made, dict)
        return made

    def _subclassed(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, tuple):
            made = tuple.__new__(kind, map(self, tuple.__iter__(value)))
            self.made[id(value)] = made
        elif isinstance(value, list):
            made = list.__new__(kind)
            self.made[id(value)] = made
            list.extend(made, map(self, list.__iter__(value)))
            self.held.items(made, list)
        else:
            ordered = isinstance(value, collections.OrderedDict)
            base = collections.OrderedDict if ordered else dict
            made = base.__new__(kind)
            self.made[id(value)] = made
            if isinstance(value, collections.defaultdict):
                made.default_factory = self(value.default_factory)
            for name, item in _standard.entries(value):
                base.__setitem__(made, name, self(item))
            self.held.entries(made, base)
        self._fill_attributes(value, made)
        self.held.attributes(made)
        return made

    def _partial(self, value: functools.partial) -> functools.partial:
        keywords = {name: self(item) for name, item in value.keywords.items()}
        made = type(value)(self(value.func), *map(self, value.args), **keywords)
        vars(made).update((name, self(item)) for name, item in vars(value).items())
        return made

    def _method(self, value: Any) -> types.MethodType:
        return types.MethodType(self(value.__func__), self(value.__self__))

    def _jitted(self, value: Any) -> Any:
        inner = self(value.__wrapped__)
        if id(value) in self.made:  # what is inside holds the jitted function itself
            return self.made[id(value)]
        made = self.made[id(value)] = jit_like(value, inner)
        own = _standard.jit_attributes(value)
        for name, item in own.items():
            vars(made)[name] = self(item)
        return made

    def _rule(self, value: Any) -> Any:
        self.rules = self.rules or not isinstance(value, Ruled)
        return self._object(value)

    def _node(self, value: Any) -> Any:
        children, treedef = tree_flatten(value, is_leaf=lambda n: n is not value)
        return treedef.unflatten(map(self, children))

    def _object(self, value: Any) -> Any:
        made = _objects.new_object(type(value))
        self.made[id(value)] = made
        self._fill_attributes(value, made)
        if not isinstance(made, _kinds.CUSTOM_RULES):
            self.held.attributes(made)
        return made

    def _fill_attributes(self, value: Any, made: Any) -> None:
        """Copy the attributes, without those of which it is known that nothing reads.

        Were one read all the same, that would be an error, and not an old value.
        """
        read = self.trail.read.get(id(value))
        for name, item in (peek(value, "__dict__") or {}).items():
            if read is None or name in read:
                vars(made)[name] = self(item)
        for descriptor in _objects.slots_of(value).values():
            descriptor.__set__(made, self(descriptor.__get__(value)))

    def _module(self, value: types.ModuleType) -> types.ModuleType:
        made = types.ModuleType(value.__name__)
        self.made[id(value)] = made
        for name, item in list(vars(value).items()):
            if id(item) in self.touched or id(item) in self.made:
                vars(made)[name] = self(item)
                self.held.entry(vars(made), name)
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
            self.held.content(made)

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
            self.held.defaults(made)
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
                self.held.entry(space, name)


def _reference(made: Any) -> weakref.ref[Any]:
    """Return a weak reference to a copy, which nothing else keeps alive."""
    return weakref.ref(made, lambda _, kept=made: None)


def _is_holder(node: Node) -> bool:
    """Whether the copy of a thing can be changed once it is made."""
    value = node.value
    if isinstance(value, tuple):
        return False
    return node.name in _HOLDERS or isinstance(value, list)


def _is_mutable(node: Node) -> bool:
    """Whether a thing may be written into, or is seen anew where JAX remembers it."""
    value = node.value
    if isinstance(value, types.FunctionType):
        if is_fixed(value):
            return False
        if value.__dict__ and not recipe_of(value.__code__).library:
            return True
    mutable = node.name in _MUTABLE or isinstance(value, (list, set))
    return mutable or any(map(_is_seen_jitted, (node, *node.parents)))


def _is_seen_jitted(node: Node) -> bool:
    return node.name in ("jitted", "filter_jitted") and node.treatment == "walked"


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
    return _reached(waiting)


def _reached(
    waiting: list[Node], until: Callable[[Node], bool] = lambda _: False
) -> set[int]:
    """Find what holds some things, up to what `until` is true of, which is left out."""
    reached: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node.value) in reached or isinstance(node.value, type) or until(node):
            continue
        reached.add(id(node.value))
        waiting.extend(node.parents)
    return reached


# What makes a copy of a thing, by the name of its visitor; other things are kept.
BUILDERS: dict[str, Callable[[Rebuild, Any], Any]] = {
    "function": Rebuild._function,
    "sequence": Rebuild._items,
    "mapping": Rebuild._dict,
    "subclassed": Rebuild._subclassed,
    "a_deque": Rebuild._deque,
    "a_proxy": lambda self, value: type(value)(self(_standard.proxied(value))),
    "a_reference": lambda self, value: _reference(self(value())),
    "a_buffer": lambda self, value: value[:],
    "a_set": lambda self, value: type(value)(value),
    "partial": Rebuild._partial,
    "method": Rebuild._method,
    "jitted": Rebuild._jitted,
    "filter_jitted": lambda self, value: eqx.filter_jit(self(value.__wrapped__)),
    "custom_rule": Rebuild._rule,
    "module": Rebuild._module,
    "tree_node": Rebuild._node,
    "plain_object": Rebuild._object,
}
