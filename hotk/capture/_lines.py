"""The lines of a guard: for each visitor of a walk, what asks for the same again."""

import functools
import types
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import jax

from hotk._core import JITTED, has_jit_options, jit_options

from . import _callables, _classes, _objects, _registry, _standard, _values
from ._callables import is_empty, is_fixed, is_permanent
from ._class_lines import (
    a_class,
    kept,
    member,
    named_scope,
    node,
    plain_object,
    subclassed,
    tree_node,
    treedef,
)
from ._part_lines import visit_read
from ._parts import first_reads
from ._recipe import is_library_module, recipe_of
from ._reflection import settings_read
from ._standard import jit_attributes
from ._value_lines import (
    a_deque,
    a_logger,
    a_proxy,
    a_reference,
    a_set,
    a_slice,
    by_piece,
    declared,
    entries,
    getter,
    leaf,
    mapping,
    mark,
    moment,
    number,
    numpy_leaf,
    same,
    same_if_alive,
    sequence,
    static,
)
from ._walk import Walk, told
from ._writer import WRITERS, Check, Unguarded, Writer


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
        node(w, kind, data, f"nodes[{i}]")
    _told(w)
    return w.finished()


def _told(w: Writer) -> None:
    """Write the check of names and docstrings, if they are read."""
    things = [v for v in w.alive if id(v) in w.things]
    functions = [v for v in things if type(v) is FunctionType]
    if not any(recipe_of(v.__code__).tells for v in functions):
        return
    if any(isinstance(v, type) for v in things):
        raise Unguarded  # a class is asked for less than for all that it holds
    for value in things:
        here = w.things[id(value)][0]
        w.unless(f"{w.constant(told)}({here}) == {w.constant(told(value))}")


def of_library(w: Writer, value: Any, here: str) -> None:
    if not is_permanent(value):
        raise Unguarded
    same_if_alive(w, value, here)


def custom_rule(w: Writer, value: Any, here: str) -> None:
    if is_permanent(value):
        same_if_alive(w, value, here)
        return
    if w.met(value, here, "rule"):
        return
    parts = _callables.rule_parts(value)
    w.unless(f"type({here}) is {w.constant(type(value))}")
    place = w.hold(parts, f"{w.constant(_callables.rule_parts)}({here})")
    entries(w, parts, place)


def filter_jitted(w: Writer, value: Any, here: str) -> None:
    inner = value.__wrapped__
    if not isinstance(inner, FunctionType) or not _standard.is_usual(value, inner):
        tree_node(w, value, here)
        return
    if w.met(value, here, "filtered"):
        return
    given = w.constant(_standard.filter_options)
    options = w.constant(_standard.filter_options(value))
    cached = w.constant(jit_options(value._cached))
    w.unless(f"type({here}) is {w.constant(type(value))}")
    w.unless(f"{given}({here}) == {options}")
    w.unless(f"{w.constant(has_jit_options)}({here}._cached, {cached})")
    w.visit(inner, f"{here}.__wrapped__")


def jitted(w: Writer, value: Any, here: str) -> None:
    walk = Walk()
    walk.frozen = w.frozen
    walk.visit(value)
    if walk.key[-1] == weakref.ref(value) and len(walk.key) == 1:
        same_if_alive(w, value, here)
        return
    if w.met(value, here, JITTED):
        return
    options = w.constant(jit_options(value))
    w.unless(f"type({here}) is {w.constant(JITTED)}")
    w.unless(f"{w.constant(has_jit_options)}({here}, {options})")
    w.visit(value.__wrapped__, f"{here}.__wrapped__")
    if jit_attributes(value):
        raise Unguarded
    w.unless(f"not {w.constant(jit_attributes)}({here})")


def builtin(w: Writer, value: Any, here: str) -> None:
    if not isinstance(value.__self__, types.ModuleType):
        raise Unguarded
    _callables.builtin(Walk(), value)
    same(w, value, here)


def module(w: Writer, value: types.ModuleType, here: str) -> None:
    _callables.module(Walk(), value)
    same(w, value, here)


def method(w: Writer, value: Any, here: str) -> None:
    w.unless(f"type({here}) is {w.constant(type(value))}")  # equinox has its own
    function = value.__func__
    w.visit(function, f"{here}.__func__")
    reads = first_reads(function) if type(function) is FunctionType else None
    visit_read(w, value.__self__, reads, f"{here}.__self__")


def partial(w: Writer, value: functools.partial, here: str) -> None:
    if value.__dict__:
        raise Unguarded
    kind = w.constant(type(value))
    w.unless(f"type({here}) is {kind} and not {here}.__dict__")
    w.unless(f"len({here}.args) == {len(value.args)}")
    w.visit(value.func, f"{here}.func")
    for i, item in enumerate(value.args):
        w.visit(item, f"{here}.args[{i}]")
    w.visit(value.keywords, f"{here}.keywords")


def wrapped_partial(w: Writer, value: Any, here: str) -> None:
    w.unless(f"type({here}) is {w.constant(type(value))}")
    w.visit(value.fun, f"{here}.fun")


def function(w: Writer, value: FunctionType, here: str) -> None:
    recipe, code = recipe_of(value.__code__), value.__code__
    if is_fixed(value):
        same_if_alive(w, value, here)
        return
    if w.met(value, here, code):
        return
    w.unless(f"type({here}) is {w.constant(FunctionType)}")
    if value is not w.root:  # that was looked up by its code
        w.unless(f"{here}.__code__ is {w.constant(code)}")
    _cells(w, value, here)
    _defaults(w, value, here)
    if recipe.library:
        return
    if recipe.writes is not None or recipe.imports:
        raise Unguarded
    if recipe.names:
        space = w.hold(value.__globals__, f"{here}.__globals__")
        for name in recipe.names:
            _global(w, value, here, space, name)


def _cells(w: Writer, value: FunctionType, here: str) -> None:
    if value.__closure__ is None:
        return  # by the code: it has no free names
    cells = w.hold(value.__closure__, f"{here}.__closure__")
    for i, cell in enumerate(value.__closure__):
        if is_empty(cell):
            w.unless(f"{w.constant(is_empty)}({cells}[{i}])")
            continue
        content = cell.cell_contents
        reads = recipe_of(value.__code__).reads.get(value.__code__.co_freevars[i])
        visit_read(w, content, reads, f"{cells}[{i}].cell_contents")


def _defaults(w: Writer, value: FunctionType, here: str) -> None:
    library = recipe_of(value.__code__).library
    bare = "True" if library else f"not {here}.__dict__"
    if value.__dict__ and not library:
        bare = "True"
        w.visit(value.__dict__, f"{here}.__dict__")
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
    elif found is jax.config:
        inner = w.hold(found, f"{space}[{name!r}]")
        _same_settings(w, found, inner, recipe_of(value.__code__), name)
    elif type(found) is not types.ModuleType:
        reads = recipe_of(value.__code__).read_off(name)
        visit_read(w, found, reads, f"{space}[{name!r}]")
    else:
        inner = w.hold(found, f"{space}[{name!r}]")
        _module(w, found, inner, recipe_of(value.__code__), name)


def _module(
    w: Writer, found: types.ModuleType, here: str, recipe: Any, name: str
) -> None:
    if is_library_module(found):
        _same_settings(w, found, here, recipe, name)
        return
    if name in recipe.bare:
        raise Unguarded
    same_if_alive(w, found, here)
    for chain in recipe.attributes[name]:
        _chain(w, found, here, chain)


def _same_settings(w: Writer, found: Any, here: str, recipe: Any, name: str) -> None:
    """Write the check of a module of a library, and of the settings read off it."""
    same(w, found, here)
    config = w.constant(jax.config)
    for setting in settings_read(found, name, recipe.attributes.get(name, ())):
        w.visit(getattr(jax.config, setting), f"{config}.{setting}")


def _chain(w: Writer, found: types.ModuleType, here: str, chain: Any) -> None:
    if not chain or chain[0] not in vars(found):
        raise Unguarded
    inner, expression = vars(found)[chain[0]], f"{here}.__dict__[{chain[0]!r}]"
    if type(inner) is types.ModuleType and not is_library_module(inner):
        name = w.hold(inner, expression)
        same_if_alive(w, inner, name)
        _chain(w, inner, name, chain[1:])
    else:
        w.visit(inner, expression)


WRITERS.update(
    {
        _values.leaf: leaf,
        _values.numpy_leaf: numpy_leaf,
        _values.sequence: sequence,
        _values.a_slice: a_slice,
        _values.permanent: same,
        _values.ufunc: same,
        _values.by_identity: same_if_alive,
        _values.tree_node: tree_node,
        _standard.by_piece: by_piece,
        _standard.number: number,
        _standard.moment: moment,
        _standard.a_logger: a_logger,
        _standard.a_set: a_set,
        _standard.array_type: same,
        _standard.a_deque: a_deque,
        _standard.a_proxy: a_proxy,
        _standard.a_reference: a_reference,
        _standard.getter: getter,
        _standard.treedef: treedef,
        _standard.subclassed: subclassed,
        _standard.jitted: jitted,
        _standard.filter_jitted: filter_jitted,
        _registry.declared: declared,
        _classes.static: static,
        _classes.member: member,
        _classes.mapping: mapping,
        _classes.a_class: a_class,
        _objects.plain_object: plain_object,
        _objects.kept: kept,
        _objects.bare: plain_object,
        _objects.named_scope: named_scope,
        _objects.mark: mark,
        _callables.custom_rule: custom_rule,
        _callables.memo: of_library,
        _callables.function: function,
        _callables.method: method,
        _callables.partial: partial,
        _callables.wrapped_partial: wrapped_partial,
        _callables.builtin: builtin,
        _callables.module: module,
    }
)
