"""Standard errors, covariances, intervals and predictions equal those of libraries.

statsmodels, numpyro and laplax compute them in other ways: closed forms of each model,
another Hessian, products of a Jacobian.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hotk
from tests.helpers import close


pytestmark = [pytest.mark.library, pytest.mark.exhaustive]

RTOL = 1e-6  # what the project promises
NEWTON = hotk.optim.trust_region(subproblem="exact")
RNG = np.random.default_rng(3)
N = 120
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 2))])
TRUTH = np.array([0.4, 0.6, -0.5])
LINEAR = X @ TRUTH
CLUSTERS = np.arange(N) // 6
Z = jnp.asarray(X)


@pytest.fixture(autouse=True)
def _own_data():
    """Draw the same data for a test whatever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(4).bit_generator.state


@pytest.fixture(autouse=True)
def exact(compiled_as_for_users):
    """Without XLA's fast compiling, whose programs have other roundings."""


@pytest.fixture
def sm():
    pytest.importorskip("statsmodels")
    import statsmodels.api

    return statsmodels.api


def fitted(nll, start, **options):
    found = hotk.optim.minimize(nll, start, NEWTON, tol=1e-5, **options)
    assert found.converged, found
    return found.x


def agree(fit, result, names=None):
    """Compare with a result of statsmodels: parameters, errors, covariance, limits."""
    order = np.arange(len(result.params)) if names is None else names
    at = lambda a: np.asarray(a)[order]
    interval = fit.interval()
    flat = hotk.linop.space.flattened
    close(flat(interval.value), at(result.params), rtol=RTOL, atol=1e-8)
    close(flat(fit.standard_errors), at(result.bse), rtol=RTOL)
    covariance = np.asarray(result.cov_params())[np.ix_(order, order)]
    close(fit.covariance, covariance, rtol=RTOL, atol=RTOL * np.abs(covariance).max())
    limits = at(result.conf_int())
    close(flat(interval.lower), limits[:, 0], rtol=RTOL, atol=1e-7)
    close(flat(interval.upper), limits[:, 1], rtol=RTOL, atol=1e-7)


def test_linear_regression(sm):
    y = LINEAR + RNG.normal(size=N)
    result = sm.OLS(y, X).fit()
    losses = lambda b, X, y: (X @ b - y) ** 2 / 2
    b = jnp.asarray(result.params)
    nll = lambda b: jnp.sum(losses(b, Z, y)) / result.scale
    fit = hotk.laplace_approximation(nll, b)
    close(fit.standard_errors, result.bse, rtol=RTOL)
    interval = fit.interval(degrees=N - 3)
    close(interval.lower, result.conf_int()[:, 0], rtol=RTOL)
    new = X[:7]
    frame = result.get_prediction(new).summary_frame()
    model = lambda b, X: X @ b
    mean = fit.predict(model, new, degrees=N - 3)
    close(mean.lower, frame["mean_ci_lower"].to_numpy(), rtol=RTOL)
    noisy = fit.predict(model, new, noise_variance=result.scale, degrees=N - 3)
    close(noisy.upper, frame["obs_ci_upper"].to_numpy(), rtol=RTOL)
    for kind in ("HC0", "HC1", "HC2", "HC3"):
        robust = result.get_robustcov_results(kind)
        found = hotk.statistics.sandwich(losses, b, X, y, kind=kind)
        close(found.covariance, robust.cov_params(), rtol=RTOL)
    clustered = [("HC0", "cluster", False), ("HC1", "cluster", True)]
    clustered.append(("HC3", "cluster-crv3", False))
    for kind, name, correction in clustered:
        options = {"groups": CLUSTERS, "use_correction": correction}
        robust = result.get_robustcov_results(name, **options)
        found = hotk.statistics.sandwich(losses, b, X, y, kind=kind, clusters=CLUSTERS)
        close(found.covariance, robust.cov_params(), rtol=RTOL)
    press = result.get_influence().resid_press
    left = hotk.statistics.leave_one_out(losses, b, X, y)
    close(left.losses, press**2 / 2, rtol=RTOL)


def discrete(name, sm):
    """Return losses of one number for each row, targets, and a model of statsmodels."""
    if name == "logistic":
        y = (RNG.random(N) < 1 / (1 + np.exp(-LINEAR))).astype(float)
        return lambda b, X, y: jax.nn.softplus(X @ b) - y * (X @ b), y, sm.Logit
    if name == "probit":
        y = (RNG.normal(size=N) < LINEAR).astype(float)
        log_cdf = jax.scipy.stats.norm.logcdf
        return lambda b, X, y: -log_cdf((2 * y - 1) * (X @ b)), y, sm.Probit
    y = RNG.poisson(np.exp(LINEAR)).astype(float)
    return lambda b, X, y: jnp.exp(X @ b) - y * (X @ b), y, sm.Poisson


@pytest.mark.parametrize("name", ["logistic", "probit", "Poisson"])
def test_discrete_outcomes_with_robust_errors(sm, name):
    losses, y, model = discrete(name, sm)
    options = {"disp": 0, "method": "newton", "tol": 1e-12}
    nll = lambda b: jnp.sum(losses(b, Z, y))
    b = fitted(nll, jnp.zeros(3))
    agree(hotk.laplace_approximation(nll, b), model(y, X).fit(**options))
    robust = model(y, X).fit(cov_type="HC0", **options)
    agree(hotk.statistics.sandwich(losses, b, X, y), robust)
    cov_kwds = {"groups": CLUSTERS}
    robust = model(y, X).fit(cov_type="cluster", cov_kwds=cov_kwds, **options)
    options = {"kind": "HC1", "clusters": CLUSTERS}
    agree(hotk.statistics.sandwich(losses, b, X, y, **options), robust)


def test_gamma_regression_by_expected_and_observed_information(sm):
    y = RNG.gamma(2.0, np.exp(LINEAR) / 2)
    glm = sm.GLM(y, X, family=sm.families.Gamma(sm.families.links.Log()))
    result = glm.fit(tol=1e-14)
    loss = hotk.curvature.GammaLoss(y, 1 / result.scale, reduction="sum")
    model = lambda b: Z @ b
    nll = lambda b: loss(model(b))
    b = fitted(nll, jnp.zeros(3))
    expected = hotk.FisherOperator(model, loss, b)
    agree(hotk.laplace_approximation(nll, b, curvature=expected), result)
    observed = np.linalg.inv(-glm.hessian(result.params, observed=True))
    fit = hotk.laplace_approximation(nll, b)
    close(fit.covariance, observed, rtol=RTOL)


def test_negative_binomial_regression(sm):
    y = RNG.poisson(RNG.gamma(2.0, np.exp(LINEAR) / 2)).astype(float)
    options = {"disp": 0, "method": "newton", "tol": 1e-12, "maxiter": 200}
    start = sm.NegativeBinomial(y, X).fit(disp=0, maxiter=200).params
    result = sm.NegativeBinomial(y, X).fit(start_params=start, **options)

    def nll(p):
        log_mean, a = Z @ p["b"], 1 / p["alpha"]
        gammaln = jax.scipy.special.gammaln
        log_rest = a * jnp.log(a) + y * log_mean
        log_sum = (y + a) * jnp.log(a + jnp.exp(log_mean))
        binomial = gammaln(y + a) - gammaln(a) - gammaln(y + 1)
        return -jnp.sum(binomial + log_rest - log_sum)

    mode = fitted(nll, {"alpha": jnp.array(0.5), "b": jnp.asarray(start[:3])})
    agree(hotk.laplace_approximation(nll, mode), result, [3, 0, 1, 2])


def test_multinomial_regression(sm):
    utility = np.column_stack([np.zeros(N), LINEAR, -X[:, 1]])
    y = np.argmax(utility + RNG.gumbel(size=(N, 3)), axis=1)
    result = sm.MNLogit(y, X).fit(disp=0, method="newton", tol=1e-12)

    def nll(b):
        logits = jnp.concatenate([jnp.zeros((N, 1)), Z @ b.T], axis=1)
        return hotk.curvature.SoftmaxCrossEntropy(y, reduction="sum")(logits)

    b = fitted(nll, jnp.zeros((2, 3)))
    fit = hotk.laplace_approximation(nll, b)
    close(b, result.params.T, rtol=RTOL)
    close(fit.standard_errors, result.bse.T, rtol=RTOL)
    close(fit.covariance, result.cov_params(), rtol=RTOL, atol=1e-9)


def test_proportional_hazards(sm):
    times = RNG.exponential(np.exp(-LINEAR))
    events = (RNG.random(N) < 0.8).astype(float)
    result = sm.PHReg(times, X[:, 1:], status=events).fit(tol=1e-12)
    order = np.argsort(-times)

    def nll(b):
        eta = Z[order, 1:] @ b
        at_risk = jax.lax.cumlogsumexp(eta)
        return -jnp.sum(events[order] * (eta - at_risk))

    fit = hotk.laplace_approximation(nll, fitted(nll, jnp.zeros(2)))
    agree(fit, result)


def test_ordinal_regression(sm):
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    cuts = np.array([-0.5, 0.7])
    y = np.searchsorted(cuts, LINEAR + RNG.logistic(size=N))
    ordered = OrderedModel(y, X[:, 1:], distr="logit")
    result = ordered.fit(disp=0, method="bfgs", gtol=1e-8, maxiter=500)

    def nll(p):  # the thresholds in its parameters: the first, and log increments
        first, increment = p["cuts"]
        bounds = jnp.stack([first, first + jnp.exp(increment)])
        upper = jnp.append(bounds, jnp.inf)[y] - Z[:, 1:] @ p["b"]
        lower = jnp.insert(bounds, 0, -jnp.inf)[y] - Z[:, 1:] @ p["b"]
        return -jnp.sum(jnp.log(jax.nn.sigmoid(upper) - jax.nn.sigmoid(lower)))

    start = {"b": jnp.zeros(2), "cuts": jnp.array([-0.5, 0.0])}
    fit = hotk.laplace_approximation(nll, fitted(nll, start))
    # Its Hessian is by finite differences, with five digits.
    close(hotk.linop.space.flattened(fit.standard_errors), result.bse, rtol=1e-4)
    # The same limits of the thresholds, by SciPy's differences of the score.
    flat = hotk.linop.space.flattened(fit.mode)
    numbers = lambda v: nll({"b": jnp.asarray(v[:2]), "cuts": jnp.asarray(v[2:])})
    score = lambda v: np.asarray(jax.grad(numbers)(jnp.asarray(v)))
    jacobian = scipy.optimize._numdiff.approx_derivative
    by_scipy = np.linalg.inv(jacobian(score, np.asarray(flat), method="3-point"))
    close(fit.covariance, by_scipy, rtol=1e-6, atol=1e-9)


def test_weibull_survival_against_fifty_digits():
    mpmath = pytest.importorskip("mpmath")
    times = RNG.weibull(1.7, size=25) * 2
    events = RNG.random(25) < 0.8

    def nll(p):
        k, rate = jnp.exp(p["log_shape"]), jnp.exp(-p["log_scale"])
        hazard = p["log_shape"] - p["log_scale"] + (k - 1) * jnp.log(times * rate)
        return jnp.sum((times * rate) ** k) - jnp.sum(events * hazard)

    mode = fitted(nll, {"log_scale": jnp.array(0.0), "log_shape": jnp.array(0.0)})
    fit = hotk.laplace_approximation(nll, mode)
    with mpmath.workdps(50):
        pairs = [
            (mpmath.mpf(float(t)), bool(d)) for t, d in zip(times, events, strict=True)
        ]

        def exact(scale, shape):
            k, s = mpmath.exp(shape), mpmath.exp(scale)
            hazard = lambda t: shape - scale + (k - 1) * mpmath.log(t / s)
            return sum((t / s) ** k - d * hazard(t) for t, d in pairs)

        at = (float(mode["log_scale"]), float(mode["log_shape"]))
        orders = [[(2, 0), (1, 1)], [(1, 1), (0, 2)]]
        H = mpmath.matrix([[mpmath.diff(exact, at, n) for n in row] for row in orders])
        inverse = np.array((H**-1).tolist(), float)
    close(fit.covariance, inverse, rtol=RTOL)


def test_nonlinear_least_squares():
    t = np.linspace(0.0, 4.0, 50)
    curve = lambda t, a, k, c: a * np.exp(-k * t) + c
    y = curve(t, 2.5, 1.3, 0.5) + 0.1 * RNG.normal(size=50)
    decay = lambda t, k: np.exp(-k * t)
    slopes = lambda t, a, k, c: np.stack([decay(t, k), -a * t * decay(t, k), 1 + 0 * t])
    options = {"jac": lambda *args: slopes(*args).T, "ftol": 1e-15, "xtol": 1e-15}
    found, covariance = scipy.optimize.curve_fit(curve, t, y, [1, 1, 0], **options)
    model = lambda p: p[0] * jnp.exp(-p[1] * t) + p[2]
    p = fitted(lambda p: jnp.sum((model(p) - y) ** 2) / 2, jnp.array([1.0, 1.0, 0.0]))
    close(p, found, rtol=1e-6)
    variance = jnp.sum((model(p) - y) ** 2) / (50 - 3)
    loss = hotk.curvature.SquaredError(y, reduction="sum")
    nll = hotk.curvature.GaussNewton(model, loss)
    fit = hotk.laplace_approximation(nll, p, scale=1 / variance)
    close(fit.covariance, covariance, rtol=RTOL)


def agrees_with_numpyro(model, names, *data):
    """Compare with the covariance of numpyro's guide at the same mode.

    Its rows stand in the order of the sites of the model, which `names` lists.
    """
    numpyro = pytest.importorskip("numpyro")
    from numpyro.infer import autoguide, util

    start = util.initialize_model(jax.random.key(0), model, model_args=data)
    z = fitted(start.potential_fn, start.param_info.z, max_steps=300)
    guide = autoguide.AutoLaplaceApproximation(
        model, init_loc_fn=numpyro.infer.init_to_value(values=start.postprocess_fn(z))
    )
    svi = numpyro.infer.SVI(
        model, guide, numpyro.optim.Adam(1e-3), numpyro.infer.Trace_ELBO()
    )
    params = svi.get_params(svi.init(jax.random.key(1), *data))
    fit = hotk.laplace_approximation(start.potential_fn, z)
    rows = np.concatenate([np.r_[fit.index[name]] for name in names])
    covariance = guide.get_posterior(params).covariance_matrix
    close(fit.covariance[np.ix_(rows, rows)], covariance, rtol=RTOL, atol=1e-9)


def test_hierarchical_normal_model():
    pytest.importorskip("numpyro")
    import numpyro
    import numpyro.distributions as dist

    groups = np.repeat(np.arange(6), 8)
    y = RNG.normal(size=6)[groups] + 0.5 * RNG.normal(size=48) + 2

    def model(groups, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([6]))
        numpyro.sample("y", dist.Normal(theta[groups], sigma), obs=y)

    names = ["mu", "tau", "sigma", "theta"]
    agrees_with_numpyro(model, names, groups, jnp.asarray(y))


def test_gaussian_process_hyperparameters():
    pytest.importorskip("numpyro")
    import numpyro
    import numpyro.distributions as dist

    t = np.linspace(0.0, 5.0, 25)
    y = np.sin(2 * t) + 0.2 * RNG.normal(size=25)

    def model(t, y):
        prior = dist.LogNormal(0.0, 1.0)
        scale, length = numpyro.sample("scale", prior), numpyro.sample("length", prior)
        noise = numpyro.sample("noise", prior)
        square = (t[:, None] - t[None]) ** 2 / length**2
        K = scale**2 * jnp.exp(-square / 2) + noise**2 * jnp.eye(len(t))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(t)), K), obs=y)

    names = ["scale", "length", "noise"]
    agrees_with_numpyro(model, names, jnp.asarray(t), jnp.asarray(y))


def test_a_network_with_the_posterior_and_predictions_of_laplax():
    pytest.importorskip("laplax")
    from laplax.curv import create_ggn_mv, create_posterior_fn
    from laplax.eval.pushforward import (
        lin_pred_mean,
        lin_pred_var,
        lin_setup,
        set_lin_pushforward,
    )

    features = jnp.asarray(RNG.normal(size=(60, 3)))
    y = jnp.asarray(RNG.integers(0, 3, size=60))
    shapes = {"a": (3, 5), "b": (5,), "c": (5, 3)}
    p = {k: jnp.asarray(RNG.normal(size=s)) * 0.5 for k, s in shapes.items()}
    net = lambda p, x: jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]
    loss = hotk.curvature.SoftmaxCrossEntropy(y, reduction="sum")
    model = lambda p: net(p, features)
    square = lambda p: hotk.linop.space.inner(p, p)
    nll = lambda p: hotk.curvature.GaussNewton(model, loss)(p) + 0.35 * square(p)
    p = fitted(nll, p, max_steps=2000)
    fit = hotk.laplace_approximation(nll, p)
    data = {"input": features, "target": y}
    options = {"model_fn": lambda input, params: net(params, input), "params": p}
    mv = create_ggn_mv(data=data, loss_fn="cross_entropy", **options)
    posterior = create_posterior_fn("full", mv, layout=p)
    predict = set_lin_pushforward(
        model_fn=options["model_fn"],
        mean_params=p,
        posterior_fn=posterior,
        prior_arguments={"prior_prec": 0.7},
        pushforward_fns=[lin_setup, lin_pred_mean, lin_pred_var],
    )
    found = fit.predict(net, features[:4])
    by_laplax = jax.vmap(predict)(features[:4])
    close(found.value, by_laplax["pred_mean"], rtol=RTOL)
    close(found.standard_errors**2, by_laplax["pred_var"], rtol=RTOL)
