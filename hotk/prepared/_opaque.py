"""Opaque calls: the function itself is traced, and compiled only if it is new."""

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
    file_name,
    function_name,
    function_place,
    in_trace,
    jaxpr_as_fun,
    message,
    stage_moving,
    trace_context,
    tracers_inside,
)
from hotk.function import KEEPS, is_library_file, own_copy
from hotk.mode import AbstractMode, Facts, Nested, check_linear

from ._call import Call, own_constants
from ._inputs import sort_inputs
from ._options import Options
from ._plan import ASKED, Plan, first_line, plans, usual_plans
from ._program import Evaluator, derive, program_key
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
        self.small = 0
        self.rebuilt = False
        self.wrote = False
        self._flatten()
        self.held = held
        self.inputs = sort_inputs(self.leaves, self.counts, None, opaque=not held)
        self.walked = ()
        self.captured = []
        self.eager = False
        self.traced: Any = None

    def make_args(self, leaves: list[Any]) -> tuple[Any, ...]:
        """Return the further arguments themselves, unless they are traced."""
        return super().make_args(leaves) if self.held else self.args

    def apply(self, plan: Plan, arrays: Any) -> Any:
        """Evaluate the operator in one mode."""
        return derive(self, None, [], arrays, plan)

    def _alone(self) -> tuple[Any, Any, Any]:
        """Return the function of point and moving arguments, and both of them."""
        leaves, _, args = self.unflatten(self.inputs.arrays)
        point, kept = self.point(leaves)
        numbers = range(self.ahead, len(self.leaves))

        def alone(diff: Any, moving: list[Any]) -> Any:
            x = self.x_tree.unflatten(self.merge(leaves, kept, diff))
            given = self._merge(numbers, moving, self.inputs.statics)
            return self.split(self.f(x, *self.make_args(given)))

        return alone, point, self.arrays_only(args, self.ahead)

    def trace_once(self) -> Any:
        """Return the program of the function itself and the shapes of its results."""
        if self.traced is None:
            alone, point, moving = self._alone()
            closed, shapes = jax.make_jaxpr(alone, return_shape=True)(point, moving)
            self.traced = own_constants(closed), shapes
        return self.traced

    def remember(self) -> None:
        """Run the function once as it is, so that what it keeps is no tracer."""
        alone, point, moving = self._alone()
        leaves, treedef = jax.tree.flatten((point, moving))
        stage_moving(lambda given: alone(*treedef.unflatten(given)), leaves)

    def evaluate_as_is(
        self, captured: Any, leaves: Any, kept: Any, diff: Any, args: Any
    ) -> Any:
        """Run the program of the function, or the function if it needs values."""
        if self.eager:
            x = self.x_tree.unflatten(self.merge(leaves, kept, diff))
            return self.split(self.f(x, *self.make_args(args)))
        closed, shapes = self.trace_once()
        moving = self.arrays_only(args, self.ahead)
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(diff), *moving)
        return jax.tree.structure(shapes).unflatten(outputs)

    def plans(self) -> list[Plan]:
        """List the modes to try."""
        if self.eager:
            return usual_plans(self.options, self.sizes(0.0))
        try:
            closed, (y, _) = self.trace_once()
        except (*NEEDS_VALUE, jax.errors.UnexpectedTracerError):
            self.eager = True
            return usual_plans(self.options, self.sizes(0.0))
        return plans(self, closed, y)

    def facts(self) -> Facts:
        """Look for what limits the modes."""
        if self.eager:
            return Facts((), (), ())
        return Facts.of(self.trace_once()[0].jaxpr)


def call_opaque(
    options: Options, f: Callable[..., Any], x: Any, rest: Any, reason: str
) -> Any:
    """Trace the function itself, now and once; compile only if the program is new."""
    call = OpaqueCall(options, f, x, rest)
    if reason == KEEPS:
        call.eager = not options.kind.sized
        if options.kind.sized:  # it is run in loops, and more than once
            call.remember()
    arrays = call.inputs.arrays
    STORE.opaque_traces += 1
    if in_trace() or any(isinstance(a, Tracer) for a in arrays):
        return first_that_works(call, lambda plan: call.apply(plan, arrays))[1]
    STORE.missed(f"{options.kind.name}({function_name(f)}): opaque, {reason}")
    plan, (closed, constants, out_tree) = first_that_works(
        call, lambda plan: staged(call, plan, arrays)
    )
    evaluator, constants = find_evaluator(plan, closed, constants, out_tree)
    return out_tree.unflatten(evaluator.run(closed, constants, arrays))


def staged(call: OpaqueCall, plan: Plan, arrays: list[Any]) -> Any:
    """Trace the operator of an opaque call: its program, constants and result."""
    if call.eager:
        return stage_moving(lambda a: call.apply(plan, a), arrays)
    traced = jax.make_jaxpr(lambda a: call.apply(plan, a), return_shape=True)(arrays)
    check_forward(traced[0])
    check_linear(traced[0])
    if tracers_inside(traced[0]):
        raise ValueError("a derivative rule inside it closes over what is traced")
    return traced[0], traced[0].consts, jax.tree.structure(traced[1])


def find_evaluator(
    plan: Plan, closed: Any, constants: Any, out_tree: Any
) -> tuple[Evaluator, list[Any]]:
    """Return the evaluator of an equal program, and the constants ready to go in."""
    made = Evaluator(plan.mode, plan.why)
    try:
        key, _ = program_key(closed, out_tree, True)
    except Unrecognized:
        evaluator = made
        STORE.compiled()
    else:
        evaluator = STORE.evaluator((trace_context(), key), made)
    return evaluator, [
        own_copy(c) if isinstance(c, np.ndarray) else c for c in constants
    ]


def first_that_works(call: OpaqueCall, attempt: Callable[[Plan], Any]) -> Any:
    """Try the modes in turn, and say why none works if none does."""
    failures: list[tuple[Plan, Exception]] = []
    done = _attempts(call.plans(), attempt, failures)
    if done is None and not call.eager:
        # What JAX differentiates it may fail to stage first: the function itself, then.
        call.eager = True
        done = _attempts(call.plans(), attempt, [])
        call.eager = done is not None
    if done is not None:
        return done
    if isinstance(failures[0][1], NEEDS_VALUE):
        if in_trace():  # it may be a tracer of the outside whose value is asked for
            raise failures[0][1]
        raise needs_point(call, failures[0][1]) from failures[0][1]
    raise no_mode(call, failures) from failures[0][1]


def _attempts(
    made: list[Plan], attempt: Callable[[Plan], Any], failures: list[Any]
) -> Any:
    """Return the first plan that works with what it gives, `None` if none does."""
    for plan in made:
        try:
            return plan, attempt(plan)
        except PASSED_ON:
            raise
        except Exception as error:
            failures.append((plan, error))
    return None


def needs_point(call: OpaqueCall, error: Exception) -> ModeError:
    """Write the error for a function that asks Python for the value of the point."""
    return ModeError(
        message(
            call.options.kind.call(),
            f"`{function_name(call.f)}` needs the value of the point{_at(error)}.",
            expected="operations of `jax.numpy` on what depends on `x`",
            got=first_line(error),
            fix="Use `jnp.where` or `jax.lax.cond` for `if`, `jnp` for `np`, and keep "
            "`float(x)`, `int(x)` and `x.item()` outside.",
        )
    )


def _at(error: BaseException | None) -> str:
    """Say which line of the user's function an error is about.

    Where none of its own lines is the user's, the cause is asked: JAX makes it the
    traceback of the code that it transforms.
    """
    if error is None:
        return ""
    line, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            line = f" in {file_name(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line or _at(error.__cause__)


def _in(mode: AbstractMode) -> str:
    return f"by {mode}" if isinstance(mode, Nested) else f"in {mode} mode"


def _way_out(call: OpaqueCall, facts: Facts, asked: bool) -> str:
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


def no_mode(call: OpaqueCall, failures: list[tuple[Plan, Exception]]) -> ModeError:
    """Write the error for a function that cannot be differentiated as asked."""
    tried = "\n".join(f"    {plan}: {first_line(e)}{_at(e)}" for plan, e in failures)
    where = f"`{function_name(call.f)}`{function_place(call.f)}"
    facts = call.facts()
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
