"""`WATCH`: who is shown the first results of programs, if anyone is."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from jaxtyping import PyTree

from hotk._core import Leaf

from ._call import Call
from ._prepared import Prepared
from ._program import Runner


_P = ParamSpec("_P")
_T = TypeVar("_T")


class Watch:
    """Holds the one who looks; `None` most of the time.

    It is asked only where a program is made or found slowly, and never in a direct call
    that finds its program at once.
    """

    by: Any = None  # a checker of `hotk.verify`


WATCH = Watch()


def run_shown(
    runner: Runner, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
) -> PyTree:
    """Run a call, and show its result."""
    result = runner.jit(*captured, *arrays)
    if WATCH.by is not None:
        WATCH.by.operator(call, runner, captured, arrays, result)
    return result


def shown(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function that is not compiled as a whole show its results."""

    @functools.wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
        result = function(*args, **keywords)
        if WATCH.by is not None:
            WATCH.by.solver(function, args, keywords, result)
        return result

    return call


class FirstResult:
    """Stands for the jitted function of a `Prepared` until it has shown a result.

    Then the program has its own again, so that a call costs what it always does.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared

    def __call__(self, *flat: Leaf) -> PyTree:
        """Compute; of another `Prepared` too that shares the program."""
        prepared = self.prepared
        program = prepared.program
        result = program.jit(*flat)
        if prepared.holds_for(flat[len(prepared.leaves) :]):  # else it is about to say
            program.held = program.jit
            if WATCH.by is not None:
                WATCH.by.prepared(prepared, flat, result)
        return result
