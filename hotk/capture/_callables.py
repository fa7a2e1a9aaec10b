"""Captured methods, partials, derivative rules, builtins and modules."""

import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotk._core import peek

from ._captured_type import CapturedType, register, uncopied
from ._library import is_library_class, is_library_module, is_permanent
from ._mappings import guard_entries, visit_dict
from ._parts import first_reads, guard_read, visit_read
from ._rebuild import Rebuild
from ._reflection import REFLECTION, check_tracked
from ._walk import KEEPS, Opaque, Walk
from ._writer import Unguarded, Writer, guard_identity, guard_weak_identity


# ----- Bound methods


def _visit_method(walk: Walk, value: Any) -> None:
    """A bound method: its function and its object."""
    walk.key.append(types.MethodType)
    function = value.__func__
    walk.visit(function, ".__func__")
    visit_read(walk, value.__self__, first_reads(function), ".__self__")


def _guard_method(w: Writer, value: Any, here: str) -> None:
    w.require(f"type({here}) is {w.constant(type(value))}")  # equinox has its own
    function = value.__func__
    w.visit(function, f"{here}.__func__")
    guard_read(w, value.__self__, first_reads(function), f"{here}.__self__")


def _rebuild_method(rebuild: Rebuild, value: Any) -> types.MethodType:
    return types.MethodType(rebuild(value.__func__), rebuild(value.__self__))


METHOD = CapturedType(
    visit=_visit_method,
    guard=_guard_method,
    rebuild=_rebuild_method,
    treatment="traversed",
    mutable=False,
    refilled=False,
)
register(METHOD, types.MethodType)


# ----- Partials


def _attributes(value: functools.partial[object]) -> dict[str, Any]:
    """Return the attributes of a partial without giving it a `__dict__`.

    A partial of one that has a `__dict__` is nested, and not joined to one.
    """
    reduced: Any = functools.partial.__reduce__(value)
    return reduced[2][3] or {}


def _visit_partial(walk: Walk, value: functools.partial[object]) -> None:
    walk.key.append(type(value))
    walk.visit(value.func, ".func")
    walk.key.append(len(value.args))
    for i, item in enumerate(value.args):
        walk.visit(item, " argument {}", i)
    visit_dict(walk, value.keywords)
    attributes = _attributes(value)
    if attributes:
        visit_dict(walk, attributes)


def _guard_partial(w: Writer, value: functools.partial[object], here: str) -> None:
    if _attributes(value):
        raise Unguarded
    cls = w.constant(type(value))
    w.require(f"type({here}) is {cls} and not {w.constant(_attributes)}({here})")
    w.require(f"len({here}.args) == {len(value.args)}")
    w.visit(value.func, f"{here}.func")
    for i, item in enumerate(value.args):
        w.visit(item, f"{here}.args[{i}]")
    w.visit(value.keywords, f"{here}.keywords")


def _rebuild_partial(
    rebuild: Rebuild, value: functools.partial[object]
) -> functools.partial[object]:
    keywords = {name: rebuild(item) for name, item in value.keywords.items()}
    args = map(rebuild, value.args)
    copy = type(value)(rebuild(value.func), *args, **keywords)
    for name, item in _attributes(value).items():
        vars(copy)[name] = rebuild(item)
    return copy


PARTIAL = CapturedType(
    visit=_visit_partial,
    guard=_guard_partial,
    rebuild=_rebuild_partial,
    treatment="traversed",
    mutable=False,
    refilled=False,
)
register(PARTIAL, functools.partial)


# What JAX puts around a partial inside of a `jax.tree_util.Partial`: equal to its like
# if the two partials are one, whatever has become of the functions inside.
WRAPPED_PARTIAL: type = type(jax.tree_util.Partial(functools.partial(int)).func)


def _visit_wrapped_partial(walk: Walk, value: Any) -> None:
    walk.key.append(WRAPPED_PARTIAL)
    walk.visit(value.fun, ".func")


def _guard_wrapped_partial(w: Writer, value: Any, here: str) -> None:
    w.require(f"type({here}) is {w.constant(type(value))}")
    w.visit(value.fun, f"{here}.fun")


register(
    # It stands in the static data of a node only, where no array is replaced.
    uncopied(
        visit=_visit_wrapped_partial,
        guard=_guard_wrapped_partial,
        treatment="traversed",
    ),
    WRAPPED_PARTIAL,
)


# ----- Functions with their own derivatives


class CustomDerivative:
    """Base of functions with their own derivatives: walked by their attributes."""


CUSTOM_RULES = (jax.custom_jvp, jax.custom_vjp, CustomDerivative)


def _visit_rule(walk: Walk, value: object) -> None:
    """A function with its own derivative: its body and its rules."""
    if walk.met(value):
        return
    if is_permanent(value):
        walk.key.append(weakref.ref(value))
        return
    parts = _rule_parts(value)
    walk.key.append(type(value))
    walk.key.append(len(parts))
    for name, item in parts.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def _rule_parts(value: object) -> dict[str, Any]:
    """Return the attributes of a function with its own derivative: body and rules."""
    found = vars(value).items()
    return {k: v for k, v in found if not (k[:2] == "__" == k[-2:])}


def _guard_rule(w: Writer, value: object, here: str) -> None:
    if is_permanent(value):
        guard_weak_identity(w, value, here)
        return
    if w.met(value, here, "rule"):
        return
    parts = _rule_parts(value)
    w.require(f"type({here}) is {w.constant(type(value))}")
    place = w.assign(parts, f"{w.constant(_rule_parts)}({here})")
    guard_entries(w, parts, place)


def _rebuild_rule(rebuild: Rebuild, value: object) -> object:
    # JAX runs its rules when the program is differentiated, which may be after the
    # trace: with tracers in them they cannot be used, and the function is opaque.
    rebuild.has_rules = rebuild.has_rules or not isinstance(value, CustomDerivative)
    return rebuild.copy_object(value, recorded=False)


CUSTOM_RULE = CapturedType(
    visit=_visit_rule,
    guard=_guard_rule,
    rebuild=_rebuild_rule,
    treatment="traversed",
    mutable=False,
    refilled=False,
)


# ----- Functions of `functools.lru_cache`


def _visit_memo(walk: Walk, value: Callable[..., object]) -> None:
    """A function that keeps what it returns: a tracer of a trace that has ended."""
    if not is_permanent(value):
        raise Opaque(KEEPS)
    walk.key.append(weakref.ref(value))


def _guard_memo(w: Writer, value: Callable[..., object], here: str) -> None:
    if not is_permanent(value):
        raise Unguarded
    guard_weak_identity(w, value, here)


register(
    uncopied(visit=_visit_memo, guard=_guard_memo, treatment="static"),
    functools._lru_cache_wrapper,
)


# ----- Builtins and modules


# What a bound builtin may belong to: modules, classes, immutable values, and a counter,
# which is how one counts traces.
_HARMLESS_OWNERS = (
    *(type(None), types.ModuleType, str, bytes, int, float, complex),
    *(range, itertools.count, np.ufunc, np.dtype),
)


def _visit_builtin(walk: Walk, value: types.BuiltinFunctionType) -> None:
    """A builtin function or method."""
    owner = peek(value, "__self__")
    library = isinstance(owner, type) and is_library_class(owner)
    if not library and not isinstance(owner, _HARMLESS_OWNERS):
        raise Opaque(f"a method of a {type(owner).__name__} that can change")
    check_tracked(walk, value, value.__name__)
    walk.key.append(value)


def _guard_builtin(w: Writer, value: types.BuiltinFunctionType, here: str) -> None:
    if not isinstance(value.__self__, types.ModuleType):
        raise Unguarded
    _visit_builtin(Walk(), value)
    guard_identity(w, value, here)


register(
    uncopied(
        visit=_visit_builtin, guard=_guard_builtin, treatment="static by identity"
    ),
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)


def _visit_module(walk: Walk, value: types.ModuleType) -> None:
    """A module used as a value: what is read off it cannot be told."""
    if not is_library_module(value) or value.__name__ in REFLECTION:
        raise Opaque(f"the module `{value.__name__}` used as a value")
    walk.key.append(value)


def _guard_module(w: Writer, value: types.ModuleType, here: str) -> None:
    _visit_module(Walk(), value)
    guard_identity(w, value, here)


def _rebuild_module(rebuild: Rebuild, value: types.ModuleType) -> types.ModuleType:
    """Copy a module of the user through which an array was reached."""
    copy = types.ModuleType(value.__name__)
    rebuild.copies[id(value)] = copy
    for name, item in list(vars(value).items()):
        if id(item) in rebuild.to_copy or id(item) in rebuild.copies:
            vars(copy)[name] = rebuild(item)
            rebuild.undo_log.entry(vars(copy), name)
        else:
            vars(copy)[name] = item
    return copy


register(
    CapturedType(
        visit=_visit_module,
        guard=_guard_module,
        rebuild=_rebuild_module,
        treatment="static by identity",
        mutable=False,
        refilled=True,
    ),
    types.ModuleType,
)
