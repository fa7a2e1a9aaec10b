"""`Evaluator`: a program shared by functions that differ in their constants alone."""

from collections.abc import Sequence

from jaxtyping import PyTree

from hotk._core import Leaf, run_jaxpr
from hotk.capture import Aval, TracedProgram, aval_of
from hotk.mode import AbstractMode

from ._slot import IndirectJit, Mismatch


class Evaluator:
    """A traced program of an opaque function: its constants are arguments."""

    __slots__ = ("__weakref__", "_jit", "mode", "used", "why")

    def __init__(self, mode: AbstractMode, why: str) -> None:
        self.mode = mode
        self.why = why
        self.used = 0
        self._jit = IndirectJit()

    def run(self, program: TracedProgram, arrays: Sequence[Leaf]) -> PyTree:
        """Compute; the program is traced if JAX has to."""
        constants = list(program.constants)
        outputs = self._jit.run((_evaluate, program), constants, arrays)
        return program.out_tree.unflatten(outputs)


def _evaluate(
    constants: Sequence[Leaf], arrays: Sequence[Leaf], program: TracedProgram
) -> list[PyTree]:
    variables = program.closed.jaxpr.invars
    types = [v.aval for v in variables[len(variables) - len(arrays) :]]
    if [Aval.of(t) for t in types] != [aval_of(a) for a in arrays]:
        raise Mismatch
    return run_jaxpr(program.closed, constants, arrays)
