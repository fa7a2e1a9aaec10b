"""What derivative rules are known by, where programs of several functions are one."""

import contextlib
import functools
from collections.abc import Hashable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from hotk._core import (
    CUSTOM,
    ClosedJaxpr,
    Jaxpr,
    Tracer,
    Unrecognized,
    equations,
    is_type,
    rule_functions,
)

from ._callables import is_permanent
from ._recipe import is_library_file
from ._walk import Opaque, Walk


_DEEPEST = 12
_MOST_REACHED = 20_000
_ENDS = (
    *(type(None), bool, int, float, complex, str, bytes, type, ModuleType),
    *(jax.Array, np.ndarray, np.generic, Tracer, ClosedJaxpr, Jaxpr),
)
_TREEDEF = type(jax.tree.structure(0))
_PLAIN = (type(None), bool, int, str, bytes, type, np.dtype, _TREEDEF)


def rule_key(equation: Any, *, own: bool = False) -> Hashable:
    """Return what the rules of a function with its own derivative are known by.

    Rules of installed libraries are what their code says. One of the user may read
    what changes: it is known by what a walk of it finds now.

    Args:
        equation: The call of such a function.
        own: Whether rules of the user may be known: only where each program is derived
            with its own rules, as they may change after the first was made.

    Raises:
        Unrecognized: If a rule holds what cannot be compared.
    """
    try:
        parts, mapped = rule_functions(equation)
    except Exception as error:  # JAX keeps its rules elsewhere
        raise Unrecognized("a derivative rule that is not found") from error
    try:
        return (mapped, *(_part_key(part, 0) for part in parts))
    except Unrecognized:
        if not own:
            raise
    walk = Walk()
    try:
        for part in parts:
            walk.visit(part)
        walk.close()
    except (Opaque, RecursionError) as error:
        raise Unrecognized("a derivative rule that no walk sees through") from error
    if walk.leaves:
        raise Unrecognized("a derivative rule that has captured an array")
    return (mapped, *walk.key)


def holds_copies(closed: Any, copies: list[Any]) -> bool:
    """Whether a derivative rule inside of a program may read a copy made for its trace.

    The copies are emptied after the trace, and rules are run later: they would fail
    then, or compute from what is left.

    Args:
        closed: A closed jaxpr.
        copies: The objects and containers that stood for captured ones.
    """
    mine = set(map(id, copies))
    for equation in equations(closed.jaxpr):
        if equation.primitive.name not in CUSTOM:
            continue
        try:
            parts, _ = rule_functions(equation)
        except Exception:  # JAX keeps its rules elsewhere
            return True
        if _reaches(parts, mine):
            return True
    return False


def _reaches(parts: list[Any], wanted: set[int]) -> bool:
    """Whether any of some things can be reached through functions and attributes."""
    waiting, known = list(parts), set()
    while waiting:
        here = waiting.pop()
        if id(here) in wanted:
            return True
        if id(here) in known or isinstance(here, _ENDS):
            continue
        known.add(id(here))
        if len(known) > _MOST_REACHED:
            return True
        if isinstance(here, FunctionType):
            for cell in here.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)
            waiting += [here.__defaults__, here.__kwdefaults__, here.__dict__]
        elif isinstance(here, MethodType):
            waiting += [here.__func__, here.__self__]
        elif isinstance(here, functools.partial):
            waiting += [here.func, here.args, here.keywords]
        elif isinstance(here, dict):
            waiting += here.values()
        elif isinstance(here, (tuple, list, set, frozenset)):
            waiting += here
        else:
            waiting.append(getattr(here, "__dict__", None))
    return False


def _part_key(part: Any, depth: int) -> Hashable:
    if depth > _DEEPEST:
        raise Unrecognized("a derivative rule that is nested too deeply")
    below = depth + 1
    if isinstance(part, FunctionType):
        code = part.__code__
        if not is_library_file(code.co_filename):
            raise Unrecognized("a derivative rule of the user")
        if part.__closure__ is not None and is_permanent(part):
            return ("permanent", part)
        try:
            cells = [cell.cell_contents for cell in part.__closure__ or ()]
        except ValueError as error:
            raise Unrecognized("a derivative rule with an empty cell") from error
        defaults = (part.__defaults__ or (), part.__kwdefaults__ or {})
        held = _part_key((cells, defaults), below)
        return (code, part.__module__, held)
    if isinstance(part, (tuple, list)):
        return (type(part), *(_part_key(item, below) for item in part))
    if isinstance(part, dict):
        names = tuple(part)
        return (dict, names, _part_key(list(part.values()), below))
    if isinstance(part, functools.partial):
        return ("partial", _part_key((part.func, part.args, part.keywords), below))
    if isinstance(part, MethodType):
        return ("method", _part_key((part.__func__, part.__self__), below))
    if isinstance(part, (float, complex)):
        return (type(part), repr(part))
    if type(part) in _PLAIN or isinstance(part, type):
        return (type(part), part)
    if is_type(part):
        return (type(part), part)
    if is_permanent(part):
        return ("permanent", type(part), id(part))
    raise Unrecognized(f"a derivative rule that holds a {type(part).__name__}")
