"""`Staged`: a function as the program that it was when it was traced."""

from typing import final

import equinox as eqx
from jaxtyping import Array, PyTree

from hotk._core import Function

from ._traced_program import TracedProgram


@final
class Staged(eqx.Module):
    """A function as the program that it was when it was traced.

    What cannot be split into arrays and the rest is held this way.

    Attributes:
        constants: The arrays that it had captured.
        program: The program, without them.
    """

    constants: list[Array]
    program: TracedProgram = eqx.field(static=True)

    @staticmethod
    def of(f: Function, *arguments: PyTree) -> "Staged":
        """Trace a function now; what does not depend on the arrays is computed.

        Args:
            f: The function.
            *arguments: Trees of arrays and numbers, like those it will be called with.
        """
        traced = TracedProgram.of(f, *arguments, kept=True)
        return Staged(list(traced.constants), traced.without_constants())

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Run the program."""
        return self.program.with_constants(self.constants)(*arguments)
