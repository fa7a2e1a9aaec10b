"""Captured jitted functions: what is inside, with their options."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

import equinox as eqx

from hotk._core import JITTED, has_jit_options, jit_like, jit_options

from ._captured_type import CapturedType, register
from ._description import ATTRIBUTE, Description
from ._library import is_permanent
from ._mappings import describe_dict
from ._nodes import describe_node
from ._rebuild import FILTER_JITTED, Rebuild


class _Wrapper(Protocol):
    """A function that a library has made around another one."""

    __wrapped__: Callable[..., object]


# ----- Functions of `jax.jit`


def _describe_jitted(d: Description, value: _Wrapper, here: str) -> None:
    """A jitted function: the function inside and its options, if it can be seen.

    One that cannot is known by its identity, with what JAX remembers of it.
    """
    if d.met(value, here):
        return
    options = None if is_permanent(value) else jit_options(value)
    if options is None or not d.attempt(_describe_inside, value, here):
        d.identity(value, here)
        if d.trail is not None:
            d.trail.nodes[id(value)].treatment = "static by identity"


def _describe_inside(d: Description, value: _Wrapper, here: str) -> None:
    options = jit_options(value)
    d.note(options)
    d.ask("type({0}) is {1} and {2}({0}, {3})", here, JITTED, has_jit_options, options)
    d.attribute(value, "__wrapped__", here)
    # In a dict that is made anew each time: too rare for a guard.
    own = _own_attributes(value)
    if own:
        d.unguarded()
        describe_dict(d, own, "")
    else:
        d.ask("not {1}({0})", here, _own_attributes)


def _own_attributes(value: object) -> dict[str, Any]:
    """Return the attributes that the user gave to a jitted function."""
    of_jax = ("_fun", "_jit_info")
    found = vars(value).items()
    return {k: v for k, v in found if k[:2] != "__" and k not in of_jax}


def _rebuild_jitted(rebuild: Rebuild, value: _Wrapper) -> Any:
    inner = rebuild(value.__wrapped__)
    if id(value) in rebuild.copies:  # what is inside holds the jitted function itself
        return rebuild.copies[id(value)]
    copy = rebuild.copies[id(value)] = jit_like(value, inner)
    for name, item in _own_attributes(value).items():
        vars(copy)[name] = rebuild(item)
    return copy


register(
    CapturedType(
        describe=_describe_jitted,
        rebuild=_rebuild_jitted,
        treatment="traversed",
        mutable=False,
    ),
    JITTED,
)


# ----- Functions of `equinox.filter_jit`


class _FilterJitted(_Wrapper, Protocol):
    """What `equinox.filter_jit` returns, with what it was told."""

    _cached: Callable[..., object]
    filter_warning: bool
    donate_first: bool
    donate_rest: bool


def _describe_filter_jitted(d: Description, value: _FilterJitted, here: str) -> None:
    """What is inside, if a like one can be made; else a node, as all of equinox."""
    inner = value.__wrapped__
    if not isinstance(inner, FunctionType) or not _has_default_options(value, inner):
        describe_node(d, value, here)
        return
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, type(value))
    cached = value._cached
    d.ask("{1}({0}) == {2}", here, _filter_options, _filter_options(value))
    d.ask("{1}({0}._cached, {2})", here, has_jit_options, jit_options(cached))
    d.part(inner, ".{}", "__wrapped__", here, ATTRIBUTE)


def _has_default_options(value: _FilterJitted, inner: Callable[..., object]) -> bool:
    like: Any = eqx.filter_jit(inner)
    options = jit_options(value._cached), jit_options(like._cached)
    same = _filter_options(like) == _filter_options(value)
    return same and options[0] is not None and options[0] == options[1]


def _filter_options(value: _FilterJitted) -> tuple[Any, ...]:
    """Return what a function of `equinox.filter_jit` was told besides the function."""
    return value.filter_warning, value.donate_first, value.donate_rest


def _rebuild_filter_jitted(rebuild: Rebuild, value: _FilterJitted) -> Any:
    return eqx.filter_jit(rebuild(value.__wrapped__))


register(
    CapturedType(
        describe=_describe_filter_jitted,
        rebuild=_rebuild_filter_jitted,
        treatment="traversed",
        mutable=False,
    ),
    FILTER_JITTED,
)
