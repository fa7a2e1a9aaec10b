"""Sparse Hessians against asdex, which detects a pattern and colors it.

`python -m tests.benchmarks.sparse_asdex`; it needs `pip install asdex`, and measures
nothing without. Both get the same function and point in the same process, with the same
settings of the allocator (see `sparse`). The values are those of jitted calls in turns,
the seconds before them are CPU seconds of pattern, coloring, tracing and compiling.
"""

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator

import jax

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.sparse import GOALS, point
from tests.benchmarks.table import Row, of_ratio, run


try:
    import asdex
except ImportError:
    asdex = None

N = int(os.environ.get("HOTK_BENCHMARK_SIZE", "100_000"))
# CPU seconds after which asdex has no answer.
LIMIT = 120


def against_asdex() -> Iterator[Row]:
    """Compare values with those of asdex, and the seconds before the first ones."""
    if asdex is None:
        print("asdex is not installed: nothing is measured", file=sys.stderr)
        return
    for name, (make, _) in GOALS.items():
        f, n = make(N)
        x = point(n)
        what = f"sparse_hessian, {name} n={n} / asdex"
        hotk.clear_cache()
        start = time.process_time()
        ours = hotk.sparse_hessian.prepare(f, x)
        own = time.process_time() - start
        start = time.process_time()
        try:
            with _limited(LIMIT):
                made = jax.jit(asdex.hessian(f, x))
                theirs = made.lower(x).compile()
        except Exception as error:
            why = type(error).__name__
            after = time.process_time() - start
            note = f"asdex: {why} after {after:.0f} s; ours ready after {own:.2g} s"
            yield Row(what, 0.0, 0.25, note=note)
            continue
        note = f"ready after {own:.2g} s / {time.process_time() - start:.2g} s"
        values = functools.partial(ours, x), functools.partial(theirs, x)
        yield of_ratio(what, compare(*values, rounds=5), 0.25, note)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise an error if what is inside takes more CPU seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    print({name: os.environ.get(name, "default") for name in settings})
    run(__doc__, against_asdex)
