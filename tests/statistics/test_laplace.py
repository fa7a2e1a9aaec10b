"""`laplace_approximation` and what follows from it, against closed forms."""

import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hotk
from tests.helpers import close


RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 5))
PRECISION = ROWS @ ROWS.T + np.eye(5)
SIGMA = np.linalg.inv(PRECISION)
MEAN = {"b": jnp.array(1.0), "w": jnp.array([[1.0, 2.0], [3.0, 4.0]])}
FORMS = ("full", "block", "diagonal", "lanczos")


def flat(p):
    return jnp.concatenate([p["b"][None], p["w"].ravel()])


def normal(p, precision=PRECISION):
    """Return the negative logarithm of a normal density, without its constant."""
    d = flat(p) - flat(MEAN)
    return d @ jnp.asarray(precision) @ d / 2


@pytest.fixture(scope="module")
def fit():
    return hotk.laplace_approximation(normal, MEAN)


def test_covariance_of_a_normal_density(fit):
    close(fit.covariance, SIGMA)
    errors = np.sqrt(np.diag(SIGMA))
    close(fit.standard_errors["w"], errors[1:].reshape(2, 2))
    close(fit.correlation, SIGMA / np.outer(errors, errors))
    assert fit.index["w"] == slice(1, 5)
    close(fit.covariance_operator.block("b", "w"), SIGMA[:1, 1:])
    close(fit.covariance_operator @ np.ones(5), SIGMA.sum(axis=1))


def test_log_evidence_is_the_normalizer_of_a_normal_density(fit):
    expected = 2.5 * math.log(2 * math.pi) + np.linalg.slogdet(SIGMA)[1] / 2
    close(fit.log_evidence, expected)


def test_log_evidence_of_a_conjugate_model():
    X, tau, sigma = RNG.normal(size=(20, 3)), 0.7, 0.5
    y = RNG.normal(size=20)
    log_pdf = jax.scipy.stats.norm.logpdf
    joint = lambda w: -jnp.sum(log_pdf(y, X @ w, sigma)) - jnp.sum(log_pdf(w, 0, tau))
    mode = np.linalg.solve(X.T @ X / sigma**2 + np.eye(3) / tau**2, X.T @ y / sigma**2)
    found = hotk.laplace_approximation(joint, jnp.asarray(mode)).log_evidence
    cov = sigma**2 * np.eye(20) + tau**2 * X @ X.T
    close(found, scipy.stats.multivariate_normal(np.zeros(20), cov).logpdf(y))


@pytest.mark.exhaustive
def test_forms_keep_the_correlations_that_they_say():
    found = {
        form: hotk.laplace_approximation(
            normal, MEAN, form=form, rank=5, prior_precision=1.0
        )
        for form in FORMS
    }
    close(found["diagonal"].covariance, np.diag(1 / np.diag(PRECISION)))
    blocks = np.zeros((5, 5))
    blocks[0, 0] = 1 / PRECISION[0, 0]
    blocks[1:, 1:] = np.linalg.inv(PRECISION[1:, 1:])
    close(found["block"].covariance, blocks)
    close(found["lanczos"].covariance, SIGMA, rtol=1e-7)
    for each in found.values():
        covariance = np.asarray(each.covariance)
        variances = hotk.linop.space.flattened(each.covariance_operator.diagonal())
        close(variances, np.diag(covariance))
        log_det = np.linalg.slogdet(covariance)[1]
        close(each.covariance_operator.log_determinant, log_det)
        close(each.covariance_operator @ np.ones(5), covariance.sum(axis=1))


def test_lanczos_is_exact_for_a_likelihood_of_low_rank_and_an_isotropic_prior():
    A = RNG.normal(size=(3, 60))
    potential = lambda x: jnp.sum((jnp.asarray(A) @ x) ** 2) / 2 + 0.3 / 2 * x @ x
    options = {"form": "lanczos", "rank": 3, "prior_precision": 0.3}
    found = hotk.laplace_approximation(potential, jnp.zeros(60), **options)
    expected = np.linalg.inv(A.T @ A + 0.3 * np.eye(60))
    close(found.covariance, expected, atol=1e-7)
    close(found.standard_errors, np.sqrt(np.diag(expected)), rtol=1e-7)
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det, rtol=1e-7)


def test_lanczos_is_exact_for_a_prior_of_each_leaf():
    A, a, b = RNG.normal(size=(3, 60)), 5.0, np.geomspace(0.1, 10.0, 40)
    precision = A.T @ A + np.diag(np.append(np.full(20, a), b))
    zero = {"a": jnp.zeros(20), "b": jnp.zeros(40)}
    joined = lambda p: jnp.append(p["a"], p["b"])
    potential = lambda p: joined(p) @ (jnp.asarray(precision) @ joined(p)) / 2
    options = {"form": "lanczos", "rank": 3}
    prior = {"a": a, "b": b}
    found = hotk.laplace_approximation(
        potential, zero, prior_precision=prior, **options
    )
    expected = np.linalg.inv(precision)
    close(found.covariance, expected, rtol=1e-6, atol=1e-9)
    close(found.standard_errors["b"], np.sqrt(np.diag(expected))[20:], rtol=1e-7)
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det, rtol=1e-7)
    close(found.covariance_operator @ np.ones(60), expected.sum(axis=1), atol=1e-8)


def test_lanczos_of_full_rank_leaves_no_rounding_of_the_prior():
    """In single precision data that determine all, a million times the prior."""
    precision = np.diag([1e-2, 3e-2]) + 1e5 * np.array([[2.0, 0.5], [0.5, 1.0]])
    matrix = jnp.asarray(precision, jnp.float32)
    potential = lambda p: p @ jnp.matmul(matrix, p, precision="highest") / 2
    zero = jnp.zeros(2, jnp.float32)
    options = {"form": "lanczos", "prior_precision": 1e-2}
    found = hotk.laplace_approximation(potential, zero, **options)
    expected = np.linalg.inv(precision)
    errors = np.sqrt(np.diag(expected))
    close(found.standard_errors, errors.astype(np.float32), rtol=1e-5)
    correlation = expected / np.outer(errors, errors)
    close(found.correlation, correlation.astype(np.float32), rtol=1e-5)


@pytest.mark.exhaustive
def test_the_sparse_form_of_a_latent_field():
    """An autoregression with counts, whose Hessian is known by hand."""
    n, a, s = 80, 0.7, 3.0
    x = np.linspace(-1.0, 1.0, n)
    Q = np.diag(np.append(np.full(n - 1, 1 + a * a), 1.0))
    Q[range(n - 1), range(1, n)] = Q[range(1, n), range(n - 1)] = -a
    shift = jnp.asarray(np.exp(x) + Q @ x)

    def potential(p):
        z = jnp.append(p["head"], p["tail"])
        steps = jnp.sum((z[1:] - a * z[:-1]) ** 2) / 2 + z[0] ** 2 / 2
        return (steps + jnp.sum(jnp.exp(z)) - shift @ z) / s

    mode = {"head": jnp.asarray(x[:30]), "tail": jnp.asarray(x[30:])}
    found = hotk.laplace_approximation(potential, mode, form="sparse", scale=s)
    expected = np.linalg.inv(Q + np.diag(np.exp(x)))
    close(found.covariance, expected, atol=1e-12)
    errors = np.append(found.standard_errors["head"], found.standard_errors["tail"])
    close(errors, np.sqrt(np.diag(expected)), rtol=1e-12)
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det, rtol=1e-12)
    pair = lambda p: jnp.stack([p["tail"][0], jnp.sum(p["head"])])
    rows = np.zeros((2, n))
    rows[0, 30], rows[1, :30] = 1.0, 1.0
    close(found.covariance_of(pair), rows @ expected @ rows.T, rtol=1e-11)
    close(
        jax.jit(lambda f: f.covariance_of(pair))(found),
        rows @ expected @ rows.T,
        rtol=1e-11,
    )
    drawn = found.sample(jax.random.key(0), 40_000)["tail"][:, :2]
    close(np.cov(drawn.T), expected[30:32, 30:32], atol=0.01, rtol=0)
    with pytest.raises(hotk.NotPositiveDefiniteError, match="laplace_approximation"):
        hotk.laplace_approximation(lambda p: -potential(p), mode, form="sparse")


@pytest.mark.parametrize("form", FORMS)
def test_samples_have_the_covariance(form):
    options = {"rank": 5, "prior_precision": 1.0}
    found = hotk.laplace_approximation(normal, MEAN, form=form, **options)
    drawn = found.sample(jax.random.key(0), (100, 200))
    assert drawn["w"].shape == (100, 200, 2, 2)
    rows = np.concatenate(
        [drawn["b"].reshape(-1, 1), drawn["w"].reshape(-1, 4)], axis=1
    )
    close(rows.mean(axis=0), np.asarray(flat(MEAN)), atol=0.03)
    close(np.cov(rows.T), np.asarray(found.covariance), rtol=0, atol=0.04)
    assert found.sample(jax.random.key(0))["w"].shape == (2, 2)


def test_intervals_by_the_delta_method(fit):
    function = lambda p: {"ratio": p["w"][0] / p["b"], "log": jnp.log(p["w"][1, 1])}
    found = fit.interval(function, level=0.9)
    gradient = np.array([-1.0, 1.0, 0.0, 0.0, 0.0])  # of w[0, 0] / b
    error = np.sqrt(gradient @ SIGMA @ gradient)
    close(found.standard_errors["ratio"][0], error)
    z = scipy.stats.norm.ppf(0.95)
    close(found.upper["ratio"][0], 1.0 + z * error)
    close(found.standard_errors["log"], np.sqrt(SIGMA[4, 4]) / 4)
    by_t = fit.interval(level=0.9, degrees=7)
    half = scipy.stats.t.ppf(0.95, 7) * np.sqrt(SIGMA[0, 0])
    close(by_t.lower["b"], 1.0 - half)
    close(fit.covariance_of(lambda p: p["w"].ravel()), SIGMA[1:, 1:])


def test_predictions_of_a_linear_model_are_those_of_least_squares():
    t, sigma = np.arange(10.0), 0.3
    X = np.stack([np.ones(10), t], axis=1)
    y = X @ [1.0, 2.0] + sigma * RNG.normal(size=10)
    line = lambda p, t: p["a"] + p["b"] * t
    nll = lambda p: jnp.sum((line(p, t) - y) ** 2) / (2 * sigma**2)
    a, b = np.linalg.lstsq(X, y)[0]
    fit = hotk.laplace_approximation(nll, {"a": jnp.array(a), "b": jnp.array(b)})
    new = np.array([[1.0, 2.5], [1.0, 20.0]])
    variance = np.diag(new @ np.linalg.inv(X.T @ X) @ new.T) * sigma**2
    close(fit.predict(line, new[:, 1]).standard_errors, np.sqrt(variance))
    noisy = fit.predict(line, new[:, 1], noise_variance=sigma**2)
    close(noisy.standard_errors, np.sqrt(variance + sigma**2))
    close(noisy.value, new @ [a, b])


def test_a_mean_is_scaled_by_the_number_of_observations(fit):
    mean = hotk.laplace_approximation(lambda p: normal(p) / 50, MEAN, scale=50.0)
    close(mean.covariance, SIGMA)
    close(mean.log_evidence, fit.log_evidence)


def test_another_curvature_in_place_of_the_hessian():
    X = jnp.asarray(RNG.normal(size=(12, 2)))
    model = lambda w: jnp.exp(X @ w)
    loss = hotk.curvature.SquaredError(model(jnp.ones(2)), reduction="sum")
    potential = lambda w: loss(model(w)) + jnp.sum((w - 1) ** 2) * 0.25
    G = hotk.GGNOperator(model, loss, jnp.ones(2)) + 0.5 * hotk.Identity()
    found = hotk.laplace_approximation(potential, jnp.ones(2), curvature=G)
    J = np.asarray(X * model(jnp.ones(2))[:, None])
    close(found.covariance, np.linalg.inv(J.T @ J + 0.5 * np.eye(2)))
    with pytest.raises(hotk.StructureError, match="another space"):
        hotk.laplace_approximation(potential, jnp.ones(3), curvature=G)


def test_the_function_whose_hessian_is_gauss_newton_is_a_potential():
    X = jnp.asarray(RNG.normal(size=(12, 2)))
    y = jnp.asarray(RNG.normal(size=12))
    loss = hotk.curvature.SquaredError(y, reduction="sum")
    w = jnp.linalg.lstsq(X, y)[0]
    nll = hotk.curvature.GaussNewton(lambda w: X @ w, loss)
    close(hotk.laplace_approximation(nll, w).covariance, jnp.linalg.inv(X.T @ X))


def test_parameters_chosen_by_where(fit):
    found = hotk.laplace_approximation(normal, MEAN, where={"b": False, "w": True})
    close(found.covariance, np.linalg.inv(PRECISION[1:, 1:]))
    assert found.standard_errors["b"] is None
    assert found.sample(jax.random.key(0), 3)["b"] is None
    close(found.predict(lambda p: p["w"][0] * p["b"]).value, np.array([1.0, 2.0]))
    assert found.interval().value["b"] is None


def test_parameters_of_a_module():
    layer = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    potential = lambda m: jnp.sum((m.weight - 1) ** 2) + jnp.sum(m.bias**2) / 8
    one, zero = jnp.ones((1, 2)), jnp.zeros(1)
    layer = eqx.tree_at(lambda m: (m.weight, m.bias), layer, (one, zero))
    found = hotk.laplace_approximation(potential, layer)
    close(found.standard_errors.bias, np.array([2.0]))
    run = lambda m, x: m(x)
    prediction = found.predict(run, jnp.array([3.0, 4.0]))
    close(prediction.standard_errors, np.array([np.sqrt(4 + 25 / 2)]))
    assert "weight[0,1]" in str(found)


def test_a_saddle_point_is_refused_with_the_direction():
    saddle = lambda p: p["a"] ** 2 / 2 - p["b"] ** 2 + p["a"] * p["b"]
    zero = {"a": jnp.array(0.0), "b": jnp.array(0.0)}
    with pytest.raises(hotk.NotPositiveDefiniteError) as caught:
        hotk.laplace_approximation(saddle, zero)
    values, vectors = np.linalg.eigh([[1.0, 1.0], [1.0, -2.0]])
    close(np.float64(caught.value.smallest), values[0])
    found = np.array([caught.value.direction["a"], caught.value.direction["b"]])
    close(abs(found @ vectors[:, 0]), 1.0)
    assert "0.96 b - 0.29 a" in str(caught.value)


def test_a_large_saddle_point_is_refused_before_its_matrix_is_computed():
    weights = jnp.linspace(1.0, 3.0, 700).at[17].set(-2.0)
    hotk.set_memory_budget(2**20)  # the matrix has 3.7 MiB
    try:
        with pytest.raises(hotk.NotPositiveDefiniteError) as raised:
            hotk.laplace_approximation(lambda x: weights @ x**2 / 2, jnp.zeros(700))
        with pytest.raises(hotk.TooLargeError):
            hotk.laplace_approximation(lambda x: abs(weights) @ x**2, jnp.zeros(700))
    finally:
        hotk.set_memory_budget(None)
    # x[17] has nearly all of a direction of negative curvature
    direction = np.asarray(raised.value.direction)
    assert weights @ direction**2 < 0
    assert np.argmax(abs(direction)) == 17


def test_matrices_of_many_parameters_are_refused_before_they_are_computed():
    n = 700
    f = lambda x: jnp.sum(x**2) / 2
    found = hotk.laplace_approximation(f, jnp.zeros(n), form="diagonal")
    close(found.standard_errors, np.ones(n))
    hotk.set_memory_budget(2**20)
    try:
        with pytest.raises(hotk.TooLargeError, match="standard_errors"):
            found.covariance  # noqa: B018
        with pytest.raises(hotk.TooLargeError, match="standard_errors"):
            found.correlation  # noqa: B018
    finally:
        hotk.set_memory_budget(None)


def test_a_combination_that_the_data_do_not_determine_is_named():
    # In other units by ten powers: an eigenvalue of the whole matrix would not tell.
    potential = lambda p: (p["x"] + 1e5 * p["y"]) ** 2 + 1e-10 * p["z"] ** 2
    zero = dict.fromkeys("xyz", jnp.array(0.0))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="singular") as caught:
        hotk.laplace_approximation(potential, zero)
    close(abs(caught.value.direction["x"]), 1.0)
    good = lambda p: (p["x"] + 1e5 * p["y"]) ** 2 + p["x"] ** 2 + 1e-10 * p["z"] ** 2
    found = hotk.laplace_approximation(good, zero)
    close(found.standard_errors["z"], 1e5 / np.sqrt(2))


@pytest.mark.parametrize("form", ["diagonal", "block", "lanczos"])
def test_every_form_refuses_what_it_sees(form):
    f = lambda p: p["a"] ** 2 - p["b"] ** 2
    zero = {"a": jnp.array(0.0), "b": jnp.array(0.0)}
    with pytest.raises(hotk.NotPositiveDefiniteError, match=r"-2 (for|along 1) b\b"):
        hotk.laplace_approximation(f, zero, form=form, prior_precision=1.0)


def test_the_direction_that_a_lanczos_iteration_finds_is_named():
    lower = jnp.zeros((200,)).at[17].set(-1.0)
    f = lambda p: (
        jnp.sum(jnp.linspace(1, 2, 200) * p["w"] ** 2)
        + jnp.sum(8 * lower * p["w"] ** 2)
    )
    zero = {"w": jnp.zeros(200)}
    with pytest.raises(hotk.NotPositiveDefiniteError, match=r"w\[17\]") as caught:
        hotk.laplace_approximation(f, zero, form="lanczos", rank=3, prior_precision=1.0)
    close(caught.value.smallest, 2 * (1 + 17 / 199 - 8), rtol=1e-6)
    direction = np.abs(caught.value.direction["w"])
    close(direction, np.eye(200)[17], atol=1e-5)


def test_a_point_that_is_no_minimum_is_told():
    f = lambda x: (x[0] - 1) ** 2 * 2 + (x[1] - 1) ** 2 / 8
    with pytest.warns(
        hotk.NotStationaryWarning, match=r"2 standard errors away in x\[0"
    ):
        found = hotk.laplace_approximation(f, jnp.array([0.0, 1.1]))
    close(found.shift, np.array([2.0, -0.05]))
    assert not bool(found.stationary)
    assert "not a minimum" in str(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hotk.laplace_approximation(f, jnp.ones(2)).stationary


@pytest.mark.exhaustive
def test_under_jit_vmap_and_grad():
    f = lambda x, a: jnp.sum(a * x**2) / 2
    at = lambda a: hotk.laplace_approximation(f, jnp.zeros(2), a)
    found = jax.jit(lambda a: at(a).covariance)(jnp.array([2.0, 4.0]))
    close(found, np.diag([0.5, 0.25]))
    correlated = jax.jit(lambda p: hotk.laplace_approximation(normal, p))(MEAN)
    close(correlated.covariance, SIGMA)
    log_det = np.linalg.slogdet(SIGMA)[1]
    close(correlated.log_evidence, 2.5 * math.log(2 * math.pi) + log_det / 2)
    batch = jnp.array([[1.0, 4.0], [4.0, -1.0]])
    errors = jax.vmap(lambda a: at(a).standard_errors)(batch)
    close(errors[0], np.array([1.0, 0.5]))
    assert np.isnan(errors[1]).all()  # no error is possible there
    slope = jax.grad(lambda a: at(a).log_evidence)(jnp.array([2.0, 4.0]))
    close(slope, np.array([-0.25, -0.125]))
    fit = jax.jit(at)(jnp.array([2.0, 4.0]))
    close(fit.interval().upper[0], scipy.stats.norm.ppf(0.975) / np.sqrt(2))


def test_it_is_a_pytree_of_arrays(fit):
    leaves, treedef = jax.tree.flatten(fit)
    again = treedef.unflatten(leaves)
    close(again.covariance, SIGMA)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)


def test_how_it_shows(fit):
    lines = str(fit).splitlines()
    assert lines[0].split() == ["estimate", "std.", "error", "2.5", "%", "97.5", "%"]
    assert lines[2].startswith("b ")
    assert lines[4].startswith("w[0,1]")
    assert "95 % intervals, inverse Hessian (full)" in lines
    assert repr(fit) == str(fit)
    assert fit._repr_html_().startswith("<table>")
    many = hotk.laplace_approximation(lambda x: x @ x, jnp.zeros(1000), form="diagonal")
    assert "x f64[1000]" in str(many)
    assert len(str(many)) < 500
    jax.jit(lambda f: repr(f) and f.covariance)(fit)  # no numbers to show yet


def test_single_precision_stays(fit):
    del fit
    narrow = jax.tree.map(lambda a: a.astype(jnp.float32), MEAN)
    f = lambda p: normal(p, PRECISION.astype(np.float32))
    found = hotk.laplace_approximation(f, narrow)
    dtypes = {a.dtype for a in jax.tree.leaves((found.interval(), found.covariance))}
    assert dtypes == {jnp.dtype("float32")}
    close(found.covariance, SIGMA.astype(np.float32))


def test_what_is_refused(as_user):
    with pytest.raises(ValueError, match="'half'"):
        hotk.laplace_approximation(normal, MEAN, form="half")
    with pytest.raises(ValueError, match="prior_precision"):
        hotk.laplace_approximation(normal, MEAN, form="lanczos")
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.laplace_approximation(lambda z: abs(z) ** 2, jnp.array(1j))
    found = hotk.laplace_approximation(normal, MEAN)
    with pytest.raises(ValueError, match="level"):
        found.interval(level=95)
    turned = lambda p, *t: jax.lax.complex(p["b"], p["b"])
    calls = (found.interval, found.covariance_of, lambda f: found.predict(f, 1.0))
    for call in calls:
        with pytest.raises(hotk.DtypeError, match="complex values of the function"):
            call(lambda p, *t: {"real": p["b"], "turned": turned(p)})
    with pytest.raises(TypeError, match=r"fit\.interval\(level=0\.9\)"):
        found.interval(0.95)
    with pytest.raises(ValueError, match="degrees"):
        found.interval(degrees=0)
    hotk.set_memory_budget(100)
    try:
        with pytest.raises(hotk.TooLargeError, match='form="sparse"'):
            hotk.laplace_approximation(normal, MEAN)
    finally:
        hotk.set_memory_budget(None)
    infinite = lambda p: jnp.sum(jnp.sqrt(p["w"] - MEAN["w"]))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="not finite"):
        hotk.laplace_approximation(infinite, MEAN)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
def test_a_product_of_parameters_has_no_errors_before_its_minimum(gap):
    """At the minimum `a b = 6` the Hessian is singular; below it is not."""
    t = jnp.linspace(0.0, 1.0, 50)
    potential = lambda p: jnp.sum((p[0] * p[1] * t - 6 * t) ** 2) / (2 * 0.1**2)
    at = jnp.array([2.0, 3.0 - gap])
    with pytest.warns(hotk.NotStationaryWarning, match=r"changes it by 1\d\d%|by 9\d%"):
        hotk.laplace_approximation(potential, at)
    # collinear columns are determined, if badly: no warning, which would be an error
    rows = jnp.stack([jnp.ones(50), t, t**2, t**3], 1)
    line = lambda p: jnp.sum((rows @ p - t) ** 2) / (2 * 0.1**2)
    found = hotk.laplace_approximation(line, jnp.array([0.0, 1.0 + 1e-9, 0, 0]))
    errors = 0.1 * np.sqrt(np.diag(np.linalg.inv(np.asarray(rows.T @ rows, float))))
    np.testing.assert_allclose(found.standard_errors, errors, rtol=1e-6)


# ----- Classification and evidence: a logistic model of two parameters

TIMES = np.linspace(-2.0, 2.0, 40)
LABELS = (np.sin(7 * TIMES) + 0.3 * TIMES > 0).astype(float)
DESIGN = np.stack([np.ones(40), TIMES], axis=1)


def logits(p, t):
    return p[0] + p[1] * t


def log_joint(p, tau):
    """Return minus the logarithm of the joint density of labels and parameters."""
    z = logits(p, jnp.asarray(TIMES))
    prior = tau / 2 * (p @ p) - jnp.log(tau / (2 * jnp.pi))
    return jnp.sum(jax.nn.softplus(z) - LABELS * z) + prior


def mode_of(tau):
    newton = hotk.optim.trust_region(subproblem="exact")
    options = {"args": (tau,), "tol": 1e-10}
    return hotk.optim.minimize(log_joint, jnp.zeros(2), newton, **options).x


def evidence_by_numpy(tau):
    """Return Laplace's approximation by Newton's method, written anew."""
    w = np.zeros(2)
    for _ in range(50):
        s = 1 / (1 + np.exp(-DESIGN @ w))
        H = DESIGN.T @ (DESIGN * (s * (1 - s))[:, None]) + tau * np.eye(2)
        w = w - np.linalg.solve(H, DESIGN.T @ (s - LABELS) + tau * w)
    z = DESIGN @ w
    value = np.sum(np.logaddexp(0, z) - LABELS * z) + tau / 2 * w @ w
    value -= np.log(tau / (2 * np.pi))
    return -value + np.log(2 * np.pi) - np.linalg.slogdet(H)[1] / 2


@pytest.mark.exhaustive
def test_probabilities_and_evidence_by_quadrature():
    """On a grid over all of the posterior; MacKay (1992) for the probabilities."""
    tau, t = 0.5, np.array([-1.0, 0.2, 8.0])
    axis = np.linspace(-8.0, 12.0, 801)
    w = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    z = w @ DESIGN.T
    log_density = np.sum(LABELS * z - np.logaddexp(0, z), axis=1)
    log_density += np.log(tau / (2 * np.pi)) - tau / 2 * np.sum(w**2, axis=1)
    largest, cell = log_density.max(), (axis[1] - axis[0]) ** 2
    density = np.exp(log_density - largest)
    evidence = largest + np.log(density.sum() * cell)
    at = np.stack([np.ones(3), t], axis=1)
    exact = density @ (1 / (1 + np.exp(-w @ at.T))) / density.sum()

    fit = hotk.laplace_approximation(log_joint, mode_of(tau), tau)
    close(fit.log_evidence, evidence_by_numpy(tau), rtol=1e-10)
    assert abs(float(fit.log_evidence) - evidence) < 0.05
    found = fit.predict(logits, t)
    kappa = 1 / np.sqrt(1 + np.pi / 8 * np.asarray(found.standard_errors) ** 2)
    probit = jax.nn.sigmoid(kappa * found.value)
    drawn = jax.vmap(lambda p: logits(p, jnp.asarray(t)))(
        fit.sample(jax.random.key(0), 20_000)
    )
    sampled = jnp.mean(jax.nn.sigmoid(drawn), axis=0)
    close(probit, exact, atol=0.021, rtol=0)
    close(sampled, exact, atol=0.021, rtol=0)
    plain = jax.nn.sigmoid(found.value)
    assert plain[2] - exact[2] > 0.05  # too certain where there are no data


@pytest.mark.exhaustive
def test_the_evidence_is_differentiable_in_the_precision_of_the_prior():
    """Through the minimum as well, which moves with it."""

    def log_evidence(tau):
        return hotk.laplace_approximation(log_joint, mode_of(tau), tau).log_evidence

    h = 1e-4
    slope = (evidence_by_numpy(0.5 + h) - evidence_by_numpy(0.5 - h)) / (2 * h)
    close(jax.grad(log_evidence)(0.5), slope, rtol=1e-6)
    # of a linear model it is that of a normal density of the data
    X, y, sigma = DESIGN, np.cos(TIMES), 0.3

    def joint(w, tau):
        prior = tau / 2 * (w @ w) - jnp.log(tau / (2 * jnp.pi))
        constant = 20 * jnp.log(2 * jnp.pi * sigma**2)
        return jnp.sum((X @ w - y) ** 2) / (2 * sigma**2) + constant + prior

    def of_line(tau):
        newton = hotk.optim.trust_region(subproblem="exact")
        options = {"args": (tau,), "tol": 1e-9}
        mode = hotk.optim.minimize(joint, jnp.zeros(2), newton, **options).x
        return hotk.laplace_approximation(joint, mode, tau).log_evidence

    tau = 2.0
    cov = sigma**2 * np.eye(40) + X @ X.T / tau
    solved, inside = np.linalg.solve(cov, y), X @ X.T / tau**2
    exact = (np.trace(np.linalg.solve(cov, inside)) - solved @ inside @ solved) / 2
    value, slope = jax.value_and_grad(of_line)(tau)
    close(value, scipy.stats.multivariate_normal(np.zeros(40), cov).logpdf(y))
    close(slope, exact, rtol=1e-9)


@pytest.mark.exhaustive
def test_classes_by_the_formulas_of_laplace_torch():
    """Daxberger et al. (2021), appendix A and B.1, written with NumPy."""
    X, classes, tau = RNG.normal(size=(30, 2)), 3, 0.8
    labels = RNG.integers(0, classes, 30)
    loss = hotk.curvature.SoftmaxCrossEntropy(jnp.asarray(labels), reduction="sum")
    model = lambda w, X: X @ w
    potential = lambda w: loss(model(w, X)) + tau / 2 * jnp.sum(w**2)
    newton = hotk.optim.trust_region(subproblem="exact")
    mode = hotk.optim.minimize(potential, jnp.zeros((2, classes)), newton, tol=1e-9).x
    G = hotk.GGNOperator(lambda w: model(w, X), loss, mode) + tau * hotk.Identity()
    fit = hotk.laplace_approximation(potential, mode, curvature=G)
    new = np.array([[1.0, -1.0], [4.0, 2.0]])
    found = fit.predict(model, new)
    kappa = 1 / jnp.sqrt(1 + jnp.pi / 8 * found.standard_errors**2)
    probit = jax.nn.softmax(kappa * found.value)

    jacobian = lambda x: np.kron(x[None], np.eye(classes))  # of w[i, c] by outputs
    precision = tau * np.eye(2 * classes)
    for x in X:
        p = np.exp(x @ np.asarray(mode))
        p /= p.sum()
        precision += jacobian(x).T @ (np.diag(p) - np.outer(p, p)) @ jacobian(x)
    cov = np.linalg.inv(precision)
    for k, x in enumerate(new):
        mean, variance = x @ np.asarray(mode), jacobian(x) @ cov @ jacobian(x).T
        scaled = np.exp(mean / np.sqrt(1 + np.pi / 8 * np.diag(variance)))
        close(probit[k], scaled / scaled.sum(), rtol=1e-9)
        of_one = fit.covariance_of(lambda w, x=x: jnp.asarray(x) @ w)
        close(of_one, variance, rtol=1e-9, atol=1e-12)
