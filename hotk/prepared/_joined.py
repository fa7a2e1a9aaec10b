"""From the traced program of a function to what runs an operator of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hotk._core import (
    PASSED_ON,
    ClosedJaxpr,
    Leaf,
    Unrecognized,
    inlined,
    inner_constants,
    trace_context,
    unkeyed_setting,
)
from hotk.capture import Opaque, TracedProgram
from hotk.mode import Facts

from ._call import Call
from ._derive import Evaluation
from ._family import Bound, Member, SharedFunction
from ._plan import Fallback, first_line, may_try, plans
from ._program import Primal, Program, Runner, types_of
from ._store import STORE
from .warnings import warn_if_nested


class TracedFunction(NamedTuple):
    """A function of the user, traced at one structure of its arguments.

    Attributes:
        primal: The function, if it is traced for all operators.
        program: Its program: of the captured arrays, the point's and the arguments'.
        facts: What limits the modes.
    """

    primal: Primal | None
    program: TracedProgram
    facts: Facts


def join(
    call: Call, traced: TracedFunction, own: Callable[[], Program] | None = None
) -> Runner:
    """Find or make the program of a call in the family of its function.

    Args:
        call: The call.
        traced: The function of it.
        own: Makes the program that is the function's own, if it can have one.

    Returns:
        What runs the call.

    Raises:
        Unrecognized: If the program of the function cannot be compared with others, or
            the structure of the result is that of indices.
        Fallback: If no mode works.
    """
    if call.options.definition.static_arrays:
        # A shared program takes constants and numbers as arguments, indices among them.
        raise Unrecognized("the structure of its result is that of indices")
    member = _member(traced.program.closed, len(call.captured))
    # The size of a named axis is a number in a program, and so are settings: each
    # context has families of its own (`a_named_axis_has_the_size_of_the_call`).
    family = STORE.family((trace_context(), unkeyed_setting(), member.form.key))
    variant = family.variant(member)
    bound = Bound(member, variant, call.captured, call.pinned)
    captured = bound.arrange(call.captured)
    out_tree = traced.program.out_tree
    plain = own is not None and member.is_plain() and not variant.open
    inputs = call.inputs
    asked = (call.options, call.tree, tuple(inputs.statics), inputs.castable)
    key = (asked, out_tree, plain, types_of(captured, inputs.arrays))
    program = variant.programs.get(key)
    if program is not None:
        STORE.joined()
    else:
        if plain and own is not None:
            new = own()
        else:
            shared = SharedFunction(variant, out_tree)
            new = make_program(call, traced, shared, captured)
        program = variant.programs.setdefault(key, new)
    if call.pinned and traced.primal is not None:
        # The program of the function holds these arrays, what is made of it does not.
        STORE.forget(call.key, traced.primal)
    return program if plain else bound.bind(program)


def _member(closed: ClosedJaxpr, count: int) -> Member:
    """Read the program of a function whose first inputs are its captured arrays."""
    if inner_constants(closed):
        closed = inlined(closed, keep_rules=True)
        if inner_constants(closed):
            raise Unrecognized("a rule that has captured an array")
    return Member.of(closed, count)


def make_program(
    call: Call,
    traced: TracedFunction,
    evaluation: Evaluation | None,
    captured: Sequence[Leaf],
) -> Program:
    """Trace an operator in the first mode in which it exists.

    Args:
        call: The call.
        traced: The function of it.
        evaluation: Evaluates the function: itself, or a program that it shares.
        captured: What goes into that besides the arguments.
    """
    arrays = call.inputs.arrays
    failures: list[Exception] = []
    lines: list[str] = []
    types = types_of(captured, arrays)
    closed, facts = traced.program.closed, traced.facts
    for plan in plans(call, closed, traced.program.shapes[0]):
        if not may_try(plan, failures):
            continue
        program = Program(call.options, evaluation, call.tree, plan, facts, types)
        try:
            program.trace(call, captured, arrays)
        except PASSED_ON:
            raise
        except Opaque as reason:
            raise Fallback(str(reason)) from reason
        except Exception as error:
            failures.append(error)
            lines.append(f"{plan}: {first_line(error)}")
            continue
        name = call.options.definition.call()
        warn_if_nested(name, call.f, closed.jaxpr, facts.order, plan.mode.nests)
        return program
    raise Fallback("; ".join(lines))
