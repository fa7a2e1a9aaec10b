"""Distributions and bijectors of Distrax."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from tests.everyday.corpus import everyday


@everyday("normal likelihood with the parameters of the point", library="distrax")
def normal(seed):
    data = np.random.default_rng(seed).normal(size=16)

    def loss(params):
        likelihood = distrax.Normal(params["mu"], jnp.exp(params["log_sigma"]))
        return -likelihood.log_prob(data).mean()

    return loss, {"mu": jnp.array(0.3), "log_sigma": jnp.array(-0.2)}, ()


@everyday("policy loss with entropy", library="distrax")
def policy(seed):
    rng = np.random.default_rng(seed)
    states = jnp.asarray(rng.normal(size=(8, 3)))
    actions, advantages = jnp.asarray(rng.integers(0, 4, 8)), rng.normal(size=8)

    def loss(w):
        pi = distrax.Categorical(logits=states @ w)
        gain = jnp.mean(pi.log_prob(actions) * advantages)
        return -gain - 0.01 * jnp.mean(pi.entropy())

    return loss, jnp.linspace(-1, 1, 12).reshape(3, 4), ()


@everyday(
    "KL of a guide to a captured prior",
    library="distrax",
    slow="distrax keeps its parameters as static data: make the prior inside, "
    "from arrays",
)
def divergence(seed):
    rng = np.random.default_rng(seed)
    prior = distrax.MultivariateNormalDiag(jnp.zeros(3), jnp.ones(3))
    noise = jnp.asarray(rng.normal(size=(5, 3)))
    target = jnp.asarray(rng.normal(size=3))

    def negative_elbo(params):
        posterior = distrax.MultivariateNormalDiag(
            params["mean"], jax.nn.softplus(params["raw"])
        )
        samples = params["mean"] + jax.nn.softplus(params["raw"]) * noise
        fit = jnp.mean(jnp.sum((jnp.tanh(samples) - target) ** 2, -1))
        return fit + posterior.kl_divergence(prior)

    x = {"mean": jnp.array([0.1, -0.2, 0.3]), "raw": jnp.array([0.0, 0.5, -0.5])}
    return negative_elbo, x, ()


def coupling_flow(params, layers=2):
    def conditioner(w):
        return lambda x: jnp.tanh(x @ w).reshape(*x.shape[:-1], 4, 2)

    mask = jnp.arange(4) % 2 == 0
    stack = []
    for k in range(layers):
        stack.append(
            distrax.MaskedCoupling(
                mask=mask,
                bijector=lambda p: distrax.ScalarAffine(
                    shift=p[..., 0], log_scale=p[..., 1]
                ),
                conditioner=conditioner(params[k]),
            )
        )
        mask = jnp.logical_not(mask)
    return distrax.Inverse(distrax.Chain(stack))


@everyday("coupling flow, negative log likelihood", library="distrax")
def flow(seed):
    data = jnp.asarray(np.random.default_rng(seed).normal(size=(6, 4)))
    base = distrax.Independent(
        distrax.Normal(jnp.zeros(4), jnp.ones(4)), reinterpreted_batch_ndims=1
    )

    def loss(params, batch):
        model = distrax.Transformed(base, coupling_flow(params))
        return -jnp.mean(model.log_prob(batch))

    return loss, 0.1 * jnp.linspace(-1, 1, 64).reshape(2, 4, 8), (data,)


@everyday("bijector and mixture made outside", library="distrax")
def captured_mixture(seed):
    rng = np.random.default_rng(seed)
    target = distrax.MixtureSameFamily(
        mixture_distribution=distrax.Categorical(probs=jnp.array([0.4, 0.6])),
        components_distribution=distrax.Normal(
            jnp.asarray(rng.normal(size=2)), jnp.ones(2)
        ),
    )
    squash = distrax.Block(distrax.Tanh(), ndims=1)

    def loss(u):
        y, log_det = squash.forward_and_log_det(u)
        return -target.log_prob(y).sum() - log_det

    return loss, jnp.array([0.1, -0.3, 0.5]), ()
