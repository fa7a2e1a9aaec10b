"""`Staged`: a function as the program that it was when it was traced."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax

from hotk._core import jaxpr_as_fun


class Program:
    """A traced program without its constants: known by its identity."""

    __slots__ = ("closed", "out_tree")

    def __init__(self, closed: Any, out_tree: Any) -> None:
        self.closed = closed
        self.out_tree = out_tree


@final
class Staged(eqx.Module):
    """A function as the program that it was when it was traced.

    What cannot be split into arrays and the rest is held this way.

    Attributes:
        constants: The arrays that it had captured.
        program: The program, without them.
    """

    constants: list[Any]
    program: Program = eqx.field(static=True)

    @staticmethod
    def of(f: Callable[..., Any], *arguments: Any) -> "Staged":
        """Trace a function now; what does not depend on the arguments is computed.

        Args:
            f: The function.
            *arguments: Trees of arrays and numbers, like those it will be called with.
        """
        with jax.ensure_compile_time_eval():  # a captured array may decide what is run
            closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        empty = closed.replace(consts=[None] * len(closed.consts))
        return Staged(list(closed.consts), Program(empty, jax.tree.structure(shapes)))

    def __call__(self, *arguments: Any) -> Any:
        """Run the program."""
        closed = self.program.closed.replace(consts=list(self.constants))
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return self.program.out_tree.unflatten(outputs)
