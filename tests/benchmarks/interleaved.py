"""Time two calls in turns, so that whatever else the machine does hits both."""

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Ratio(NamedTuple):
    """How much longer one call takes than another.

    Attributes:
        median: Median over the rounds of our time over theirs.
        low: First quartile.
        high: Third quartile.
        ours: Median seconds of one call of ours.
        theirs: Median seconds of one call of theirs.
    """

    median: float
    low: float
    high: float
    ours: float
    theirs: float

    @staticmethod
    def of(ours: list[float], theirs: list[float]) -> "Ratio":
        """Compare round by round."""
        ratios = np.array(ours) / np.array(theirs)
        low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        return Ratio(
            float(median),
            float(low),
            float(high),
            float(np.median(ours)),
            float(np.median(theirs)),
        )


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Return the seconds of one call, of `calls` in a row, until the last is ready."""
    start = time.perf_counter()
    for _ in range(calls):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def calls_in(call: Callable[[], Any], batch: float) -> int:
    """Return how many calls last `batch` seconds, at least one. Warms up as well.

    The first calls trace, compile and learn; they say nothing of those to be timed.
    """
    for _ in range(4):
        jax.block_until_ready(call())
    calls = 1
    while (one := seconds(call, calls)) * calls < batch / 4:
        calls *= 4
    return max(1, round(batch / one))


def compare(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    *,
    rounds: int = 15,
    batch: float = 0.001,
    most: float = 0.2,
) -> Ratio:
    """Compare two calls in turns: `rounds` times the best of some batches of each.

    A batch is as many calls as last about `batch` seconds, less than what a busy system
    gives a process at once. The order changes from round to round. Microsecond calls
    are thus timed by the hundred, long ones one by one. A round takes about `most`
    seconds at most, or two batches of each, and never more than 20 of each.
    """
    both = {"ours": ours, "theirs": theirs}
    calls = {name: calls_in(call, batch) for name, call in both.items()}
    times: dict[str, list[float]] = {name: [] for name in both}
    once = sum(seconds(call, calls[name]) * calls[name] for name, call in both.items())
    batches = min(max(2, int(most / once)), 20)
    for turn in range(rounds):
        best = dict.fromkeys(both, float("inf"))
        order = list(both) if turn % 2 else list(both)[::-1]
        for _ in range(batches):
            for name in order:
                best[name] = min(best[name], seconds(both[name], calls[name]))
        for name in both:
            times[name].append(best[name])
    return Ratio.of(times["ours"], times["theirs"])


def compare_first(
    ours: Callable[[], Callable[[], Any]],
    theirs: Callable[[], Callable[[], Any]],
    *,
    forget: Callable[[], None],
    rounds: int,
) -> Ratio:
    """Compare first calls: each argument returns, anew, a call never made before.

    Before each call `forget` empties the caches. The unit is CPU time, which a busy
    machine disturbs least: nothing in a first call waits.
    """
    both = {"ours": ours, "theirs": theirs}
    times: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(rounds + 1):  # the first round warms up
        for name in list(both) if turn % 2 else list(both)[::-1]:
            forget()
            gc.collect()
            call = both[name]()
            start = time.process_time()
            jax.block_until_ready(call())
            times[name].append(time.process_time() - start)
    return Ratio.of(times["ours"][1:], times["theirs"][1:])
