"""Dense Hessians against `jax.jit(jax.hessian(f))`: time, temporary memory."""

from collections.abc import Iterator

import jax

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import Subject, logistic, perceptron, rosenbrock
from tests.benchmarks.table import Row, of_ratio, run


def one(
    what: str, subject: Subject, goal: float, memory: float | None
) -> Iterator[Row]:
    """Measure one Hessian, and its memory where `memory` is the goal for it."""
    f, x = subject
    prepared = hotk.hessian.prepare(f, x)
    by_hand = jax.jit(jax.hessian(f))
    ratio = compare(lambda: prepared(x), lambda: by_hand(x), rounds=7)
    info = prepared.info
    yield of_ratio(
        f"hessian / jax.hessian, {what}, n={subject.n}",
        ratio,
        goal,
        f"blocks of {info.block or 'all'}",
    )
    if memory is not None:
        theirs = by_hand.lower(x).compile().memory_analysis().temp_size_in_bytes
        ours = info.temporary_bytes
        yield Row(
            f"the same, temporary memory, n={subject.n}",
            ours / theirs,
            memory,
            note=f"{ours / 2**20:.3g} / {theirs / 2**20:.3g} MiB",
        )


def measure() -> Iterator[Row]:
    """Measure networks, a regression, and Rosenbrock's function."""
    yield from one("MLP parameters", perceptron((8, 16, 16, 16, 16)), 0.65, None)
    yield from one("MLP parameters", perceptron((8, 40, 40, 40, 8)), 0.65, 1 / 50)
    yield from one("logistic regression", logistic(), 1.0, None)
    yield from one("Rosenbrock", rosenbrock(1000), 1.1, None)
    yield from one("Rosenbrock", rosenbrock(4000), 1.1, None)


if __name__ == "__main__":
    run(str(__doc__), measure)
