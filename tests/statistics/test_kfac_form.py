"""`laplace_approximation(..., form="kfac")`: Kronecker factors and a prior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError
from tests.helpers import close


RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(40, 3)))
Y = jnp.asarray(RNG.normal(size=(40, 2)))
TAU = 0.7


def linear(w, x):
    return x @ w


def regression():
    """Return a potential of a sum of squares with a prior, and its minimum."""
    loss = SquaredError(Y, reduction="sum")
    potential = lambda w: loss(linear(w, X)) + TAU / 2 * jnp.sum(w**2)
    mode = np.linalg.solve(X.T @ X + TAU * np.eye(3), X.T @ Y)
    return potential, jnp.asarray(mode), loss


@pytest.mark.exhaustive
def test_it_is_exact_for_a_linear_regression():
    potential, mode, loss = regression()
    K = hotk.KFACOperator(linear, loss, mode, X)
    options = {"form": "kfac", "curvature": K, "prior_precision": TAU}
    found = hotk.laplace_approximation(potential, mode, **options)
    expected = np.kron(np.linalg.inv(X.T @ X + TAU * np.eye(3)), np.eye(2))
    close(found.covariance, jnp.asarray(expected))
    errors = np.sqrt(np.diag(expected)).reshape(3, 2)
    close(found.standard_errors, jnp.asarray(errors))
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det)
    full = hotk.laplace_approximation(potential, mode)
    close(found.covariance, full.covariance)
    close(found.log_evidence, full.log_evidence)
    drawn = found.sample(jax.random.key(0), (20_000,)).reshape(-1, 6)
    close(np.cov(drawn.T), expected, atol=0.003, rtol=0)


@pytest.mark.exhaustive
def test_a_prior_of_each_layer():
    """Two linear maps of one input each: by hand, a Kronecker product for each."""
    Z, tau = jnp.asarray(RNG.normal(size=(40, 2))), {"v": 5.0, "w": 0.3}
    both = lambda p, x: jnp.stack([x["X"] @ p["w"], x["Z"] @ p["v"]], axis=1)
    loss = SquaredError(jnp.stack([Y, Y[:, ::-1]], axis=1), reduction="sum")
    data = {"X": X, "Z": Z}
    prior = lambda p: sum(t / 2 * jnp.sum(p[k] ** 2) for k, t in tau.items())
    potential = lambda p: loss(both(p, data)) + prior(p)
    solved = lambda A, t, B: np.linalg.solve(A.T @ A + t * np.eye(A.shape[1]), A.T @ B)
    mode = {"v": solved(Z, tau["v"], Y[:, ::-1]), "w": solved(X, tau["w"], Y)}
    mode = jax.tree.map(jnp.asarray, mode)
    K = hotk.KFACOperator(both, loss, mode, data)
    options = {"form": "kfac", "curvature": K}
    found = hotk.laplace_approximation(potential, mode, prior_precision=tau, **options)
    blocks = [
        np.kron(np.linalg.inv(A.T @ A + t * np.eye(A.shape[1])), np.eye(2))
        for A, t in ((Z, tau["v"]), (X, tau["w"]))
    ]
    expected = np.zeros((10, 10))
    expected[:4, :4], expected[4:, 4:] = blocks
    close(found.covariance, jnp.asarray(expected))
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det)


def test_a_prior_that_does_not_fit_is_refused(as_user):
    model = lambda p, x: x @ p["w"] + p["b"][None]
    loss = SquaredError(Y, reduction="sum")
    p = {"b": jnp.zeros(2), "w": jnp.zeros((3, 2))}
    K = hotk.KFACOperator(model, loss, p, X)
    fit = lambda prior: hotk.laplace_approximation(
        lambda p: loss(model(p, X)), p, form="kfac", curvature=K, prior_precision=prior
    )
    with pytest.raises(ValueError, match="one number of `prior_precision`"):
        fit({"b": 1.0, "w": 2.0})
    with pytest.raises(hotk.StructureError, match="does not fit the parameters"):
        fit({"a": 1.0, "w": 2.0})
    with pytest.raises(hotk.StructureError, match="does not fit the parameters"):
        fit({"b": np.ones(3), "w": 2.0})
    with pytest.raises(hotk.NotPositiveDefiniteError, match="prior_precision"):
        fit({"b": -1.0, "w": -1.0})


@pytest.mark.exhaustive
def test_a_mean_over_examples_is_scaled():
    potential, mode, _ = regression()
    K = hotk.KFACOperator(linear, SquaredError(Y), mode, X)
    options = {"form": "kfac", "curvature": K, "prior_precision": TAU}
    mean = lambda w: potential(w) / 40
    found = hotk.laplace_approximation(mean, mode, scale=40, **options)
    expected = np.kron(np.linalg.inv(X.T @ X + TAU * np.eye(3)), np.eye(2))
    close(found.covariance, jnp.asarray(expected))
    log_det = np.linalg.slogdet(expected)[1]
    close(found.covariance_operator.log_determinant, log_det)


def network(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]


@pytest.fixture(scope="module")
def classifier():
    labels = jnp.asarray(RNG.integers(0, 3, 40))
    loss = SoftmaxCrossEntropy(labels, reduction="sum")
    p = {
        "b": jnp.zeros(4),
        "v": jnp.asarray(RNG.normal(size=(4, 3))),
        "w": jnp.asarray(RNG.normal(size=(3, 4))),
    }
    square = lambda p: sum(jnp.sum(a**2) for a in jax.tree.leaves(p))
    potential = lambda p: loss(network(p, X)) + square(p) / 2
    options = {"max_steps": 200, "tol": 1e-4}
    found = hotk.optim.minimize(potential, p, hotk.optim.trust_region(), **options)
    return potential, found.x, loss


def variances(fit, at):
    """Return the variances of linearized outputs by the covariance as a matrix."""
    rows = jax.jacobian(lambda p: network(p, at).reshape(-1))(fit.mode)
    flat = jnp.concatenate(
        [a.reshape(3 * len(at), -1) for a in jax.tree.leaves(rows)], axis=1
    )
    return np.einsum("ij,jk,ik->i", flat, np.asarray(fit.covariance), flat)


@pytest.mark.exhaustive
def test_predictive_variances_follow_those_of_the_whole_matrix(classifier):
    potential, mode, loss = classifier
    model = lambda p: network(p, X)
    G = hotk.GGNOperator(model, loss, mode) + 1.0 * hotk.Identity()
    full = hotk.laplace_approximation(potential, mode, curvature=G)
    K = hotk.KFACOperator(network, loss, mode, X)
    options = {"form": "kfac", "curvature": K, "prior_precision": 1.0}
    found = hotk.laplace_approximation(potential, mode, **options)
    at = jnp.asarray(RNG.normal(size=(60, 3)))
    assert np.corrcoef(variances(found, at), variances(full, at))[0, 1] > 0.9


@pytest.mark.exhaustive
def test_the_last_layer_is_a_choice_of_parameters(classifier):
    """By the dense matrix of the last layer alone."""
    potential, mode, loss = classifier
    last = {"b": False, "v": True, "w": False}
    K = hotk.KFACOperator(network, loss, mode, X, where=last)
    options = {"form": "kfac", "curvature": K, "prior_precision": 1.0, "where": last}
    found = hotk.laplace_approximation(potential, mode, **options)
    expected = np.linalg.inv(np.asarray(K.matrix()) + np.eye(12))
    close(found.covariance, jnp.asarray(expected))
    assert found.standard_errors["w"] is None


@pytest.mark.exhaustive
def test_the_last_layer_by_its_features(classifier):
    """As torch-laplace has it: by hand, from the features and the probabilities."""
    _, mode, loss = classifier
    last, tau = {"b": False, "v": True, "w": False}, 1.0
    phi = np.tanh(np.asarray(X) @ np.asarray(mode["w"]) + np.asarray(mode["b"]))
    z = np.exp(phi @ np.asarray(mode["v"]))
    p = z / z.sum(1, keepdims=True)
    outer = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    precisions = {
        "full": np.einsum("ni,nj,nab->iajb", phi, phi, outer).reshape(12, 12),
        "kfac": np.kron(phi.T @ phi / 40, outer.sum(0)),
    }
    potential = lambda p: loss(network(p, X)) + tau / 2 * jnp.sum(p["v"] ** 2)
    full = hotk.GGNOperator(network, loss, mode, X, where=last) + tau * hotk.Identity()
    K = hotk.KFACOperator(network, loss, mode, X, where=last)
    for form, curvature in (("full", full), ("kfac", K)):
        options = {"curvature": curvature, "where": last}
        if form == "kfac":
            options["prior_precision"] = tau
        found = hotk.laplace_approximation(potential, mode, form=form, **options)
        expected = np.linalg.inv(precisions[form] + tau * np.eye(12))
        close(found.covariance, jnp.asarray(expected))


def test_the_last_layer_is_no_form(as_user):
    potential, mode, _ = regression()
    with pytest.raises(ValueError, match="Choose the leaves of the last layer with"):
        hotk.laplace_approximation(potential, mode, form="last_layer")


def test_other_operators_and_a_missing_prior_are_refused(as_user):
    potential, mode, loss = regression()
    G = hotk.GGNOperator(lambda w: linear(w, X), loss, mode)
    with pytest.raises(TypeError, match=r"hotk\.KFACOperator"):
        hotk.laplace_approximation(
            potential, mode, form="kfac", curvature=G, prior_precision=1.0
        )
    K = hotk.KFACOperator(linear, loss, mode, X)
    with pytest.raises(ValueError, match="the precision of the prior"):
        hotk.laplace_approximation(potential, mode, form="kfac", curvature=K)


def of_reductions(of_potential, of_curvature, form, scale=1.0):
    """Fit a regression whose potential and curvature are means or sums."""
    mode = regression()[1]
    prior = TAU if of_potential == "sum" else TAU / 40
    losses = [SquaredError(Y, reduction=r) for r in (of_potential, of_curvature)]
    potential = lambda w: losses[0](linear(w, X)) + prior / 2 * jnp.sum(w**2)
    if form == "kfac":
        curvature = hotk.KFACOperator(linear, losses[1], mode, X)
    else:
        curvature = hotk.GGNOperator(lambda w: linear(w, X), losses[1], mode)
        added = TAU if of_curvature == "sum" else TAU / 40
        curvature = curvature + added * hotk.Identity()
    options = {"form": form, "curvature": curvature, "scale": scale}
    if form == "kfac":
        options["prior_precision"] = TAU
    return lambda: hotk.laplace_approximation(potential, mode, **options)


@pytest.mark.parametrize("form", ["kfac", "full"])
def test_a_curvature_that_is_not_that_of_the_potential_is_told(form):
    of_reductions("sum", "sum", form)()  # warnings are errors
    of_reductions("mean", "mean", form, scale=40.0)()
    with pytest.warns(hotk.CurvatureMismatchWarning, match=r"0\.0\d* of that") as told:
        of_reductions("sum", "mean", form)()
    assert 'reduction="sum"' in str(told[0].message)
    assert told[0].filename == __file__
    with pytest.warns(hotk.CurvatureMismatchWarning, match=r"\d\d\.?\d* times that"):
        of_reductions("mean", "sum", form, scale=40.0)()


def test_a_potential_without_the_prior_is_told():
    """The prior is far stronger than the data here."""
    potential, mode, loss = regression()
    K = hotk.KFACOperator(linear, loss, mode, X)
    options = {"form": "kfac", "curvature": K}
    with pytest.warns(hotk.CurvatureMismatchWarning, match="prior"):
        hotk.laplace_approximation(potential, mode, prior_precision=1e5, **options)


def test_nothing_is_compiled_for_the_comparison():
    potential, mode, loss = regression()
    K = hotk.KFACOperator(linear, loss, mode, X)
    options = {"form": "kfac", "curvature": K, "prior_precision": TAU}
    hotk.laplace_approximation(potential, mode, **options)  # functions without `f`
    hotk.clear_cache()
    hotk.gradient(potential, mode)
    hotk.value_and_gradient(potential, mode)
    before = hotk.cache_info().compiles
    hotk.laplace_approximation(potential, mode, **options)
    hotk.laplace_approximation(potential, mode + 0.0, **options)
    assert hotk.cache_info().compiles - before <= 1  # a product of K


def test_inside_of_a_transformation_nothing_is_compared():
    potential, mode, _ = regression()

    def error(w):
        K = hotk.KFACOperator(linear, SquaredError(Y), w, X)
        options = {"form": "kfac", "curvature": K, "prior_precision": TAU}
        return hotk.laplace_approximation(potential, w, **options).standard_errors

    assert jnp.all(jax.jit(error)(mode) > 0)
