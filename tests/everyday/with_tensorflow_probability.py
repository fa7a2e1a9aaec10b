"""TensorFlow Probability on JAX: distributions, bijectors, kernels, joint densities."""

import jax
import jax.numpy as jnp
import numpy as np
from tensorflow_probability.substrates import jax as tfp

from tests.everyday.corpus import everyday


tfd = tfp.distributions
tfb = tfp.bijectors
tfpk = tfp.math.psd_kernels


@everyday("gamma likelihood", library="tensorflow_probability")
def gamma(seed):
    data = np.random.default_rng(seed).gamma(2.0, 1.0, 12).astype(np.float32)

    def loss(u):
        likelihood = tfd.Gamma(jax.nn.softplus(u[0]), jax.nn.softplus(u[1]))
        return -jnp.mean(likelihood.log_prob(data))

    return loss, jnp.array([1.0, 0.3]), ()


@everyday("captured prior and bijector", library="tensorflow_probability")
def captured_prior(seed):
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(10, 3)))
    prior = tfd.HalfNormal(scale=2.0)
    bijector = tfb.Softplus()

    def loss(u):
        scale = bijector.forward(u)
        density = prior.log_prob(scale) + bijector.forward_log_det_jacobian(u)
        return -jnp.sum(density) + jnp.mean((X @ scale) ** 2)

    return loss, jnp.array([0.1, -0.5, 0.7]), ()


@everyday(
    "joint distribution by coroutine",
    library="tensorflow_probability",
    slow="tensorflow_probability keeps the model as static data: use a "
    "function of arrays",
)
def coroutine(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 3)).astype(np.float32)
    y = rng.integers(0, 2, 12).astype(np.int32)
    root = tfd.JointDistributionCoroutineAutoBatched.Root

    @tfd.JointDistributionCoroutineAutoBatched
    def model():
        scale = yield root(tfd.HalfCauchy(0.0, 1.0, name="scale"))
        w = yield tfd.Sample(tfd.Normal(0.0, scale), 3, name="w")
        yield tfd.Bernoulli(logits=jnp.einsum("nd,...d->...n", X, w), name="y")

    def target(w):
        return -model.log_prob(scale=jnp.float32(0.7), w=w, y=y)

    return target, jnp.array([0.1, -0.4, 0.2]), ()


@everyday(
    "joint distribution with names",
    library="tensorflow_probability",
    slow="it keeps what it computed at the first call: make the distribution inside",
)
def named(seed):
    y = np.random.default_rng(seed).normal(size=8).astype(np.float32)
    model = tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(0.0, 5.0),
            "tau": tfd.LogNormal(0.0, 1.0),
            "y": lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 8),
        }
    )
    pinned = model.experimental_pin(y=y)

    def loss(z):
        return -pinned.unnormalized_log_prob(mu=z["mu"], tau=jnp.exp(z["log_tau"]))

    return loss, {"mu": jnp.array(0.3), "log_tau": jnp.array(0.1)}, ()


@everyday(
    "Gaussian process with a kernel of the point", library="tensorflow_probability"
)
def process(seed):
    rng = np.random.default_rng(seed)
    index = jnp.asarray(np.sort(rng.uniform(size=(7, 1)), axis=0))
    values = jnp.asarray(rng.normal(size=7))

    def loss(params):
        kernel = tfpk.ExponentiatedQuadratic(
            jnp.exp(params["amplitude"]), jnp.exp(params["length"])
        )
        process = tfd.GaussianProcess(
            kernel, index, observation_noise_variance=jnp.exp(params["noise"])
        )
        return -process.log_prob(values)

    x = {"amplitude": jnp.array(0.1), "length": jnp.array(-1.0)}
    return loss, {**x, "noise": jnp.array(-1.5)}, ()


@everyday("transformed normal with a chain", library="tensorflow_probability")
def chain(seed):
    data = jnp.asarray(np.random.default_rng(seed).lognormal(size=9))

    @jax.jit
    def nll(p):
        bijector = tfb.Chain([tfb.Exp(), tfb.Shift(p[0]), tfb.Scale(jnp.exp(p[1]))])
        model = tfd.TransformedDistribution(tfd.Normal(0.0, 1.0), bijector)
        return -jnp.sum(model.log_prob(data))

    return nll, jnp.array([0.2, -0.1]), ()


@everyday("linear-Gaussian state space model", library="tensorflow_probability")
def state_space(seed):
    y = jnp.asarray(np.random.default_rng(seed).normal(size=(6, 1)))

    def loss(log_scales):
        drift, noise = jnp.exp(log_scales)
        model = tfd.LinearGaussianStateSpaceModel(
            num_timesteps=6,
            transition_matrix=jnp.eye(1),
            transition_noise=tfd.MultivariateNormalDiag(scale_diag=drift[None]),
            observation_matrix=jnp.eye(1),
            observation_noise=tfd.MultivariateNormalDiag(scale_diag=noise[None]),
            initial_state_prior=tfd.MultivariateNormalDiag(scale_diag=jnp.ones(1)),
        )
        return -model.log_prob(y)

    return loss, jnp.array([-0.3, 0.1]), ()
