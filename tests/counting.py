"""Count what JAX does: traces, lowerings, compiles; name its primitives.

The only test file that touches JAX's internals. It hears the events that JAX's own
test suite counts (`jax._src.test_util`), but in all threads, so that a race can be
counted too. The events are sent before any compilation cache on disk is asked, which
therefore changes no count.

    with compiles() as count:
        hotk.hvp(f, x, v)
    assert count() == 1

Whatever JAX computes inside the block counts, `jnp.ones(3)` for an argument as well:
make the arguments before. One user function is more than one trace (each jitted
function inside it, `jnp.where` for instance, is one of its own), so zero is the number
to assert of `traces`; to count how often a function's body runs, let it call
`tick = itertools.count().__next__`.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import config, util
from jax._src.interpreters import mlir
from jax.extend.core import ClosedJaxpr, Primitive, primitives
from jax.interpreters import ad


def checked() -> bool:
    """Whether `HOTK_VERIFY` is checking a program now, which counts for nothing."""
    prepared = sys.modules.get("hotk._prepared")
    checker = None if prepared is None else prepared.WATCH.by
    return checker is not None and checker.is_checking


@contextlib.contextmanager
def _events(event: str) -> Iterator[Callable[[], int]]:
    lock, heard = threading.Lock(), 0
    previous = util.test_event_listener

    def listen(name: str, *args: Any) -> None:
        nonlocal heard
        if name == event and not checked():
            with lock:
                heard += 1
        if previous is not None:
            previous(name, *args)

    util.test_event_listener = listen
    try:
        yield lambda: heard
    finally:
        util.test_event_listener = previous


def traces() -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Count the functions traced to a program."""
    return _events("trace_to_jaxpr")


def lowerings() -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Count the programs lowered to a module of the compiler's language."""
    return _events("lower_jaxpr_to_module")


def compiles() -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Count the modules handed to the compiler."""
    return _events("pxla_cached_compilation")


def settings() -> dict[Any, Any]:
    """Return every JAX setting, and what else a trace depends on in this thread."""
    names, values = config.trace_context_names(), config.trace_context()
    # contexts of users have all one name: the second of a name is not the first
    numbered = [(name, names[:i].count(name)) for i, name in enumerate(names)]
    return dict(jax.config.values) | dict(zip(numbered, values, strict=True))


def primitives_of_jax() -> set[str]:
    """Return the names of the primitives that JAX lists or has derivative rules for.

    Not of its language for kernels, which is loaded when it is used.
    """
    listed = [v for v in vars(primitives).values() if isinstance(v, Primitive)]
    loaded = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("jax._src.") and "pallas" not in name
        for value in list(vars(module).values())
        if isinstance(value, Primitive)
    ]
    ruled = {*ad.primitive_jvps, *ad.primitive_transposes}
    return {p.name for p in listed} | {p.name for p in loaded if p in ruled}


@contextlib.contextmanager
def lowered() -> Iterator[list[Any]]:
    """Collect the programs that are lowered inside, as jaxprs."""
    found, lower = [], mlir.lower_jaxpr_to_module

    def listen(name: str, program: Any, *args: Any, **keywords: Any) -> Any:
        # a jaxpr without constants in later versions of JAX
        is_closed = isinstance(program, ClosedJaxpr)
        found.append(program if is_closed else ClosedJaxpr(program, ()))
        return lower(name, program, *args, **keywords)

    mlir.lower_jaxpr_to_module = listen
    try:
        yield found
    finally:
        mlir.lower_jaxpr_to_module = lower
