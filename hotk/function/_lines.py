"""The lines of a guard: for each visitor of a walk, what asks for the same again."""

import dataclasses
import functools
import math
import types
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import equinox as eqx

from . import _callables, _classes, _values
from ._callables import is_permanent
from ._classes import is_library_class
from ._recipe import is_library_module, recipe_of
from ._walk import Walk
from ._writer import WRITERS, Check, Unguarded, Writer


_SIMPLE = (bool, int, str, bytes, type(None), type(...))
# The wrappers of functions that a class may hold, and what is inside.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}


def check_of(f: Any, nodes: Sequence[Any], fixed: Sequence[Any]) -> Check:
    """Return the check of `f` and of all callables that run the same code.

    Args:
        f: The callable.
        nodes: Class and static data of each node of the arguments' tree.
        fixed: What is static among the arguments.
    """
    w = Writer()
    if nodes or fixed:
        w.unless(f"len(nodes) == {len(nodes)} and len(fixed) == {len(fixed)}")
    else:
        w.unless("not (nodes or fixed)")
    for i, thing in enumerate(fixed):
        w.visit(thing, f"fixed[{i}]")
    w.root = f
    w.visit(f, "f")
    for i, (kind, data) in enumerate(nodes):
        _node(w, kind, data, f"nodes[{i}]")
    return w.finished()


def leaf(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.frozen:
        raise Unguarded
    if not w.met(value, here, kind):
        w.unless(f"type({here}) is {w.constant(kind)}")
        w.leaves.append(here)


def static(w: Writer, value: Any, here: str) -> None:
    if type(value) not in _SIMPLE:
        raise Unguarded
    if value is None or isinstance(value, bool):
        w.unless(f"{here} is {value}")
    else:
        kind, equal = w.constant(type(value)), w.constant(value)
        w.unless(f"type({here}) is {kind} and {here} == {equal}")


def number(w: Writer, value: float, here: str) -> None:
    if not value or math.isnan(value):
        raise Unguarded
    equal = w.constant(value)
    w.unless(f"type({here}) is float and {here} == {equal}")


def sequence(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.met(value, here, kind):
        return
    w.unless(f"type({here}) is {w.constant(kind)} and len({here}) == {len(value)}")
    for i, item in enumerate(value):
        w.visit(item, f"{here}[{i}]")


def mapping(w: Writer, value: dict[Any, Any], here: str) -> None:
    kind = type(value)
    if w.met(value, here, kind):
        return
    if not all(type(name) is str for name in value):
        raise Unguarded
    names = w.constant(list(value))
    types_of = w.constant([str] * len(value))
    w.unless(
        f"type({here}) is {w.constant(kind)} and [*{here}] == {names} "
        f"and [*map(type, {here})] == {types_of}"
    )
    for name, item in list(value.items()):
        w.visit(item, f"{here}[{name!r}]")


def same(w: Writer, value: Any, here: str) -> None:
    """A thing of a library, which a walk's key holds as well."""
    w.unless(f"{here} is {w.constant(value)}")


def same_if_alive(w: Writer, value: Any, here: str) -> None:
    alive = w.constant(weakref.ref(value))  # which is `None` once it is dead
    w.unless(f"{here} is not None and {here} is {alive}()")


def custom_rule(w: Writer, value: Any, here: str) -> None:
    if not is_permanent(value):
        raise Unguarded
    same_if_alive(w, value, here)


def a_class(w: Writer, value: type, here: str) -> None:
    if is_library_class(value):
        same(w, value, here)
        return
    if w.met(value, here, "class"):
        return
    if not is_library_class(type(value)):
        raise Unguarded
    same_if_alive(w, value, here)
    w.unless(f"len({here}.__mro__) == {len(value.__mro__)}")
    w.frozen += 1
    for i, base in enumerate(value.__mro__):
        _base(w, base, f"{here}.__mro__[{i}]")
    w.frozen -= 1


def _base(w: Writer, base: type, expression: str) -> None:
    w.alive.append(base)
    here = f"v{len(w.alive)}"
    w.lines.append(f"{here} = {expression}")
    if is_library_class(base):
        same(w, base, here)
        return
    same_if_alive(w, base, here)
    if hasattr(base, "__members__"):
        raise Unguarded
    w.lines.append(f"{here} = {here}.__dict__")
    w.unless(f"[*{here}] == {w.constant(list(vars(base)))}")
    for name, field in vars(base).get("__dataclass_fields__", {}).items():
        place = f"{here}['__dataclass_fields__'][{name!r}]"
        w.unless(f"[*{place}.metadata] == {w.constant(list(field.metadata))}")
        for key, item in field.metadata.items():
            _plain_name(key)
            w.visit(item, f"{place}.metadata[{key!r}]")
        for part in _classes.own_defaults(field):
            w.visit(getattr(field, part), f"{place}.{part}")
    own = dict(_classes.own_items(base))
    for name, item in vars(base).items():
        if name not in own and isinstance(item, FunctionType):  # written by Python
            w.visit_as(item, f"{here}[{name!r}]", same_if_alive)
    for name, item in own.items():
        _class_item(w, item, f"{here}[{name!r}]")


def _class_item(w: Writer, item: Any, expression: str) -> None:
    if not isinstance(item, (*_WRAPPERS, *_classes.DESCRIPTORS)):
        w.visit(item, expression)
        return
    w.alive.append(item)
    here = f"v{len(w.alive)}"
    w.lines.append(f"{here} = {expression}")
    w.unless(f"type({here}) is {w.constant(type(item))}")
    for part in _WRAPPERS.get(type(item), ()):
        w.visit(getattr(item, part), f"{here}.{part}")


def plain_object(w: Writer, value: Any, here: str) -> None:
    if w.met(value, here, "object"):
        return
    if any("__slots__" in vars(base) for base in type(value).__mro__[:-1]):
        raise Unguarded
    w.visit(type(value), f"type({here})")
    _attributes(w, vars(value), here, static=())


def _attributes(w: Writer, found: dict[str, Any], here: str, static: Any) -> None:
    space = f"s{len(w.alive)}"
    w.lines.append(f"{space} = {here}.__dict__")
    w.unless(f"[*{space}] == {w.constant(list(found))}")
    for name, item in found.items():
        _plain_name(name)
        w.frozen += name in static
        w.visit(item, f"{space}[{name!r}]")
        w.frozen -= name in static


def _plain_name(name: Any) -> None:
    if type(name) is not str:
        raise Unguarded


def tree_node(w: Writer, value: Any, here: str) -> None:
    kind = type(value)
    if w.met(value, here, "node"):
        return
    w.visit(kind, f"type({here})")
    if isinstance(value, tuple):
        if not hasattr(kind, "_fields") or getattr(value, "__dict__", None):
            raise Unguarded  # registered by the user, with what may be more
        w.unless(f"len({here}) == {len(value)}")
        for i, item in enumerate(value):
            w.visit(item, f"{here}[{i}]")
        return
    if not isinstance(value, eqx.Module):
        if kind.__module__.partition(".")[0] != "equinox":
            raise Unguarded
        same_if_alive(w, value, here)  # a sentinel in its static fields
        return
    fields = {field.name: field for field in dataclasses.fields(value)}
    if not set(vars(value)) <= set(fields):
        raise Unguarded
    static = {n for n, field in fields.items() if field.metadata.get("static")}
    _attributes(w, vars(value), here, static)


def _node(w: Writer, kind: type, data: Any, expression: str) -> None:
    """Write the check of the class and the static data of a tree's node."""
    here = f"n{len(w.alive)}"
    w.lines.append(f"{here} = {expression}")
    w.visit(kind, f"{here}[0]")
    w.frozen += 1
    _static_data(w, data, f"{here}[1]")
    w.frozen -= 1


def _static_data(w: Writer, data: Any, expression: str) -> None:
    if type(data) in (tuple, list):
        here = f"d{len(w.alive)}"
        w.alive.append(data)
        w.lines.append(f"{here} = {expression}")
        kind = w.constant(type(data))
        w.unless(f"type({here}) is {kind} and len({here}) == {len(data)}")
        for i, item in enumerate(data):
            _static_data(w, item, f"{here}[{i}]")
    else:
        w.visit(data, expression)


def builtin(w: Writer, value: Any, here: str) -> None:
    if not isinstance(value.__self__, types.ModuleType):
        raise Unguarded
    _callables.builtin(Walk(), value)
    same(w, value, here)


def module(w: Writer, value: types.ModuleType, here: str) -> None:
    _callables.module(Walk(), value)
    same(w, value, here)


def method(w: Writer, value: Any, here: str) -> None:
    if type(value) is not types.MethodType:
        raise Unguarded
    w.unless(f"type({here}) is {w.constant(types.MethodType)}")
    w.visit(value.__func__, f"{here}.__func__")
    w.visit(value.__self__, f"{here}.__self__")


def partial(w: Writer, value: functools.partial, here: str) -> None:
    if type(value) is not functools.partial:
        raise Unguarded
    kind = w.constant(functools.partial)
    w.unless(f"type({here}) is {kind} and len({here}.args) == {len(value.args)}")
    w.visit(value.func, f"{here}.func")
    for i, item in enumerate(value.args):
        w.visit(item, f"{here}.args[{i}]")
    w.visit(value.keywords, f"{here}.keywords")


def function(w: Writer, value: FunctionType, here: str) -> None:
    recipe, code = recipe_of(value.__code__), value.__code__
    if recipe.library and (value.__closure__ is None or is_permanent(value)):
        same_if_alive(w, value, here)
        if _callables.makes_keys(value):
            _random_setting(w)
        return
    if w.met(value, here, code):
        return
    kind, same = w.constant(FunctionType), w.constant(code)
    w.unless(f"type({here}) is {kind}")
    if value is not w.root:  # that was looked up by its code
        w.unless(f"{here}.__code__ is {same}")
    _cells(w, value, here)
    _defaults(w, value, here)
    if recipe.library:
        return
    if recipe.writes is not None or recipe.imports:
        raise Unguarded
    if recipe.draws:
        _random_setting(w)
    if recipe.names:
        space = f"g{len(w.alive)}"
        w.lines.append(f"{space} = {here}.__globals__")
        for name in recipe.names:
            _global(w, value, here, space, name)


def _random_setting(w: Writer) -> None:
    setting = w.constant(_callables.random_setting)
    w.unless(f"{setting}() == {_callables.random_setting()!r}")


def _cells(w: Writer, value: FunctionType, here: str) -> None:
    if value.__closure__ is None:
        return  # by the code: it has no free names
    cells = f"k{len(w.alive)}"
    w.lines.append(f"{cells} = {here}.__closure__")
    for i, cell in enumerate(value.__closure__):
        try:
            content = cell.cell_contents
        except ValueError as error:
            raise Unguarded from error
        w.visit(content, f"{cells}[{i}].cell_contents")


def _defaults(w: Writer, value: FunctionType, here: str) -> None:
    library = recipe_of(value.__code__).library
    if value.__dict__ and not library:
        raise Unguarded
    bare = "True" if library else f"not {here}.__dict__"
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    if not defaults and not keywords:
        w.unless(f"not ({here}.__defaults__ or {here}.__kwdefaults__) and {bare}")
        return
    names = w.constant(list(keywords))
    w.unless(
        f"len({here}.__defaults__ or ()) == {len(defaults)} and "
        f"[*({here}.__kwdefaults__ or ())] == {names} and {bare}"
    )
    for i, item in enumerate(defaults):
        w.visit(item, f"{here}.__defaults__[{i}]")
    for name, item in keywords.items():
        w.visit(item, f"{here}.__kwdefaults__[{name!r}]")


def _global(w: Writer, value: FunctionType, here: str, space: str, name: str) -> None:
    found = value.__globals__.get(name, _callables.MISSING)
    if found is _callables.MISSING:
        found = value.__builtins__.get(name, _callables.MISSING)
        if not _callables.is_usual_builtin(name, found):
            raise Unguarded
        equal = w.constant(found)
        w.unless(
            f"{name!r} not in {space} and {here}.__builtins__[{name!r}] is {equal}"
        )
    elif type(found) is not types.ModuleType:
        w.visit(found, f"{space}[{name!r}]")
    else:
        w.alive.append(found)
        inner = f"v{len(w.alive)}"
        w.lines.append(f"{inner} = {space}[{name!r}]")
        _module(w, found, inner, recipe_of(value.__code__), name)


def _module(
    w: Writer, found: types.ModuleType, here: str, recipe: Any, name: str
) -> None:
    if found.__name__ in _callables.REFLECTION:
        raise Unguarded
    if is_library_module(found):
        same(w, found, here)
        return
    if name in recipe.bare:
        raise Unguarded
    same_if_alive(w, found, here)
    for chain in recipe.attributes[name]:
        _chain(w, found, here, chain)


def _chain(w: Writer, found: types.ModuleType, here: str, chain: Any) -> None:
    if not chain or chain[0] not in vars(found):
        raise Unguarded
    inner, expression = vars(found)[chain[0]], f"{here}.__dict__[{chain[0]!r}]"
    if type(inner) is types.ModuleType and not is_library_module(inner):
        w.alive.append(inner)
        name = f"v{len(w.alive)}"
        w.lines.append(f"{name} = {expression}")
        same_if_alive(w, inner, name)
        _chain(w, inner, name, chain[1:])
    else:
        w.visit(inner, expression)


WRITERS.update(
    {
        _values.leaf: leaf,
        _values.number: number,
        _values.sequence: sequence,
        _values.permanent: same,
        _values.ufunc: same,
        _values.by_identity: same_if_alive,
        _classes.static: static,
        _classes.mapping: mapping,
        _classes.a_class: a_class,
        _classes.plain_object: plain_object,
        _values.tree_node: tree_node,
        _callables.custom_rule: custom_rule,
        _callables.function: function,
        _callables.method: method,
        _callables.partial: partial,
        _callables.builtin: builtin,
        _callables.module: module,
    }
)
