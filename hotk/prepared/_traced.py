"""Programs whose captured arrays are arguments: found, or traced and checked."""

import functools
from types import FunctionType
from typing import Any

import jax
import numpy as np

from hotk._core import (
    NEEDS_VALUE,
    PASSED_ON,
    Tracer,
    Unrecognized,
    equations,
    fingerprint,
    function_name,
    in_trace,
    inlined,
    inner_constants,
    same_once_moved,
    same_program,
    trace_context,
    tracers_inside,
)
from hotk.capture import (
    RULE_CAPTURES_ARRAY,
    WRITES,
    Opaque,
    copied,
    facts_of,
    own_copy,
    reaches_ended_tracer,
)
from hotk.mode import Facts

from ._call import Call
from ._changing import warn_if_changing
from ._checks import check_output
from ._joined import Traced, join, make_program
from ._opaque import find_evaluator
from ._plan import HOST, NEEDS, NUMPY, Fallback, Plan, first_line, raised_by_user
from ._program import Lifted, Primal, Program, kinds_of
from ._reasons import what_is_new
from ._store import STORE


def call_traced(call: Call) -> Any:
    """Run a call whose captured arrays are arguments of its program."""
    captured, arrays = call.captured, call.inputs.arrays
    kinds = kinds_of(captured, arrays)
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        return find_program(call, kinds).run(call, captured, arrays)
    context = trace_context()
    entry = STORE.entries.get(call.store_key)
    ready = None if entry is None else entry.ready.get((kinds, context))
    if ready is None:
        ready = make_ready(call, kinds)
        warn_if_changing(call)
        if ready.compile(call, captured, arrays):
            STORE.compiled()
        entry = STORE.entry(call.store_key)
        entry.ready[kinds, context] = ready
        entry.first = ready if len(entry.ready) == 1 else None
        own = entry.programs.get((kinds, context))
        entry.shared = None if ready is own else context
    return ready.run(call, captured, arrays)


def find_program(call: Call, kinds: Any) -> Program:
    """Return the program of a call for what goes into it, made if there is none.

    The size of a named axis, for one, is a number in the program: so each context has
    its own.
    """
    entry = STORE.entries.get(call.store_key)
    key = kinds, trace_context()
    program = None if entry is None else entry.programs.get(key)
    if program is None:
        what = _what_is_new(call, kinds)
        program = own_program(call, kinds, trace_function(call, kinds))
        STORE.missed(what)
    return program


def own_program(call: Call, kinds: Any, traced: Traced) -> Program:
    """Return the program that is the function's own, made if there is none."""
    entry = STORE.entries.get(call.store_key)
    key = kinds, trace_context()
    program = None if entry is None else entry.programs.get(key)
    if program is None:
        program = make_program(call, traced, traced.primal, call.captured)
        program = STORE.entry(call.store_key).programs.setdefault(key, program)
    return program


def _what_is_new(call: Call, kinds: Any) -> str:
    name = f"{call.options.kind.name}({function_name(call.f)})"
    entry = STORE.entries.get(call.store_key)
    if entry is None:
        return f"{name}: {what_is_new(call)}"
    known = any(other == kinds for other, _ in (*entry.programs, *entry.ready))
    what = "other settings or named axes" if known else "a new signature"
    return f"{name}: {what}"


def make_ready(call: Call, kinds: Any) -> Any:
    """Return what runs a call: a program of its own, or one shared with others."""
    what = _what_is_new(call, kinds)
    traced = trace_function(call, kinds)
    STORE.missed(what)
    try:
        return join(call, traced, lambda: own_program(call, kinds, traced))
    except Unrecognized:
        return share(own_program(call, kinds, traced), call)


def trace_function(call: Call, kinds: Any) -> Traced:
    """Trace the function of a call, or return the trace that exists."""
    captured = call.captured
    leaves, _, args = call.unflatten(call.inputs.arrays)
    call.point(leaves)  # refuses one without anything to differentiate
    primal = STORE.primal(call.key)
    x = call.arrays_only(leaves, 0)
    try:
        traced = primal.trace(call, captured, x, call.arrays_only(args, call.ahead))
    except PASSED_ON:
        raise
    except (*NEEDS_VALUE, jax.errors.UnexpectedTracerError) as error:
        raise Fallback(NEEDS) from error
    except Opaque as reason:
        raise Fallback(str(reason)) from reason
    except Exception as error:
        if is_own_error(error, call):
            raise
        raise Fallback(first_line(error)) from error
    finally:
        if primal.traces == 0:
            STORE.forget(call.key, primal)
    if tracers_inside(traced.jaxpr):
        raise Fallback("something inside it captures a tracer")
    if reaches_ended_tracer(traced.jaxpr):
        raise Fallback(RULE_CAPTURES_ARRAY)
    # it may have been traced for an operator that wants something else
    kind, shapes = call.options.kind, traced.out_info
    check_output(kind.call(), call.f, shapes[0], kind.wants)
    check_numpy(call, primal, kinds, traced, x, args)
    facts = Facts.of(traced.jaxpr.jaxpr)
    if facts.callbacks and any(map(is_host_function, equations(traced.jaxpr.jaxpr))):
        raise Fallback(HOST)
    return Traced(primal, traced.jaxpr, shapes, facts)


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


def is_host_function(equation: Any) -> bool:
    """Whether an equation runs Python code of the user on the host."""
    waiting, known = [equation.params.get("callback")], 0
    while waiting and known < 64:
        here, known = waiting.pop(), known + 1
        if isinstance(here, FunctionType):
            if not facts_of(here.__code__).library:
                return True
            waiting.extend(_contents(here.__closure__ or ()))
        elif isinstance(here, functools.partial):
            waiting.extend((here.func, *here.args, *here.keywords.values()))
        elif callable(here):
            waiting.extend(vars(here).values() if hasattr(here, "__dict__") else ())
            waiting.append(getattr(here, "callback_func", None))
    return False


def _contents(cells: Any) -> list[Any]:
    return [cell.cell_contents for cell in cells]


def check_numpy(
    call: Call, primal: Primal, kinds: Any, traced: Any, x: Any, args: Any
) -> None:
    """See that NumPy has no part in what `f` computes from captured NumPy arrays.

    With tracers in place of NumPy arrays, `f` computes by JAX what it would compute by
    NumPy, in other dtypes and by other rules. So it is traced once more with the NumPy
    arrays themselves: only if the two programs are the same are those arrays leaves.
    """
    numpy = call.numpy_inputs()
    key = kinds, trace_context()
    if key in primal.checked or all(a is None for a in numpy):
        return
    inputs = [*call.captured, *x, *call.arrays_only(args, call.ahead)]
    bounds = (len(call.captured), len(call.captured) + len(x))

    def with_numpy(moving: list[Any]) -> Any:
        rest = iter(moving)
        whole = [next(rest) if a is None else a for a in numpy]
        parts = whole[: bounds[0]], whole[bounds[0] : bounds[1]], whole[bounds[1] :]
        return call.evaluate(*parts)

    pairs = zip(inputs, numpy, strict=True)
    moving = [a for a, real in pairs if real is None]
    places = [None if a is None else own_copy(np.asarray(a)) for a in numpy]
    for array in numpy:
        if isinstance(array, np.ndarray):  # no tracer can be written to in place either
            array.flags.writeable = False
    try:
        closed = jax.make_jaxpr(with_numpy)(moving)
    except Exception as error:
        written = isinstance(error, ValueError) and "read-only" in str(error)
        raise Fallback(WRITES if written else first_line(error)) from error
    narrowed = [
        place is not None and np.asarray(real).dtype != place.dtype
        for real, place in zip(numpy, places, strict=True)
    ]
    same = same_program(traced.jaxpr, closed, places)
    # The walk sees that captured arrays stay finite and short; arguments are not read.
    count = len(call.captured)
    short = [
        i < count and n and copied(np.asarray(numpy[i]), copy=False)[1]
        for i, n in enumerate(narrowed)
    ]
    finite = not any(narrowed[count:])
    if not same and not same_once_moved(
        traced.jaxpr, closed, places, narrowed, short=short, finite=finite
    ):
        raise Fallback(NUMPY)
    primal.checked.add(key)


def share(program: Program, call: Call) -> Program | Lifted:
    """Return a compiled program that computes the same, or `program` if none does."""
    if program.traced is None:
        program.trace(call, call.captured, call.inputs.arrays)
    traced: Any = program.traced
    if inner_constants(traced.jaxpr):
        closed, out_tree = inlined(traced.jaxpr), jax.tree.structure(traced.out_info)
        plan = Plan(program.mode, program.why, program.block)
        evaluator, constants = find_evaluator(plan, closed, closed.consts, out_tree)
        return Lifted(closed, constants, evaluator, out_tree)
    try:
        key, _ = fingerprint(traced.jaxpr, lift=False)
    except Unrecognized:
        return program
    lengths = (len(call.captured), len(call.inputs.arrays))
    result = jax.tree.structure(traced.out_info)
    kind = (call.options.kind.name, lengths, trace_context(), result)
    return STORE.remember((kind, key), program)
