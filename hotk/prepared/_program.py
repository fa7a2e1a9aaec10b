"""`Program`: an operator for one structure and signature, traced and compiled once."""

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import (
    abandoned_if_failed,
    cache_size,
    check_forward,
    decisive_settings,
    in_trace,
    jaxpr_as_fun,
    makes_keys,
    order_name,
    run_jaxpr,
    settings_for,
    trace_context,
    tracers_inside,
)
from hotk.capture import Opaque, aval_of
from hotk.dense import recorded_blocks
from hotk.mode import (
    FORWARD_OVER_FORWARD,
    AbstractMode,
    Facts,
    Nested,
)
from hotk.primitive import check_linear, with_forward_rules

from ._call import SLOT, Call, Mismatch
from ._flat import warn_if_flat
from ._options import Options
from ._plan import Plan


Kinds = tuple[Any, ...]


def kinds_of(captured: Any, arrays: Any) -> Kinds:
    """Return shape, dtype and weak type of all that goes into a program."""
    return (len(captured), *map(aval_of, captured), *map(aval_of, arrays))


def flat_count(tree: Any, kinds: Kinds) -> int:
    """Return how many arguments there are if each is a single array, else -1."""
    count = 1 + len(tree.children()[1].children())
    arrays = len(kinds) - 1 - kinds[0]
    single = tree.num_leaves == count and tree.num_nodes == count + 2
    return count if single and arrays == count else -1


class Primal:
    """A function of the user, traced once for all operators."""

    __slots__ = ("__weakref__", "checked", "jit", "traces", "used")

    def __init__(self) -> None:
        self.checked: set[Any] = set()
        self.traces = 0
        self.used = 0

        def body(captured: Any, x: Any, args: Any) -> Any:
            call, SLOT.primal = SLOT.primal, None
            if call is None:
                raise Mismatch("a function was traced outside of a call")
            self.traces += 1
            with abandoned_if_failed():
                return call.evaluate(captured, x, args)

        self.jit = jax.jit(body)

    def __call__(self, call: Call, captured: Any, x: Any, args: Any) -> Any:
        """Evaluate the function of a call."""
        SLOT.primal = call
        try:
            return self.jit(captured, x, args)
        finally:
            SLOT.primal = None

    def trace(self, call: Call, captured: Any, x: Any, args: Any) -> Any:
        """Trace the function, or return the trace that exists."""
        SLOT.primal = call
        try:
            return self.jit.trace(captured, x, args)
        finally:
            SLOT.primal = None


class Program:
    """An operator at one signature, with the jitted function that computes it.

    Attributes:
        options: The operator and its keywords.
        plan: The mode that was chosen, and why.
        tree: The structure of the arguments.
        flat: How many arguments there are if each is a single array, else -1.
        kinds: Shape, dtype and weak type of all that goes in.
        context: The settings and named axes that it is traced under.
        away: Runs the program as it was traced under other ones, once that was needed:
            what is run so is no program of a direct call.
        seeded: Whether it may make random keys, in a way that is a setting as well.
        seconds: What tracing, lowering and compiling took.
    """

    __slots__ = (
        "__weakref__",
        "away",
        "block",
        "compiled",
        "context",
        "facts",
        "flat",
        "jit",
        "kinds",
        "lock",
        "options",
        "plan",
        "primal",
        "replay",
        "seconds",
        "seeded",
        "traced",
        "tree",
        "verified",
    )

    def __init__(
        self,
        options: Options,
        primal: Primal | None,
        tree: Any,
        plan: Plan,
        facts: Facts | None,
        kinds: Kinds,
    ) -> None:
        self.options = options
        self.primal = primal
        self.tree = tree
        self.flat = flat_count(tree, kinds)
        self.plan = plan
        self.block: int | None = plan.block
        self.facts = facts
        self.kinds = kinds
        self.compiled: Any = None
        self.traced: Any = None
        self.context = trace_context()
        self.away: Any = None
        self.replay: Replay | None = None
        self.verified = self.seeded = False
        self.lock = threading.Lock()
        self.seconds: dict[str, float] = {}

        def body(captured: Any, arrays: Any) -> Any:
            source, SLOT.call = SLOT.call, None
            if source is None or kinds_of(captured, arrays) != self.kinds:
                raise Mismatch
            if isinstance(source, Call):
                call = source
            elif trace_context() != self.context:
                raise Mismatch  # the mode was chosen under other settings
            elif isinstance(source, tuple):
                again, *held = source
                call = again(*held)
            else:
                return source.replay(captured, arrays)
            with recorded_blocks() as blocks:
                result = derive(call, self.primal, captured, arrays, plan)
            if blocks:
                self.block = min(blocks)
            return result

        body.__name__ = order_name(options.kind.name, plan.mode.nests)
        self.jit = jax.jit(body)

    @property
    def mode(self) -> AbstractMode:
        """The mode that runs."""
        return self.plan.mode

    @property
    def why(self) -> str:
        """Why it was chosen."""
        return self.plan.why

    def unlike(self, context: Any) -> dict[str, tuple[str, str]]:
        """Return the settings of a context under which another program is due."""
        if context == self.context:
            return {}
        return decisive_settings(self.context, context, self.seeded)

    def run(self, source: Any, captured: Any, arrays: Any) -> Any:
        """Compute; `source` tells the function if JAX has to trace it again."""
        SLOT.call = source
        try:
            return self.jit(captured, arrays)
        finally:
            SLOT.call = None

    def trace(self, source: Any, captured: Any, arrays: Any) -> Any:
        """Trace, and check that no tracer of the inside has got out."""
        start = time.perf_counter()
        SLOT.call = source
        try:
            traced = self.jit.trace(captured, arrays)
        finally:
            SLOT.call = None
        check_forward(traced.jaxpr)
        check_linear(traced.jaxpr)
        given = len(jax.tree.leaves((captured, arrays)))
        lifted = len(traced.jaxpr.jaxpr.invars) > given and not in_trace()
        if lifted or tracers_inside(traced.jaxpr):
            raise Opaque("a derivative rule inside it captures a tracer")
        self.seconds["trace"] = time.perf_counter() - start
        self.traced = traced
        self.seeded = self.seeded or makes_keys(traced.jaxpr)
        if self.replay is None:
            self.replay = Replay(traced.jaxpr, (), jax.tree.structure(traced.out_info))
        return traced

    def compile(self, source: Any, captured: Any, arrays: Any) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        if self.compiled is not None:
            return False
        if self.traced is None:
            self.trace(source, captured, arrays)
        traced: Any = self.traced
        with self.lock:
            if self.compiled is not None:
                return False
            start = time.perf_counter()
            lowered = traced.lower()
            self.seconds["lower"] = time.perf_counter() - start
            start = time.perf_counter()
            self.compiled = lowered.compile()
            self.seconds["compile"] = time.perf_counter() - start
            return True

    def signatures(self) -> int:
        """Count the signatures, shardings included, that JAX keeps of this program."""
        return cache_size(self.jit)


class Replay:
    """A traced program, to be run as it was traced when JAX traces its caller anew."""

    __slots__ = ("closed", "constants", "out_tree")

    def __init__(self, closed: Any, constants: Any, out_tree: Any) -> None:
        self.closed = closed
        self.constants = constants
        self.out_tree = out_tree

    def replay(self, captured: Any, arrays: Any) -> Any:
        """Run the program for these arrays."""
        outputs = jaxpr_as_fun(self.closed)(*self.constants, *captured, *arrays)
        return self.out_tree.unflatten(outputs)


class Evaluator:
    """A traced program of an opaque function: its constants are arguments."""

    __slots__ = ("__weakref__", "closed", "jit", "mode", "used", "why")

    def __init__(self, mode: AbstractMode, why: str) -> None:
        self.mode = mode
        self.why = why
        self.used = 0

        def body(constants: Any, arrays: Any) -> Any:
            closed, SLOT.program = SLOT.program, None
            if closed is None or not _fits(closed, arrays):
                raise Mismatch
            return run_jaxpr(closed, constants, arrays)

        self.jit = jax.jit(body)

    def run(self, closed: Any, constants: Any, arrays: Any) -> Any:
        """Compute with these constants; `closed` is traced if JAX has to."""
        SLOT.program = closed
        try:
            return self.jit(constants, arrays)
        finally:
            SLOT.program = None


def _fits(closed: Any, arrays: Any) -> bool:
    """Whether a program, whose last arguments they are, was traced for such arrays."""
    variables = closed.jaxpr.invars
    types = [v.aval for v in variables[len(variables) - len(arrays) :]]
    expected = [(t.shape, t.dtype, t.weak_type) for t in types]
    return expected == [aval_of(a) for a in arrays]


class Lifted:
    """A program that holds a jitted function of the user: its arrays are arguments.

    A fresh `jax.jit(lambda ...)` is known by its identity alone, so it is traced; its
    captured arrays are lifted out of the trace, so that it is not compiled.
    """

    __slots__ = ("__weakref__", "closed", "constants", "evaluator", "out_tree")

    def __init__(
        self, closed: Any, constants: Any, evaluator: Evaluator, out_tree: Any
    ) -> None:
        self.closed = closed
        self.constants = constants
        self.evaluator = evaluator
        self.out_tree = out_tree

    def jit(self, captured: Any, arrays: Any) -> Any:
        """Compute; arguments as those of a `Program`."""
        moving = [*captured, *arrays]
        outputs = self.evaluator.run(self.closed, self.constants, moving)
        return self.out_tree.unflatten(outputs)

    def run(self, source: Any, captured: Any, arrays: Any) -> Any:
        """Compute; nothing is traced again for another function."""
        del source
        return self.jit(captured, arrays)

    def compile(self, source: Any, captured: Any, arrays: Any) -> bool:
        """Leave it to the evaluator, which counts for itself."""
        del source, captured, arrays
        return False


def derive(
    call: Call,
    primal: Primal | None,
    captured: Any,
    arrays: Any,
    plan: Plan,
) -> Any:
    """Evaluate the operator of a call: the one place where formulas are applied.

    Args:
        call: The function and the structure of its arguments.
        primal: The function traced once, or `None` to run the function itself.
        captured: In place of the captured arrays.
        arrays: In place of the arrays among the arguments.
        plan: The mode to use, and how.
    """
    leaves, direction, args = call.unflatten(arrays)
    point, kept = call.point(leaves)
    point = jax.tree.map(jnp.asarray, point)
    deriving, running = settings_for(jax.tree.leaves(point))

    def f(diff: Any) -> Any:
        with running():
            if primal is None:
                return call.evaluate_as_is(captured, leaves, kept, diff, args)
            x = call.arrays_only(call.merge(leaves, kept, diff), 0)
            return primal(call, captured, x, call.arrays_only(args, call.ahead))

    if plan.adopt:
        f = with_forward_rules(f, by_body=plan.by_body)
    with deriving():
        return _apply(call, f, point, kept, leaves, direction, arrays, plan)


def _apply(
    call: Call,
    f: Any,
    point: Any,
    kept: Any,
    leaves: Any,
    direction: Any,
    arrays: Any,
    plan: Plan,
) -> Any:
    """Evaluate a formula for a function of the differentiated part of the point."""
    takes = call.options.kind.takes
    if takes == "v":
        direction = call.direction(direction, leaves, kept, point, arrays)
    elif takes == "vs":
        direction = tuple(
            call.direction(v, leaves, kept, point, arrays) for v in direction
        )
    elif takes == "u":
        y, _ = jax.eval_shape(f, point)
        direction = call.cotangent(direction, y, arrays)
    result = call.options.apply(f, point, direction, plan.mode, plan.block)
    if plan.kinks:
        mode = plan.mode if isinstance(plan.mode, Nested) else FORWARD_OVER_FORWARD
        warn_if_flat(call, f, point, mode, plan.kinks)
    return result
