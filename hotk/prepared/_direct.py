"""What happens when a direct call does not find its program at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hotk._core import (
    NEEDS_VALUE,
    HotkError,
    ModeError,
    Tracer,
    Unrecognized,
    function_name,
    function_place,
    in_trace,
    jaxpr_as_fun,
    message,
    same_program,
    stage_moving,
    trace_context,
    tracers_inside,
)
from hotk.function import Opaque, Walk, own_copy
from hotk.mode import AbstractMode, Auto, Facts, Sizes

from ._call import Call
from ._inputs import sort_inputs
from ._options import Options
from ._program import Evaluator, Primal, Program, derive, kinds_of, program_key
from ._store import STORE


class Fallback(Exception):
    """The function cannot be traced with tracers in place of its captured arrays."""


class Plan(NamedTuple):
    """A mode to try, the reason for it, and how many directions at once."""

    mode: AbstractMode
    why: str
    block: int | None


def call_slowly(options: Options, f: Callable[..., Any], x: Any, rest: Any) -> Any:
    """Find or make the program of a call, and run it.

    Three stages: captured arrays are tracers; small ones are static by content; the
    function is opaque. A stage that fails is remembered once a later one worked.
    """
    try:
        call = Call(options, f, x, rest, small=False)
    except Opaque as reason:
        return call_opaque(options, f, x, rest, str(reason))
    entry = STORE.entries.get(call.store_key)
    stage = 0 if entry is None else entry.stage
    reason = "" if entry is None else entry.reason
    if stage == 0:
        done, result = _try(call_traced, call)
        if done:
            return result
        reason = result
    if stage <= 1 and reason in NEEDS and has_small(call):
        done, result = _try(call_small, Call(options, f, x, rest, small=True))
        if done:
            if stage == 0:
                STORE.entry(call.store_key).postpone(1, reason)
            return result
    result = call_opaque(options, f, x, rest, reason)
    if stage < 2:
        STORE.entry(call.store_key).postpone(2, reason)
    return result


NEEDS = ("it needs the value of a captured array",)


def _try(run: Callable[[Call], Any], call: Call) -> tuple[bool, Any]:
    """Run a call, or return why it cannot be traced this way."""
    try:
        return True, run(call)
    except Fallback as fallback:
        return False, str(fallback)


def has_small(call: Call) -> bool:
    """Whether anything would be static if small arrays were."""
    numbers = [a for a in call.inputs.arrays if not isinstance(a, Tracer)]
    return any(np.size(a) <= 64 for a in (*call.captured, *numbers))


def call_traced(call: Call) -> Any:
    """Run a call whose captured arrays are arguments of its program."""
    captured, arrays = call.captured, call.inputs.arrays
    kinds = kinds_of(captured, arrays)
    program = find_program(call, kinds)
    if in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays)):
        return program.run(call, captured, arrays)
    entry = STORE.entry(call.store_key)
    context = trace_context()
    ready = entry.ready.get((kinds, context))
    if ready is None:
        ready = share(program, call)
        if ready.compile(call, captured, arrays):
            STORE.compiled()
        entry.ready[kinds, context] = ready
        alone = len(entry.programs) == 1 and ready is program
        entry.first = program if alone else None
    return ready.run(call, captured, arrays)


def find_program(call: Call, kinds: Any) -> Program:
    """Return the program of a call for what goes into it, a new one if there is none."""
    entry = STORE.entries.get(call.store_key)
    program = None if entry is None else entry.programs.get(kinds)
    if program is None:
        name = f"{call.options.kind.name}({function_name(call.f)})"
        what = "skeleton or structure" if entry is None else "signature"
        program = make_program(call, kinds)
        STORE.missed(f"{name}: a new {what}")
        program = STORE.entry(call.store_key).programs.setdefault(kinds, program)
    return program


def make_program(call: Call, kinds: Any) -> Program:
    """Trace an operator in the first mode in which it exists."""
    captured, arrays = call.captured, call.inputs.arrays
    leaves, _, args = call.unflatten(arrays)
    call.point(leaves)
    primal = STORE.primal(call.key)
    x = call.arrays_only(leaves, 0)
    try:
        traced = primal.trace(call, captured, x, call.arrays_only(args, call.ahead))
    except HotkError:
        raise
    except NEEDS_VALUE as error:
        raise Fallback(NEEDS[0]) from error
    except Exception as error:
        raise Fallback(_first_line(error)) from error
    finally:
        if primal.traces == 0:
            STORE.forget(call.key, primal)
    if tracers_inside(traced.jaxpr):
        raise Fallback("something inside it closes over what is traced")
    check_numpy(call, primal, kinds, traced, x, args)
    facts = Facts.of(traced.jaxpr.jaxpr)
    if any(
        "pure_callback" in name or "io_callback" in name for name in facts.callbacks
    ):
        raise Fallback("a host callback keeps what it captured")
    failures = []
    for plan in plans(call, traced.jaxpr, traced.out_info[0]):
        program = Program(call.options, primal, call.tree, plan, facts, kinds)
        try:
            program.trace(call, captured, arrays)
        except HotkError:
            raise
        except Opaque as reason:
            raise Fallback(str(reason)) from reason
        except Exception as error:
            failures.append(f"{plan.mode}: {_first_line(error)}")
            continue
        return program
    raise Fallback("; ".join(failures))


def check_numpy(
    call: Call, primal: Primal, kinds: Any, traced: Any, x: Any, args: Any
) -> None:
    """See that NumPy has no part in what `f` computes from captured NumPy arrays.

    With tracers in place of NumPy arrays, `f` computes by JAX what it would compute by
    NumPy, in other dtypes and by other rules. So it is traced once more with the NumPy
    arrays themselves: only if the two programs are the same are those arrays leaves.
    """
    numpy = call.numpy_inputs()
    if kinds in primal.checked or all(a is None for a in numpy):
        return
    inputs = [*call.captured, *x, *call.arrays_only(args, call.ahead)]
    bounds = (len(call.captured), len(call.captured) + len(x))

    def with_numpy(moving: list[Any]) -> Any:
        rest = iter(moving)
        whole = [next(rest) if a is None else a for a in numpy]
        parts = whole[: bounds[0]], whole[bounds[0] : bounds[1]], whole[bounds[1] :]
        return call.evaluate(*parts)

    pairs = zip(inputs, numpy, strict=True)
    moving = [a for a, real in pairs if real is None]
    places = [None if a is None else own_copy(np.asarray(a)) for a in numpy]
    try:
        closed = jax.make_jaxpr(with_numpy)(moving)
    except Exception as error:
        raise Fallback(_first_line(error)) from error
    if not same_program(traced.jaxpr, closed, places):
        raise Fallback("NumPy computes with an array that it captured")
    primal.checked.add(kinds)


def plans(call: Call, closed: Any, y: Any) -> list[Plan]:
    """List the modes to try for a call, best first."""
    kind, options = call.options.kind, call.options
    point, _ = call.point(call.unflatten(call.inputs.arrays)[0])
    sizes = Sizes.of(point, y)
    block = options.block_size
    if not isinstance(options.mode, Auto):
        return [Plan(options.mode, "asked for", block)]
    facts = Facts.of(closed.jaxpr)
    return [Plan(mode, why, block) for mode, why in kind.candidates(facts, sizes)]


def usual_plans(options: Options, sizes: Sizes) -> list[Plan]:
    """List the modes to try when the program of `f` is not known."""
    if not isinstance(options.mode, Auto):
        return [Plan(options.mode, "asked for", options.block_size)]
    candidates = options.kind.candidates(None, sizes)
    return [Plan(mode, why, options.block_size) for mode, why in candidates]


def share(program: Program, call: Call) -> Program:
    """Return a compiled program that computes the same, or `program` if none does."""
    if program.traced is None or program.context != trace_context():
        program.trace(call, call.captured, call.inputs.arrays)
    traced = program.traced
    try:
        key, _ = program_key(traced.jaxpr, jax.tree.structure(traced.out_info), False)
    except Unrecognized:
        return program
    lengths = (len(call.captured), len(call.inputs.arrays))
    context = trace_context()
    return STORE.remember((call.options.kind.name, lengths, context, key), program)


def call_opaque(
    options: Options, f: Callable[..., Any], x: Any, rest: Any, reason: str
) -> Any:
    """Trace the function itself, now and once; compile only if the program is new."""
    call = OpaqueCall(options, f, x, rest)
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


def staged(call: "OpaqueCall", plan: Plan, arrays: list[Any]) -> Any:
    """Trace the operator of an opaque call: its program, constants and result."""
    if call.eager:
        return stage_moving(lambda a: call.apply(plan, a), arrays)
    traced = jax.make_jaxpr(lambda a: call.apply(plan, a), return_shape=True)(arrays)
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


def call_small(call: Call) -> Any:
    """Run a call whose small captured arrays are static by content.

    What depends on those alone is computed when the operator is traced.
    """
    captured, arrays = call.captured, call.inputs.arrays
    moving = [*captured, *arrays]
    if in_trace() or any(isinstance(a, Tracer) for a in moving):
        raise Fallback(NEEDS[0])
    kinds = (trace_context(), kinds_of(captured, arrays))
    entry = STORE.entries.get(call.store_key)
    found = None if entry is None else entry.constant.get(kinds)
    if found is None:
        STORE.missed(f"{call.options.kind.name}({function_name(call.f)}): {NEEDS[0]}")
        found = make_small(call, moving)
        STORE.entry(call.store_key).constant[kinds] = found
    else:
        STORE.hits += 1
    evaluator, closed, constants, out_tree = found
    return out_tree.unflatten(evaluator.run(closed, constants, moving))


def make_small(call: Call, moving: list[Any]) -> Any:
    """Trace a call whose small arrays are known, in the first mode that exists."""
    count = len(call.captured)
    leaves, _, _ = call.unflatten(call.inputs.arrays)
    point, _ = call.point(leaves)
    sizes = Sizes.of(point, 0.0)
    options = call.options
    STORE.opaque_traces += 1
    for plan in usual_plans(options, sizes):

        def apply(a: list[Any], plan: Plan = plan) -> Any:
            return derive(call, None, a[:count], a[count:], plan.mode, plan.block)

        try:
            closed, constants, out_tree = stage_moving(apply, moving)
        except HotkError:
            raise
        except Exception:
            continue
        evaluator, constants = find_evaluator(plan, closed, constants, out_tree)
        return evaluator, closed, constants, out_tree
    raise Fallback(NEEDS[0])


def first_that_works(call: "OpaqueCall", attempt: Callable[[Plan], Any]) -> Any:
    """Try the modes in turn, and say why none works if none does."""
    failures: list[tuple[Plan, Exception]] = []
    for plan in call.plans():
        try:
            return plan, attempt(plan)
        except HotkError:
            raise
        except Exception as error:
            failures.append((plan, error))
    raise no_mode(call, failures) from failures[0][1]


def no_mode(call: "OpaqueCall", failures: list[tuple[Plan, Exception]]) -> ModeError:
    """Write the error for a function that cannot be differentiated as asked."""
    tried = "\n".join(f"    {plan.mode}: {_first_line(e)}" for plan, e in failures)
    where = f"`{function_name(call.f)}`{function_place(call.f)}"
    facts = str(call.facts())
    found = f" It holds {facts}." if facts else ""
    asked = len(failures) == 1 and failures[0][0].why == "asked for"
    return ModeError(
        message(
            call.options.kind.call(),
            f"{where} cannot be differentiated "
            + (f"by {failures[0][0].mode}." if asked else "in any mode.")
            + found,
            expected="a program whose derivative exists",
            got=f"\n{tried}",
            fix="Leave `mode=` to `hotk.Auto()`, which looks for one that exists."
            if asked
            else "Give the part without a derivative a rule (`jax.custom_jvp`), or "
            "replace it by one that JAX can differentiate.",
        )
    )


class OpaqueCall(Call):
    """A call of a function that is run as it is, once: only the point is traced."""

    def __init__(self, options: Options, f: Any, x: Any, rest: Any) -> None:
        self.options = options
        self.f = f
        self.x = x
        self.rest = rest
        self.small = False
        self._flatten()
        self.inputs = sort_inputs(self.leaves, self.counts, Walk(), opaque=True)
        self.walked = ()
        self.captured = []
        self.eager = False
        self.traced: Any = None

    def make_args(self, leaves: list[Any]) -> tuple[Any, ...]:
        """Return the further arguments themselves."""
        del leaves
        return self.args

    def apply(self, plan: Plan, arrays: Any) -> Any:
        """Evaluate the operator in one mode."""
        return derive(self, None, [], arrays, plan.mode, plan.block)

    def trace_once(self) -> Any:
        """Return the program of the function itself and the shapes of its results."""
        if self.traced is None:
            leaves, _, args = self.unflatten(self.inputs.arrays)
            point, kept = self.point(leaves)

            def alone(diff: Any) -> Any:
                x = self.x_tree.unflatten(self.merge(leaves, kept, diff))
                return self.split(self.f(x, *self.make_args(args)))

            self.traced = jax.make_jaxpr(alone, return_shape=True)(point)
        return self.traced

    def evaluate_as_is(
        self, captured: Any, leaves: Any, kept: Any, diff: Any, args: Any
    ) -> Any:
        """Run the program of the function, or the function if it needs values."""
        if self.eager:
            x = self.x_tree.unflatten(self.merge(leaves, kept, diff))
            return self.split(self.f(x, *self.make_args(args)))
        closed, shapes = self.trace_once()
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(diff))
        return jax.tree.structure(shapes).unflatten(outputs)

    def plans(self) -> list[Plan]:
        """List the modes to try."""
        try:
            closed, (y, _) = self.trace_once()
        except NEEDS_VALUE:
            self.eager = True
            point, _ = self.point(self.unflatten(self.inputs.arrays)[0])
            return usual_plans(self.options, Sizes.of(point, 0.0))
        return plans(self, closed, y)

    def facts(self) -> Facts:
        """Look for what limits the modes."""
        if self.eager:
            return Facts((), (), ())
        return Facts.of(self.trace_once()[0].jaxpr)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
