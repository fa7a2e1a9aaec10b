"""Captured methods, partials, derivative rules, builtins and modules."""

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotk._core import peek

from ._captured_type import CapturedType, register, uncopied
from ._cause import KEEPS, Opaque, OpaqueCause, state_of
from ._description import ATTRIBUTE, Description
from ._library import is_library_class, is_library_module, is_permanent
from ._mappings import describe_dict, describe_entries
from ._parts import describe_read, first_reads
from ._rebuild import Rebuild
from ._reflection import REFLECTION, check_tracked


# ----- Bound methods


def _describe_method(d: Description, value: Any, here: str) -> None:
    """A bound method: its function and its object."""
    d.note(types.MethodType)
    d.ask("type({0}) is {1}", here, type(value))  # equinox has its own
    function = value.__func__
    d.attribute(value, "__func__", here)
    reads = first_reads(function)
    describe_read(d, value.__self__, reads, ".{}", "__self__", here, ATTRIBUTE)


def _rebuild_method(rebuild: Rebuild, value: Any) -> types.MethodType:
    return types.MethodType(rebuild(value.__func__), rebuild(value.__self__))


METHOD = CapturedType(
    describe=_describe_method,
    rebuild=_rebuild_method,
    treatment="traversed",
    mutable=False,
)
register(METHOD, types.MethodType)


# ----- Partials


def _attributes(value: functools.partial[object]) -> dict[str, Any]:
    """Return the attributes of a partial without giving it a `__dict__`.

    A partial of one that has a `__dict__` is nested, and not joined to one.
    """
    reduced: Any = functools.partial.__reduce__(value)
    return reduced[2][3] or {}


def _describe_partial(
    d: Description, value: functools.partial[object], here: str
) -> None:
    count = len(value.args)
    d.same("type({0}) is {1} and len({0}.args) == {2}", here, type(value), count)
    d.attribute(value, "func", here)
    for i, item in enumerate(value.args):
        d.part(item, " argument {}", i, here, "{0}.args[{1}]")
    describe_dict(d, value.keywords, d.let(value.keywords, "{0}.keywords", here))
    attributes = _attributes(value)
    if attributes:
        d.unguarded()
        describe_dict(d, attributes, "")
    else:
        d.ask("not {1}({0})", here, _attributes)


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
    describe=_describe_partial,
    rebuild=_rebuild_partial,
    treatment="traversed",
    mutable=False,
)
register(PARTIAL, functools.partial)


# What JAX puts around a partial inside of a `jax.tree_util.Partial`: equal to its like
# if the two partials are one, whatever has become of the functions inside.
WRAPPED_PARTIAL: type = type(jax.tree_util.Partial(functools.partial(int)).func)


def _describe_wrapped_partial(d: Description, value: Any, here: str) -> None:
    d.same("type({0}) is {1}", here, WRAPPED_PARTIAL)
    d.part(value.fun, ".func", "", here, "{0}.fun")


# It stands in the static data of a node only, where no array is replaced.
register(uncopied(_describe_wrapped_partial, "traversed"), WRAPPED_PARTIAL)


# ----- Functions with their own derivatives


class CustomDerivative:
    """Base of functions with their own derivatives: walked by their attributes."""


CUSTOM_RULES = (jax.custom_jvp, jax.custom_vjp, CustomDerivative)


def _describe_rule(d: Description, value: object, here: str) -> None:
    """A function with its own derivative: its body and its rules."""
    if d.met(value, here):
        return
    if is_permanent(value):
        d.identity(value, here)
        return
    parts = _rule_parts(value)
    d.same("type({0}) is {1}", here, type(value))
    describe_entries(d, parts, d.let(parts, "{1}({0})", here, _rule_parts), ".{}")


def _rule_parts(value: object) -> dict[str, Any]:
    """Return the attributes of a function with its own derivative: body and rules."""
    found = vars(value).items()
    return {k: v for k, v in found if not (k[:2] == "__" == k[-2:])}


def _rebuild_rule(rebuild: Rebuild, value: object) -> object:
    # JAX runs its rules when the program is differentiated, which may be after the
    # trace: with tracers in them they cannot be used, and the function is opaque.
    rebuild.has_rules = rebuild.has_rules or not isinstance(value, CustomDerivative)
    return rebuild.copy_object(value)


CUSTOM_RULE = CapturedType(
    describe=_describe_rule,
    rebuild=_rebuild_rule,
    treatment="traversed",
    mutable=False,
)


# ----- Functions of `functools.lru_cache`


def _describe_memo(d: Description, value: Callable[..., object], here: str) -> None:
    """A function that keeps what it returns: a tracer of a trace that has ended."""
    if not is_permanent(value):
        raise Opaque(KEEPS)
    d.identity(value, here)


register(uncopied(_describe_memo, "static"), functools._lru_cache_wrapper)


# ----- Builtins and modules


# What a bound builtin may belong to: modules, classes, immutable values, and a counter,
# which is how one counts traces.
_HARMLESS_OWNERS = (
    *(type(None), types.ModuleType, str, bytes, int, float, complex),
    *(range, itertools.count, np.ufunc, np.dtype),
)


def _describe_builtin(
    d: Description, value: types.BuiltinFunctionType, here: str
) -> None:
    """A builtin function or method."""
    owner = peek(value, "__self__")
    library = isinstance(owner, type) and is_library_class(owner)
    if not library and not isinstance(owner, _HARMLESS_OWNERS):
        text = f"a method of a {type(owner).__name__} that can change"
        raise state_of(type(owner)).opaque(text)
    check_tracked(d, value, value.__name__)
    d.note(value)
    if not isinstance(owner, types.ModuleType):
        d.unguarded()
    d.ask("{0} is {1}", here, value)


register(
    uncopied(_describe_builtin, "static by identity"),
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)


def _describe_module(d: Description, value: types.ModuleType, here: str) -> None:
    """A module used as a value: what is read off it cannot be told."""
    if not is_library_module(value) or value.__name__ in REFLECTION:
        raise OpaqueCause.MODULE.opaque(
            f"the module `{value.__name__}` used as a value"
        )
    d.same("{0} is {1}", here, value)


def _rebuild_module(rebuild: Rebuild, value: types.ModuleType) -> types.ModuleType:
    """Copy a module of the user through which an array was reached."""
    copy = types.ModuleType(value.__name__)
    rebuild.copies[id(value)] = copy
    for name, item in list(vars(value).items()):
        if id(item) in rebuild.to_copy or id(item) in rebuild.copies:
            vars(copy)[name] = rebuild(item)
        else:
            vars(copy)[name] = item
    return copy


register(
    CapturedType(
        describe=_describe_module,
        rebuild=_rebuild_module,
        treatment="static by identity",
        mutable=False,
    ),
    types.ModuleType,
)
