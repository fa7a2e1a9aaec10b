"""Visitors of functions, methods, partials, builtins and modules."""

import builtins
import functools
import itertools
import sys
import types
import weakref
from typing import Any, Final

import jax
import numpy as np

from hotk._core import peek

from ._classes import is_library_class, mapping
from ._parts import first_reads, visit_read
from ._recipe import Recipe, is_library_module, is_library_name, recipe_of
from ._reflection import (
    REFLECTION,
    UNSEEN,
    check_seen,
    library_module,
    settings,
    settings_read,
)
from ._walk import KEEPS, Opaque, Walk


class Ruled:
    """Base of functions with their own derivatives: walked by their attributes."""


MISSING: Final = "<missing global>"
_BUILTINS = vars(builtins)
# What a bound builtin may belong to: modules, classes, immutable values, and a counter,
# which is how one counts traces.
_HARMLESS_OWNERS = (
    *(type(None), types.ModuleType, str, bytes, int, float, complex),
    *(range, itertools.count, np.ufunc, np.dtype),
)
_BUILTIN_TYPES = (types.BuiltinFunctionType, type, str)


def function(walk: Walk, value: types.FunctionType) -> None:
    """A Python function: its code, defaults, cells and the globals it reads."""
    recipe = recipe_of(value.__code__)
    key = walk.key
    if is_fixed(value):
        check_seen(walk, value, value.__name__)
        key.append(weakref.ref(value))
        return
    if walk.met(value):
        return
    key.append(recipe)
    if recipe.library:  # its globals, which are not looked at, are those of its file
        key.append(value.__code__.co_filename)
    closure = value.__closure__
    if closure is not None:
        names = value.__code__.co_freevars
        for name, cell in zip(names, closure, strict=True):
            if is_empty(cell):
                key.append("<empty cell>")
                continue
            content, reads = cell.cell_contents, recipe.reads.get(name)
            visit_read(walk, content, reads, " cell `{}`", name)
    if value.__defaults__ or value.__kwdefaults__ or value.__dict__:
        _defaults(walk, value, recipe)
    else:
        key.append(None)
    if recipe.library:
        return
    if recipe.writes is not None:
        raise Opaque(f"it writes {recipe.writes}")
    walk.tells = walk.tells or recipe.tells
    if recipe.by_name or recipe.hidden:
        walk.by_name(reads=recipe.by_name, hidden=recipe.hidden)
    if recipe.names:
        _globals(walk, value, recipe)
    for name in recipe.imports:
        first = name.partition(".")[0]
        if first in REFLECTION or not is_library_name(first):
            raise Opaque(f"it imports `{name}` while it runs")


def is_empty(cell: types.CellType) -> bool:
    """Whether a cell holds nothing: the name is not assigned yet, or was deleted."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def is_usual_builtin(name: str, found: Any) -> bool:
    """Whether a builtin is the one that Python came with, and reads nothing unseen."""
    usual = found is _BUILTINS.get(name, MISSING)
    return usual and type(found) in _BUILTIN_TYPES and id(found) not in UNSEEN


def _defaults(walk: Walk, value: types.FunctionType, recipe: Recipe) -> None:
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    walk.key.append((len(defaults), len(keywords)))
    code = value.__code__  # the defaults are those of the last arguments
    first = code.co_argcount - len(defaults)
    for i, default in enumerate(defaults):
        name = code.co_varnames[first + i] if first >= 0 else i
        walk.visit(default, " default `{}`", name)
    for name, default in keywords.items():
        walk.key.append(name)
        walk.visit(default, " default `{}`", name)
    if not recipe.library:
        mapping(walk, value.__dict__)


def _globals(walk: Walk, value: types.FunctionType, recipe: Recipe) -> None:
    space = value.__globals__
    key = walk.key
    for name in recipe.names:
        found = space.get(name, MISSING)
        if found is MISSING:
            found = value.__builtins__.get(name, MISSING)
            if id(found) in UNSEEN:
                raise Opaque(f"`{name}` reads what no walk can see")
            if is_usual_builtin(name, found):
                key.append(found)
            else:
                walk.visit(found, " builtin `{}`", name)
        elif found is jax.config and name not in recipe.bare:
            settings(walk, settings_read(found, name, recipe.attributes[name]))
        elif type(found) is not types.ModuleType:
            visit_read(walk, found, recipe.read_off(name), " global `{}`", name)
        else:
            _module_attributes(walk, found, name, recipe)


def _module_attributes(
    walk: Walk, found: types.ModuleType, name: str, recipe: Recipe
) -> None:
    if library_module(walk, found, name, recipe.attributes.get(name, ())):
        return
    if name in recipe.bare:
        raise Opaque(f"the module `{name}` used as a value")
    for chain in recipe.attributes[name]:
        _chain(walk, found, name, chain)


def _chain(
    walk: Walk, here: types.ModuleType, name: str, chain: tuple[str, ...]
) -> None:
    """Visit what `module.a.b` is now, going on through modules of the user."""
    if not chain:
        raise Opaque(f"the module `{name}` used as a value")
    if chain[0] not in vars(here):
        raise Opaque(f"`{name}.{chain[0]}` is not a plain attribute")
    inner = vars(here)[chain[0]]
    place = f"{name}.{chain[0]}"
    with walk.inside(here, f" module `{name}`"):
        if type(inner) is types.ModuleType and not is_library_module(inner):
            _chain(walk, inner, place, chain[1:])
        else:
            walk.visit(inner, " `{}`", place)


def method(walk: Walk, value: Any) -> None:
    """A bound method: its function and its object."""
    walk.key.append(types.MethodType)
    function = value.__func__
    walk.visit(function, ".__func__")
    reads = first_reads(function) if type(function) is types.FunctionType else None
    visit_read(walk, value.__self__, reads, ".__self__")


def partial(walk: Walk, value: functools.partial) -> None:
    """A partial: its function and its arguments."""
    walk.key.append(type(value))
    walk.visit(value.func, ".func")
    walk.key.append(len(value.args))
    for i, item in enumerate(value.args):
        walk.visit(item, " argument {}", i)
    mapping(walk, value.keywords)
    if value.__dict__:
        mapping(walk, value.__dict__)


# What JAX puts around a partial inside of a `jax.tree_util.Partial`: equal to its like
# if the two partials are one, whatever has become of the functions inside.
WRAPPED_PARTIAL: type = type(jax.tree_util.Partial(functools.partial(int)).func)


def wrapped_partial(walk: Walk, value: Any) -> None:
    """A partial inside of JAX's own."""
    walk.key.append(WRAPPED_PARTIAL)
    walk.visit(value.fun, ".func")


def custom_rule(walk: Walk, value: Any) -> None:
    """A function with its own derivative: its body and its rules."""
    if walk.met(value):
        return
    if is_permanent(value):
        walk.key.append(weakref.ref(value))
        return
    kept = rule_parts(value)
    walk.key.append(type(value))
    walk.key.append(len(kept))
    for name, item in kept.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def rule_parts(value: Any) -> dict[str, Any]:
    """Return the attributes of a function with its own derivative: body and rules."""
    found = vars(value).items()
    return {k: v for k, v in found if not (k[:2] == "__" == k[-2:])}


def memo(walk: Walk, value: Any) -> None:
    """A function of `functools.lru_cache`: it keeps what it returns."""
    if not is_permanent(value):
        raise Opaque(KEEPS)
    walk.key.append(weakref.ref(value))


def builtin(walk: Walk, value: Any) -> None:
    """A builtin function or method."""
    owner = peek(value, "__self__")
    library = isinstance(owner, type) and is_library_class(owner)
    if not library and not isinstance(owner, _HARMLESS_OWNERS):
        raise Opaque(f"a method of a {type(owner).__name__} that can change")
    check_seen(walk, value, value.__name__)
    walk.key.append(value)


def module(walk: Walk, value: types.ModuleType) -> None:
    """A module used as a value."""
    if not is_library_module(value) or value.__name__ in REFLECTION:
        raise Opaque(f"the module `{value.__name__}` used as a value")
    walk.key.append(value)


def is_fixed(value: types.FunctionType) -> bool:
    """Whether a function is one that a library has under its own name: never copied."""
    return recipe_of(value.__code__).library and is_permanent(value)


def is_permanent(value: Any) -> bool:
    """Whether a thing is what its qualified name in an installed library says."""
    name = peek(value, "__module__")
    path = peek(value, "__qualname__") or peek(value, "__name__")
    if (
        not isinstance(name, str)
        or not isinstance(path, str)
        or not is_library_name(name)
    ):
        return False
    found: Any = sys.modules.get(name)
    for part in path.split("."):
        found = peek(found, part)
    return found is value
