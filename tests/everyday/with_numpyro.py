"""Potential energies, log densities and bounds of NumPyro models."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import (
    constrain_fn,
    initialize_model,
    log_density,
    potential_energy,
)

from tests.everyday.corpus import everyday


PRIOR = dist.Normal(0.0, 2.5)
SCHOOLS = 8


def schools(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(5.0, 8.0, SCHOOLS), rng.uniform(9.0, 18.0, SCHOOLS)


def regression(seed, rows=20, columns=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    y = X @ rng.normal(size=columns) + 0.1 * rng.normal(size=rows)
    return X, y


def linear_model(X, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(X @ slope + bias, sigma), obs=y)


@everyday("potential_fn of initialize_model", library="numpyro")
def potential_of_initialized(seed):
    X, y = regression(seed)
    info = initialize_model(random.key(seed), linear_model, model_args=(X, y))
    return info.potential_fn, info.param_info.z, ()


@everyday("potential_fn with dynamic arguments", library="numpyro")
def potential_of_dynamic(seed):
    X, y = map(jnp.asarray, regression(seed))
    info = initialize_model(
        random.key(seed), linear_model, model_args=(X, y), dynamic_args=True
    )
    return info.potential_fn(X, y), info.param_info.z, ()


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


@everyday("eight schools, potential_energy", library="numpyro")
def centered_schools(seed):
    y, sigma = schools(seed)
    z = {"mu": jnp.array(4.0), "tau": jnp.array(0.7), "theta": jnp.linspace(-3, 9, 8)}

    def potential(z):
        return potential_energy(eight_schools, (sigma,), {"y": y}, z)

    return potential, z, ()


@everyday("eight schools, reparametrized", library="numpyro")
def noncentered_schools(seed):
    y, sigma = schools(seed)
    model = handlers.reparam(
        eight_schools, config={"theta": LocScaleReparam(centered=0)}
    )
    z = {
        "mu": jnp.array(4.0),
        "tau": jnp.array(0.7),
        "theta_decentered": jnp.linspace(-1, 1, 8),
    }
    return lambda z: potential_energy(model, (sigma,), {"y": y}, z), z, ()


@everyday("eight schools by a decorator of reparametrization", library="numpyro")
def decorated_schools(seed):
    y, sigma = schools(seed)

    @handlers.reparam(config={"theta": TransformReparam()})
    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("J", SCHOOLS):
            theta = numpyro.sample(
                "theta",
                dist.TransformedDistribution(
                    dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(mu, tau)
                ),
            )
            numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)

    z = {"mu": jnp.ones(()), "tau": jnp.zeros(()), "theta_base": jnp.linspace(-1, 1, 8)}
    return lambda z: potential_energy(model, (), {}, z), z, ()


@everyday("logistic regression by log_density", library="numpyro")
def logistic(seed):
    X, y = regression(seed)
    labels = (y > 0).astype(np.int32)

    def model(X, labels):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        with numpyro.plate("N", X.shape[0]):
            numpyro.sample("obs", dist.Bernoulli(logits=X @ w), obs=labels)

    def loss(params):
        value, _ = log_density(model, (X, labels), {}, params)
        return -value

    return loss, {"w": jnp.array([0.1, -0.4, 0.3])}, ()


@everyday("trace of a substituted model, summed by hand", library="numpyro")
def traced_by_hand(seed):
    X, y = regression(seed)
    key = random.PRNGKey(seed)

    def joint(params):
        seeded = handlers.seed(linear_model, key)
        with_values = handlers.substitute(seeded, data=params)
        sites = handlers.trace(with_values).get_trace(X, y)
        return -sum(
            jnp.sum(site["fn"].log_prob(site["value"]))
            for site in sites.values()
            if site["type"] == "sample"
        )

    params = {
        "slope": jnp.array([0.3, -0.1, 0.8]),
        "bias": jnp.array(0.1),
        "sigma": jnp.array(0.5),
    }
    return joint, params, ()


@everyday("varying intercepts over counties", library="numpyro")
def radon(seed):
    rng = np.random.default_rng(seed)
    county, floor = rng.integers(0, 4, 24), rng.integers(0, 2, 24)
    log_radon = rng.normal(size=24)

    def model(county, floor, log_radon=None):
        mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 5.0))
        sigma_a = numpyro.sample("sigma_a", dist.HalfCauchy(5.0))
        with numpyro.plate("counties", 4):
            a = numpyro.sample("a", dist.Normal(mu_a, sigma_a))
        b = numpyro.sample("b", dist.Normal(0.0, 5.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(county)):
            mean = a[county] + b * floor
            numpyro.sample("obs", dist.Normal(mean, noise), obs=log_radon)

    info = initialize_model(
        random.key(seed),
        model,
        model_args=(county, floor),
        model_kwargs={"log_radon": log_radon},
    )
    return info.potential_fn, info.param_info.z, ()


@everyday(
    "Poisson regression, z as one vector",
    library="numpyro",
    slow="NumPy checks 64-bit counts among the arguments: give `jnp.asarray(counts)`",
)
def poisson(seed):
    X, _ = regression(seed)
    counts = np.random.default_rng(seed).poisson(2.0, 20)

    def model(X, counts):
        w = numpyro.sample("w", PRIOR.expand([3]).to_event(1))
        numpyro.sample("n", dist.Poisson(jnp.exp(X @ w)).to_event(1), obs=counts)

    def loss(w, X, counts):
        return potential_energy(model, (X, counts), {}, {"w": w})

    return loss, jnp.array([0.2, 0.1, -0.3]), (X, counts)


@everyday("mixture with assignments summed out", library="numpyro")
def mixture(seed):
    data = np.random.default_rng(seed).normal(size=15)

    def loss(params):
        mixing = dist.Categorical(logits=params["logits"])
        parts = dist.Normal(params["locs"], jnp.exp(params["log_scales"]))
        return -dist.MixtureSameFamily(mixing, parts).log_prob(data).mean()

    params = {
        "logits": jnp.array([0.1, -0.2, 0.4]),
        "locs": jnp.array([-1.0, 0.2, 1.5]),
        "log_scales": jnp.array([-0.2, 0.1, 0.0]),
    }
    return loss, params, ()


@everyday("prior as an object of the module", library="numpyro")
def module_prior(seed):
    X, y = regression(seed)

    def posterior(w):
        return -(PRIOR.log_prob(w).sum() + dist.Normal(X @ w, 0.3).log_prob(y).sum())

    return posterior, jnp.array([0.2, 0.1, -0.3]), ()


class Positive:
    """A positive parameter by the bijection of its constraint."""

    def __init__(self, data):
        self.data = data
        self.to_positive = biject_to(constraints.positive)
        self.prior = dist.Gamma(2.0, 3.0)

    def __call__(self, u):
        rate = self.to_positive(u)
        jacobian = self.to_positive.log_abs_det_jacobian(u, rate)
        likelihood = dist.Exponential(rate).log_prob(self.data).sum()
        return -(self.prior.log_prob(rate) + jacobian + likelihood)


@everyday("object with a bijection and a prior", library="numpyro")
def positive_rate(seed):
    data = np.random.default_rng(seed).exponential(2.0, 12)
    return Positive(jnp.asarray(data)), jnp.array(0.3), ()


@everyday("time series by NumPyro's scan", library="numpyro")
def autoregressive(seed):
    y = np.random.default_rng(seed).normal(size=10)

    def model(y):
        phi = numpyro.sample("phi", dist.Normal(0.0, 0.5))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))

        def transition(previous, now):
            numpyro.sample("y", dist.Normal(phi * previous, sigma), obs=now)
            return now, None

        scan(transition, y[0], y[1:])

    def loss(z):
        return potential_energy(model, (jnp.asarray(y),), {}, z)

    return loss, {"phi": jnp.array(0.4), "sigma": jnp.array(-0.2)}, ()


@everyday(
    "Gaussian process with a sampled kernel",
    library="numpyro",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before",
)
def gaussian_process(seed):
    rng = np.random.default_rng(seed)
    X, Y = np.sort(rng.uniform(-1, 1, 8)), rng.normal(size=8)

    def kernel(X, Z, var, length, noise, jitter=1.0e-4):
        scaled = jnp.power((X[:, None] - Z) / length, 2.0)
        return var * jnp.exp(-0.5 * scaled) + (noise + jitter) * jnp.eye(X.shape[0])

    def model(X, Y):
        var = numpyro.sample("var", dist.LogNormal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
        length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
        k = kernel(X, X, var, length, noise)
        mean = jnp.zeros(X.shape[0])
        numpyro.sample(
            "Y", dist.MultivariateNormal(loc=mean, covariance_matrix=k), obs=Y
        )

    z = {"var": jnp.array(0.1), "noise": jnp.array(-0.5), "length": jnp.array(-0.3)}
    return lambda z: potential_energy(model, (X, Y), {}, z), z, ()


@everyday("ELBO of a guide made automatically", library="numpyro")
def elbo(seed):
    X, y = map(jnp.asarray, regression(seed))
    guide = AutoNormal(linear_model)
    svi = SVI(linear_model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    state = svi.init(random.key(seed), X, y)
    params = svi.get_params(state)
    key = random.key(seed + 1)
    objective = Trace_ELBO(num_particles=2)

    def loss(params):
        return objective.loss(key, params, linear_model, guide, X, y)

    return loss, params, ()


@everyday("horseshoe regression", library="numpyro")
def horseshoe(seed):
    X, y = regression(seed)

    def model(X, y=None):
        lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(X.shape[1])))
        tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
        raw = numpyro.sample("raw", dist.Normal(jnp.zeros(X.shape[1]), 1.0))
        betas = numpyro.deterministic("betas", tau * lambdas * raw)
        precision = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
        numpyro.sample("Y", dist.Normal(X @ betas, 1 / jnp.sqrt(precision)), obs=y)

    info = initialize_model(
        random.key(seed), model, model_args=(X,), model_kwargs={"y": y}
    )
    potential, _ = info.potential_fn, info.postprocess_fn
    return lambda z: potential(z), info.param_info.z, ()


@everyday("prediction from constrained values", library="numpyro")
def constrained(seed):
    X, y = map(jnp.asarray, regression(seed))

    def squares(z):
        values = constrain_fn(linear_model, (X, y), {}, z)
        mean = X @ values["slope"] + values["bias"]
        return jnp.mean((mean - y) ** 2) / values["sigma"]

    z = {
        "slope": jnp.array([0.3, -0.1, 0.8]),
        "bias": jnp.array(0.1),
        "sigma": jnp.array(0.5),
    }
    return squares, z, ()


@everyday(
    "conditioned model with a blocked site",
    library="numpyro",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before",
)
def conditioned(seed):
    y, sigma = schools(seed)

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("J", SCHOOLS):
            numpyro.sample("obs", dist.Normal(mu, jnp.sqrt(tau**2 + sigma**2)))

    fixed = handlers.condition(model, data={"obs": y})

    def profile(mu, tau):
        value, _ = log_density(fixed, (), {}, {"mu": mu[0], "tau": tau})
        return -value

    return profile, jnp.array([1.5]), (jnp.array(0.8),)


@everyday(
    "model as a method of an object",
    library="numpyro",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before; a class made anew is another "
    "class: define it in the module",
)
def model_of_object(seed):
    X, y = regression(seed)

    class Regression:
        def __init__(self, degree, scale=1.0):
            self.degree, self.scale = degree, scale

        def model(self, x, y=None):
            with numpyro.plate("degree", self.degree):
                w = numpyro.sample("w", dist.Normal(0.0, self.scale))
            powers = jnp.stack([x**k for k in range(self.degree)], axis=-1)
            with numpyro.plate("data", len(x)):
                numpyro.sample("y", dist.StudentT(4.0, powers @ w, 0.3), obs=y)

    made = Regression(3)
    x = X[:, 0]
    return (
        lambda z: potential_energy(made.model, (x,), {"y": y}, z),
        {"w": jnp.array([0.2, 0.1, -0.3])},
        (),
    )


@everyday(
    "ordered cutpoints and a simplex",
    library="numpyro",
    slow="numpyro checks the answers by NumPy when it is traced: give "
    "`jnp.asarray(answers)`",
)
def constraints_of_vectors(seed):
    answers = np.random.default_rng(seed).integers(0, 4, 16)

    def model(answers):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        base = dist.Normal(0.0, 2.0).expand([3]).to_event(1)
        cuts = numpyro.sample(
            "cuts",
            dist.TransformedDistribution(base, dist.transforms.OrderedTransform()),
        )
        mix = numpyro.sample("mix", dist.Dirichlet(jnp.ones(4)))
        numpyro.sample("a", dist.OrderedLogistic(eta, cuts).to_event(0), obs=answers)
        numpyro.sample("b", dist.Categorical(probs=mix), obs=answers)

    info = initialize_model(random.key(seed), model, model_args=(answers,))

    @jax.jit
    def potential(z):
        return info.potential_fn(z)

    return potential, info.param_info.z, ()
