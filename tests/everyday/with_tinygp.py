"""Marginal likelihoods of Gaussian processes by tinygp."""

import jax
import jax.numpy as jnp
import numpy as np
import tinygp
from tinygp import GaussianProcess, kernels, transforms

from tests.everyday.corpus import everyday


def series(seed, n=8):
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, 3.0, n)), rng.normal(size=n)


@everyday("kernel of a dictionary of parameters", library="tinygp")
def by_dictionary(seed):
    X, y = series(seed)

    def build_gp(theta, X):
        amplitudes, scales = jnp.exp(theta["log_amps"]), jnp.exp(theta["log_scales"])
        k1 = amplitudes[0] * kernels.ExpSquared(scales[0])
        k2 = (
            amplitudes[1]
            * kernels.ExpSquared(scales[1])
            * kernels.ExpSineSquared(scale=scales[2], gamma=jnp.exp(theta["log_gamma"]))
        )
        mean = theta["mean"]
        return GaussianProcess(
            k1 + k2, X, diag=jnp.exp(theta["log_diag"]), mean=lambda _: mean
        )

    @jax.jit
    def neg_log_likelihood(theta, X, y):
        return -build_gp(theta, X).log_probability(y)

    theta = {
        "mean": jnp.array(0.1),
        "log_diag": jnp.array(-1.0),
        "log_amps": jnp.array([0.1, -0.4]),
        "log_scales": jnp.array([0.1, 0.2, 0.3]),
        "log_gamma": jnp.array(0.2),
    }
    return neg_log_likelihood, theta, (X, y)


@everyday("Matern kernel with data in the closure", library="tinygp")
def matern(seed):
    X, y = map(jnp.asarray, series(seed))

    def loss(params):
        kernel = jnp.exp(params[0]) * kernels.Matern32(jnp.exp(params[1]))
        gp = GaussianProcess(kernel, X, diag=0.1)
        return -gp.log_probability(y)

    return loss, jnp.array([0.1, -0.2]), ()


@everyday("quasiseparable kernel", library="tinygp")
def quasiseparable(seed):
    X, y = map(jnp.asarray, series(seed))

    def loss(params):
        kernel = tinygp.kernels.quasisep.Matern32(scale=jnp.exp(params["scale"]))
        gp = GaussianProcess(kernel, X, diag=jnp.exp(params["noise"]))
        return -gp.log_probability(y)

    return loss, {"scale": jnp.array(0.1), "noise": jnp.array(-1.0)}, ()


@everyday("kernel in a transformed space", library="tinygp")
def transformed(seed):
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(6, 2)))
    y = jnp.sin(X[:, 0])
    base = kernels.ExpSquared()

    def loss(log_scales):
        kernel = transforms.Linear(jnp.exp(-log_scales), base)
        return -GaussianProcess(kernel, X, diag=0.2).log_probability(y)

    return loss, jnp.array([0.1, -0.2]), ()


class Brownian(kernels.Kernel):
    """A kernel of the user."""

    weight: jax.Array

    def evaluate(self, X1, X2):
        return self.weight * jnp.minimum(X1, X2)


@everyday("kernel of the user, prediction at held-out points", library="tinygp")
def own_kernel(seed):
    X, y = map(jnp.asarray, series(seed))

    def loss(weight):
        gp = GaussianProcess(Brownian(jnp.exp(weight)), X, diag=0.3)
        conditioned = gp.condition(y, X_test=jnp.array([0.5, 1.5])).gp
        return jnp.sum(conditioned.loc**2) - conditioned.variance.sum()

    return loss, jnp.array(0.2), ()
