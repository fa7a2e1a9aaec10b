"""`Program`: an operator for one structure and signature, traced and compiled once."""

import contextlib
import math
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

import jax
from jaxtyping import PyTree

from hotk._core import (
    Leaf,
    PyTreeDef,
    abandoned_if_failed,
    check_forward,
    compiled,
    decisive_settings,
    in_trace,
    makes_keys,
    order_name,
    trace_context,
    tracers_inside,
    work,
)
from hotk.capture import Opaque, TracedProgram, aval_of
from hotk.dense import Block, recorded_blocks
from hotk.mode import AbstractMode, Facts
from hotk.primitive import check_linear

from ._call import Call
from ._derive import Derived, Evaluation, derive
from ._log import log_compiled, log_traced
from ._options import Options
from ._plan import CAPTURES, Plan
from ._slot import IndirectJit, Mismatch


# Numbers that go in: for steps on so few the compiler takes longer than the steps do.
SMALL = 1 << 17
_FEW_RUNS: ContextVar[bool] = ContextVar("few_runs", default=False)

Types: TypeAlias = tuple[Hashable, ...]
"""How many arrays are captured, then shape, dtype and weak type of all that goes in."""


def types_of(captured: Sequence[Leaf], arrays: Sequence[Leaf]) -> Types:
    """Return the types of all that goes into a program."""
    return (len(captured), *map(aval_of, captured), *map(aval_of, arrays))


def size_of(types: Types) -> int:
    """Return how many numbers there are in all that goes in."""
    avals: Any = types[1:]
    return sum(math.prod(shape) for shape, *_ in avals)


def flat_count(tree: PyTreeDef, types: Types) -> int:
    """Return how many arguments there are if each is a single array, else -1."""
    captured = types[0]
    assert isinstance(captured, int)
    count = 1 + len(tree.children()[1].children())
    arrays = len(types) - 1 - captured
    single = tree.num_leaves == count and tree.num_nodes == count + 2
    return count if single and arrays == count else -1


@contextlib.contextmanager
def few_runs() -> Iterator[None]:
    """Compile programs that are found within quickly, as they run a few times each."""
    token = _FEW_RUNS.set(True)
    try:
        yield
    finally:
        _FEW_RUNS.reset(token)


class Runner(Protocol):
    """What runs a call: a `Program`, or one that is shared with other functions."""

    @property
    def jit(self) -> "Jit":
        """Computes; a call of it goes through the slot of the thread."""
        ...

    def run(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> PyTree:
        """Compute; the call tells the function if JAX has to trace it again."""
        ...

    def compile(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        ...


class Jit(Protocol):
    """From the captured arrays, then those of the arguments, to the result."""

    def __call__(self, *flat: Leaf) -> PyTree:
        """Compute."""
        ...


class Primal:
    """A function of the user, traced once for all operators.

    Attributes:
        checked: The types for which no NumPy array takes part in what it computes.
        traces: How often its body was traced.
        used: When it was used last, by the clock of the store.
    """

    __slots__ = ("__weakref__", "_jit", "checked", "traces", "used")

    def __init__(self) -> None:
        self.checked: set[Hashable] = set()
        self.traces = 0
        self.used = 0
        self._jit = IndirectJit()

    def __call__(
        self,
        call: Call,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
    ) -> tuple[PyTree, PyTree]:
        """Evaluate the function of a call."""
        return self._jit.run((self._evaluate, call), captured, x, args)

    def trace(
        self,
        call: Call,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
    ) -> TracedProgram:
        """Trace the function, or return the trace that exists."""
        traced = self._jit.trace((self._evaluate, call), captured, x, args)
        return TracedProgram(traced.jaxpr, jax.tree.structure(traced.out_info))

    def _evaluate(
        self,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
        call: Call,
    ) -> tuple[PyTree, PyTree]:
        self.traces += 1
        with abandoned_if_failed():
            return call.evaluate(captured, x, args)


class Program:
    """An operator at one signature, with the jitted function that computes it.

    Attributes:
        options: The operator and its keywords.
        plan: The mode that was chosen, and why.
        tree: The structure of the arguments.
        flat: How many arguments there are if each is a single array, else -1.
        types: Shape, dtype and weak type of all that goes in.
        context: The settings and named axes that it is traced under.
        jit: Computes, from the captured arrays and the arguments' arrays, one by one:
            JAX takes single arrays apart faster than lists.
        away: The same for the program as it was traced under other settings, once that
            was needed: what is run so is no program of a direct call.
        seeded: Whether it may make random keys, in a way that is a setting as well.
        signatures: Counts the signatures, shardings included, that JAX keeps of it.
        traced: The trace that is compiled.
        first: The first trace, to be run again where the function is not at hand.
        seconds: What tracing, lowering and compiling took.
    """

    __slots__ = (
        "__weakref__",
        "_here",
        "away",
        "block",
        "compiled",
        "context",
        "evaluation",
        "facts",
        "first",
        "flat",
        "jit",
        "lock",
        "options",
        "plan",
        "seconds",
        "seeded",
        "traced",
        "tree",
        "types",
        "verified",
    )

    def __init__(
        self,
        options: Options,
        evaluation: Evaluation | Derived | None,
        tree: PyTreeDef,
        plan: Plan,
        facts: Facts | None,
        types: Types,
    ) -> None:
        self.options = options
        self.evaluation = evaluation
        self.tree = tree
        self.flat = flat_count(tree, types)
        self.plan = plan
        self.block: Block = plan.block
        self.facts = facts
        self.types = types
        self.compiled: jax.stages.Compiled | None = None
        self.traced: jax.stages.Traced | None = None
        self.context = trace_context()
        self.first: TracedProgram | None = None
        self.verified = self.seeded = False
        self.lock = threading.Lock()
        self.seconds: dict[str, float] = {}
        iterates = options.definition.iterates  # then it is no derivative
        name = order_name(options.definition.name, 0 if iterates else plan.mode.nests)
        self._here = IndirectJit(self._arrange, name)
        self.jit = self._here.jit
        self.away: Jit | None = None

    def open_away(self) -> None:
        """Make the function that runs the program under other settings than its own."""
        if self.away is None:
            self.away = IndirectJit(self._arrange).jit

    def _arrange(self, *flat: Leaf) -> tuple["Program", Sequence[Leaf], Sequence[Leaf]]:
        """Check what goes in, and split it; a source is called with the program first.

        JAX traces anew for other types than the program's mode was chosen for: the
        caller then finds or makes the program that is for them.
        """
        count = self.types[0]
        assert isinstance(count, int)
        # Lists, as the function was traced with: JAX tells them from tuples.
        captured, arrays = list(flat[:count]), list(flat[count:])
        if types_of(captured, arrays) != self.types:
            raise Mismatch
        return self, captured, arrays

    def derive(
        self, captured: Sequence[Leaf], arrays: Sequence[Leaf], call: Call
    ) -> PyTree:
        """Evaluate the operator of a call, as a source of this program."""
        with recorded_blocks() as blocks:
            result = derive(call, self.evaluation, captured, arrays, self.plan)
        if blocks:
            self.block = min(blocks)
        return result

    @property
    def mode(self) -> AbstractMode:
        """The mode that runs."""
        return self.plan.mode

    @property
    def why(self) -> str:
        """Why it was chosen."""
        return self.plan.why

    def unlike(self, context: tuple[Hashable, ...]) -> dict[str, tuple[str, str]]:
        """Return the settings of a context under which another program is due."""
        if context == self.context:
            return {}
        return decisive_settings(self.context, context, self.seeded)

    def run(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> PyTree:
        """Compute; the call tells the function if JAX has to trace it again."""
        return self._here.run((Program.derive, call), *captured, *arrays)

    def trace(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> jax.stages.Traced:
        """Trace, and check that no tracer of the inside has got out.

        Raises:
            Opaque: If one has: the program would hold it for ever.
        """
        start = time.perf_counter()
        traced = self._here.trace((Program.derive, call), *captured, *arrays)
        check_forward(traced.jaxpr)
        check_linear(traced.jaxpr)
        # An input more than was given is a tracer of the outside that JAX has lifted,
        # which only a trace that is going on outside can account for.
        given = len(captured) + len(arrays)
        lifted = len(traced.jaxpr.jaxpr.invars) > given and not in_trace()
        if lifted or tracers_inside(traced.jaxpr):
            raise Opaque(CAPTURES)
        self.seconds["trace"] = time.perf_counter() - start
        self.traced = traced
        self.seeded = self.seeded or makes_keys(traced.jaxpr)
        if self.first is None:
            out_tree = jax.tree.structure(traced.out_info)
            self.first = TracedProgram(traced.jaxpr, out_tree)
        return traced

    def compile(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        if self.compiled is not None:
            return False
        traced = self.traced or self.trace(call, captured, arrays)
        name = self.options.definition.call()
        # Threads that race for a first call may trace twice, but compile once
        # (`threads_racing_for_the_first_call_compile_once`).
        with self.lock:
            if self.compiled is not None:
                return False
            start = time.perf_counter()
            log_traced(name, call.f, self.seconds, traced.jaxpr)
            lowered = traced.lower()
            self.seconds["lower"] = time.perf_counter() - start
            start = time.perf_counter()
            seldom = self.options.definition.iterates or _FEW_RUNS.get()
            quickly = seldom and size_of(self.types) <= SMALL
            is_little = quickly and work(traced.jaxpr.jaxpr) <= SMALL
            self.compiled = compiled(lowered, quickly=quickly, is_little=is_little)
            self.seconds["compile"] = time.perf_counter() - start
            log_compiled(name, call.f, self.seconds)
            return True
