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

from hotk._capture import RULE_CAPTURES_TRACER, Opaque, TracedProgram, aval_of
from hotk._core import (
    Function,
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
from hotk._dense import Block, recorded_blocks
from hotk._mode import AbstractMode, Facts
from hotk._primitive import check_linear

from ._call import Call
from ._contents import given
from ._log import log_compiled, log_traced
from ._options import Options
from ._plan import Derived, Evaluation, Plan, derive
from ._traced_jit import Mismatch, TracedJit, Varies


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
        """Computes; raises `Mismatch` for other types than it is made for."""
        ...

    def compile(self, f: Function) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        ...


class Jit(Protocol):
    """From the captured arrays, then those of the arguments, to the result."""

    def __call__(self, *flat: Leaf) -> PyTree:
        """Compute."""
        ...


class Primal:
    """A function of the user at one signature, traced once for all operators.

    Attributes:
        key: What the store keeps it by.
        program: The program, of the captured arrays, the point's and the others.
        lifted: Whether JAX has lifted tracers of the outside into it. Then it belongs
            to the trace that is going on: it is not kept, and cannot be run.
        checked: Whether it is known that NumPy has no part in what it computes.
        used: When it was used last, by the clock of the store.
    """

    __slots__ = ("__weakref__", "checked", "key", "lifted", "program", "used")

    def __init__(
        self,
        key: Hashable,
        call: Call,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
    ) -> None:
        """Trace the function of a call."""

        def evaluate(*parts: Sequence[Leaf]) -> tuple[PyTree, PyTree]:
            with abandoned_if_failed():
                return call.evaluate(*parts)

        given = list(captured), list(x), list(args)
        traced = jax.jit(evaluate).trace(*given)
        out_tree = jax.tree.structure(traced.out_info)
        self.key = key
        self.program = TracedProgram(traced.jaxpr, out_tree)
        self.lifted = len(traced.jaxpr.jaxpr.invars) > sum(map(len, given))
        self.checked = False
        self.used = 0


class Program:
    """An operator at one signature, with the jitted function that computes it.

    Attributes:
        options: The operator and its keywords.
        plan: The mode that was chosen, and why.
        tree: The structure of the arguments.
        flat: How many arguments there are if each is a single array, else -1.
        types: Shape, dtype and weak type of all that goes in.
        context: The settings and named axes that it is traced under.
        jit: Computes, from the captured arrays and the arguments' arrays, one by one.
        held: What a `Prepared` calls: the same, or what shows the first result.
        away: The same under other settings than the program was traced under, once that
            was needed: what is run so is no program of a direct call.
        seeded: Whether it may make random keys, in a way that is a setting as well.
        signatures: Counts the signatures, shardings included, that JAX keeps of it.
        traced: The trace that is compiled.
        seconds: What tracing, lowering and compiling took.
    """

    __slots__ = (
        "__weakref__",
        "_traced",
        "away",
        "block",
        "compiled",
        "context",
        "evaluation",
        "facts",
        "flat",
        "held",
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
        self.verified = self.seeded = False
        self.lock = threading.Lock()
        self.seconds: dict[str, float] = {}
        iterates = options.definition.iterates  # then it is no derivative
        name = order_name(options.definition.name, 0 if iterates else plan.mode.nests)
        self._traced = TracedJit(self._check, name)
        self.jit: Jit = self._traced.jit
        self.held: Jit = self.jit
        self.away: Jit | None = None

    @property
    def lifted(self) -> bool:
        """Whether it holds tracers of the outside: it is not to be kept."""
        return self._traced.lifted

    @property
    def first(self) -> TracedProgram | None:
        """What the operator was traced to."""
        return self._traced.program

    def open_away(self) -> None:
        """Make the function that runs the program under other settings than its own."""

        def body(*flat: Leaf) -> PyTree:
            self._check_types(flat)
            if self.first is None or self.unlike(trace_context()):
                raise Mismatch
            return self.first(*flat)

        if self.away is None:
            self.away = jax.jit(body)

    def _check(self, flat: Sequence[Leaf]) -> None:
        """Refuse what the program is not made for: JAX is about to trace it."""
        self._check_types(flat)
        if trace_context() != self.context:
            raise Mismatch  # the mode was chosen under other settings

    def _check_types(self, flat: Sequence[Leaf]) -> None:
        found = types_of(*self._split(flat))
        if found == self.types:
            return
        shared = [aval_of(a)._replace(varying=frozenset()) for a in flat]
        raise Varies if (found[0], *shared) == self.types else Mismatch

    def _split(self, flat: Sequence[Leaf]) -> tuple[Sequence[Leaf], Sequence[Leaf]]:
        """Split what goes in into captured arrays and those of the arguments."""
        count = self.types[0]
        assert isinstance(count, int)
        # Lists, as the function was traced with: JAX tells them from tuples.
        return list(flat[:count]), list(flat[count:])

    def _derive(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> PyTree:
        # An opaque function is run as it is: the arrays that it captured are known.
        # Not of an opaque function, whose arrays are known, nor of what was derived.
        asks = not (self.evaluation is None or isinstance(self.evaluation, Derived))
        content = contextlib.nullcontext()
        if asks and call.options.definition.static_arrays:
            content = given(call, captured, arrays)
        with recorded_blocks() as blocks, content:
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

    def trace(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> jax.stages.Traced:
        """Trace, and check that no tracer of the inside has got out.

        Raises:
            Opaque: If one has: the program would hold it for ever.
        """
        start = time.perf_counter()
        source = lambda *flat: self._derive(call, *self._split(flat))
        traced = self._traced.trace(source, *captured, *arrays)
        check_forward(traced.jaxpr)
        check_linear(traced.jaxpr)
        # Only a trace that is going on outside can account for its tracers.
        if (self.lifted and not in_trace()) or tracers_inside(traced.jaxpr):
            raise Opaque(RULE_CAPTURES_TRACER)
        self.seconds["trace"] = time.perf_counter() - start
        self.traced = traced
        self.seeded = self.seeded or makes_keys(traced.jaxpr)
        return traced

    def compile(self, f: Function) -> bool:
        """Compile once, whoever comes first; return whether it was this call.

        Args:
            f: The function, which the log names.
        """
        if self.compiled is not None:
            return False
        traced = self.traced
        assert traced is not None
        name = self.options.definition.call()
        # Threads that race for a first call may trace twice, but compile once
        # (`threads_racing_for_the_first_call_compile_once`).
        with self.lock:
            if self.compiled is not None:
                return False
            start = time.perf_counter()
            log_traced(name, f, self.seconds, traced.jaxpr)
            lowered = traced.lower()
            self.seconds["lower"] = time.perf_counter() - start
            start = time.perf_counter()
            seldom = self.options.definition.iterates or _FEW_RUNS.get()
            quickly = seldom and size_of(self.types) <= SMALL
            is_little = quickly and work(traced.jaxpr.jaxpr) <= SMALL
            self.compiled = compiled(lowered, quickly=quickly, is_little=is_little)
            self.seconds["compile"] = time.perf_counter() - start
            log_compiled(name, f, self.seconds)
            return True
