"""From the traced program of a function to what runs an operator of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hotk._core import (
    PASSED_ON,
    Unrecognized,
    inlined,
    inner_constants,
    trace_context,
    unkeyed_setting,
)
from hotk.capture import RULE_CAPTURES_ARRAY, Opaque
from hotk.mode import Facts

from ._call import Call
from ._deep import warn_if_nested
from ._family import Bound, Function, Member
from ._plan import Fallback, first_line, may_try, plans
from ._program import Primal, Program, kinds_of
from ._store import STORE


class Traced(NamedTuple):
    """A function of the user, traced at one structure of its arguments.

    Attributes:
        primal: The function, if it is traced for all operators.
        jaxpr: Its program: of the captured arrays, the point's and the arguments'.
        shapes: What it returns.
        facts: What limits the modes.
    """

    primal: Primal | None
    jaxpr: Any
    shapes: Any
    facts: Facts


def join(call: Call, traced: Traced, own: Callable[[], Program] | None = None) -> Any:
    """Find or make the program of a call in the family of its function.

    Args:
        call: The call.
        traced: The function of it.
        own: Makes the program that is the function's own, if it can have one.

    Returns:
        What runs the call: it has `jit`, `run` and `compile`, as a `Program` has.

    Raises:
        Unrecognized: If the program of the function cannot be compared with others.
        Fallback: If no mode works.
    """
    member = _member(traced.jaxpr, len(call.captured))
    family = STORE.family((trace_context(), unkeyed_setting(), member.form.key))
    variant = family.variant(member)
    bound = Bound(member, variant, call.captured, call.pinned)
    captured = bound.captured(call.captured)
    out_tree = jax.tree.structure(traced.shapes)
    plain = own is not None and member.is_plain() and not variant.open
    asked = (call.options, call.tree, tuple(call.inputs.statics), call.inputs.marks)
    key = (asked, out_tree, plain, kinds_of(captured, call.inputs.arrays))
    program = variant.programs.get(key)
    if program is not None:
        STORE.joined()
    else:
        if plain and own is not None:
            made = own()
        else:
            made = make_program(call, traced, Function(variant, out_tree), captured)
        program = variant.programs.setdefault(key, made)
    if call.pinned and traced.primal is not None:
        # The program of the function holds these arrays, what is made of it does not.
        STORE.forget(call.key, traced.primal)
    return program if plain else bound.to(program)


def _member(closed: Any, count: int) -> Member:
    """Read the program of a function whose first inputs are its captured arrays."""
    if inner_constants(closed):
        closed = inlined(closed, keep_rules=True)
        if inner_constants(closed):
            raise Unrecognized("a rule that has captured an array")
    return Member.of(closed, count)


def make_program(call: Call, traced: Traced, primal: Any, captured: Any) -> Program:
    """Trace an operator in the first mode in which it exists.

    Args:
        call: The call.
        traced: The function of it.
        primal: What evaluates the function: itself, or a program that it shares.
        captured: What goes into that besides the arguments.
    """
    arrays = call.inputs.arrays
    failures: list[Exception] = []
    told: list[str] = []
    kinds = kinds_of(captured, arrays)
    for plan in plans(call, traced.jaxpr, traced.shapes[0]):
        if not may_try(plan, failures):
            continue
        program = Program(call.options, primal, call.tree, plan, traced.facts, kinds)
        try:
            program.trace(call, captured, arrays)
        except PASSED_ON:
            raise
        except Opaque as reason:
            raise Fallback(str(reason)) from reason
        except jax.errors.UnexpectedTracerError as error:
            # A rule has failed for what was traced: none that derives from its body.
            raise Fallback(RULE_CAPTURES_ARRAY) from error
        except Exception as error:
            failures.append(error)
            told.append(f"{plan}: {first_line(error)}")
            continue
        order = traced.facts.order
        warn_if_nested(call, traced.jaxpr.jaxpr, order, plan.mode.nests)
        return program
    raise Fallback("; ".join(told))
