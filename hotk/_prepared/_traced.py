"""Programs whose captured arrays are arguments: found, or traced and checked."""

import functools
from collections.abc import Hashable, Iterable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._capture import (
    RULE_CAPTURES_ARRAY,
    WRITES,
    IndexedByJax,
    Opaque,
    OpaqueCause,
    OpaqueReason,
    TracedProgram,
    copied,
    facts_of,
    own_copy,
    reaches_tracer,
)
from hotk._core import (
    NEEDS_VALUE,
    PASSED_ON,
    ClosedJaxpr,
    JaxprEqn,
    Leaf,
    Tracer,
    Unrecognized,
    equations,
    function_name,
    in_trace,
    same_once_moved,
    same_program,
    trace_context,
    tracers_inside,
)
from hotk._mode import Facts

from ._call import Call
from ._checks import check_output
from ._joined import TracedFunction, join, join_derived, make_program
from ._plan import Fallback, first_line, raised_by_user
from ._program import Primal, Program, Runner, Types, types_of
from ._reasons import what_is_new
from ._store import STORE
from ._watch import run_shown
from .warnings import NEEDS_CONTENT, NUMPY_COMPUTES, warn_if_changing


Placed: TypeAlias = tuple[Hashable, ...]
"""The shardings of what goes into a program; empty if all is on single devices."""

HOST_KEEPS = OpaqueCause.HOST.says("a host callback keeps what it captured")


def call_traced(call: Call) -> PyTree:
    """Run a call whose captured arrays are arguments of its program."""
    captured, arrays = call.captured, call.inputs.arrays
    types = types_of(captured, arrays)
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        # The outer program takes it in: nothing is compiled here, and no program of
        # another function is taken, as its derivative rules may differ.
        return run_shown(find_program(call, types), call, captured, arrays)
    signed = types, trace_context()
    known = STORE.known(call.store_key, signed)
    runner = None if known is None else known.runner
    if runner is None:
        runner = make_runner(call, types)
        warn_if_changing(call.options.definition.call(), call.f)
        if runner.compile(call.f):
            STORE.compiled()
        STORE.add(call.store_key, signed, runner=runner)
        return run_shown(runner, call, captured, arrays)
    return runner.jit(*captured, *arrays)


def find_program(call: Call, types: Types, placed: Placed = ()) -> Program:
    """Return the program of a call for what goes into it, made if there is none.

    The size of a named axis, for one, is a number in the program: so each context has
    its own.

    Args:
        call: The call.
        types: The types of what goes in.
        placed: How arrays on several devices are divided, if the program is to be the
            one that is compiled for them. JAX compiles a jitted function for each by
            itself; but a `Prepared` is compiled once, and tells what that cost.
    """
    known = STORE.known(call.store_key, (types, (*trace_context(), *placed)))
    program = None if known is None else known.program
    if program is None:
        what = _what_is_new(call, types)
        program = own_program(call, types, trace_function(call), placed)
        STORE.missed(what)
    return program


def own_program(
    call: Call, types: Types, traced: TracedFunction, placed: Placed = ()
) -> Program:
    """Return the program that is the function's own, made if there is none."""
    signed = types, (*trace_context(), *placed)
    known = STORE.known(call.store_key, signed)
    if known is not None and known.program is not None:
        return known.program
    program = make_program(call, traced, _evaluate, call.captured)
    if program.lifted:
        return program
    known = STORE.add(call.store_key, signed, program=program)
    return known.program or program


def _what_is_new(call: Call, types: Types) -> str:
    name = f"{call.options.definition.name}({function_name(call.f)})"
    entry = STORE.entries.get(call.store_key)
    if entry is None:
        return f"{name}: {what_is_new(call)}"
    known = types in {other for other, _ in list(entry.specializations)}
    what = "other settings, axes or devices" if known else "a new signature"
    return f"{name}: {what}"


def make_runner(call: Call, types: Types) -> Runner:
    """Return what runs a call: a program of its own, or one shared with others."""
    what = _what_is_new(call, types)
    traced = trace_function(call)
    STORE.missed(what)
    make = lambda: own_program(call, types, traced)
    try:
        return join(call, traced, make)
    except Unrecognized:
        program = make()
    assert program.first is not None
    return join_derived(call, program.first, program.plan, lambda: program)


def trace_function(call: Call) -> TracedFunction:
    """Trace the function of a call, or return the trace that exists."""
    captured = call.captured
    leaves, _, arguments = call.unflatten(call.inputs.arrays)
    call.point(leaves)  # refuses one without anything to differentiate
    x = call.arrays_only(leaves, 0)
    args = call.arrays_only(arguments, call.ahead)
    try:
        primal = _primal(call, captured, x, args)
    except PASSED_ON:
        raise
    except (*NEEDS_VALUE, jax.errors.UnexpectedTracerError) as error:
        raise Fallback(NEEDS_CONTENT) from error
    except Opaque as opaque:
        raise Fallback(opaque.reason) from opaque
    except Exception as error:
        if is_own_error(error, call):
            raise
        raise Fallback(OpaqueReason(first_line(error))) from error
    traced = primal.program
    refused = _holds_tracer(traced.closed)
    if refused is not None:
        STORE.forget(primal)
        raise Fallback(refused)
    # It may have been traced for an operator that wants something else.
    definition = call.options.definition
    check_output(definition.call(), call.f, traced.shapes[0], definition.wants)
    check_numpy(call, primal, traced, x, args)
    jaxpr = traced.closed.jaxpr
    facts = Facts.of(jaxpr)
    if facts.callbacks and any(map(is_host_function, equations(jaxpr))):
        raise Fallback(HOST_KEEPS)
    return TracedFunction(primal, traced, facts)


def _holds_tracer(closed: ClosedJaxpr) -> OpaqueReason | None:
    """Say where a program holds a tracer of its trace, so that it must not be kept."""
    if tracers_inside(closed):
        return OpaqueCause.TRACER.says("something inside it captures a tracer")
    return RULE_CAPTURES_ARRAY if reaches_tracer(closed) else None


def _primal(
    call: Call, captured: Sequence[Leaf], x: Sequence[Leaf], args: Sequence[Leaf]
) -> Primal:
    """Return the function of a call as it was traced, or trace it."""
    # By what goes into the function, not the operator: it serves all of them.
    key = call.key, types_of(captured, [*x, *args]), trace_context()
    known = STORE.primal(key)
    if known is not None:
        return known
    STORE.traces += 1
    primal = Primal(key, call, captured, x, args)
    return primal if primal.lifted else STORE.keep(primal)


def _evaluate(
    call: Call, captured: Sequence[Leaf], x: Sequence[Leaf], args: Sequence[Leaf]
) -> tuple[PyTree, PyTree]:
    """Evaluate the function of a call; JAX may have dropped weak types on the way."""
    primal = _primal(call, captured, x, args)
    if primal.lifted:
        return call.evaluate(captured, x, args)
    run = primal.program
    if any(jax.typeof(a).weak_type for a in x):
        # Of a jitted function derivatives are as weak as the point, whatever the ones
        # and zeros that JAX starts with (`reliability/test_weak_types.py`).
        run = jax.jit(lambda *parts: primal.program(*parts))
    return run(captured, x, args)


def is_own_error(error: Exception, call: Call) -> bool:
    """Whether `f` raised an error that it would have raised without a trace as well.

    It would if nothing of it was replaced, or if its own code raised it and wrote
    nothing before; errors of type and attribute may be those of a tracer.
    """
    if not call.rebuilt and not call.replaces():
        return True
    if call.wrote or isinstance(error, (TypeError, AttributeError)):
        return False
    return raised_by_user(error)


def is_host_function(equation: JaxprEqn) -> bool:
    """Whether an equation runs Python code of the user on the host.

    It keeps what it captured, as a program is traced once: the arrays of that trace,
    where other calls have others.
    """
    waiting, known = [equation.params.get("callback")], 0
    while waiting and known < 64:
        here, known = waiting.pop(), known + 1
        if isinstance(here, FunctionType):
            if not facts_of(here.__code__).library:
                return True
            waiting.extend(_contents(here.__closure__ or ()))
        elif isinstance(here, functools.partial):
            waiting.extend((here.func, *here.args, *here.keywords.values()))
        elif isinstance(here, MethodType):
            waiting.append(here.__func__)
        elif callable(here):
            waiting.extend(vars(here).values() if hasattr(here, "__dict__") else ())
            waiting.append(getattr(here, "callback_func", None))
            waiting.append(vars(type(here)).get("__call__"))
    return False


def _contents(cells: Iterable[CellType]) -> list[object]:
    return [cell.cell_contents for cell in cells]


def check_numpy(
    call: Call,
    primal: Primal,
    traced: TracedProgram,
    x: Sequence[Leaf],
    args: Sequence[Leaf],
) -> None:
    """See that NumPy has no part in what `f` computes from captured NumPy arrays.

    With tracers in place of NumPy arrays, `f` computes by JAX what it would compute by
    NumPy, in other dtypes and by other rules. So it is traced once more with the NumPy
    arrays themselves: only if the two programs are the same are those arrays leaves.
    """
    numpy = call.numpy_inputs()
    if primal.checked or all(a is None for a in numpy):
        return
    inputs = [*call.captured, *x, *args]
    bounds = (len(call.captured), len(call.captured) + len(x))

    def with_numpy(moving: Sequence[Leaf]) -> tuple[PyTree, PyTree]:
        rest = iter(moving)
        whole: list[Any] = [next(rest) if a is None else a for a in numpy]
        parts = whole[: bounds[0]], whole[bounds[0] : bounds[1]], whole[bounds[1] :]
        return call.evaluate(*parts)

    pairs = zip(inputs, numpy, strict=True)
    moving = [a for a, real in pairs if real is None]
    places = [None if a is None else own_copy(np.asarray(a)) for a in numpy]
    for array in numpy:
        if isinstance(array, np.ndarray):  # no tracer can be written to in place either
            array.flags.writeable = False
    try:
        try:
            closed = jax.make_jaxpr(with_numpy)(moving)
        except jax.errors.TracerArrayConversionError:
            numpy = [
                a if a is None else np.asarray(a).view(IndexedByJax) for a in numpy
            ]
            closed = jax.make_jaxpr(with_numpy)(moving)
    except Exception as error:
        written = isinstance(error, ValueError) and "read-only" in str(error)
        reason = WRITES if written else OpaqueReason(first_line(error))
        raise Fallback(reason) from error
    narrowed = [
        place is not None and np.asarray(real).dtype != place.dtype
        for real, place in zip(numpy, places, strict=True)
    ]
    same = same_program(traced.closed, closed, places)
    # The walk sees that captured arrays stay finite and short; arguments are not read.
    count = len(call.captured)
    short = [
        i < count and n and copied(np.asarray(numpy[i]), copy=False)[1]
        for i, n in enumerate(narrowed)
    ]
    finite = not any(narrowed[count:])
    if not same and not same_once_moved(
        traced.closed, closed, places, narrowed, short=short, finite=finite
    ):
        raise Fallback(NUMPY_COMPUTES)
    primal.checked = True
