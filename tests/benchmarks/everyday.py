"""The corpus of `tests/everyday` against `jax.jit`: fresh functions over fresh data.

Ours is a direct call with a function and data of its own each time; theirs is
`jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])` of one function, made once.
"""

import itertools
import statistics
import warnings
from collections.abc import Iterator

import jax

import hotk
from tests import counting
from tests.benchmarks.interleaved import Ratio, compare, seconds
from tests.benchmarks.table import Row, duration, run
from tests.everyday.corpus import LIBRARIES, Entry, by_jax, direction, is_there, load


# A gradient of less than this is small: what a call costs shows beside it.
SMALL = 50e-6
POOL = 16


def gradient_seconds(entry: Entry) -> float:
    """Time the compiled gradient of an entry."""
    f, x, args = entry.maker(0)
    gradient = jax.jit(lambda x: jax.grad(lambda x: f(x, *args))(x))
    call = lambda: gradient(x)
    for _ in range(3):
        jax.block_until_ready(call())
    return min(seconds(call, 20) for _ in range(5))


def measured(entry: Entry) -> tuple[Ratio, int, int]:
    """Return the ratio of an entry, and the traces and compiles in steady state."""
    f, x, args = entry.maker(0)
    v = direction(x, 0)
    by_hand = jax.jit(lambda x, v: by_jax(f, x, v, *args))
    pool = [entry.maker(seed) for seed in range(1, POOL + 1)]
    turns = itertools.cycle(pool)

    def ours():
        fresh, x, args = next(turns)
        return hotk.hvp(fresh, x, v, *args)

    hotk.clear_cache()
    for _ in range(3):
        jax.block_until_ready(ours())
    with counting.compiles() as compiles:
        before = hotk.cache_info().traces
        for _ in range(5):
            jax.block_until_ready(ours())
        traces = hotk.cache_info().traces - before
        compiled = compiles()
    ratio = compare(ours, lambda: by_hand(x, v), rounds=7, most=0.05)
    return ratio, traces, compiled


def of_entry(entry: Entry) -> tuple[Row, float, bool]:
    """Return the row of an entry, the seconds of its gradient, whether it is fast."""
    with entry.settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = gradient_seconds(entry)
        ratio, traces, compiles = measured(entry)
    note = (
        f"{duration(ratio.ours)} / {duration(ratio.theirs)}; in 5 calls {traces} traces"
        f", {compiles} compiles"
    )
    if entry.slow:
        note += f"; slow: {entry.slow}"
    what = f"{entry.library or 'jax'}: {entry.name}"
    row = Row(what, ratio.median, spread=(ratio.low, ratio.high), note=note)
    return row, small, not compiles and traces <= 5 * entry.traces


def measure() -> Iterator[Row]:
    """Measure every entry whose library is there, then sum up."""
    entries, fast = load(), 0
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for entry in entries:
        try:
            row, small, is_fast = of_entry(entry)
        except Exception as error:
            yield Row(entry.name, float("nan"), note=f"raised {type(error).__name__}")
            continue
        ratios[small < SMALL].append(row.measured)
        fast += is_fast
        yield row
    for is_small, goal in ((True, 2.2), (False, 1.1)):
        if ratios[is_small]:
            what = f"gradient {'below' if is_small else 'above'} {duration(SMALL)}"
            median = statistics.median(ratios[is_small])
            note = f"{len(ratios[is_small])} functions"
            yield Row(f"median of the ratios, {what}", median, goal, note=note)
    named = sum(bool(entry.slow) for entry in entries)
    missing = [library for library in LIBRARIES if not is_there(library)]
    yield Row(
        "functions neither on the fast path nor named",
        len(entries) - fast - named,
        0,
        note=f"{fast} of {len(entries)} on it"
        + (f"; not installed: {', '.join(missing)}" if missing else ""),
    )


if __name__ == "__main__":
    run(str(__doc__), measure)
