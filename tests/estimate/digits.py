"""The spectrum of a small network fitted to digits, exact and estimated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import hotk
from hotk.estimate import spectrum
from tests.estimate.operators import wide


KEY = jax.random.key(7)


@functools.cache
def digits():
    """Return the Hessian of a small network, fitted to digits, and its eigenvalues."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    inputs, labels = jnp.float32(inputs[:200] / 16), jnp.int32(labels[:200])

    def loss(p, inputs, labels):
        hidden = jnp.tanh(inputs @ p["w"] + p["b"][None])
        scores = jax.nn.log_softmax(hidden @ p["v"] + p["c"][None])
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    one, two = jax.random.split(jax.random.key(0))
    p = {
        "w": jax.random.normal(one, (64, 4), jnp.float32) / 8,
        "b": jnp.zeros(4, jnp.float32),
        "v": jax.random.normal(two, (4, 10), jnp.float32) / 2,
        "c": jnp.zeros(10, jnp.float32),
    }
    slope = jax.grad(loss)
    step = lambda a, g: a - jnp.float32(0.5) * g
    fit = lambda i, p: jax.tree.map(step, p, slope(p, inputs, labels))
    p = jax.jit(lambda p: jax.lax.fori_loop(0, 100, fit, p))(p)
    H = hotk.HessianOperator(loss, p, inputs, labels)
    return H, np.linalg.eigvalsh(np.float64(H.matrix()))


@functools.cache
def digits_over_seeds():
    """Return the spectra of 100 seeds. The start has no direction: nor has A."""
    A = hotk.Diagonal(jnp.float32(digits()[1]))
    one = lambda key: spectrum(A, key, samples=50, steps=12)
    return jax.lax.map(one, jax.random.split(KEY, 100))


def distance(nodes, weights, eigenvalues):
    """Return the Wasserstein distance to the exact spectrum, over its range."""
    at = np.concatenate([nodes.ravel(), eigenvalues])
    share = np.append(
        weights.ravel() / np.sum(weights),
        np.full(len(eigenvalues), -1 / len(eigenvalues)),
    )
    order = np.argsort(at)
    between = np.abs(np.cumsum(share[order]))[:-1] * np.diff(at[order])
    return np.sum(between) / (eigenvalues[-1] - eigenvalues[0])


def coverage():
    """Return for each seed and place whether two errors of the density cover it.

    Besides it the errors, and the exact density: that of the eigenvalues as bells whose
    width is 5 % of the range.
    """
    exact, found = digits()[1], digits_over_seeds()
    width = 0.05 * (exact[-1] - exact[0])
    grid = np.linspace(exact[0] - width, exact[-1] + width, 50)
    bells = np.exp(-(((grid[:, None] - exact) / width) ** 2) / 2)
    density = np.mean(bells, axis=1) / (width * np.sqrt(2 * np.pi))
    got = wide(jax.vmap(lambda one: one.density(grid, width))(found))
    return np.abs(got.value - density) <= 2 * got.error, got.error, density
