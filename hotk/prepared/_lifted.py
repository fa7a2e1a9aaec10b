"""`LiftedProgram`: a traced program whose constants are arguments when it runs."""

from collections.abc import Sequence

from jaxtyping import PyTree

from hotk._core import Leaf, Unrecognized, fingerprint, trace_context
from hotk.capture import TracedProgram

from ._call import Call
from ._evaluator import Evaluator
from ._plan import Plan
from ._store import STORE


class LiftedProgram:
    """A program that holds a jitted function of the user: its arrays are arguments.

    A fresh `jax.jit(lambda ...)` is known by its identity alone, so it is traced; its
    captured arrays are lifted out of the trace, so that it is not compiled.

    Attributes:
        program: The program.
        evaluator: What runs it, and any other one with the same equations.
    """

    __slots__ = ("__weakref__", "evaluator", "program")

    def __init__(self, program: TracedProgram, plan: Plan) -> None:
        """Find the evaluator of an equal program, or make one.

        Args:
            program: The program.
            plan: The mode that it was traced in.
        """
        new = Evaluator(plan.mode, plan.why)
        try:
            key = (program.out_tree, fingerprint(program.closed, lift=True)[0])
        except Unrecognized:
            self.evaluator = new
            STORE.compiled()
        else:
            self.evaluator = STORE.evaluator((trace_context(), key), new)
        self.program = program.with_own_constants()

    def jit(self, *flat: Leaf) -> PyTree:
        """Compute; arguments as those of a `Program`."""
        return self.evaluator.run(self.program, flat)

    def run(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> PyTree:
        """Compute; nothing is traced again for another function."""
        del call
        return self.evaluator.run(self.program, (*captured, *arrays))

    def compile(
        self, call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
    ) -> bool:
        """Leave it to the evaluator, which counts for itself."""
        del call, captured, arrays
        return False
