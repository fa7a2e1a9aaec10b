"""Opaque calls: the function itself is traced, and compiled only if it is new."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotk._core import (
    NEEDS_VALUE,
    PASSED_ON,
    ModeError,
    Tracer,
    Unrecognized,
    check_forward,
    fingerprint,
    function_name,
    function_place,
    in_trace,
    inlined,
    inner_constants,
    message,
    trace_context,
    trace_once,
    tracers_inside,
)
from hotk.capture import StaticArrays, own_copy
from hotk.mode import AbstractMode, Facts, Nested
from hotk.primitive import check_linear

from ._call import Call, own_constants
from ._inputs import sort_inputs
from ._joined import Traced, join
from ._level import error_line
from ._loud import warn_if_opaque_again
from ._options import Options
from ._plan import ASKED, Fallback, Plan, first_line, may_try, plans
from ._program import Evaluator, Lifted, derive
from ._store import STORE


class OpaqueCall(Call):
    """A call of a function that is run as it is, once.

    Only the point is traced; the further arguments as well if the program is held.
    """

    def __init__(
        self, options: Options, f: Any, x: Any, rest: Any, *, held: bool = False
    ) -> None:
        self.options = options
        self.f = f
        self.x = x
        self.rest = rest
        self.static_arrays = StaticArrays.NONE
        self.rebuilt = False
        self.wrote = False
        self._flatten()
        self.held = held
        self.inputs = sort_inputs(self.leaves, self.counts, None, opaque=not held)
        self.walked = ()
        self.captured = []

    def make_args(self, leaves: list[Any]) -> tuple[Any, ...]:
        """Return the further arguments themselves, unless they are traced."""
        return super().make_args(leaves) if self.held else self.args

    def evaluate(self, captured: Any, x: Any, args: Any) -> Any:
        """Call the function itself."""
        del captured
        numbers = range(self.counts[0]), range(self.ahead, len(self.leaves))
        statics = self.inputs.statics
        point = self.x_tree.unflatten(self._merge(numbers[0], x, statics))
        given = self._merge(numbers[1], args, statics)
        return self.split(self.f(point, *self.make_args(given)))

    def trace(self) -> Any:
        """Run the function, once: what it keeps for later is no tracer."""
        leaves, _, args = self.unflatten(self.inputs.arrays)
        self.point(leaves)  # refuses one without anything to differentiate
        alone = lambda x, moving: self.evaluate([], x, moving)
        moving = self.arrays_only(leaves, 0), self.arrays_only(args, self.ahead)
        try:
            closed, shapes = trace_once(alone, *moving, kept=self.held)
        except NEEDS_VALUE as error:
            if in_trace():  # it may be a tracer of the outside whose value is asked for
                raise
            raise needs_point(self, error) from error
        self.traced = own_constants(closed), shapes
        return self.traced


def call_opaque(
    options: Options, f: Callable[..., Any], x: Any, rest: Any, reason: str
) -> Any:
    """Trace the function itself, now and once; derive it only if its program is new."""
    began = time.perf_counter()
    call = OpaqueCall(options, f, x, rest)
    arrays = call.inputs.arrays
    STORE.opaque_traces += 1
    closed, shapes = call.trace()
    if in_trace() or any(isinstance(a, Tracer) for a in arrays):
        apply = lambda plan: derive(call, None, [], arrays, plan)
        return first_that_works(call, apply)[1]
    STORE.missed(f"{options.kind.name}({function_name(f)}): opaque, {reason}")
    try:
        ready = join(call, Traced(None, closed, shapes, Facts.of(closed.jaxpr)))
        _keep(ready.program)
    except (Unrecognized, Fallback):  # or no mode works, which is said below
        ready = derived(call)
    warn_if_opaque_again(call, reason, time.perf_counter() - began)
    if ready.compile(call, [], arrays):
        STORE.compiled()
    return ready.run(call, [], arrays)


def _keep(program: Any) -> None:
    """Let the store know that a program is in use: it drops what no entry holds."""
    key = (OpaqueCall, program)
    entry = STORE.entries.get(key)
    if entry is None:
        STORE.entry(key).programs[None] = program
    else:
        entry.used = STORE.clock()


def staged(call: Call, plan: Plan) -> tuple[Any, Any]:
    """Trace the operator of a call: its program and the structure of its result."""
    run = lambda captured, arrays: derive(call, None, captured, arrays, plan)
    given = (call.captured, call.inputs.arrays)
    if call.traced is None:  # the body of the function is run
        closed, shapes = trace_once(run, *given, kept=False)
        closed = own_constants(closed)
    else:
        closed, shapes = jax.make_jaxpr(run, return_shape=True)(*given)
    check_forward(closed)
    check_linear(closed)
    if tracers_inside(closed):
        raise ValueError("a derivative rule inside it captures a tracer")
    return closed, jax.tree.structure(shapes)


def derived(call: Call) -> Lifted:
    """Trace the operator of a function that was traced; its constants are arguments.

    It is for programs of functions that cannot be told from others to be derived.
    """
    plan, (closed, out_tree) = first_that_works(call, lambda plan: staged(call, plan))
    if inner_constants(closed):  # of jitted functions: they are arguments as well
        closed = inlined(closed)
    evaluator, constants = find_evaluator(plan, closed, closed.consts, out_tree)
    return Lifted(closed, constants, evaluator, out_tree)


def find_evaluator(
    plan: Plan, closed: Any, constants: Any, out_tree: Any
) -> tuple[Evaluator, list[Any]]:
    """Return the evaluator of an equal program, and the constants ready to go in."""
    made = Evaluator(plan.mode, plan.why)
    try:
        key = (out_tree, fingerprint(closed, lift=True)[0])
    except Unrecognized:
        evaluator = made
        STORE.compiled()
    else:
        evaluator = STORE.evaluator((trace_context(), key), made)
    return evaluator, [
        own_copy(c) if isinstance(c, np.ndarray) else c for c in constants
    ]


def first_that_works(call: Call, attempt: Callable[[Plan], Any]) -> Any:
    """Try the modes in turn, and say why none works if none does."""
    failures: list[tuple[Plan, Exception]] = []
    closed, (y, _) = call.traced
    made = plans(call, closed, y)
    done = _attempts(made, attempt, failures)
    if done is None and isinstance(call, OpaqueCall):
        # What JAX differentiates it may fail to stage first: the function itself, then.
        traced, call.traced = call.traced, None
        try:
            done = _attempts(made, attempt, [])
        finally:
            call.traced = traced
    if done is not None:
        return done
    if isinstance(failures[0][1], NEEDS_VALUE) and in_trace():
        raise failures[0][1]  # it may be a tracer of the outside that is asked for
    raise no_mode(call, failures) from failures[0][1]


def _attempts(
    made: list[Plan], attempt: Callable[[Plan], Any], failures: list[Any]
) -> Any:
    """Return the first plan that works with what it gives, `None` if none does."""
    for plan in made:
        if not may_try(plan, [error for _, error in failures]):
            continue
        try:
            return plan, attempt(plan)
        except PASSED_ON:
            raise
        except Exception as error:
            failures.append((plan, error))
    return None


def needs_point(call: Call, error: Exception) -> ModeError:
    """Write the error for a function that asks Python for the value of the point."""
    place = error_line(error)
    return ModeError(
        message(
            call.options.kind.call(),
            f"`{function_name(call.f)}` needs the value of the point{place}.",
            expected="operations of `jax.numpy` on what depends on `x`",
            got=first_line(error),
            fix="Use `jnp.where` or `jax.lax.cond` for `if`, `jnp` for `np`, and keep "
            "`float(x)`, `int(x)` and `x.item()` outside.",
        )
    )


def _in(mode: AbstractMode) -> str:
    return f"by {mode}" if isinstance(mode, Nested) else f"in {mode} mode"


def _way_out(call: Call, facts: Facts, asked: bool) -> str:
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


def no_mode(call: Call, failures: list[tuple[Plan, Exception]]) -> ModeError:
    """Write the error for a function that cannot be differentiated as asked."""
    tried = "\n".join(
        f"    {plan}: {first_line(e)}{error_line(e)}" for plan, e in failures
    )
    where = f"`{function_name(call.f)}`{function_place(call.f)}"
    facts = Facts.of(call.traced[0].jaxpr)
    found = f" It holds {facts}." if str(facts) else ""
    asked = failures[0][0].why == ASKED
    return ModeError(
        message(
            call.options.kind.call(),
            f"{where} cannot be differentiated "
            + (f"{_in(failures[0][0].mode)}." if asked else "in any mode.")
            + found,
            expected="a program whose derivative exists",
            got=f"\n{tried}",
            fix=_way_out(call, facts, asked),
        )
    )
