"""`TracedJit`: a jitted function that runs code of the user once, its program after."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import PyTree

from hotk._capture import TracedProgram
from hotk._core import Leaf, in_trace, run_jaxpr


class Mismatch(Exception):
    """A program was called with other arguments, or settings, than it is made for."""


class Varies(Mismatch):
    """It was called within `shard_map`, with arrays that vary by device there."""


class TracedJit:
    """A jitted function that is traced from a function of Python once.

    JAX traces a jitted function anew for other shapes or settings, and where its caches
    were emptied. The code of the user may have changed by then, or is not at hand; the
    program that was made of it is, and runs in its place.

    Attributes:
        jit: The jitted function, of single arrays: JAX takes those apart faster than
            lists.
        program: The program, once it is traced.
        lifted: Whether JAX has lifted tracers of the outside into it. Then it belongs
            to the trace that is going on, and is not to be kept.
    """

    __slots__ = ("_source", "jit", "lifted", "program")

    def __init__(
        self, check: Callable[[Sequence[Leaf]], None], name: str = "body"
    ) -> None:
        """Make the jitted function.

        Args:
            check: Raises `Mismatch` if it is traced for what the program is not for.
            name: What it is called in profiles and in the messages of JAX.
        """
        self.program: TracedProgram | None = None
        self.lifted = False
        self._source: Callable[..., PyTree] | None = None

        def body(*arrays: Leaf) -> PyTree:
            check(arrays)
            if self._source is not None:
                return self._source(*arrays)
            program = self.program
            if program is None:
                raise Mismatch("called before it was traced")
            if in_trace():
                return program(*arrays)
            # By `jax_debug_nans`, which looks for the operation: one after the other,
            # as JAX does not look while it runs a program that it traced.
            closed = program.closed
            return program.out_tree.unflatten(run_jaxpr(closed, closed.consts, arrays))

        body.__name__ = name
        self.jit = jax.jit(body)

    def trace(self, source: Callable[..., PyTree], *arrays: Leaf) -> jax.stages.Traced:
        """Trace a function; no other thread may know of this object yet."""
        self._source = source
        try:
            traced = self.jit.trace(*arrays)
            self.lifted = len(traced.jaxpr.jaxpr.invars) > len(arrays)
        finally:
            if not self.lifted:  # else JAX asks for it again where it is called
                self._source = None
        out_tree = jax.tree.structure(traced.out_info)
        self.program = TracedProgram(traced.jaxpr, out_tree)
        return traced
