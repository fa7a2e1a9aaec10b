"""Regressions: linear, logistic, Poisson, mixtures, survival, matrix factorization."""

import jax.numpy as jnp
import numpy as np

from tests.everyday.corpus import everyday


@everyday("ridge regression, the weights captured")
def ridge(seed):
    rng = np.random.default_rng(seed)
    X = jnp.asarray(rng.normal(size=(12, 4)), jnp.float32)
    y = jnp.asarray(rng.normal(size=12), jnp.float32)

    def loss(w):
        return jnp.mean((X @ w - y) ** 2) + 0.1 * jnp.sum(w**2)

    return loss, jnp.asarray(rng.normal(size=4), jnp.float32), ()
