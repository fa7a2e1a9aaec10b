"""Programs compared by value."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from ._compat import CUSTOM, ClosedJaxpr, Jaxpr, Literal, Tracer


# Parameters that do not change what a program computes, only how it is named.
NAMES = frozenset({"name", "debug_info", "fwd_name", "keep_unused"})
# Rules of functions with their own derivative: irrelevant once a program is only run.
RULES = frozenset(
    {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}
)
_CONTENT_LIMIT = 1 << 24


class Unrecognized(Exception):
    """A program holds something that cannot be compared by value."""


def fingerprint(closed: Any, *, lift: bool) -> tuple[Hashable, tuple[Any, ...]]:
    """Return a key under which equal programs are equal, and the constants lifted out.

    Two programs with the same key compute the same numbers; their derivative rules may
    differ, so the key is good for running a program, not for differentiating it.

    Args:
        closed: A closed jaxpr.
        lift: Whether the constants of the outermost jaxpr are taken out (they become
            arguments); otherwise they are part of the key, bit by bit.

    Raises:
        Unrecognized: If a parameter cannot be compared by value.
    """
    key: list[Hashable] = []
    if lift:
        key.append(tuple(map(_aval, closed.jaxpr.constvars)))
        constants = tuple(closed.consts)
    else:
        key.append(tuple(map(content, closed.consts)))
        constants = ()
    _print_jaxpr(closed.jaxpr, key)
    return tuple(key), constants


def _aval(variable: Any) -> Hashable:
    return variable.aval


def content(value: Any) -> Hashable:
    """Return shape, dtype and bits of a constant."""
    if isinstance(value, Tracer):
        raise Unrecognized("a tracer among the constants")
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(
        value.dtype, jax.dtypes.extended
    ):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype == object or array.nbytes > _CONTENT_LIMIT:
        raise Unrecognized("a constant without comparable content")
    weak = bool(getattr(value, "weak_type", False))
    return (type(value), array.shape, array.dtype.name, weak, array.tobytes())


def _print_jaxpr(jaxpr: Any, key: list[Hashable]) -> None:
    number: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        number[variable] = len(number)
        key.append(_aval(variable))
    print_equations(jaxpr, key, number)


def print_equations(jaxpr: Any, key: list[Hashable], number: dict[Any, int]) -> None:
    def atom(value: Any) -> Hashable:
        if isinstance(value, Literal):
            return ("literal", _aval(value), content(value.val))
        return number[value]

    for equation in jaxpr.eqns:
        key.append(equation.primitive)
        key.append(context(equation.ctx))
        key.append(tuple(map(atom, equation.invars)))
        print_parameters(equation, key)
        for variable in equation.outvars:
            number[variable] = len(number)
            key.append(_aval(variable))
    key.append(tuple(map(atom, jaxpr.outvars)))


def print_parameters(equation: Any, key: list[Hashable]) -> None:
    """Write what an operation does besides its operands, but for names and rules."""
    custom = equation.primitive.name in CUSTOM
    for name in sorted(equation.params):
        if name in NAMES or (custom and name in RULES):
            continue
        key.append(name)
        _print_parameter(equation.params[name], key)


def context(made_under: Any) -> Hashable:
    """Return the settings that an equation was traced under and keeps."""
    metadata = getattr(made_under, "xla_metadata", None)
    return (
        getattr(made_under, "compute_type", None),
        getattr(made_under, "threefry_partitionable", None),
        str(metadata) if metadata else None,
    )


def _print_parameter(value: Any, key: list[Hashable]) -> None:
    if isinstance(value, ClosedJaxpr):
        key.append(tuple(map(content, value.consts)))
        _print_jaxpr(value.jaxpr, key)
    elif isinstance(value, Jaxpr):
        _print_jaxpr(value, key)
    elif isinstance(value, (tuple, list)):
        key.append((type(value), len(value)))
        for item in value:
            _print_parameter(item, key)
    elif isinstance(value, dict):
        key.append((dict, len(value)))
        for name, item in value.items():
            key.append(name)
            _print_parameter(item, key)
    else:
        print_plain(value, key)


def print_plain(value: Any, key: list[Hashable]) -> None:
    """Write a parameter that holds no program: an array, a number, a choice."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        key.append(content(value))
    elif isinstance(value, float):
        key.append((float, value.hex()))
    else:
        try:
            hash(value)
        except TypeError as error:
            raise Unrecognized(f"a parameter of type {type(value).__name__}") from error
        key.append((type(value), value))
