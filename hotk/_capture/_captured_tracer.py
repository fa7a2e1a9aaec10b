"""Derivative rules, and functions of the host, that may reach a tracer.

A program keeps the derivative rules that were made during its trace, and runs them
later, when the tracers of that trace have ended.
"""

import gc
import weakref
from collections.abc import Iterable
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from hotk._core import (
    ARRAY,
    CUSTOM,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Tracer,
    equations,
    rule_functions,
    traits_of,
)

from ._code import facts_of
from ._library import is_library_class


# A search that is given up calls the function opaque: slow, and never wrong.
_MOST_REACHED = 20_000
_ENDS = (
    *(type(None), bool, int, float, complex, str, bytes, ModuleType),
    *(ARRAY, np.ndarray, np.generic, ClosedJaxpr, Jaxpr),
)


class EndedTracer:
    """Stands in a copy for a tracer whose trace has ended."""

    __slots__ = ()


def reaches_tracer(closed: ClosedJaxpr) -> JaxprEqn | None:
    """Return the first call whose derivative rule may reach a tracer of its trace.

    The program could be differentiated far from here, where nothing says what to do.
    """
    for equation in equations(closed.jaxpr):
        if _is_on_host(equation):
            return equation
        # JAX runs the rule of a `custom_vmap` when the program is batched.
        if "rule" in equation.params and _reaches([equation.params["rule"]]):
            return equation
        if equation.primitive.name not in CUSTOM:
            continue
        try:
            parts, _ = rule_functions(equation)
        except Exception:  # JAX keeps its rules elsewhere
            continue
        if _reaches(parts):
            return equation
    return None


def host_reaches_tracer(jaxpr: Jaxpr) -> bool:
    """Whether a function that the host runs may reach a tracer, which has no value."""
    for equation in equations(jaxpr):
        callback = equation.params.get("callback")
        host = traits_of(equation).on_host and _reaches([callback])
        if host or _is_on_host(equation):
            return True
    return False


def _is_on_host(equation: JaxprEqn) -> bool:
    """Whether it is a function with rules of which that is known."""
    ruled = equation.primitive.name == "hotk_ruled"
    return ruled and bool(equation.params["function"].on_host)


def _reaches(parts: Iterable[object]) -> bool:
    """Whether one can get there through functions, containers and attributes."""
    # `here` is asked by its type alone, and `known` holds ids: comparing or hashing a
    # thing of the user would run its code.
    waiting: list[Any] = list(parts)
    known: set[int] = set()
    while waiting:
        here = waiting.pop()
        cls = type(here)  # not `isinstance`: a lazy object would be woken by it
        if issubclass(cls, (EndedTracer, Tracer)):
            return True
        if id(here) in known or issubclass(cls, _ENDS):
            continue
        known.add(id(here))
        if len(known) > _MOST_REACHED:
            return True
        if issubclass(cls, type):
            waiting += () if is_library_class(here) else vars(here).values()
        elif cls is ContextVar:
            waiting.append(here.get(None))
        elif cls is FunctionType:
            waiting += _of_function(here)
        elif issubclass(cls, weakref.ref):
            waiting.append(here())
        else:
            waiting += gc.get_referents(here)
    return False


def _of_function(function: FunctionType) -> list[object]:
    """List what a function can read: of its module, the names that its code has.

    A module holds too much: from its namespace nearly everything can be reached.
    """
    found: list[object] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # empty
            continue
    found += [function.__defaults__, function.__kwdefaults__, function.__dict__]
    facts = facts_of(function.__code__)
    if not facts.library:
        found += [function.__globals__.get(name) for name in facts.globals]
    return found
