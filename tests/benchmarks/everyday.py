"""The corpus of `tests/everyday` against `jax.jit`: fresh functions over fresh data.

Ours is a direct call with a function and data of its own each time; theirs is
`jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])` of one function, made once.
Where a Python number of the program changes from call to call, which `jax.jit` does not
allow, theirs is plain JAX, evaluated as it is written.
"""

import itertools
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

import jax

import hotk
from tests import counting
from tests.benchmarks.interleaved import Ratio, compare, seconds
from tests.benchmarks.table import Row, duration, run
from tests.everyday.corpus import (
    LIBRARIES,
    Entry,
    by_jax,
    by_reverse,
    direction,
    is_there,
    load,
)


# A gradient of less than this is small: what a call costs shows beside it.
SMALL = 50e-6
POOL = 16  # functions that are timed
CALLS = 5  # that are counted

SMALL_GRADIENT = f"gradient below {duration(SMALL)}"
LARGE_GRADIENT = f"gradient above {duration(SMALL)}"
NEW_NUMBERS = "a new number each time, to plain JAX"
GOALS = {SMALL_GRADIENT: 2.2, LARGE_GRADIENT: 1.1, NEW_NUMBERS: 1.0}


def gradient_seconds(entry: Entry) -> float:
    """Time the compiled gradient of an entry."""
    f, x, args = (entry.reference or entry.maker)(0)
    f(x, *args)  # fills what is cached, which `jax.jit` would leave tracers in
    gradient = jax.jit(lambda x: jax.grad(lambda x: f(x, *args))(x))
    for _ in range(3):
        jax.block_until_ready(gradient(x))
    return min(seconds(lambda: gradient(x), 20) for _ in range(5))


def ours(made: tuple[Any, Any, tuple[Any, ...]], v: Any) -> Any:
    """Call hotk as users do."""
    f, x, args = made
    return hotk.hvp(f, x, v, *args)


def against_jit(entry: Entry, pool: list[Any], v: Any) -> Ratio:
    """Compare with one compiled function."""
    turns = itertools.cycle(pool)
    f, x, args = (entry.reference or entry.maker)(0)
    by_hand = jax.jit(lambda x, v: by_jax(f, x, v, *args))
    try:
        by_hand(x, v)
    except TypeError:  # a reverse rule only, of which `jit` tells late
        by_hand = jax.jit(lambda x, v: by_reverse(f, x, v, *args))
    return compare(
        lambda: ours(next(turns), v), lambda: by_hand(x, v), rounds=7, most=0.05
    )


def against_eager(pool: list[Any], v: Any) -> Ratio:
    """Compare with plain JAX, each function called once: a second call is no news."""
    f, x, args = pool[0]
    eager = lambda: by_jax(f, x, v, *args)
    theirs = [seconds(eager, 1) for _ in pool]
    mine = [seconds(lambda made=made: ours(made, v), 1) for made in pool]
    return Ratio.of(mine[4:], theirs[4:])


def measured(entry: Entry) -> tuple[Ratio, int, int]:
    """Return the ratio of an entry, and what `CALLS` calls after the third have done.

    Each call has a function and data of its own; making them is not timed.
    """
    pool = [entry.maker(seed) for seed in range(3 + CALLS + POOL)]
    f, x, args = pool[0]
    v = direction(x, 0)
    f(x, *args)
    hotk.clear_cache()
    for made in pool[:3]:
        ours(made, v)
    with counting.compiles() as compiles:
        before = hotk.cache_info().traces
        for made in pool[3 : 3 + CALLS]:
            ours(made, v)
        traces, compiled = hotk.cache_info().traces - before, compiles()
    rest = pool[3 + CALLS :]
    ratio = against_eager(rest, v) if entry.traces else against_jit(entry, rest, v)
    return ratio, traces, compiled


def of_entry(entry: Entry) -> tuple[Row, float, bool]:
    """Return the row of an entry, the seconds of its gradient, whether it is fast."""
    with entry.settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = gradient_seconds(entry)
        ratio, traces, compiles = measured(entry)
    note = (
        f"{duration(ratio.ours)} / {duration(ratio.theirs)}; in {CALLS} calls "
        f"{traces} traces, {compiles} compiles"
    )
    if entry.traces:
        note += "; beside plain JAX, not compiled"
    if entry.slow:
        note += f"; slow: {entry.slow}"
    what = f"{entry.library or 'jax'}: {entry.name}"
    row = Row(what, ratio.median, spread=(ratio.low, ratio.high), note=note)
    return row, small, not compiles and traces <= CALLS * entry.traces


def measure() -> Iterator[Row]:
    """Measure every entry whose library is there, then sum up."""
    entries, fast = load(), 0
    ratios: dict[str, list[float]] = {group: [] for group in GOALS}
    for entry in entries:
        try:
            row, small, is_fast = of_entry(entry)
        except Exception as error:
            yield Row(entry.name, float("nan"), note=f"raised {type(error).__name__}")
            continue
        below = SMALL_GRADIENT if small < SMALL else LARGE_GRADIENT
        ratios[NEW_NUMBERS if entry.traces else below].append(row.measured)
        fast += is_fast
        yield row
    for group, each in ratios.items():
        if each:
            note = f"{len(each)} functions"
            median = statistics.median(each)
            yield Row(f"median, {group}", median, GOALS[group], note=note)
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
