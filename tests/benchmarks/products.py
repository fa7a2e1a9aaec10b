"""Products in units of one gradient, and how often all operators together trace `f`."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import (
    convolutional,
    hvp_by_hand,
    logistic,
    perceptron,
    recurrent,
    rosenbrock,
    transformer,
)
from tests.benchmarks.table import Row, of_ratio, run


def with_value_and_gradient() -> Iterator[Row]:
    """Value, gradient and product in one go, where fusion makes the gradient cheap."""
    f, x = rosenbrock(100_000)
    v = jnp.ones_like(x)
    prepared, gradient = (
        hotk.value_gradient_and_hvp.prepare(f, x, v),
        jax.jit(jax.grad(f)),
    )
    ratio = compare(lambda: prepared(x, v), lambda: gradient(x))
    yield of_ratio("value_gradient_and_hvp / gradient, Rosenbrock n=1e5", ratio, 3.5)


def in_gradients() -> Iterator[Row]:
    """One product in gradients, and against the same written by hand."""
    subjects = {
        "Rosenbrock n=1e5": rosenbrock(100_000),
        "logistic regression 1e4 x 1e3": logistic(),
        "MLP 784-256-256-10, batch 256": perceptron((784, 256, 256, 10), batch=256),
        "convolutional net": convolutional(),
        "recurrent net, scan of 200": recurrent(),
        "transformer block": transformer(),
    }
    for what, subject in subjects.items():
        f, x, v = subject.f, subject.x, subject.v
        prepared, gradient = hotk.hvp.prepare(f, x, v), jax.jit(jax.grad(f))
        by_hand = hvp_by_hand(f)
        ours = lambda prepared=prepared, x=x, v=v: prepared(x, v)
        ratio = compare(ours, lambda: gradient(x), rounds=9)  # noqa: B023
        hand = compare(ours, lambda: by_hand(x, v), rounds=9)  # noqa: B023
        note = f"{hand.median:.2f} x the product by hand"
        yield of_ratio(f"hvp / gradient, {what}", ratio, None, note)


def traces_together() -> Iterator[Row]:
    """Count how often the body of `f` runs for six operators at one signature."""
    tick, x, v = itertools.count().__next__, jnp.linspace(0.0, 1.0, 10), jnp.ones(10)

    def f(x):
        tick()
        return jnp.sum(jnp.sin(x) * x**3)

    hotk.gradient(f, x)
    hotk.value_and_gradient(f, x)
    hotk.hvp(f, x, v)
    hotk.quadratic_form(f, x, v)
    hotk.hessian(f, x)
    prepared = hotk.hvp.prepare(f, x, v)
    jax.jvp(lambda x: prepared(x, v), (x,), (v,))
    yield Row("traces of f for six operators together", tick(), 1)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from traces_together()
    yield from with_value_and_gradient()
    yield from in_gradients()


if __name__ == "__main__":
    run(str(__doc__), measure)
