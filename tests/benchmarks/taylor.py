"""Derivatives of any order, against jet and nested derivatives."""

import functools
import itertools
import math
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental.jet import jet

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, of_ratio, run


ORDER = 6


def network(depth: int = 4, width: int = 128, batch: int = 128):
    """Make a tanh network from 16 numbers to one, as a function of its inputs."""
    sizes = (16, *(width,) * depth, 1)
    pairs = list(itertools.pairwise(sizes))
    weights = [normal(i, a, b) / math.sqrt(a) for i, (a, b) in enumerate(pairs)]

    def f(x):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return x @ weights[-1]

    return f, normal(10, batch, 16), normal(11, batch, 16)


def nested(f, order):
    """Return the derivative of an order along a direction, by as many `jvp`s."""

    def last(x, v):
        along = lambda g: lambda x: jax.jvp(g, (x,), (v,))[1]
        return functools.reduce(lambda g, _: along(g), range(order), f)(x)

    return last


def built(function, *at) -> float:
    """Return the seconds of tracing, lowering and compiling."""
    start = time.process_time()
    jax.jit(function).lower(*at).compile()
    return time.process_time() - start


def along_a_direction() -> Iterator[Row]:
    """Compare the sixth derivative of a network along a direction."""
    f, x, v = network()

    def by_jet(x, v):
        zeros = [jnp.zeros_like(v)] * (ORDER - 1)
        return jet(f, (x,), ([v, *zeros],))[1][-1]

    ours = hotk.derivatives.prepare(f, x, v, order=ORDER)
    theirs, deep = jax.jit(by_jet), jax.jit(nested(f, ORDER))
    note = f"{ours.info.equations} equations"
    ratio = compare(lambda: ours(x, v), lambda: theirs(x, v), rounds=9)
    yield of_ratio("6 derivatives of an MLP / jet", ratio, 0.6, note)
    ratio = compare(lambda: ours(x, v), lambda: deep(x, v), rounds=9)
    yield of_ratio("6 derivatives of an MLP / the sixth by nested jvp", ratio)
    yield Row("6 derivatives of an MLP: equations", ours.info.equations, 600)
    seconds = built(lambda x, v: hotk.derivatives(f, x, v, order=ORDER), x, v)
    by_nesting = built(nested(f, ORDER), x, v)
    name = "6 derivatives of an MLP, build time / nested jvp"
    note = f"{seconds:.2g} s / {by_nesting:.2g} s of CPU"
    yield Row(name, seconds / by_nesting, 0.4, None, note)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from along_a_direction()


if __name__ == "__main__":
    run(str(__doc__), measure)
