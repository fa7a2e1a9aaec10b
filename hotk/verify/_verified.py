"""`verified`: every new program is checked at its first result."""

import atexit
import collections
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from hotk._capture import is_library_file
from hotk._core import (
    AbstractReport,
    ClosedJaxpr,
    Leaf,
    Tracer,
    VerificationError,
    file_name,
    function_name,
    function_place,
    in_trace,
    message,
)
from hotk._prepared import STORE, WATCH, Call, Prepared, Runner

from ._case import Case
from ._comparison import Comparison, Difference, Skipped, difference, first_line
from ._routes import route_of
from ._solvers import SOLVERS


_COLUMNS = ("by derivatives", "by operations", "skipped")
_ROADS = ("plain JAX", "its program run operation by operation")


class Verified(AbstractReport):
    """What `hotk.testing.verified` has checked; it prints as a table.

    Attributes:
        counts: For each name, how many of its programs were checked by the derivatives
            of plain JAX, how many operation by operation, how many not at all.
        reasons: Why a program was not checked by one of the roads, and how many.
        mismatches: The errors, if they are collected and not raised.
    """

    counts: dict[str, collections.Counter[str]] = eqx.field(default_factory=dict)
    reasons: collections.Counter[str] = eqx.field(default_factory=collections.Counter)
    mismatches: list[VerificationError] = eqx.field(default_factory=list)

    @property
    def programs(self) -> int:
        """How many programs were checked, by one road or by both."""
        return sum(max(row[c] for c in _COLUMNS[:2]) for row in self.counts.values())

    def _head(self) -> tuple[str, ...]:
        return ("program", *_COLUMNS)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = sorted(self.counts.items())
        return [(name, *(str(row[c]) for c in _COLUMNS)) for name, row in rows]

    def _lines(self) -> list[str]:
        return [f"{count} x {why}" for why, count in self.reasons.most_common()]


class _Checker:
    """Looks at the first result of each program."""

    def __init__(self, report: Verified, raises: bool) -> None:
        self.report, self.raises = report, raises
        self.programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.signatures: set[Hashable] = set()
        self.thread = threading.local()

    @property
    def is_checking(self) -> bool:
        """Whether this thread is in a check."""
        return getattr(self.thread, "busy", False)

    def _is_new(self, arrays: Sequence[Leaf], key: Any) -> bool:
        """Whether a program is to be checked now: with numbers, and not in a check."""
        if self.is_checking or in_trace():
            return False
        seen: Any = self.signatures if isinstance(key, tuple) else self.programs
        if key in seen or any(isinstance(a, Tracer) for a in arrays):
            return False
        seen.add(key)
        return True

    def operator(
        self,
        call: Call,
        runner: Runner,
        captured: Sequence[Leaf],
        arrays: Sequence[Leaf],
        result: PyTree,
    ) -> None:
        """Check a direct call."""
        held: Any = runner
        program = getattr(held, "program", held)  # its own, or one that is shared
        if not self._is_new([*captured, *arrays], program):
            return
        captured = held.arrange(captured) if held is not program else captured
        closed = None if program.first is None else program.first.closed
        what = f"{function_name(call.f)}{function_place(call.f)}"
        name, where = call.options.definition.name, call.options.definition.call()
        route = route_of(name)
        compare = None if route is None else lambda: route(Case(call, result))
        about = (where, f"{program.mode} mode, of {what}")
        self._check(name, about, closed, [*captured, *arrays], result, compare)

    def prepared(
        self, prepared: Prepared, arrays: Sequence[Leaf], result: PyTree
    ) -> None:
        """Check a call of a prepared operator."""
        program, skeleton = prepared.program, prepared.skeleton
        if not self._is_new(arrays, program):
            return
        options = program.options
        route = route_of(options.definition.name)

        def compare() -> Iterable[Comparison]:
            if skeleton.opaque is not None:
                raise Skipped("a prepared function that is opaque")
            moving, statics = iter(arrays), prepared.statics.by_number
            captured = [next(moving) for _ in prepared.leaves]
            numbers = range(program.tree.num_leaves)
            leaves = [statics[i] if i in statics else next(moving) for i in numbers]
            x, rest = program.tree.unflatten(leaves)
            f, static = skeleton.function(captured), skeleton.static_arrays
            call = Call(options, f, x, rest, static_arrays=static)
            assert route is not None
            return route(Case(call, result))

        about = options.definition.call(), f"{program.mode} mode, of {skeleton.name}"
        closed = None if program.first is None else program.first.closed
        checked = None if route is None else compare
        self._check(options.definition.name, about, closed, arrays, result, checked)

    def function(
        self,
        function: Callable[..., PyTree],
        run: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        options: Mapping[str, Any],
    ) -> PyTree:
        """Run a jitted function of hotk, and check it if it is new."""
        leaves, tree, put = _parts(args, keywords)
        if not self._is_new(leaves, _signature(function, leaves, tree)):
            return run(*args, **keywords)
        given, named = (args, keywords)
        if "donate_argnums" in options:  # what the check still needs
            given, named = put([a.copy() for a in leaves])
        result = run(*given, **named)

        def body(*leaves: Leaf) -> PyTree:
            args, keywords = put(leaves)
            return function(*args, **keywords)

        trace = lambda: jax.make_jaxpr(body)(*leaves)
        self._check_function(function, trace, leaves, args, keywords, result)
        return result

    def solver(
        self,
        function: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        result: PyTree,
    ) -> None:
        """Check a function that is not compiled as a whole, by residuals alone."""
        leaves, tree, _ = _parts(args, keywords)
        if self._is_new(leaves, _signature(function, leaves, tree)):
            self._check_function(function, None, leaves, args, keywords, result)

    def _check_function(
        self,
        function: Callable[..., PyTree],
        trace: Callable[[], ClosedJaxpr] | None,
        leaves: Sequence[Leaf],
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        result: PyTree,
    ) -> None:
        name = f"{function.__module__.removeprefix('hotk.')}.{function.__name__}"
        route = SOLVERS.get(name)
        compare = None if route is None else lambda: route(args, keywords, result)
        self._check(name, (name, "a function of hotk"), trace, leaves, result, compare)

    def _check(
        self,
        name: str,
        about: tuple[str, str],
        program: ClosedJaxpr | Callable[[], ClosedJaxpr] | None,
        arguments: Sequence[Leaf],
        result: PyTree,
        compare: Callable[[], Iterable[Comparison]] | None,
    ) -> None:
        """Go both roads, unseen by the caches and by this checker."""

        def by_operations() -> Difference | None:
            closed = program() if callable(program) else program
            assert isinstance(closed, ClosedJaxpr)
            found = jax.tree.leaves(result)
            return difference("result", closed, arguments, found, own=True)

        def by_derivatives() -> Difference | None:
            assert compare is not None
            found = (comparison.difference() for comparison in compare())
            return next((d for d in found if d is not None), None)

        row = self.report.counts.setdefault(name, collections.Counter())
        self.thread.busy = True
        try:
            with STORE.uncounted():
                roads = [(compare, by_derivatives), (program, by_operations)]
                checked = [
                    self._compared(name, about, road, run)
                    for road, (is_there, run) in enumerate(roads)
                    if is_there is not None
                ]
        finally:
            self.thread.busy = False
        if not any(checked):
            row[_COLUMNS[2]] += 1

    def _compared(
        self,
        name: str,
        about: tuple[str, str],
        road: int,
        compare: Callable[[], Difference | None],
    ) -> bool:
        """Compare, and raise or keep what differs; return whether it could be done."""
        try:
            found = compare()
        except Exception as error:
            why = str(error) if isinstance(error, Skipped) else first_line(error)
            self.report.reasons[f"{name}: {why}"] += 1
            return False
        self.report.counts[name][_COLUMNS[road]] += 1
        if found is not None:
            text = message(
                about[0],
                f"its {found.what} differs from {_ROADS[road]} by {found.error:.3g}; "
                f"rounding explains {found.allowed:.3g}.",
                expected=f"{found.expected}, by {_ROADS[road]}",
                got=f"{found.found}, by {about[1]}",
                fix=f"The call is at {_user_line()}. `hotk.testing.verified()` has "
                "found a fault of hotk, of JAX or of its compiler: please report it.",
            )
            self.report.mismatches.append(VerificationError(text))
            if self.raises:
                raise self.report.mismatches[-1]
        return True


def _parts(
    args: tuple[PyTree, ...], keywords: Mapping[str, PyTree]
) -> tuple[list[Any], Any, Callable[[Sequence[Any]], Any]]:
    """Return the arrays of a call, its structure, and what puts others in their places.

    No node is made with anything but arrays: a class of the user may convert the rest.
    """
    every, tree = jax.tree.flatten((args, dict(keywords)))
    places = [i for i, leaf in enumerate(every) if eqx.is_array(leaf)]

    def put(arrays: Sequence[Any]) -> Any:
        others = dict(zip(places, arrays, strict=True))
        return tree.unflatten([others.get(i, leaf) for i, leaf in enumerate(every)])

    return [every[i] for i in places], tree, put


def _signature(function: object, leaves: Sequence[Any], tree: Any) -> Hashable:
    return (function, tree, *((a.shape, str(a.dtype)) for a in leaves))


def _user_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{file_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def _verify_process(how: str) -> None:
    """Check all programs of this process, and print the table at its end if asked to.

    Args:
        how: The value of `HOTK_VERIFY`: `"print"` for the table.
    """
    WATCH.by, report = None, Verified()
    if how not in ("", "0"):
        WATCH.by = _Checker(report, raises=True)
    if how == "print":
        atexit.register(lambda: print(report, file=sys.stderr))


@contextlib.contextmanager
def verified(*, raises: bool = True) -> Iterator[Verified]:
    """Check every program of hotk that is new inside, at its first result.

    Each is compared by two other roads, on the arrays of the call itself:

    - by derivatives of plain JAX: `jax.grad` and nested `jax.jvp` of the function as it
      stands, traced anew, and multiplied with random vectors; residuals for solvers and
      factors;
    - operation by operation: the same program, outside of what XLA compiles as a whole.

    What may differ is rounding: a hundred times how far the result moves if each
    operation is moved by one unit of rounding, and a hundred units. Programs that exist
    already are made, and checked, anew. A function that calls the host, or that plain
    JAX cannot differentiate, is skipped and counted, and so is what is called inside of
    another transformation, where there are no numbers. A check takes about as long as
    compiling; the calls that follow cost what they always do. `HOTK_VERIFY=1` in the
    environment does the same for a whole process, and `HOTK_VERIFY=print` prints the
    table at its end.

    Args:
        raises: Whether to raise at the first mismatch; else they are collected.

    Yields:
        A report with `programs`, `counts`, `reasons` and `mismatches`, which prints as
        a table.

    Raises:
        VerificationError: If two roads disagree by more than rounding. The message has
            both numbers, the operator and its mode, the function, and the line.

    Example:
        >>> import hotk.testing
        >>> with hotk.testing.verified() as report:
        ...     product = hotk.hvp(lambda x: jnp.sum(x**3), jnp.ones(2), jnp.ones(2))
        >>> print(report)
        program  by derivatives  by operations  skipped
        -------  --------------  -------------  -------
        hvp      1               1              0
    """
    before, report = WATCH.by, Verified()
    STORE.clear_programs()
    WATCH.by = _Checker(report, raises)
    try:
        yield report
    finally:
        WATCH.by = before


_verify_process(os.environ.get("HOTK_VERIFY", ""))
