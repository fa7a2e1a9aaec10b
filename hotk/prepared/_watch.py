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
    result = runner.run(call, captured, arrays)
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


class WatchedPrepared(Prepared):
    """A `Prepared` made while someone looks: its results are shown."""

    __getattribute__ = object.__getattribute__
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(self, x: PyTree, *rest: PyTree) -> PyTree:
        """Evaluate the operator at `x`; see `Prepared`."""
        result = super().__call__(x, *rest)
        if WATCH.by is not None:
            WATCH.by.prepared(self, (x, *rest), result)
        return result
