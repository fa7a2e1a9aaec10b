"""What happens when a direct call does not find its program at once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hotk._core import (
    Tracer,
)
from hotk.function import Opaque

from ._call import Call
from ._opaque import call_opaque, call_small
from ._options import Options
from ._plan import NEEDS, Fallback
from ._store import STORE
from ._traced import call_traced


def call_slowly(options: Options, f: Callable[..., Any], x: Any, rest: Any) -> Any:
    """Find or make the program of a call, and run it.

    Three stages: captured arrays are tracers; small ones are static by content; the
    function is opaque. A stage that fails is remembered once a later one worked.
    """
    try:
        call = Call(options, f, x, rest, small=False)
    except Opaque as reason:
        return call_opaque(options, f, x, rest, str(reason))
    entry = STORE.entries.get(call.store_key)
    stage = 0 if entry is None else entry.stage
    reason = "" if entry is None else entry.reason
    if stage == 0:
        done, result = _try(call_traced, call)
        if done:
            return result
        reason = result
    if stage <= 1 and reason in NEEDS and has_small(call):
        done, result = _try(call_small, Call(options, f, x, rest, small=True))
        if done:
            if stage == 0:
                STORE.entry(call.store_key).postpone(1, reason)
            return result
    result = call_opaque(options, f, x, rest, reason)
    if stage < 2:
        STORE.entry(call.store_key).postpone(2, reason)
    return result


def _try(run: Callable[[Call], Any], call: Call) -> tuple[bool, Any]:
    """Run a call, or return why it cannot be traced this way."""
    try:
        return True, run(call)
    except Fallback as fallback:
        return False, str(fallback)


def has_small(call: Call) -> bool:
    """Whether anything would be static if small arrays were."""
    numbers = [a for a in call.inputs.arrays if not isinstance(a, Tracer)]
    return any(np.size(a) <= 64 for a in (*call.captured, *numbers))
