"""Log densities as BlackJAX is given them, and losses made of its parts."""

import blackjax
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
from blackjax.mcmc.metrics import default_metric

from tests.everyday.corpus import everyday


def log_density_of(observed):
    def log_density(loc, log_scale):
        scale = jnp.exp(log_scale)
        return jnp.sum(stats.norm.logpdf(observed, loc, scale)) + log_scale

    return lambda x: log_density(**x)


@everyday("log density of the first example", library="blackjax")
def log_density(seed):
    observed = np.random.default_rng(seed).normal(3.0, 2.0, 20)
    return (
        log_density_of(observed),
        {"loc": jnp.array(1.0), "log_scale": jnp.ones(())},
        (),
    )


@everyday("log density of a sampler that holds a state", library="blackjax")
def held_state(seed):
    observed = np.random.default_rng(seed).normal(3.0, 2.0, 20)
    density = log_density_of(observed)
    sampler = blackjax.nuts(density, 1e-2, jnp.array([0.5, 0.5]))
    state = sampler.init({"loc": jnp.array(1.0), "log_scale": jnp.array(0.5)})

    def loss(shift):
        moved = jax.tree.map(
            lambda p, g: p + shift * g, state.position, state.logdensity_grad
        )
        return -density(moved) + state.logdensity

    return loss, jnp.array(0.01), ()


@everyday("energy after leapfrog steps", library="blackjax")
def leapfrog(seed):
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(8, 2)))
    density = lambda w: -jnp.mean(jnp.cosh(X @ w)) - 0.5 * jnp.sum(w**2)
    metric = default_metric(jnp.ones(2))
    step = velocity_verlet(density, metric.kinetic_energy)

    def loss(q):
        p = jnp.array([0.3, -0.2])
        state = IntegratorState(q, p, density(q), jax.grad(density)(q))
        for _ in range(2):
            state = step(state, 0.1)
        return -state.logdensity + metric.kinetic_energy(state.momentum)

    return loss, jnp.array([0.4, -0.1]), ()


@everyday("loss of mean-field variational inference", library="blackjax")
def mean_field(seed):
    rng = np.random.default_rng(seed)
    X, y = jnp.asarray(rng.normal(size=(10, 3))), jnp.asarray(rng.normal(size=10))
    key = jax.random.key(seed)

    def log_density(w):
        return -0.5 * jnp.sum((X @ w - y) ** 2) - 0.5 * jnp.sum(w**2)

    def kl(params):
        mu, rho = params
        noise = jax.random.normal(key, (4, 3))
        samples = mu + jnp.exp(rho) * noise
        log_q = stats.norm.logpdf(samples, mu, jnp.exp(rho)).sum(-1)
        return jnp.mean(log_q - jax.vmap(log_density)(samples))

    return kl, (jnp.zeros(3), -jnp.ones(3)), ()
