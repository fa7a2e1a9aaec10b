"""A warning for functions that are traced again only because they are opaque."""

import itertools
import types
import warnings
import weakref
from typing import Any

import numpy as np

from hotk._core import OpaqueWarning, function_name, function_place
from hotk.capture import WRITES, Opaque, Trail, Walk, fix_of, opaque_place

from ._call import Call
from ._level import error_line, user_level
from ._per_code import PerCode
from ._plan import NEEDS, NUMPY
from ._program import kinds_of


_MOST_SIGNATURES = 64


class _Calls:
    """What is known of the opaque calls of one code object."""

    def __init__(self) -> None:
        self.signatures: set[int] = set()
        self.warned = False
        self.line = ""
        self.writer: weakref.ref[Any] | None = None  # one that changes what it holds


_CALLS = PerCode(_Calls)


def note_line(f: Any, error: BaseException) -> None:
    """Remember the line of the user at which a trace needed the value of an array."""
    line = error_line(error.__cause__)
    if not line:
        return
    with _CALLS.lock:
        _CALLS.of(f).line = line


def place_of(f: Any, reason: str, fixed: Any = ()) -> str:
    """Say where the thing is that makes a function opaque; empty if no one knows.

    Args:
        f: The function.
        reason: Why it is opaque.
        fixed: What is static among its arguments.
    """
    trail = Trail()
    walk = Walk(trail=trail)
    try:
        for thing in fixed:
            walk.visit(thing)
        walk.visit(f)
    except Opaque:
        return opaque_place(trail)
    except RecursionError:
        return ""
    if reason == NEEDS:
        with _CALLS.lock:
            return _CALLS.of(f).line.removeprefix(" in ")
    if reason == NUMPY:
        numpy = (n for n in trail.nodes.values() if type(n.value) is np.ndarray)
        return ", ".join(n.path.strip() for n in itertools.islice(numpy, 2))
    return ""


def is_known_to_write(f: Any) -> bool:
    """Whether the last call of its code was one of `f`, and changed what it captured.

    Its next call is of another key, so the store does not know it.
    """
    with _CALLS.lock:
        writer = _CALLS.of(f).writer
    return writer is not None and writer() is f


def warn_if_opaque_again(call: Call, reason: str, seconds: float) -> None:
    """Warn the second time that code is traced for one signature, and only then.

    Args:
        call: An opaque call that was just traced.
        reason: Why it is opaque.
        seconds: What the trace took.
    """
    with _CALLS.lock:
        known = _CALLS.of(call.f)
        if reason == WRITES and isinstance(call.f, types.FunctionType):
            known.writer = weakref.ref(call.f)
    if known.warned:
        return
    signature = _signature(call)  # may run code of the user: no lock is held
    with _CALLS.lock:
        again = signature in known.signatures
        if len(known.signatures) < _MOST_SIGNATURES:
            known.signatures.add(signature)
        if known.warned or not again:
            return
        known.warned = True
    name = function_name(call.f)
    place = place_of(call.f, reason, call.inputs.visited)
    where = f"{place}: " if place else ""
    warnings.warn(
        f"`{call.options.kind.call()}`: `{name}`{function_place(call.f)} is traced at "
        f"every call, which took {1e3 * seconds:.3g} ms now, because it is opaque: "
        f"{where}{reason}. To make it fast: {fix_of(reason).fix}. `hotk.explain(f)` "
        "shows all that it captures.",
        OpaqueWarning,
        stacklevel=user_level(),
    )


def _signature(call: Call) -> int:
    """Return what a function that is not opaque would be traced once for."""
    kinds = kinds_of([], call.inputs.arrays)
    try:
        return hash((call.options, call.tree, kinds, *call.inputs.statics.items()))
    except TypeError:
        return hash((call.options, kinds))
