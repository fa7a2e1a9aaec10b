"""Operators with a known matrix, and a matrix for each kind of spectrum.

Tests share shapes and counts wherever they can: most of their time is compiling.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hotk
from hotk.linop import AbstractOperator


class Dense(AbstractOperator):
    """A matrix, on vectors that are a tree of two leaves."""

    a: Any
    symmetric: bool = eqx.field(static=True, default=True)

    @property
    def like(self):
        n, dtype = self.a.shape[0], self.a.dtype
        return {"u": jnp.zeros(n // 2, dtype), "v": jnp.zeros((n - n // 2, 1), dtype)}

    def mv(self, v):
        product = self.a @ flat(v)
        u, v = jnp.split(product, [product.shape[0] // 2])
        return {"u": u, "v": v[:, None]}


class Recording(AbstractOperator):
    """A matrix in NumPy that writes down what it is multiplied with."""

    a: Any
    seen: list[Any] = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True, default=True)

    on_host = True

    @property
    def like(self):
        return jnp.zeros(len(self.a), self.a.dtype)

    def mv(self, v):
        v = np.array(v)
        self.seen.append(v)
        return jnp.asarray(self.a @ v)


class OnePass(Recording):
    """Multiplies several vectors in one pass, as an operator over data does."""

    def many(self, vectors, block_size=None):
        self.seen.append(np.array(vectors))
        return jnp.asarray(np.array(vectors) @ self.a.T)


def hessian(a, dtype="float32"):
    """Return a symmetric matrix as the Hessian of a fresh function."""
    a = jnp.asarray(a, dtype)
    return hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(len(a), dtype))


def wide(tree):
    """Return what was estimated in NumPy and double precision."""
    return jax.tree.map(lambda a: np.asarray(a, float), tree)


def flat(v):
    """Return a vector of a `Dense` operator, or several, as an array."""
    leading = v["u"].shape[:-1]
    return jnp.concatenate([v["u"], v["v"].reshape(*leading, -1)], axis=-1)


def symmetric(eigenvalues, seed=0):
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    n = len(eigenvalues)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return (q * eigenvalues) @ q.T


def square(n, seed=0):
    """Return a matrix that is not symmetric, of fast decay."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n)) @ symmetric(0.7 ** np.arange(n), seed)


N = 60
SPECTRA = {
    "steep": 0.7 ** np.arange(N),
    "slow": 1 / np.arange(1.0, N + 1),
    "flat": np.linspace(1, 3, N),
    "indefinite": np.linspace(-2, 3, N),
}
