"""`IndirectJit`: a jitted function that is told by each call what it computes."""

import threading
from collections.abc import Callable
from typing import TypeAlias

import jax
from jaxtyping import PyTree


Source: TypeAlias = tuple[Callable[..., PyTree], *tuple[object, ...]]
"""What computes a result when JAX traces: a function, and what it is called with after
the arguments of the jitted function. A tuple, as a direct call makes one each time, and
a closure or a `functools.partial` takes three times as long to make."""


class Slot(threading.local):
    """What is being called in this thread: read by a body that JAX decides to run."""

    source: Source | None = None


SLOT = Slot()


class Mismatch(Exception):
    """A body was run for other arguments than its program is made for."""


def _as_they_are(*arguments: PyTree) -> tuple[PyTree, ...]:
    return arguments


class IndirectJit:
    """A jitted function that computes what its caller says, if JAX has to trace it.

    JAX keeps a program by the identity of the Python function that it was traced from,
    and by the types of what goes in. Here one function stands for all callables of a
    structure, whichever object of the user a call comes with: what it computes is left
    in `SLOT` by the caller. Whoever calls `jit` itself has to set the slot before and
    to empty it after, or a later trace would compute something else.

    Attributes:
        jit: The jitted function.
    """

    __slots__ = ("jit",)

    def __init__(
        self,
        arrange: Callable[..., tuple[PyTree, ...]] = _as_they_are,
        name: str = "body",
    ) -> None:
        """Make the jitted function.

        Args:
            arrange: From what goes in to what a source is called with first; raises
                `Mismatch` if it is not what the program is made for.
            name: What it is called in profiles and in the messages of JAX.
        """

        def body(*arguments: PyTree) -> PyTree:
            # Emptied first: a trace runs code of the user, which may call operators.
            source, SLOT.source = SLOT.source, None
            if source is None:
                raise Mismatch("traced outside of a call")
            function, *given = source
            return function(*arrange(*arguments), *given)

        body.__name__ = name
        self.jit = jax.jit(body)

    def run(self, source: Source, *arguments: PyTree) -> PyTree:
        """Compute; the source is asked only if JAX has to trace."""
        SLOT.source = source
        try:
            return self.jit(*arguments)
        finally:
            SLOT.source = None

    def trace(self, source: Source, *arguments: PyTree) -> jax.stages.Traced:
        """Trace, or return the trace that exists."""
        SLOT.source = source
        try:
            return self.jit.trace(*arguments)
        finally:
            SLOT.source = None
