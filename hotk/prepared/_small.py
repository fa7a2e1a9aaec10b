"""Calls for which some captured arrays are static by content."""

from typing import Any

import jax

from hotk._core import (
    PASSED_ON,
    Tracer,
    Unrecognized,
    function_name,
    in_trace,
    stage_moving,
    trace_context,
    with_constants,
)
from hotk.mode import Facts

from ._call import Call
from ._joined import Traced, join
from ._opaque import find_evaluator
from ._plan import NEEDS, NUMPY, Fallback, Plan, usual_plans
from ._program import Lifted, derive, kinds_of
from ._store import STORE


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
    try:
        ready = join(call, _function(call))
    except Unrecognized:
        ready = _operator(call)
    STORE.entry(call.store_key).constant[kinds] = ready
    return ready


def _function(call: Call) -> Traced:
    """Trace the function; what depends on no moving array is computed now."""
    count = len(call.captured)
    leaves, _, args = call.unflatten(call.inputs.arrays)
    x = call.arrays_only(leaves, 0)
    last = count + len(x)
    moving = [*call.captured, *x, *call.arrays_only(args, call.ahead)]
    run = lambda a: call.evaluate(a[:count], a[count:last], a[last:])
    try:
        closed, constants, out_tree = stage_moving(run, moving)
    except PASSED_ON:
        raise
    except Exception as error:
        raise Fallback(NEEDS) from error
    closed = with_constants(closed, constants)
    outputs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.outvars
    ]
    return Traced(None, closed, out_tree.unflatten(outputs), Facts.of(closed.jaxpr))


def _operator(call: Call) -> Lifted:
    """Trace the operator in the first mode that exists."""
    count = len(call.captured)
    for plan in usual_plans(call.options, call.sizes(0.0)):

        def apply(a: list[Any], plan: Plan = plan) -> Any:
            return derive(call, None, a[:count], a[count:], plan)

        try:
            closed, constants, out_tree = stage_moving(
                apply, [*call.captured, *call.inputs.arrays]
            )
        except PASSED_ON:
            raise
        except Exception:
            continue
        evaluator, constants = find_evaluator(plan, closed, constants, out_tree)
        return Lifted(closed, constants, evaluator, out_tree)
    raise Fallback(NEEDS)
