"""Calls for which some captured arrays are static by content."""

from jaxtyping import PyTree

from hotk._capture import TracedProgram
from hotk._core import (
    PASSED_ON,
    Tracer,
    Unrecognized,
    equations,
    function_name,
    in_trace,
    trace_context,
)
from hotk._mode import Facts

from ._call import Call
from ._contents import ContentNeeded
from ._joined import TracedFunction, join
from ._opaque import derived
from ._plan import Fallback
from ._program import Runner, types_of
from ._store import STORE
from ._traced import HOST_KEEPS, is_host_function
from ._watch import run_shown
from .warnings import NEEDS_CONTENT, NUMPY_COMPUTES


def call_small(call: Call) -> PyTree:
    """Run a call some of whose captured arrays are static by content."""
    runner = find_small(call)
    captured, arrays = call.captured, call.inputs.arrays
    if runner.compile(call.f):
        STORE.compiled()
    return run_shown(runner, call, captured, arrays)


def find_small(call: Call) -> Runner:
    """Return what runs a call some of whose captured arrays are static by content.

    What depends on those alone is computed when the function is traced.

    Raises:
        Fallback: If it takes another stage.
    """
    captured, arrays = call.captured, call.inputs.arrays
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        raise Fallback(NEEDS_CONTENT)
    types = (types_of(captured, arrays), trace_context())
    known = STORE.known(call.store_key, types)
    if known is not None and known.runner is not None:
        STORE.hits += 1
        return known.runner
    name = call.options.definition.name
    STORE.missed(f"{name}({function_name(call.f)}): {NEEDS_CONTENT}")
    if any(array is not None for array in call.numpy_inputs()):
        # NumPy may have a part in what is computed from it.
        raise Fallback(NUMPY_COMPUTES)
    STORE.traces += 1
    traced = _trace(call)
    try:
        runner = join(call, traced)
    except Unrecognized:
        runner = _derive(call, traced)
    STORE.add(call.store_key, types, runner=runner)
    return runner


def _trace(call: Call) -> TracedFunction:
    """Trace the function; what depends on no moving array is computed now."""
    leaves, _, args = call.unflatten(call.inputs.arrays)
    x = call.arrays_only(leaves, 0)
    moving = (call.captured, x, call.arrays_only(args, call.ahead))
    try:
        program = TracedProgram.of(call.evaluate, *moving, kept=True)
    except (*PASSED_ON, ContentNeeded):
        raise
    except Exception as error:
        raise Fallback(NEEDS_CONTENT) from error
    jaxpr = program.closed.jaxpr
    facts = Facts.of(jaxpr)
    if facts.callbacks and any(map(is_host_function, equations(jaxpr))):
        raise Fallback(HOST_KEEPS)
    return TracedFunction(None, program, facts)


def _derive(call: Call, traced: TracedFunction) -> Runner:
    """Trace the operator in the first mode that exists."""
    call.traced = traced.program
    try:
        return derived(call)
    except (*PASSED_ON, ContentNeeded):
        raise
    except Exception as error:
        raise Fallback(NEEDS_CONTENT) from error
