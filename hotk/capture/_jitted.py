"""Captured jitted functions: what is inside, with their options."""

import weakref
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any, Protocol

import equinox as eqx

from hotk._core import JITTED, has_jit_options, jit_like, jit_options

from ._captured_type import CapturedType, register
from ._library import is_permanent
from ._mappings import visit_dict
from ._nodes import guard_node, visit_node
from ._rebuild import FILTER_JITTED, Rebuild
from ._values import visit_weak_identity
from ._walk import Walk
from ._writer import Unguarded, Writer, guard_weak_identity


class _Wrapper(Protocol):
    """A function that a library has made around another one."""

    __wrapped__: Callable[..., object]


# ----- Functions of `jax.jit`


def _visit_jitted(walk: Walk, value: _Wrapper) -> None:
    """A jitted function: the function inside and its options, if it can be seen.

    One that cannot is known by its identity, with what JAX remembers of it.
    """
    if walk.met(value):
        return
    options = None if is_permanent(value) else jit_options(value)
    if options is None or not walk.attempt(lambda: _visit_inside(walk, value, options)):
        visit_weak_identity(walk, value)
        if walk.trail is not None:
            walk.trail.nodes[id(value)].treatment = "static by identity"


def _visit_inside(walk: Walk, value: _Wrapper, options: Hashable) -> None:
    walk.key.append(options)
    walk.visit(value.__wrapped__, ".__wrapped__")
    own = _own_attributes(value)
    if own:
        visit_dict(walk, own)


def _own_attributes(value: object) -> dict[str, Any]:
    """Return the attributes that the user gave to a jitted function."""
    of_jax = ("_fun", "_jit_info")
    found = vars(value).items()
    return {k: v for k, v in found if k[:2] != "__" and k not in of_jax}


def _guard_jitted(w: Writer, value: _Wrapper, here: str) -> None:
    # Whether a walk sees through it is known once one has tried.
    walk = Walk()
    walk.static_depth = w.static_depth
    walk.visit(value)
    if walk.key[-1] == weakref.ref(value) and len(walk.key) == 1:
        guard_weak_identity(w, value, here)
        return
    if w.met(value, here, JITTED):
        return
    options = w.constant(jit_options(value))
    w.require(f"type({here}) is {w.constant(JITTED)}")
    w.require(f"{w.constant(has_jit_options)}({here}, {options})")
    w.visit(value.__wrapped__, f"{here}.__wrapped__")
    # A walk has them in a dict that is made anew each time: too rare for a guard.
    if _own_attributes(value):
        raise Unguarded
    w.require(f"not {w.constant(_own_attributes)}({here})")


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
        visit=_visit_jitted,
        guard=_guard_jitted,
        rebuild=_rebuild_jitted,
        treatment="traversed",
        mutable=False,
        refilled=False,
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


def _visit_filter_jitted(walk: Walk, value: _FilterJitted) -> None:
    """What is inside, if a like one can be made; else a node, as all of equinox."""
    inner = value.__wrapped__
    if not isinstance(inner, FunctionType) or not _has_default_options(value, inner):
        visit_node(walk, value)
        return
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.visit(inner, ".__wrapped__")


def _has_default_options(value: _FilterJitted, inner: Callable[..., object]) -> bool:
    like: Any = eqx.filter_jit(inner)
    options = jit_options(value._cached), jit_options(like._cached)
    same = _filter_options(like) == _filter_options(value)
    return same and options[0] is not None and options[0] == options[1]


def _filter_options(value: _FilterJitted) -> tuple[Any, ...]:
    """Return what a function of `equinox.filter_jit` was told besides the function."""
    return value.filter_warning, value.donate_first, value.donate_rest


def _guard_filter_jitted(w: Writer, value: _FilterJitted, here: str) -> None:
    inner = value.__wrapped__
    if not isinstance(inner, FunctionType) or not _has_default_options(value, inner):
        guard_node(w, value, here)
        return
    if w.met(value, here, "filtered"):
        return
    given = w.constant(_filter_options)
    options = w.constant(_filter_options(value))
    cached = w.constant(jit_options(value._cached))
    w.require(f"type({here}) is {w.constant(type(value))}")
    w.require(f"{given}({here}) == {options}")
    w.require(f"{w.constant(has_jit_options)}({here}._cached, {cached})")
    w.visit(inner, f"{here}.__wrapped__")


def _rebuild_filter_jitted(rebuild: Rebuild, value: _FilterJitted) -> Any:
    return eqx.filter_jit(rebuild(value.__wrapped__))


register(
    CapturedType(
        visit=_visit_filter_jitted,
        guard=_guard_filter_jitted,
        rebuild=_rebuild_filter_jitted,
        treatment="traversed",
        mutable=False,
        refilled=False,
    ),
    FILTER_JITTED,
)
