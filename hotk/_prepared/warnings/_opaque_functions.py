"""Warnings for functions traced again: opaque ones, and changing captured values."""

import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from warnings import warn

import numpy as np

from hotk._capture import (
    WRITES,
    Opaque,
    OpaqueCause,
    OpaqueReason,
    Trail,
    Walk,
    opaque_place,
)
from hotk._core import (
    ChangingValueWarning,
    Function,
    OpaqueWarning,
    function_name,
    function_place,
)

from ._per_code import PerCode, error_line, user_level


# Two reasons for which a captured array cannot be an argument of a program.
NEEDS_CONTENT = OpaqueCause.CONTENT.says("it needs the value of a captured array")
NUMPY_COMPUTES = OpaqueCause.NUMPY.says("NumPy computes with an array that it captured")
_MOST_SIGNATURES = 64


class _Calls:
    """What is known of the opaque calls of one code object."""

    def __init__(self) -> None:
        self.signatures: set[int] = set()
        self.warned = False
        self.line = ""
        # One that changes what it holds.
        self.writer: weakref.ref[types.FunctionType] | None = None


_CALLS = PerCode(_Calls)


def note_line(function: Function, error: BaseException) -> None:
    """Remember the line of the user at which a trace needed the value of an array."""
    line = error_line(error.__cause__)
    if not line:
        return
    with _CALLS.lock:
        _CALLS.of(function).line = line


def place_of(function: Function, reason: str, statics: Iterable[object] = ()) -> str:
    """Say where the thing is that makes a function opaque; empty if no one knows.

    Args:
        function: The function.
        reason: Why it is opaque.
        statics: What is static among its arguments.
    """
    trail = Trail()
    walk = Walk(trail=trail)
    try:
        for thing in statics:
            walk.visit(thing)
        walk.visit(function)
    except Opaque:
        return opaque_place(trail)
    except RecursionError:
        return ""
    if reason == NEEDS_CONTENT:
        with _CALLS.lock:
            return _CALLS.of(function).line.removeprefix(" in ")
    if reason == NUMPY_COMPUTES:
        numpy = (n for n in trail.nodes.values() if type(n.value) is np.ndarray)
        return ", ".join(n.path.strip() for n in itertools.islice(numpy, 2))
    return ""


def is_known_to_write(function: Function) -> bool:
    """Whether the last call of its code was one of `f`, and changed what it captured.

    Its next call is of another key, so the store does not know it.
    """
    with _CALLS.lock:
        writer = _CALLS.of(function).writer
    return writer is not None and writer() is function


def warn_if_opaque_again(
    name: str,
    function: Function,
    reason: OpaqueReason,
    seconds: float,
    signature: Callable[[], int],
    statics: Iterable[object],
) -> None:
    """Warn the second time that code is traced for one signature, and only then.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user, which was just traced.
        reason: Why it is opaque.
        seconds: What the trace took.
        signature: What a function that is not opaque would be traced once for.
        statics: What is static among the arguments.
    """
    with _CALLS.lock:
        known = _CALLS.of(function)
        if reason == WRITES and isinstance(function, types.FunctionType):
            known.writer = weakref.ref(function)
    if known.warned:
        return
    number = signature()  # may run code of the user: no lock is held
    with _CALLS.lock:
        again = number in known.signatures
        if len(known.signatures) < _MOST_SIGNATURES:
            known.signatures.add(number)
        if known.warned or not again:
            return
        known.warned = True
    place = place_of(function, reason, statics)
    where = f"{place}: " if place else ""
    warn(
        f"`{name}`: `{function_name(function)}`{function_place(function)} is traced at "
        f"every call, which took {1e3 * seconds:.3g} ms now, because it is opaque: "
        f"{where}{reason}. To make it fast: {reason.cause.fix}. `hotk.explain(f)` "
        "shows all that it captures.",
        OpaqueWarning,
        stacklevel=user_level(),
    )


_MOST_PLACES = 64
_MISSES = 3


class _Place:
    """One captured value: the values that it had, and whether that was said."""

    def __init__(self) -> None:
        self.values: dict[str, None] = {}
        self.warned = False


_PLACES: PerCode[dict[str, _Place]] = PerCode(dict)


def note_change(
    function: Function, place: str, values: tuple[str, str], is_value: bool
) -> None:
    """Remember that a call is traced anew because one captured thing changed.

    Args:
        function: The function.
        place: Where the thing is.
        values: What it was, and what it is.
        is_value: Whether it is a number or a string: of others nothing is kept, as
            they may be other functions.
    """
    if not is_value and not values[0].endswith(" entries"):
        return
    with _PLACES.lock:
        places = _PLACES.of(function)
        if place not in places and len(places) >= _MOST_PLACES:
            return
        known = places.setdefault(place, _Place())
        if len(known.values) < _MISSES:
            # By value: one that comes again is traced no more
            # (`values_that_come_again_are_not_new`).
            known.values.update(dict.fromkeys(values))


def warn_if_changing(name: str, function: Function) -> None:
    """Warn once of each captured value for which a function was traced three times.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user.
    """
    with _PLACES.lock:
        found = [
            (place, known)
            for place, known in _PLACES.of(function).items()
            if len(known.values) >= _MISSES and not known.warned
        ]
        for _, known in found:
            known.warned = True
    for place, known in found:
        values = " -> ".join(list(known.values)[-_MISSES:])
        warnings.warn(
            f"`{name}`: `{function_name(function)}`{function_place(function)} is "
            f"traced anew for each new value of {place}: {values}. Pass it as a "
            "further argument of the function, or capture it as an array "
            "(`jnp.asarray`); of an index capture what it picks (`batch = X[i:j]`).",
            ChangingValueWarning,
            stacklevel=user_level(),
        )
