"""Likelihoods of statistics, written by hand over NumPy data."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import scan
from jax.scipy.special import gammaln, log_ndtr, logsumexp
from jax.scipy.stats import multivariate_normal, norm

from tests.everyday.corpus import everyday


LOG_2PI = math.log(2.0 * math.pi)


def design(seed, rows=20, columns=3):
    rng = np.random.default_rng(seed)
    return np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1))]), rng


@everyday(
    "probit regression as a class with loglike",
    slow="a class made anew is another class: define it in the module",
)
def probit(seed):
    X, rng = design(seed)

    class Probit:
        def __init__(self, endog, exog):
            self.endog = np.asarray(endog)
            self.exog = np.asarray(exog)
            self.nobs, self.df_model = self.exog.shape

        def loglikeobs(self, params):
            q = 2 * self.endog - 1
            return log_ndtr(q * (self.exog @ params))

        def loglike(self, params):
            return -self.loglikeobs(params).sum() / self.nobs

    return Probit(rng.integers(0, 2, 20), X).loglike, jnp.array([0.1, -0.2, 0.3]), ()


@everyday(
    "negative binomial regression with exposure",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before",
)
def negative_binomial(seed):
    X, rng = design(seed)
    counts, exposure = rng.poisson(3.0, 20), rng.uniform(1.0, 2.0, 20)

    def nll(params):
        mean = jnp.exp(X @ params["beta"] + np.log(exposure))
        size = jnp.exp(-params["log_alpha"])
        ll = gammaln(counts + size) - gammaln(size) - gammaln(counts + 1.0)
        ll += size * jnp.log(size / (size + mean)) + counts * jnp.log(
            mean / (size + mean)
        )
        return -ll.sum()

    return nll, {"beta": jnp.array([0.5, 0.1, -0.1]), "log_alpha": jnp.array(-1.0)}, ()


@everyday("Cox partial likelihood")
def cox(seed):
    X, rng = design(seed)
    time, event = rng.exponential(size=20), rng.integers(0, 2, 20).astype(bool)
    order = np.argsort(-time)
    X, event = X[order, 1:], event[order]

    def partial_likelihood(beta, X, event):
        eta = X @ beta
        at_risk = jax.lax.cumlogsumexp(eta)
        return -jnp.sum(jnp.where(event, eta - at_risk, 0.0))

    fun = functools.partial(partial_likelihood, X=X, event=event)
    return fun, jnp.array([0.4, -0.3]), ()


class Garch(NamedTuple):
    """Parameters of a GARCH(1, 1) model, on the real line."""

    omega: jax.Array
    alpha: jax.Array
    beta: jax.Array


@everyday("GARCH by scan over returns")
def garch(seed):
    returns = np.random.default_rng(seed).normal(size=12)

    def nll(params):
        p = jax.tree.map(jax.nn.softplus, params)

        def step(variance, r):
            new = p.omega + p.alpha * r**2 + p.beta * variance
            return new, 0.5 * (LOG_2PI + jnp.log(variance) + r**2 / variance)

        _, terms = scan(step, jnp.var(returns), jnp.asarray(returns))
        return terms.sum()

    return nll, Garch(jnp.array(-2.0), jnp.array(-2.0), jnp.array(-0.5)), ()


@everyday("Kalman filter of a local trend")
def kalman(seed):
    y = np.random.default_rng(seed).normal(size=10).cumsum()
    F, H = np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([1.0, 0.0])

    def nll(log_sd):
        Q, R = jnp.diag(jnp.exp(2 * log_sd[:2])), jnp.exp(2 * log_sd[2])

        def step(carry, obs):
            mean, cov = carry
            mean, cov = F @ mean, F @ cov @ F.T + Q
            error, s = obs - H @ mean, H @ cov @ H + R
            gain = cov @ H / s
            cov = cov - jnp.outer(gain, H @ cov)
            ll = norm.logpdf(error, 0.0, jnp.sqrt(s))
            return (mean + gain * error, cov), ll

        start = (jnp.zeros(2), 10.0 * jnp.eye(2))
        return -scan(step, start, jnp.asarray(y))[1].sum()

    return nll, jnp.array([-0.5, -1.0, 0.1]), ()


@everyday("ordered logit with cutpoints")
def ordered_logit(seed):
    X, rng = design(seed)
    answers = rng.integers(0, 4, 20)

    def nll(params):
        first, gaps, beta = params["first"], params["gaps"], params["beta"]
        cuts = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(gaps))])
        cdf = jax.nn.sigmoid(cuts - (X[:, 1:] @ beta)[:, None])
        cdf = jnp.pad(cdf, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1)))
        return -jnp.mean(jnp.log(jnp.diff(cdf)[np.arange(20), answers]))

    params = {"first": jnp.array(-1.0), "gaps": jnp.zeros(2), "beta": jnp.ones(2)}
    return nll, params, ()


@everyday("mixture of Gaussians with full covariances")
def mixture(seed):
    data = np.random.default_rng(seed).normal(size=(12, 2))

    def nll(params):
        log_weights = jax.nn.log_softmax(params["logits"])

        def component(mean, raw):
            lower = jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diag(raw)))
            return multivariate_normal.logpdf(data, mean, lower @ lower.T)

        terms = jax.vmap(component)(params["means"], params["raws"])
        return -logsumexp(log_weights[:, None] + terms, axis=0).mean()

    params = {
        "logits": jnp.array([0.1, -0.1]),
        "means": jnp.array([[-1.0, 0.0], [1.0, 0.5]]),
        "raws": jnp.stack([0.1 * jnp.eye(2), -0.1 * jnp.eye(2)]),
    }
    return nll, params, ()


@everyday("mixed model, random effects integrated by quadrature")
def quadrature(seed):
    X, rng = design(seed, 12)
    y, group = rng.integers(0, 2, 12), np.repeat(np.arange(4), 3)
    nodes, weights = np.polynomial.hermite.hermgauss(7)

    def nll(params, *, groups=4):
        beta, log_sd = params[:3], params[3]

        def at(node):
            eta = X @ beta + math.sqrt(2.0) * jnp.exp(log_sd) * node
            ll = y * eta - jnp.logaddexp(0.0, eta)
            return jnp.zeros(groups).at[group].add(ll)

        terms = jnp.stack([at(node) for node in nodes])
        return -logsumexp(terms, axis=0, b=weights[:, None]).sum()

    return nll, jnp.array([0.1, -0.2, 0.3, -0.5]), ()


@everyday(
    "sandwich of settings read from a dictionary",
    slow="only NumPy takes a list as an index: choose the columns before",
)
def configured(seed):
    X, rng = design(seed)
    y = rng.normal(size=20)
    config = {"loss": "student", "df": 4.0, "ridge": 1e-2, "columns": [0, 2]}

    def objective(w):
        r = y - X[:, config["columns"]] @ w
        if config["loss"] == "student":
            df = config["df"]
            data = 0.5 * (df + 1) * jnp.log1p(r**2 / df)
        else:
            data = 0.5 * r**2
        return data.mean() + config["ridge"] * jnp.vdot(w, w)

    return objective, jnp.array([0.4, -0.1]), ()
