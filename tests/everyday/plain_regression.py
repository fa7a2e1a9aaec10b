"""Regressions: linear, logistic, Poisson, mixtures, survival, factorization."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, log_softmax, one_hot, softplus
from jax.scipy.special import gammaln, logsumexp, xlogy
from jax.scipy.stats import norm

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


@everyday("ridge regression, data and penalty in the closure")
def ridge(seed):
    X, y, w = normals(seed, (12, 4), (12,), (4,))
    penalty = 0.1

    def loss(w):
        return jnp.mean((X @ w - y) ** 2) + penalty * jnp.sum(w**2)

    return loss, w, ()


def predict(params, X):
    return jnp.dot(X, params["w"]) + params["b"]


def mse(params, X, y):
    return jnp.mean(jnp.square(predict(params, X) - y)) ** 1.5


@everyday("linear model with a dict of parameters, data as arguments")
def linear_dict(seed):
    X, y, w, b = normals(seed, (10, 3), (10,), (3,), ())
    return mse, {"w": w, "b": b}, (X, y)


@everyday("logistic regression by log_sigmoid")
def logistic(seed):
    X, w = normals(seed, (20, 5), (5,))
    y = jnp.asarray(labels(seed, 20, 2))

    def nll(w, scale=1.0):
        logits = X @ w
        per_row = y * log_sigmoid(logits) + (1 - y) * log_sigmoid(-logits)
        return -scale * jnp.mean(per_row)

    return nll, w, ()


@everyday("softmax regression with one-hot labels")
def softmax_regression(seed):
    X, W, b = normals(seed, (15, 4), (4, 3), (3,))
    targets = one_hot(labels(seed, 15, 3), 3)

    def cross_entropy(params):
        W, b = params
        return -jnp.mean(jnp.sum(targets * log_softmax(X @ W + b), axis=-1))

    return cross_entropy, (W, b), ()


@everyday("Poisson regression with an exposure")
def poisson(seed):
    X, beta = normals(seed, (18, 4), (4,))
    rng = np.random.default_rng(seed)
    counts = jnp.asarray(rng.poisson(3.0, 18), jnp.float32)
    exposure = jnp.asarray(rng.uniform(1, 2, 18), jnp.float32)

    def negative_log_likelihood(beta):
        rate = exposure * jnp.exp(X @ beta / 4)
        return jnp.sum(rate - xlogy(counts, rate) + gammaln(counts + 1))

    return negative_log_likelihood, beta, ()


@everyday("negative binomial regression, the dispersion a parameter")
def negative_binomial(seed):
    X, beta = normals(seed, (16, 3), (3,))
    y = jnp.asarray(np.random.default_rng(seed).poisson(2.0, 16), jnp.float32)

    def loss(params):
        mu = softplus(X @ params["beta"])
        r = jnp.exp(params["log_r"])
        log_p = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        log_p += r * jnp.log(r / (r + mu)) + y * jnp.log(mu / (r + mu))
        return -log_p.sum()

    return loss, {"beta": beta, "log_r": jnp.array(0.3)}, ()


@everyday("mixture of Gaussians by logsumexp")
def mixture(seed):
    data, means = normals(seed, (25,), (3,))

    def nll(theta):
        weights = log_softmax(theta["logits"])
        parts = norm.logpdf(data[:, None], theta["mean"], jnp.exp(theta["log_std"]))
        return -logsumexp(weights + parts, axis=1).mean()

    theta = {"logits": means * 0.1, "mean": means, "log_std": jnp.zeros(3)}
    return nll, theta, ()


@everyday("Cox model: partial likelihood over risk sets")
def cox(seed):
    X, beta = normals(seed, (14, 3), (3,))
    rng = np.random.default_rng(seed)
    order = np.argsort(rng.exponential(size=14))
    event = jnp.asarray(rng.integers(0, 2, 14)[order])
    X = X[order]

    def partial_likelihood(beta):
        risk = X @ beta
        log_risk_set = jax.lax.cumlogsumexp(risk, reverse=True)
        return -jnp.sum(jnp.where(event == 1, risk - log_risk_set, 0.0))

    return partial_likelihood, beta, ()


@everyday("matrix factorization of observed entries")
def factorization(seed):
    U, V, ratings = normals(seed, (6, 3), (7, 3), (20,))
    rows, columns = jnp.asarray(labels(seed, 20, 6)), jnp.asarray(labels(9, 20, 7))

    def loss(factors):
        U, V = factors
        predicted = jnp.sum(U[rows] * V[columns], axis=1)
        penalty = sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(factors))
        return jnp.mean((predicted - ratings) ** 2) + 0.05 * penalty

    return loss, (U, V), ()


@everyday("robust regression: Huber by where, heteroscedastic noise")
def robust(seed):
    X, y, w = numpy_normals(seed, (16, 3), (16,), (6,))

    def huber(r, delta=1.0):
        small = jnp.abs(r) <= delta
        return jnp.where(small, 0.5 * r**2, delta * (jnp.abs(r) - 0.5 * delta))

    def loss(w):
        mean, log_scale = X @ w[:3], X @ w[3:] * 0.1
        return jnp.mean(huber((y - mean) * jnp.exp(-log_scale)) + log_scale)

    return loss, jnp.asarray(w), ()


@everyday("quantile crossing penalty and softplus link")
def quantiles(seed):
    X, y, w = normals(seed, (12, 2), (12,), (3, 2))
    taus = (0.1, 0.5, 0.9)

    def loss(w):
        q = jnp.cumsum(softplus(X @ w.T), axis=1)
        smooth = [
            jnp.mean(tau * (y - q[:, i]) + softplus(q[:, i] - y))
            for i, tau in enumerate(taus)
        ]
        return sum(smooth)

    return loss, w, ()


@everyday("Gaussian process marginal likelihood by Cholesky", x64=True)
def gaussian_process(seed):
    X, y = normals(seed, (10, 2), (10,))

    def kernel(a, b, log_scales):
        d = (a[:, None, :] - b[None, :, :]) * jnp.exp(-log_scales)
        return jnp.exp(-0.5 * jnp.sum(d**2, -1))

    def nlml(theta):
        K = jnp.exp(theta["amplitude"]) * kernel(X, X, theta["scales"])
        K += (jnp.exp(theta["noise"]) + 1e-6) * jnp.eye(len(y))
        L = jnp.linalg.cholesky(K)
        alpha = jax.scipy.linalg.cho_solve((L, True), y)
        return 0.5 * y @ alpha + jnp.log(jnp.diagonal(L)).sum()

    theta = {"amplitude": 0.1, "scales": jnp.zeros(2), "noise": -1.0}
    return nlml, jax.tree.map(jnp.asarray, theta), ()


@everyday("multivariate normal likelihood by slogdet and solve")
def covariance(seed):
    data, L = normals(seed, (12, 3), (3, 3))

    def nll(L):
        S = L @ L.T + jnp.eye(3)
        _, logdet = jnp.linalg.slogdet(S)
        quadratic = jnp.einsum("ni,ni->n", data, jnp.linalg.solve(S, data.T).T)
        return 0.5 * (jnp.mean(quadratic) + logdet)

    return nll, L, ()
