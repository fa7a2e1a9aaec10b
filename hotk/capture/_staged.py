"""`Staged`: a function as the program that it was when it was traced."""

from collections.abc import Callable, Hashable
from typing import Any, final

import equinox as eqx
import jax

from hotk._core import (
    CUSTOM,
    Unrecognized,
    equations,
    fingerprint,
    jaxpr_as_fun,
    trace_context,
    trace_once,
    unkeyed_setting,
)

from ._declared import static
from ._rule_key import rule_key


def _identity(closed: Any, out_tree: Any) -> Hashable:
    """Return what tells a program from others, to be differentiated as well as run.

    It is the program without its constants, and the rules of the functions in it that
    have a derivative of their own. `None` if it cannot be told.
    """
    try:
        key, _ = fingerprint(closed, lift=True)
        rules = [
            rule_key(equation, own=True)
            for equation in equations(closed.jaxpr)
            if equation.primitive.name in CUSTOM
        ]
        identity = (trace_context(), unkeyed_setting(), out_tree, key, *rules)
        hash(identity)
    except (Unrecognized, TypeError):
        return None
    return identity


@static
class Program:
    """A traced program without its constants: equal to those that compute the same.

    Attributes:
        closed: The program.
        out_tree: The structure of its result.
        identity: What tells it from others, itself if that is not known.
    """

    __slots__ = ("_hash", "closed", "identity", "out_tree")

    def __init__(self, closed: Any, out_tree: Any) -> None:
        self.closed = closed.replace(consts=[None] * len(closed.consts))
        self.out_tree = out_tree
        self.identity: Any = _identity(closed, out_tree)
        self._hash = id(self) if self.identity is None else hash(self.identity)

    def __eq__(self, other: object) -> bool:
        """Whether the other one computes the same and has the same derivatives."""
        if self is other:
            return True
        if not isinstance(other, Program) or self.identity is None:
            return False
        return self.identity == other.identity

    def __hash__(self) -> int:
        """Return the hash of what tells it from others."""
        return self._hash


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
        closed, shapes = trace_once(f, *arguments, kept=True)
        return Staged(list(closed.consts), Program(closed, jax.tree.structure(shapes)))

    def __call__(self, *arguments: Any) -> Any:
        """Run the program."""
        closed = self.program.closed.replace(consts=list(self.constants))
        outputs = jaxpr_as_fun(closed)(*jax.tree.leaves(arguments))
        return self.program.out_tree.unflatten(outputs)
