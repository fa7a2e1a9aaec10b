"""Small models with their Jacobians, and dense matrices made of them by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np


N, INPUTS, OUTPUTS = 7, 3, 4
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(N, INPUTS)))
W = jnp.asarray(RNG.normal(size=(INPUTS, OUTPUTS)))
V = jnp.asarray(RNG.normal(size=(INPUTS, OUTPUTS)))
CLASSES = jnp.asarray(RNG.integers(0, OUTPUTS, N))
NUMBERS = jnp.asarray(RNG.normal(size=(N, OUTPUTS)))
COUNTS = jnp.asarray(RNG.poisson(2.0, (N, OUTPUTS)))
BITS = jnp.asarray(RNG.integers(0, 2, (N, OUTPUTS)))


def net(w):
    """Return outputs that are not linear in the parameters."""
    return jnp.tanh(X @ w) + 0.1 * (X @ w) ** 2


def outputs():
    """Return the outputs of `net` at W, by NumPy."""
    a = np.asarray(X @ W)
    return np.tanh(a) + 0.1 * a**2


def jacobian():
    """Return the Jacobian of `net` at W by hand: rows are outputs, examples first."""
    a = np.asarray(X @ W)
    slope = 1 - np.tanh(a) ** 2 + 0.2 * a
    full = np.zeros((N, OUTPUTS, INPUTS, OUTPUTS))
    for k in range(OUTPUTS):
        full[:, k, :, k] = slope[:, k, None] * np.asarray(X)
    return full.reshape(N * OUTPUTS, INPUTS * OUTPUTS)


def block_diagonal(blocks):
    """Put one square block an example onto the diagonal."""
    n, k, _ = blocks.shape
    full = np.zeros((n, k, n, k))
    for i in range(n):
        full[i, :, i, :] = blocks[i]
    return full.reshape(n * k, n * k)


def sandwich(blocks):
    """Return J' B J for blocks B, one an example."""
    j = jacobian()
    return j.T @ block_diagonal(blocks) @ j


def probabilities(z):
    """Return the softmax, by NumPy."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def diagonals(d):
    """Make a diagonal block of each row."""
    return np.stack([np.diag(row) for row in d])


def times(matrix, v):
    """Multiply a dense matrix with a direction of parameters."""
    return jnp.asarray((matrix @ np.asarray(v).ravel()).reshape(v.shape))


def mean_loss_by_jax(each):
    """Return the mean over examples of a loss of one example's outputs."""
    return lambda z: jnp.mean(jax.vmap(each)(z))
