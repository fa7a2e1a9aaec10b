"""From nothing to the first product: trace, choice of mode, compile, run."""

from collections.abc import Callable, Iterator

import jax

import hotk
from tests.benchmarks.interleaved import compare_first
from tests.benchmarks.subjects import Subject, hvp_by_hand, perceptron, transformer
from tests.benchmarks.table import Row, of_ratio, run


def forget() -> None:
    """Empty every cache, JAX's and hotk's."""
    hotk.clear_cache()
    jax.clear_caches()


def first(what: str, make: Callable[[], Subject], goal: float, rounds: int) -> Row:
    """Compare the first product by hotk with the first by hand."""
    x, v = (subject := make()).x, subject.v

    def ours():
        f = make().f
        return lambda: hotk.hvp(f, x, v)

    def theirs():
        by_hand = hvp_by_hand(make().f)
        return lambda: by_hand(x, v)

    ratio = compare_first(ours, theirs, forget=forget, rounds=rounds)
    return of_ratio(f"first hvp / first jax.jit, {what}", ratio, goal, "CPU time")


def measure() -> Iterator[Row]:
    """Measure two networks."""
    net = lambda: perceptron((784, 256, 256, 10))
    yield first("MLP 784-256-256-10", net, 1.05, rounds=9)
    yield first("transformer block", transformer, 1.05, rounds=5)


if __name__ == "__main__":
    run(str(__doc__), measure)
