"""Visitors of functions, methods, partials, builtins and modules."""

import builtins
import functools
import itertools
import sys
import types
import weakref
from typing import Any, ClassVar, Final

import numpy as np

from hotk._core import peek

from ._classes import is_library_class, mapping
from ._recipe import Recipe, is_library_module, is_library_name, recipe_of
from ._walk import KEEPS, Opaque, Walk


class Ruled:
    """Base of functions with their own derivatives: walked by their attributes.

    Attributes:
        calls: How often one was applied: what it holds is run once more in lowering.
    """

    calls: ClassVar[int] = 0


MISSING: Final = "<missing global>"
_BUILTINS = vars(builtins)
_PLAIN_MODULES: set[types.ModuleType] = set()
# What a bound builtin may belong to: modules, classes, immutable values, and a counter,
# which is how one counts traces.
_HARMLESS_OWNERS = (
    *(type(None), types.ModuleType, str, bytes, int, float, complex),
    *(range, itertools.count, np.ufunc, np.dtype),
)
_BUILTIN_TYPES = (types.BuiltinFunctionType, type, str)
_UNSEEN = {
    id(_BUILTINS[name])
    for name in ("globals", "eval", "exec", "compile", "__import__", "id", "breakpoint")
}
REFLECTION = frozenset({"sys", "importlib", "inspect", "gc", "ctypes", "os", "random"})


def function(walk: Walk, value: types.FunctionType) -> None:
    """A Python function: its code, defaults, cells and the globals it reads."""
    recipe = recipe_of(value.__code__)
    key = walk.key
    if is_fixed(value):
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
            try:
                content = cell.cell_contents
            except ValueError:
                key.append("<empty cell>")
                continue
            walk.visit(content, " cell `{}`", name)
    if value.__defaults__ or value.__kwdefaults__ or value.__dict__:
        _defaults(walk, value, recipe)
    else:
        key.append(None)
    if recipe.library:
        return
    if recipe.writes is not None:
        raise Opaque(f"it writes {recipe.writes}")
    if recipe.names:
        _globals(walk, value, recipe)
    for name in recipe.imports:
        if not is_library_name(name.partition(".")[0]):
            raise Opaque(f"it imports `{name}` while it runs")


def is_usual_builtin(name: str, found: Any) -> bool:
    """Whether a builtin is the one that Python came with, and reads nothing unseen."""
    usual = found is _BUILTINS.get(name, MISSING)
    return usual and type(found) in _BUILTIN_TYPES and id(found) not in _UNSEEN


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
            if id(found) in _UNSEEN:
                raise Opaque(f"`{name}` reads what no walk can see")
            if is_usual_builtin(name, found):
                key.append(found)
            else:
                walk.visit(found, " builtin `{}`", name)
        elif type(found) is not types.ModuleType:
            walk.visit(found, " global `{}`", name)
        elif found in _PLAIN_MODULES:
            key.append(found)
        else:
            _module_attributes(walk, found, name, recipe)


def _module_attributes(
    walk: Walk, found: types.ModuleType, name: str, recipe: Recipe
) -> None:
    if found.__name__ in REFLECTION:
        raise Opaque(f"the module `{found.__name__}` reads what no walk can see")
    if is_library_module(found):
        _PLAIN_MODULES.add(found)
        walk.key.append(found)
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
    walk.visit(value.__func__, ".__func__")
    walk.visit(value.__self__, ".__self__")


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


def custom_rule(walk: Walk, value: Any) -> None:
    """A function with its own derivative: its body and its rules."""
    if walk.met(value):
        return
    if is_permanent(value):
        walk.key.append(weakref.ref(value))
        return
    kept = {name: item for name, item in vars(value).items() if name[:2] != "__"}
    walk.key.append(type(value))
    walk.key.append(len(kept))
    for name, item in kept.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def memo(walk: Walk, value: Any) -> None:
    """A function of `functools.lru_cache`: it keeps what it returns."""
    if not is_permanent(value):
        raise Opaque(KEEPS)
    walk.key.append(weakref.ref(value))


def builtin(walk: Walk, value: Any) -> None:
    """A builtin function or method."""
    owner = getattr(value, "__self__", None)
    library = isinstance(owner, type) and is_library_class(owner)
    if not library and not isinstance(owner, _HARMLESS_OWNERS):
        raise Opaque(f"a method of a {type(owner).__name__} that can change")
    if id(value) in _UNSEEN:
        raise Opaque(f"`{value.__name__}` reads what no walk can see")
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
        found = getattr(found, part, None)
    return found is value
