"""A function held as it is now, for operators that are prepared later."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax

from hotk._core import jaxpr_as_fun
from hotk.function import Closure
from hotk.prepared import Prepared


class Program:
    """A traced program without its constants: known by its identity."""

    __slots__ = ("closed", "out_tree")

    def __init__(self, closed: Any, out_tree: Any) -> None:
        self.closed = closed
        self.out_tree = out_tree


@final
class Traced(eqx.Module):
    """A function as the program that it was when it was traced.

    Attributes:
        constants: The arrays that it had captured.
        program: The program.
    """

    constants: list[Any]
    program: Program = eqx.field(static=True)

    def __call__(self, *arguments: Any) -> Any:
        """Run the program."""
        closed = self.program.closed.replace(consts=list(self.constants))
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return self.program.out_tree.unflatten(outputs)


def held(f: Callable[..., Any], known: list[Prepared], *arguments: Any) -> Closure:
    """Hold a function as it is now.

    Args:
        f: A function of the functions that were prepared just now.
        known: What was prepared: tells which captured arrays have to be static, and
            whether there is something that cannot be split into arrays and the rest.
        *arguments: What it is called with: numbers and arrays.
    """
    if all(prepared.skeleton.opaque is None for prepared in known):
        small = max(prepared.skeleton.small for prepared in known)
        closure = Closure.of(f, small=small)
        if closure.skeleton.opaque is None:
            return closure
    with jax.ensure_compile_time_eval():  # a captured array may decide what is traced
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
    empty = closed.replace(consts=[None] * len(closed.consts))
    program = Program(empty, jax.tree.structure(shapes))
    return Closure.of(Traced(list(closed.consts), program))
