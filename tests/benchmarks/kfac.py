"""Kronecker-factored curvature: factors, products and inverses in gradients."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hotk
from hotk.curvature import SigmoidCrossEntropy
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, of_ratio, run


SIZES = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
Layers = list[tuple[jax.Array, jax.Array]]


def autoencoder(batch: int = 256) -> tuple[Layers, jax.Array]:
    """Make the layers of a deep autoencoder with 2.8e6 parameters, and images."""
    pairs = enumerate(itertools.pairwise(SIZES))
    p = [(normal(i, a, b) / np.sqrt(a), jnp.zeros(b)) for i, (a, b) in pairs]
    return p, jax.random.uniform(jax.random.key(0), (batch, 784))


def decoded(p: Layers, x: jax.Array) -> jax.Array:
    """Apply the layers; those of the images are logits."""
    *hidden, (w, b) = p
    for v, c in hidden:
        x = jnp.tanh(x @ v + c)
    return x @ w + b


def factors() -> Iterator[Row]:
    """Compute the factors of an autoencoder by one sampled target."""
    p, x = autoencoder()
    key = jax.random.key(1)

    @jax.jit
    def make(p: Layers, x: jax.Array, key: jax.Array) -> Any:
        loss = SigmoidCrossEntropy(x)
        options: Any = {"estimate": "sampled", "key": key}
        return hotk.KFACOperator(decoded, loss, p, x, **options)

    gradient = jax.jit(jax.grad(lambda p, x: SigmoidCrossEntropy(x)(decoded(p, x))))
    what = "autoencoder 784-1000-500-250-30, batch 256"
    one = lambda: gradient(p, x)
    ratio = compare(lambda: make(p, x, key), one, rounds=7)
    yield of_ratio(f"factors / gradient, {what}", ratio, 3)
    K, g = make(p, x, key), gradient(p, x)
    inverse = jax.jit(lambda K: K.inverse(0.1))
    ratio = compare(lambda: inverse(K), one, rounds=5)
    yield of_ratio(f"inverses / gradient, {what}", ratio)
    I = inverse(K)
    product = jax.jit(lambda I, g: I @ g)
    ratio = compare(lambda: product(I, g), one, rounds=7)
    yield of_ratio(f"inverse @ g / gradient, {what}", ratio)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from factors()


if __name__ == "__main__":
    run(str(__doc__), measure)
