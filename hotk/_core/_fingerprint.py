"""Programs compared by value."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from ._compat import CUSTOM, ClosedJaxpr, Jaxpr, Literal, Tracer


# Parameters that do not change what a program computes, only how it is named.
_NAMES = frozenset({"name", "debug_info", "fwd_name", "keep_unused"})
# Rules of functions with their own derivative: irrelevant once a program is only run.
_RULES = frozenset(
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
        key.append(tuple(map(_content, closed.consts)))
        constants = ()
    _print_jaxpr(closed.jaxpr, key)
    return tuple(key), constants


def _aval(variable: Any) -> Hashable:
    return variable.aval


def _content(value: Any) -> Hashable:
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


def same_program(first: Any, second: Any, places: list[Any]) -> bool:
    """Whether two programs are equal once constants of the second are arguments.

    Args:
        first: A closed jaxpr without such constants.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the value of the constant that takes its
            place in the second, or `None` for an argument.
    """
    arguments = iter(second.jaxpr.invars)
    constants = list(zip(second.jaxpr.constvars, second.consts, strict=True))
    inputs: list[Any] = []
    for place in places:
        if place is None:
            inputs.append(next(arguments))
            continue
        found = [
            i for i, (_, value) in enumerate(constants) if _same_array(value, place)
        ]
        inputs.append(constants.pop(found[0])[0] if found else object())
    keys: tuple[list[Hashable], list[Hashable]] = ([], [])
    try:
        kept = tuple(_content(value) for _, value in constants)
        if kept != tuple(map(_content, first.consts)):
            return False
        for closed, key, order in (
            (first, keys[0], [*first.jaxpr.invars, *first.jaxpr.constvars]),
            (second, keys[1], [*inputs, *(variable for variable, _ in constants)]),
        ):
            _print_equations(closed.jaxpr, key, {v: i for i, v in enumerate(order)})
    except (Unrecognized, KeyError):
        return False
    return keys[0] == keys[1]


def _same_array(constant: Any, place: Any) -> bool:
    if np.shape(constant) != np.shape(place):
        return False
    return np.asarray(constant).astype(place.dtype).tobytes() == place.tobytes()


def _print_jaxpr(jaxpr: Any, key: list[Hashable]) -> None:
    number: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        number[variable] = len(number)
        key.append(_aval(variable))
    _print_equations(jaxpr, key, number)


def _print_equations(jaxpr: Any, key: list[Hashable], number: dict[Any, int]) -> None:
    def atom(value: Any) -> Hashable:
        if isinstance(value, Literal):
            return ("literal", _aval(value), _content(value.val))
        return number[value]

    for equation in jaxpr.eqns:
        key.append(equation.primitive)
        key.append(_context(equation.ctx))
        key.append(tuple(map(atom, equation.invars)))
        custom = equation.primitive.name in CUSTOM
        for name in sorted(equation.params):
            if name in _NAMES or (custom and name in _RULES):
                continue
            key.append(name)
            _print_parameter(equation.params[name], key)
        for variable in equation.outvars:
            number[variable] = len(number)
            key.append(_aval(variable))
    key.append(tuple(map(atom, jaxpr.outvars)))


def _context(context: Any) -> Hashable:
    """Return the settings that an equation was traced under and keeps."""
    metadata = getattr(context, "xla_metadata", None)
    return (
        getattr(context, "compute_type", None),
        getattr(context, "threefry_partitionable", None),
        str(metadata) if metadata else None,
    )


def _print_parameter(value: Any, key: list[Hashable]) -> None:
    if isinstance(value, ClosedJaxpr):
        key.append(tuple(map(_content, value.consts)))
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
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        key.append(_content(value))
    elif isinstance(value, float):
        key.append((float, value.hex()))
    else:
        try:
            hash(value)
        except TypeError as error:
            raise Unrecognized(f"a parameter of type {type(value).__name__}") from error
        key.append((type(value), value))
