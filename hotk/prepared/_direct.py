"""What happens when a direct call does not find its program at once."""

from collections.abc import Callable
from typing import Any

from hotk._core import hides_frames
from hotk.capture import CHANGED, Opaque, StaticArrays, is_static

from ._call import Call
from ._checks import check_callable
from ._loud import note_line
from ._opaque import call_opaque
from ._options import Options
from ._plan import LEVELS, MOST_BYTES, OPAQUE, Fallback
from ._small import call_small
from ._store import STORE
from ._traced import call_traced


Stages = tuple[Callable[[Call], Any], Callable[[Call], Any], Callable[..., Any]]


@hides_frames
def call_slowly(
    options: Options,
    f: Callable[..., Any],
    x: Any,
    rest: Any,
    stages: Stages = (call_traced, call_small, call_opaque),
) -> Any:
    """Find or make the program of a call, and run it.

    Captured arrays are tracers, stage 0; or small ones are static by content, which
    ones is the stage; or the function is opaque. A stage that fails is not tried again
    once a later one worked.

    Args:
        options: The operator.
        f: The function.
        x: The point.
        rest: What follows it.
        stages: What to do in each stage; `explain` does not run what it finds.
    """
    traced, small, opaquely = stages
    check_callable(options.kind.call(), f)
    call, why = None, ""
    try:
        call = Call(options, f, x, rest, static_arrays=StaticArrays.NONE)
    except Opaque as opaque:
        why = str(opaque)
    if call is None:  # outside of the handler: no error of the user's comes from here
        return opaquely(options, f, x, rest, why)
    entry = STORE.entries.get(call.store_key)
    stage = 0 if entry is None else entry.stage
    reason = "" if entry is None else entry.reason
    if stage == 0:
        done, result = _try(traced, call)
        if done:
            return result
        reason = result
    levels = LEVELS.get(reason, ())
    if stage:
        levels = levels[levels.index(stage) :] if stage in levels else ()
    moving = (*call.captured, *call.inputs.arrays)
    for level in levels:
        sizes = [getattr(a, "nbytes", 0) for a in moving if is_static(a, level)]
        if not (sizes or call.pinned) or sum(sizes) > MOST_BYTES:
            continue
        done, result = _try(small, Call(options, f, x, rest, static_arrays=level))
        if done:
            if stage != level:
                STORE.entry(call.store_key).postpone(level, reason)
            return result
    result = opaquely(options, f, x, rest, reason)
    if stage != OPAQUE and reason != CHANGED:
        STORE.entry(call.store_key).postpone(OPAQUE, reason)
    return result


def _try(run: Callable[[Call], Any], call: Call) -> tuple[bool, Any]:
    """Run a call, or return why it cannot be traced this way."""
    try:
        return True, run(call)
    except Fallback as fallback:
        note_line(call.f, fallback)
        return False, str(fallback)
