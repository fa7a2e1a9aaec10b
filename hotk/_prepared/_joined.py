"""From the traced program of a function to what runs an operator of it."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from hotk._capture import Opaque, OpaqueReason, TracedProgram
from hotk._core import (
    PASSED_ON,
    Leaf,
    Unrecognized,
    jaxpr_as_fun,
    trace_context,
    unkeyed_setting,
)
from hotk._mode import Facts

from ._call import Call
from ._contents import ContentNeeded
from ._family import Bound, Member, SharedFunction, Variant
from ._plan import Derived, Evaluation, Fallback, Plan, first_line, may_try, plans
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
    member = Member.of(traced.program.closed, len(call.captured))
    out_tree = traced.program.out_tree

    def make(variant: Variant, captured: Sequence[Leaf]) -> Program:
        return make_program(call, traced, SharedFunction(variant, out_tree), captured)

    runner = _join(call, member, (out_tree,), own, make)
    if call.pinned and traced.primal is not None:
        # The program of the function holds these arrays, what is made of it does not.
        STORE.forget(traced.primal)
    return runner


def join_derived(
    call: Call,
    traced: TracedProgram,
    plan: Plan,
    own: Callable[[], Program] | None = None,
) -> Runner:
    """Find or make what runs an operator of a function that joins no family.

    That is one whose derivative rules cannot be compared: the user's, or those of a
    library that hold more than arrays. The program of its operator is in a family
    nevertheless, as its rules have been applied already; it is run, and never
    differentiated. So another number costs a trace of the operator and no compile.

    Args:
        call: The call.
        traced: The operator of it, traced.
        plan: The mode that it was traced in.
        own: Makes the program that is the function's own, if it can have one.
    """
    count, out_tree = len(call.captured), traced.out_tree

    def program(run: Callable[..., list[Leaf]], captured: Sequence[Leaf]) -> Program:
        types = types_of(captured, call.inputs.arrays)
        evaluation = Derived(run, out_tree)
        new = Program(call.options, evaluation, call.tree, plan, None, types)
        new.trace(call, captured, call.inputs.arrays)
        return new

    make = lambda variant, captured: program(variant.run, captured)
    try:
        member = Member.of(traced.closed, count, only_run=True)
        return _join(call, member, ("derived", out_tree), own, make)
    except Unrecognized:
        if own is not None:
            return own()
        return program(jaxpr_as_fun(traced.closed), call.captured)


def _join(
    call: Call,
    member: Member,
    what: tuple[Hashable, ...],
    own: Callable[[], Program] | None,
    make: Callable[[Variant, Sequence[Leaf]], Program],
) -> Program | Bound:
    """Find or make the program of a call in a family of programs.

    Args:
        call: The call.
        member: A program of the call: of its function, or of the operator.
        what: What tells apart the operators made of one program.
        own: Makes the program that is the function's own, if it can have one.
        make: Makes another program, of a variant and what goes into it besides the
            arguments.
    """
    # The size of a named axis is a number in a program, and so are settings: each
    # context has families of its own (`a_named_axis_has_the_size_of_the_call`).
    family = STORE.family((trace_context(), unkeyed_setting(), member.form.key))
    variant = family.variant(member)
    bound = Bound(member, variant, call.captured, call.pinned)
    captured = bound.arrange(call.captured)
    plain = own is not None and member.is_plain() and not variant.open
    inputs = call.inputs
    asked = (call.options, call.tree, tuple(inputs.statics), inputs.castable)
    key = (asked, *what, plain, types_of(captured, inputs.arrays))
    program = variant.programs.get(key)
    if program is not None:
        STORE.joined()
    else:
        new = own() if plain and own is not None else make(variant, captured)
        program = variant.programs.setdefault(key, new)
    return program if plain else bound.bind(program)


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
        except (*PASSED_ON, ContentNeeded):
            raise
        except Opaque as opaque:
            raise Fallback(opaque.reason) from opaque
        except Exception as error:
            failures.append(error)
            lines.append(f"{plan}: {first_line(error)}")
            continue
        name = call.options.definition.call()
        warn_if_nested(name, call.f, closed.jaxpr, facts.order, plan.mode.nests)
        return program
    raise Fallback(OpaqueReason("; ".join(lines)))
