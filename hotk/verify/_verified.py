"""`verified`: every new program is checked at its first result."""

import atexit
import collections
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from hotk._core import (
    ClosedJaxpr,
    Leaf,
    Tracer,
    VerificationError,
    file_name,
    function_name,
    function_place,
    in_trace,
    message,
    text_table,
)
from hotk.capture import is_library_file
from hotk.prepared import STORE, WATCH, Call, Prepared, Runner

from ._case import Alternatives, Case
from ._comparison import Difference, Skipped, difference, difference_of
from ._routes import ROUTES
from ._solvers import SOLVERS


_MATHEMATICS, _OPERATIONS, _NEITHER = "by derivatives", "by operations", "skipped"


class Verified:
    """What `hotk.testing.verified` has checked; it prints as a table.

    Attributes:
        counts: For each name, how many of its programs were checked by the derivatives
            of plain JAX, how many operation by operation, how many not at all.
        skipped: Why programs were not checked, or not by derivatives, and how many.
        mismatches: The errors, where they are collected and not raised.
    """

    def __init__(self) -> None:
        self.counts: dict[str, collections.Counter[str]] = {}
        self.skipped: collections.Counter[str] = collections.Counter()
        self.mismatches: list[VerificationError] = []

    def count(self, name: str, what: str) -> None:
        """Count a program."""
        self.counts.setdefault(name, collections.Counter())[what] += 1

    def skip(self, name: str, why: str) -> None:
        """Count a program that one road does not lead to, and why."""
        self.skipped[f"{name}: {why}"] += 1

    @property
    def programs(self) -> int:
        """How many programs were checked, by one road or by both."""
        return sum(
            max(row[_MATHEMATICS], row[_OPERATIONS]) for row in self.counts.values()
        )

    def __str__(self) -> str:
        """Write one line for each name, and one for each reason."""
        columns = (_MATHEMATICS, _OPERATIONS, _NEITHER)
        rows = [
            [name, *(str(row[column]) for column in columns)]
            for name, row in sorted(self.counts.items())
        ]
        reasons = [f"{count} x {why}" for why, count in self.skipped.most_common()]
        return "\n".join([text_table(("program", *columns), rows), *reasons])


class _Checker:
    """Looks at the first result of each program."""

    def __init__(self, report: Verified, raises: bool) -> None:
        self.report, self.raises = report, raises
        self.programs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.signatures: set[Hashable] = set()
        self.thread = threading.local()

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        """Check, unseen by the caches and by this checker."""
        self.thread.busy = True
        try:
            with STORE.uncounted():
                yield
        finally:
            self.thread.busy = False

    def _skips(self, arrays: Sequence[Leaf]) -> bool:
        if getattr(self.thread, "busy", False):
            return True
        return in_trace() or any(isinstance(a, Tracer) for a in arrays)

    def operator(
        self,
        call: Call,
        runner: Runner,
        captured: Sequence[Leaf],
        arrays: Sequence[Leaf],
        result: PyTree,
    ) -> None:
        """Check a direct call."""
        program: Any = getattr(runner, "program", runner)
        if hasattr(runner, "evaluator"):
            program = runner.evaluator
        if self._skips([*captured, *arrays]) or program in self.programs:
            return
        self.programs.add(program)
        closed: ClosedJaxpr | None = None
        given = [*captured, *arrays]
        if hasattr(runner, "evaluator"):
            closed = runner.program.closed
        elif program.first is not None:
            closed = program.first.closed
            if program is not runner:
                given = [*runner.arrange(captured), *arrays]
        name = call.options.definition.name
        where = _Where(
            call.options.definition.call(),
            f"{getattr(program, 'mode', call.options.mode)} mode",
            f"{function_name(call.f)}{function_place(call.f)}",
        )
        with self._checking():
            self._by_operations(name, where, closed, given, result)
            self._by_derivatives(name, where, lambda: Case(call, result))

    def prepared(
        self, prepared: Prepared, arguments: tuple[PyTree, ...], result: PyTree
    ) -> None:
        """Check a call of a prepared operator."""
        program, (x, *rest) = prepared.program, arguments
        leaves = [*prepared.leaves, *jax.tree.leaves(arguments)]
        if self._skips(leaves) or program in self.programs:
            return
        self.programs.add(program)
        options = program.options
        where = _Where(options.definition.call(), f"{program.mode} mode", "")
        where = where._replace(function=prepared.skeleton.name)

        def case() -> Case:
            if prepared.skeleton.opaque is not None:
                raise Skipped("it is opaque")
            f = prepared.skeleton.function(prepared.leaves)
            static = prepared.skeleton.static_arrays
            call = Call(options, f, x, tuple(rest), static_arrays=static)
            return Case(call, result)

        with self._checking():
            closed = None if program.first is None else program.first.closed
            arrays = [a for a in leaves if eqx.is_array_like(a)]
            self._by_operations(options.definition.name, where, closed, arrays, result)
            self._by_derivatives(options.definition.name, where, case)

    def function(
        self,
        function: Callable[..., PyTree],
        run: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        options: Mapping[str, Any],
    ) -> PyTree:
        """Run a jitted function of hotk, and check it if it is new."""
        leaves, key = _signature(function, args, keywords)
        if self._skips(leaves) or key in self.signatures:
            return run(*args, **keywords)
        arrays, statics = eqx.partition((args, dict(keywords)), eqx.is_array)
        tree = jax.tree.structure(arrays)
        self.signatures.add(key)
        if "donate_argnums" in options:
            copies = eqx.combine(jax.tree.map(lambda a: a.copy(), arrays), statics)
            result = run(*copies[0], **copies[1])
        else:
            result = run(*args, **keywords)
        name = _name(function)

        def body(*leaves: Leaf) -> PyTree:
            args, keywords = eqx.combine(tree.unflatten(leaves), statics)
            return function(*args, **keywords)

        with self._checking():
            where = _Where(name, "jitted", "a function of hotk")
            try:
                closed = jax.make_jaxpr(body)(*leaves)
            except Exception as error:
                self.report.skip(name, f"{type(error).__name__} in its trace")
                closed = None
            self._by_operations(name, where, closed, leaves, result)
            self._by_residuals(name, where, args, keywords, result)
        return result

    def solver(
        self,
        function: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        result: PyTree,
    ) -> None:
        """Check a function that is not compiled as a whole, by residuals alone."""
        leaves, key = _signature(function, args, keywords)
        if self._skips(leaves) or key in self.signatures:
            return
        self.signatures.add(key)
        name = _name(function)
        where = _Where(name, "on the host", "an operator")
        with self._checking():
            self._by_residuals(name, where, args, keywords, result)

    def _by_residuals(
        self,
        name: str,
        where: "_Where",
        args: tuple[PyTree, ...],
        keywords: Mapping[str, PyTree],
        result: PyTree,
    ) -> None:
        """Check a function of hotk that is no operator by what it should fulfil."""
        route = SOLVERS.get(name)
        if route is not None:
            make = lambda: route(args, keywords, result)
            self._by_route(name, where, make)

    def _by_operations(
        self,
        name: str,
        where: "_Where",
        closed: ClosedJaxpr | None,
        arguments: Sequence[Leaf],
        result: PyTree,
    ) -> None:
        """Check a result against its own program, operation by operation."""
        if closed is None:
            return self.report.count(name, _NEITHER)
        found = jax.tree.leaves(result)
        compare = lambda: difference("result", closed, arguments, found)
        if self._compared(name, where, "the same program, by operations", compare):
            self.report.count(name, _OPERATIONS)
        return None

    def _by_derivatives(
        self, name: str, where: "_Where", make: Callable[[], Case]
    ) -> None:
        """Check a result against derivatives of plain JAX."""
        route = ROUTES.get(name)
        if route is None:
            return self.report.skip(name, "no other route")
        return self._by_route(name, where, lambda: route(make()))

    def _by_route(
        self, name: str, where: "_Where", make: Callable[[], Iterator[Alternatives]]
    ) -> None:
        """Compare all that a route compares."""

        def compare() -> Difference | None:
            for alternatives in make():
                different = _first_that_exists(alternatives)
                if different is not None:
                    return different
            return None

        if self._compared(name, where, "derivatives by plain JAX", compare):
            self.report.count(name, _MATHEMATICS)

    def _compared(
        self,
        name: str,
        where: "_Where",
        road: str,
        compare: Callable[[], Difference | None],
    ) -> bool:
        """Compare, and raise or keep what differs; return whether it could be done."""
        try:
            different = compare()
        except Skipped as reason:
            self.report.skip(name, str(reason))
            return False
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0][:100]
            self.report.skip(name, f"{type(error).__name__}: {line}")
            return False
        if different is not None:
            error = where.error(road, different)
            self.report.mismatches.append(error)
            if self.raises:
                raise error
        return True


class _Where(collections.namedtuple("_Where", "call mode function")):
    """What was called."""

    def error(self, road: str, found: Difference) -> VerificationError:
        """Write the error."""
        return VerificationError(
            message(
                self.call,
                f"its {found.what} differs from {road}, by {found.error:.3g}; rounding "
                f"explains {found.allowed:.3g}.",
                expected=f"{found.expected}, by {road}",
                got=f"{found.found}, {self.mode}, of {self.function}",
                fix=f"The call is at {_user_line()}. `hotk.testing.verified()` has "
                "found a fault of hotk, of JAX or of its compiler: please report it.",
            )
        )


def _name(function: Callable[..., PyTree]) -> str:
    return f"{function.__module__.removeprefix('hotk.')}.{function.__name__}"


def _signature(
    function: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    keywords: Mapping[str, PyTree],
) -> tuple[list[Leaf], Hashable]:
    """Return the arrays of a call, and what tells it from other calls."""
    arrays = eqx.filter((args, dict(keywords)), eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    return leaves, (function, tree, *((a.shape, str(a.dtype)) for a in leaves))


def _first_that_exists(alternatives: Sequence[Any]) -> Difference | None:
    failed: Exception | None = None
    for comparison in alternatives:
        try:
            return difference_of(comparison)
        except Skipped:
            raise
        except Exception as error:
            failed = failed or error
    line = (str(failed).strip().splitlines() or [""])[0][:100]
    raise Skipped(f"plain JAX: {type(failed).__name__}: {line}")


def _user_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{file_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def verify_process(how: str) -> None:
    """Check all programs of this process, and print the table at its end if asked to.

    Args:
        how: The value of `HOTK_VERIFY`: `"print"` for the table.
    """
    report = Verified()
    WATCH.by = _Checker(report, raises=True)
    if how == "print":
        atexit.register(lambda: print(report, file=sys.stderr))


@contextlib.contextmanager
def verified(*, raises: bool = True) -> Iterator[Verified]:
    before, report = WATCH.by, Verified()
    STORE.clear_programs()  # those made before are made, and checked, anew
    WATCH.by = _Checker(report, raises)
    try:
        yield report
    finally:
        WATCH.by = before
