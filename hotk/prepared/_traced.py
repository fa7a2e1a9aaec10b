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
    function_name,
    in_trace,
    inlined,
    inner_constants,
    same_program,
    trace_context,
    tracers_inside,
)
from hotk.function import Opaque, own_copy, recipe_of
from hotk.mode import Facts

from ._call import Call
from ._checks import check_output
from ._deep import warn_if_nested
from ._opaque import find_evaluator
from ._plan import NEEDS, NUMPY, Fallback, Plan, first_line, plans
from ._program import Lifted, Primal, Program, kinds_of, program_key
from ._reasons import what_is_new
from ._store import STORE


def call_traced(call: Call) -> Any:
    """Run a call whose captured arrays are arguments of its program."""
    captured, arrays = call.captured, call.inputs.arrays
    kinds = kinds_of(captured, arrays)
    context = trace_context()
    program = find_program(call, kinds)
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        return program.run(call, captured, arrays)
    entry = STORE.entry(call.store_key)
    ready = entry.ready.get((kinds, context))
    if ready is None:
        ready = share(program, call)
        if ready.compile(call, captured, arrays):
            STORE.compiled()
        entry.ready[kinds, context] = ready
        entry.first = ready if len(entry.ready) == 1 else None
        entry.shared = None if ready is program else context
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
        name = f"{call.options.kind.name}({function_name(call.f)})"
        what = what_is_new(call) if entry is None else _news(entry, kinds)
        program = make_program(call, kinds)
        STORE.missed(f"{name}: {what}")
        program = STORE.entry(call.store_key).programs.setdefault(key, program)
    return program


def _news(entry: Any, kinds: Any) -> str:
    """Say what is new about a call whose key is known."""
    known = any(other == kinds for other, _ in list(entry.programs))
    return "other settings or named axes" if known else "a new signature"


def make_program(call: Call, kinds: Any) -> Program:
    """Trace an operator in the first mode in which it exists."""
    captured, arrays = call.captured, call.inputs.arrays
    leaves, _, args = call.unflatten(arrays)
    call.point(leaves)  # refuses one without anything to differentiate
    primal = STORE.primal(call.key)
    x = call.arrays_only(leaves, 0)
    try:
        traced = primal.trace(call, captured, x, call.arrays_only(args, call.ahead))
    except PASSED_ON:
        raise
    except NEEDS_VALUE as error:
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
        raise Fallback("something inside it closes over what is traced")
    # it may have been traced for an operator that wants something else
    kind, shapes = call.options.kind, traced.out_info[0]
    check_output(kind.call(), call.f, shapes, kind.wants)
    check_numpy(call, primal, kinds, traced, x, args)
    facts = Facts.of(traced.jaxpr.jaxpr)
    if facts.callbacks and any(map(is_host_function, equations(traced.jaxpr.jaxpr))):
        raise Fallback("a host callback keeps what it captured")
    failures = []
    for plan in plans(call, traced.jaxpr, shapes):
        program = Program(call.options, primal, call.tree, plan, facts, kinds)
        try:
            program.trace(call, captured, arrays)
        except PASSED_ON:
            raise
        except Opaque as reason:
            raise Fallback(str(reason)) from reason
        except Exception as error:
            failures.append(f"{plan}: {first_line(error)}")
            continue
        warn_if_nested(call, traced.jaxpr.jaxpr, facts.order, plan.mode.nests)
        return program
    raise Fallback("; ".join(failures))


def is_own_error(error: Exception, call: Call) -> bool:
    """Whether `f` raised an error that it would have raised without a trace as well.

    It would if nothing of it was replaced, or if its own code raised it and wrote
    nothing before; errors of type and attribute may be those of a tracer.
    """
    if not call.rebuilt and not call.replaces():
        return True
    if call.wrote or isinstance(error, (TypeError, AttributeError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not recipe_of(trace.tb_frame.f_code).library


def is_host_function(equation: Any) -> bool:
    """Whether an equation runs Python code of the user on the host."""
    waiting, known = [equation.params.get("callback")], 0
    while waiting and known < 64:
        here, known = waiting.pop(), known + 1
        if isinstance(here, FunctionType):
            if not recipe_of(here.__code__).library:
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
    try:
        closed = jax.make_jaxpr(with_numpy)(moving)
    except Exception as error:
        raise Fallback(first_line(error)) from error
    if not same_program(traced.jaxpr, closed, places):
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
        key, _ = program_key(traced.jaxpr, jax.tree.structure(traced.out_info), False)
    except Unrecognized:
        return program
    lengths = (len(call.captured), len(call.inputs.arrays))
    context = trace_context()
    return STORE.remember((call.options.kind.name, lengths, context, key), program)
