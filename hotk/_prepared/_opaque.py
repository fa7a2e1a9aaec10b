"""Opaque calls: the function itself is traced, and compiled only if it is new."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jaxtyping import PyTree

from hotk._capture import (
    RULE_CAPTURES_TRACER,
    OpaqueReason,
    StaticArrays,
    TracedProgram,
    reaches_tracer,
)
from hotk._core import (
    NEEDS_VALUE,
    PASSED_ON,
    Function,
    Leaf,
    ModeError,
    Point,
    Tracer,
    Unrecognized,
    check_forward,
    function_name,
    function_place,
    in_trace,
    message,
    note_list,
    source_line,
    tracers_inside,
)
from hotk._mode import AbstractMode, Facts, Nested
from hotk._primitive import check_linear

from ._call import Call
from ._contents import ContentNeeded
from ._family import Bound
from ._inputs import sort_inputs
from ._joined import TracedFunction, join, join_derived
from ._options import Options
from ._plan import ASKED, Fallback, Plan, derive, first_line, may_try, plans
from ._program import Program, Runner, types_of
from ._store import STORE
from ._watch import run_shown
from .warnings import error_line, warn_if_opaque_again


_Result = TypeVar("_Result")


class OpaqueCall(Call):
    """A call of a function that is run as it is, once.

    Only the point is traced; the further arguments as well if the program is reused.

    Attributes:
        reused: Whether the program is run more than once, as that of a `Prepared` is.
    """

    def __init__(
        self,
        options: Options,
        f: Function,
        x: Point,
        rest: tuple[PyTree, ...],
        *,
        reused: bool = False,
    ) -> None:
        self.options = options
        self.f = f
        self.x = x
        self.rest = rest
        self.static_arrays = StaticArrays.NONE
        self.rebuilt = False
        self.wrote = False
        self._flatten()
        self.reused = reused
        self.inputs = sort_inputs(
            self.leaves,
            self.counts,
            None,
            self.point_leaves,
            opaque=not reused,
        )
        self.walked = ()
        self.captured = []

    def make_args(self, leaves: Sequence[object]) -> tuple[PyTree, ...]:
        """Return the further arguments themselves, unless they are traced."""
        return super().make_args(leaves) if self.reused else self.args

    def evaluate(
        self, captured: Sequence[Leaf], x: Sequence[Leaf], args: Sequence[Leaf]
    ) -> tuple[PyTree, PyTree]:
        """Call the function itself."""
        del captured
        numbers = range(self.counts[0]), range(self.ahead, len(self.leaves))
        statics = self.inputs.statics
        point = self.x_tree.unflatten(self._merge(numbers[0], x, statics))
        given = self._merge(numbers[1], args, statics)
        try:
            out = self.f(point, *self.make_args(given))
        except Exception as error:
            note_list(error, self.x)
            raise
        return self.split(out)

    def trace(self) -> TracedProgram:
        """Run the function, once: what it keeps for later is not a tracer."""
        leaves, _, args = self.unflatten(self.inputs.arrays)
        self.point(leaves)  # refuses one without anything to differentiate
        alone = lambda x, moving: self.evaluate([], x, moving)
        moving = self.arrays_only(leaves, 0), self.arrays_only(args, self.ahead)
        try:
            traced = TracedProgram.of(alone, *moving, kept=self.reused)
        except NEEDS_VALUE as error:
            if in_trace():  # it may be a tracer of the outside whose value is asked for
                raise
            raise needs_point(self, error) from error
        self.traced = traced.with_own_constants()
        return self.traced


def call_opaque(
    options: Options,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    reason: OpaqueReason,
) -> PyTree:
    """Trace the function itself, now and once; derive it only if its program is new."""
    began = time.perf_counter()
    call = OpaqueCall(options, f, x, rest)
    arrays = call.inputs.arrays
    STORE.traces += 1
    traced = call.trace()
    # The outer program takes in what is derived, and nothing is kept for another call.
    if in_trace() or any(isinstance(a, Tracer) for a in arrays):
        if Facts.of(traced.closed.jaxpr).custom_vjps:
            # In a trace of its own: the equations of a mode that fails would stay in
            # the outer program, which has then no derivative itself
            # (`test_a_mode_that_failed_inside_leaves_nothing_in_the_outer_program`).
            with contextlib.suppress(ModeError):
                run = lambda plan: staged(call, plan, inside=True)([], arrays)
                return first_that_works(call, run)[1]
        apply = lambda plan: derive(call, None, [], arrays, plan)
        return first_that_works(call, apply)[1]
    STORE.missed(f"{options.definition.name}({function_name(f)}): opaque, {reason}")
    runner: Runner
    try:
        facts = Facts.of(traced.closed.jaxpr)
        runner = join(call, TracedFunction(None, traced, facts))
    except (Unrecognized, Fallback):  # or no mode works, which is said below
        runner = derived(call)
    if isinstance(runner, Bound):
        _keep(runner.program)
    # Timed before it is compiled: that happens once, and the warning is of each call.
    warn_if_opaque_again(
        options.definition.call(),
        f,
        reason,
        time.perf_counter() - began,
        lambda: _signature(call),
        call.inputs.visited,
    )
    if runner.compile(f):
        STORE.compiled()
    return run_shown(runner, call, [], arrays)


def _signature(call: OpaqueCall) -> int:
    """Return what a function that is not opaque would be traced once for."""
    types = types_of([], call.inputs.arrays)
    try:
        return hash((call.options, call.tree, types, *call.inputs.statics.items()))
    except TypeError:
        return hash((call.options, types))


def _keep(program: Program) -> None:
    """Let the store know that a program is in use: it drops what no entry holds."""
    key, signed = (OpaqueCall, program), (program.types, program.context)
    STORE.add(key, signed, program=program)


def staged(call: Call, plan: Plan, *, inside: bool = False) -> TracedProgram:
    """Trace the operator of a call.

    Args:
        call: The call.
        plan: The mode to use, and how.
        inside: Whether a trace is going on outside, whose tracers a rule may hold.
    """
    run = lambda captured, arrays: derive(call, None, captured, arrays, plan)
    given = (call.captured, call.inputs.arrays)
    if call.traced is None:  # the body of the function is run
        traced = TracedProgram.of(run, *given).with_own_constants()
    else:
        closed, shapes = jax.make_jaxpr(run, return_shape=True)(*given)
        traced = TracedProgram(closed, jax.tree.structure(shapes))
    check_forward(traced.closed)
    check_linear(traced.closed)
    is_bound = reaches_tracer if inside else tracers_inside
    if is_bound(traced.closed):
        raise ValueError(RULE_CAPTURES_TRACER)
    return traced


def derived(call: Call) -> Runner:
    """Trace the operator of a function that was traced, and return what runs it.

    It is for programs of functions that cannot be told from others to be derived.
    """
    plan, traced = first_that_works(call, lambda plan: staged(call, plan))
    return join_derived(call, traced, plan)


def first_that_works(
    call: Call, attempt: Callable[[Plan], _Result]
) -> tuple[Plan, _Result]:
    """Try the modes in turn, and say why none works if none does."""
    failures: list[tuple[Plan, Exception]] = []
    traced = call.traced
    assert traced is not None
    order = plans(call, traced.closed, traced.shapes[0])
    done = _attempts(order, attempt, failures)
    if done is None and isinstance(call, OpaqueCall):
        # What JAX differentiates it may fail to stage first: the function itself, then.
        call.traced = None
        try:
            done = _attempts(order, attempt, [])
        finally:
            call.traced = traced
    if done is not None:
        return done
    if isinstance(failures[0][1], NEEDS_VALUE) and in_trace():
        raise failures[0][1]  # it may be a tracer of the outside that is asked for
    raise no_mode(call, failures) from failures[0][1]


def _attempts(
    order: Sequence[Plan],
    attempt: Callable[[Plan], _Result],
    failures: list[tuple[Plan, Exception]],
) -> tuple[Plan, _Result] | None:
    """Return the first plan that works with what it gives, `None` if none does."""
    for plan in order:
        if not may_try(plan, [error for _, error in failures]):
            continue
        try:
            return plan, attempt(plan)
        except (*PASSED_ON, ContentNeeded):
            raise
        except Exception as error:
            failures.append((plan, error))
    return None


def needs_point(call: Call, error: Exception) -> ModeError:
    """Write the error for a function that asks Python for the value of the point."""
    place = error_line(error)
    return ModeError(
        message(
            call.options.definition.call(),
            f"`{function_name(call.f)}` needs the value of the point{place}.",
            expected="operations of `jax.numpy` on what depends on `x`",
            got=first_line(error),
            fix="Use `jnp.where` or `jax.lax.cond` for `if`, `jnp` for `np`, and keep "
            "`float(x)`, `int(x)` and `x.item()` outside.",
        )
    )


def _in(mode: AbstractMode) -> str:
    return f"by {mode}" if isinstance(mode, Nested) else f"in {mode} mode"


def _fix(facts: Facts, asked: bool) -> str:
    """Say what to do about a function without a derivative."""
    auto = "Leave `mode=` to `hotk.Auto()`, which looks for one that exists"
    if facts.callbacks:
        return (
            "Give it rules with `hotk.rule.external` or `hotk.rule.custom`, or the "
            "derivatives of a reference with `hotk.rule.substitute`."
        )
    if asked and facts.loops:
        return (
            f"{auto} (forward over forward for loops), write the loop as a `lax.scan` "
            "of fixed length, or, if it solves an equation, use `hotk.rule.root`."
        )
    if asked:
        return f"{auto}."
    return (
        "`hotk.can_differentiate(f, x)` shows which operation has no derivative; give "
        "that part one with `hotk.rule.custom`."
    )


def rule_fix(place: str) -> str:
    """Say what to do about a derivative rule that captures a tracer."""
    return (
        f"The derivative rule{place} was made inside of a loop, branch or trace, and "
        "keeps an array of it. Make it by `hotk.rule.custom`, or give it the array as "
        "an argument."
    )


def no_mode(call: Call, failures: Sequence[tuple[Plan, Exception]]) -> ModeError:
    """Write the error for a function that cannot be differentiated as asked."""
    tried = "\n".join(
        f"    {plan}: {first_line(e)}{error_line(e)}" for plan, e in failures
    )
    where = f"`{function_name(call.f)}`{function_place(call.f)}"
    assert call.traced is not None
    facts = Facts.of(call.traced.closed.jaxpr)
    found = f" It holds {facts}." if str(facts) else ""
    asked = failures[0][0].why == ASKED
    fix = _fix(facts, asked)
    if any(str(error) == RULE_CAPTURES_TRACER for _, error in failures):
        rule = reaches_tracer(call.traced.closed)
        fix = rule_fix("" if rule is None else f" at {source_line(rule)}")
    return ModeError(
        message(
            call.options.definition.call(),
            f"{where} cannot be differentiated "
            + (f"{_in(failures[0][0].mode)}." if asked else "in any mode.")
            + found,
            expected="a program whose derivative exists",
            got=f"\n{tried}",
            fix=fix,
        )
    )
