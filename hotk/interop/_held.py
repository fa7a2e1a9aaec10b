"""A function held as it is now, for operators that are prepared later."""

from collections.abc import Callable
from typing import Any

from hotk.capture import Closure, Staged
from hotk.prepared import Prepared


def held(f: Callable[..., Any], known: list[Prepared], *arguments: Any) -> Closure:
    """Hold a function as it is now.

    Args:
        f: A function of the functions that were prepared just now.
        known: What was prepared: tells which captured arrays have to be static, and
            whether there is something that cannot be split into arrays and the rest.
        *arguments: What it is called with: numbers and arrays.
    """
    if all(prepared.skeleton.opaque is None for prepared in known):
        static = max(prepared.skeleton.static_arrays for prepared in known)
        closure = Closure.of(f, static_arrays=static)
        if closure.skeleton.opaque is None:
            return closure
    return Closure.of(Staged.of(f, *arguments))
