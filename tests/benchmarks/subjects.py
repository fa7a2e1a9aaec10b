"""Functions to differentiate, each with its point: nets, regressions, Rosenbrock."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


Activation = Callable[[jax.Array], jax.Array]


class Subject(NamedTuple):
    """A scalar function of one tree, and a point."""

    f: Callable[[Any], jax.Array]
    x: Any

    @property
    def n(self) -> int:
        """Count the numbers in the point."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.x))

    @property
    def v(self) -> Any:
        """Return a direction."""
        return jax.tree.map(jnp.ones_like, self.x)


def normal(seed: int, *shape: int) -> jax.Array:
    """Draw normal numbers."""
    return jax.random.normal(jax.random.key(seed), shape)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute the mean cross-entropy."""
    scores = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def rosenbrock(n: int) -> Subject:
    """Make the chained Rosenbrock function: tiny, elementwise, fused."""

    def f(x):
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return Subject(f, jnp.linspace(0.5, 1.5, n))


def logistic(rows: int = 10_000, n: int = 1000) -> Subject:
    """Make a logistic regression: two products with one large matrix."""
    inputs, signs = normal(1, rows, n), jnp.sign(normal(2, rows))

    def f(w):
        fit = jnp.mean(jax.nn.softplus(-signs * (inputs @ w)))
        return fit + 1e-3 * jnp.sum(w**2)

    return Subject(f, jnp.full(n, 0.01))


def perceptron(
    sizes: Sequence[int], batch: int = 128, activation: Activation = jnp.tanh
) -> Subject:
    """Make a tanh network with cross-entropy, as a function of its layers."""
    inputs = normal(0, batch, sizes[0])
    labels = jnp.arange(batch) % sizes[-1]
    layers = [
        (normal(i + 1, a, b) / np.sqrt(a), jnp.zeros(b))
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]

    def f(layers):
        *hidden, (weights, bias) = layers
        h = inputs
        for w, b in hidden:
            h = activation(h @ w + b)
        return cross_entropy(h @ weights + bias, labels)

    return Subject(f, layers)


def convolutional(batch: int = 64, activation: Activation = jax.nn.gelu) -> Subject:
    """Make a net of two convolutions and one dense layer on 28 x 28 images."""
    images, labels = normal(0, batch, 28, 28, 1), jnp.arange(batch) % 10
    x = {
        "first": normal(1, 3, 3, 1, 16) / 3,
        "second": normal(2, 3, 3, 16, 32) / 12,
        "dense": normal(3, 7 * 7 * 32, 10) / 40,
    }

    def f(x):
        h = images
        for name in ("first", "second"):
            h = jax.lax.conv_general_dilated(
                h, x[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            h = activation(h)
        return cross_entropy(h.reshape(batch, -1) @ x["dense"], labels)

    return Subject(f, x)


def recurrent(steps: int = 200, batch: int = 32, width: int = 64) -> Subject:
    """Make a recurrent net: a scan with a small body."""
    inputs = normal(0, steps, batch, 8)
    x = {
        "in": normal(1, 8, width) / 3,
        "again": normal(2, width, width) / 10,
        "out": normal(3, width, 1) / 8,
    }

    def f(x):
        def step(h, now):
            return jnp.tanh(now @ x["in"] + h @ x["again"]), None

        last, _ = jax.lax.scan(step, jnp.zeros((batch, width)), inputs)
        return jnp.mean((last @ x["out"]) ** 2)

    return Subject(f, x)


def block(h: jax.Array, p: dict[str, jax.Array], heads: int = 4) -> jax.Array:
    """Apply one block of a transformer: attention, layer norms and a wide layer."""
    batch, length, width = h.shape

    def norm(h, scale):
        centered = h - h.mean(axis=-1, keepdims=True)
        return (
            scale
            * centered
            * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5)
        )

    inputs, h = h, norm(h, p["scales"][0])
    split = (h @ p["qkv"]).reshape(batch, length, 3, heads, width // heads)
    q, k, v = jnp.moveaxis(split, 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width)
    h = inputs + mixed @ p["join"]
    wide = jax.nn.gelu(norm(h, p["scales"][1]) @ p["up"])
    return h + wide @ p["down"]


def block_parameters(seed: int, width: int) -> dict[str, jax.Array]:
    """Draw the parameters of a block."""
    size = np.sqrt(width)
    return {
        "qkv": normal(seed + 1, width, 3 * width) / size,
        "join": normal(seed + 2, width, width) / size,
        "up": normal(seed + 3, width, 4 * width) / size,
        "down": normal(seed + 4, 4 * width, width) / size / 2,
        "scales": jnp.ones((2, width)),
    }


def transformer(length: int = 32, batch: int = 4, width: int = 64) -> Subject:
    """Make one block of a transformer."""
    inputs = normal(0, batch, length, width)
    f = lambda x: jnp.mean(block(inputs, x) ** 2)
    return Subject(f, block_parameters(0, width))


def language_model(blocks: int = 4, width: int = 256, words: int = 1000) -> Subject:
    """Make a transformer with 3.4e6 parameters, which predicts the next word."""
    text = jax.random.randint(jax.random.key(0), (2, 33), 0, words)
    x = {
        "words": normal(1, words, width),
        "blocks": [block_parameters(10 * i + 10, width) for i in range(blocks)],
    }

    def f(x):
        h = x["words"][text[:, :-1]]
        for p in x["blocks"]:
            h = block(h, p)
        logits = jax.nn.log_softmax(h @ x["words"].T / np.sqrt(width))
        return -jnp.mean(jnp.take_along_axis(logits, text[:, 1:, None], -1))

    return Subject(f, x)


def hvp_by_hand(f: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Write the product as one does without hotk: forward over reverse, jitted."""

    def product(x, v, *args):
        return jax.jvp(lambda x: jax.grad(f)(x, *args), (x,), (v,))[1]

    return jax.jit(product)
