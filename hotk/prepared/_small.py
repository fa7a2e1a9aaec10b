"""Calls for which some captured arrays are static by content."""

from typing import Any

from hotk._core import (
    PASSED_ON,
    Tracer,
    Unrecognized,
    equations,
    function_name,
    in_trace,
    trace_context,
    trace_once,
)
from hotk.mode import Facts

from ._call import Call
from ._joined import Traced, join
from ._opaque import derived
from ._plan import HOST, NEEDS, NUMPY, Fallback
from ._program import Lifted, kinds_of
from ._store import STORE
from ._traced import is_host_function


def call_small(call: Call) -> Any:
    """Run a call some of whose captured arrays are static by content."""
    ready = known_small(call)
    captured, arrays = call.captured, call.inputs.arrays
    if ready.compile(call, captured, arrays):
        STORE.compiled()
    return ready.run(call, captured, arrays)


def known_small(call: Call) -> Any:
    """Return what runs a call some of whose captured arrays are static by content.

    What depends on those alone is computed when the function is traced.
    """
    captured, arrays = call.captured, call.inputs.arrays
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        raise Fallback(NEEDS)
    kinds = (trace_context(), kinds_of(captured, arrays))
    entry = STORE.entries.get(call.store_key)
    ready = None if entry is None else entry.constant.get(kinds)
    if ready is not None:
        STORE.hits += 1
        return ready
    STORE.missed(f"{call.options.kind.name}({function_name(call.f)}): {NEEDS}")
    if any(array is not None for array in call.numpy_inputs()):
        raise Fallback(NUMPY)  # NumPy may have a part in what is computed from it
    STORE.opaque_traces += 1
    traced = _function(call)
    try:
        ready = join(call, traced)
    except Unrecognized:
        ready = _operator(call, traced)
    STORE.entry(call.store_key).constant[kinds] = ready
    return ready


def _function(call: Call) -> Traced:
    """Trace the function; what depends on no moving array is computed now."""
    leaves, _, args = call.unflatten(call.inputs.arrays)
    x = call.arrays_only(leaves, 0)
    moving = (call.captured, x, call.arrays_only(args, call.ahead))
    try:
        closed, shapes = trace_once(call.evaluate, *moving, kept=True)
    except PASSED_ON:
        raise
    except Exception as error:
        raise Fallback(NEEDS) from error
    facts = Facts.of(closed.jaxpr)
    if facts.callbacks and any(map(is_host_function, equations(closed.jaxpr))):
        raise Fallback(HOST)
    return Traced(None, closed, shapes, facts)


def _operator(call: Call, traced: Traced) -> Lifted:
    """Trace the operator in the first mode that exists."""
    call.traced = (traced.jaxpr, traced.shapes)
    try:
        return derived(call)
    except PASSED_ON:
        raise
    except Exception as error:
        raise Fallback(NEEDS) from error
