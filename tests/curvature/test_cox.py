"""Cox's partial likelihood, against sums over its risk sets and against statsmodels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import CoxLoss
from tests.helpers import close


TIMES = np.array([5.0, 2.0, 2.0, 3.0, 2.0, 7.0, 5.0, 1.0, 5.0])
EVENTS = np.array([1, 1, 0, 0, 1, 0, 1, 1, 1])
Z = np.array([0.3, -1.0, 0.5, 0.8, 0.1, -0.4, 1.2, 0.0, -2.0])
U = np.array([1.0, 0.5, -2.0, 0.0, 3.0, -1.0, 0.25, 1.0, 2.0])

each_ties = pytest.mark.parametrize("ties", ["efron", "breslow"])


def terms(times, events, ties):
    """Return for each event its row and the weight of each row in its sum."""
    found = []
    for time in np.unique(times):
        tied = np.flatnonzero((times == time) & (np.asarray(events) > 0))
        for r, row in enumerate(tied):
            weights = (times >= time).astype(float)
            if ties == "efron":
                weights[tied] -= r / len(tied)
            found.append((row, weights))
    return found


def probabilities(z, weights):
    z = np.asarray(z, np.longdouble)
    top = z[weights > 0].max()
    share = weights * np.exp(np.minimum(z - top, 0))
    return share / share.sum(), top + np.log(share.sum())


def known(z, times, events, ties):
    """Return value, gradient and Hessian of the sum, event by event."""
    n = len(z)
    value, gradient, hessian = 0.0, np.zeros(n), np.zeros((n, n))
    for row, weights in terms(times, events, ties):
        p, log_sum = probabilities(z, weights)
        value += log_sum - z[row]
        gradient += p - np.eye(n)[row]
        hessian += np.diag(p) - np.outer(p, p)
    return float(value), np.float64(gradient), np.float64(hessian)


@pytest.mark.exhaustive
@each_ties
def test_value_gradient_and_hessian_event_by_event(ties):
    loss = CoxLoss(TIMES, EVENTS, ties=ties, reduction="sum")
    value, gradient, hessian = known(Z, TIMES, EVENTS, ties)
    z = jnp.asarray(Z)
    close(loss(z), value)
    close(loss.gradient(z), gradient)
    close(jax.vmap(lambda u: loss.hessian_product(z, u))(jnp.eye(len(Z))), hessian)
    close(jax.hessian(loss)(z), hessian)
    mean = CoxLoss(TIMES, EVENTS, ties=ties)
    close(mean(z[:, None]), value / len(Z))
    close(mean.gradient(z[:, None]), gradient[:, None] / len(Z))
    product = mean.hessian_product(z[:, None], jnp.asarray(U)[:, None])
    close(product, (hessian @ U)[:, None] / len(Z))


def test_the_hessian_is_the_expected_information_given_the_sets_at_risk():
    """Without ties: the mean over who of each set has the event, by enumeration."""
    times = np.arange(1.0, 8.0)
    events, z = np.array([1, 0, 1, 1, 0, 1, 1]), Z[:7]
    expected = np.zeros((7, 7))
    for time in times[events > 0]:
        p, _ = probabilities(z, (times >= time).astype(float))
        for j in range(7):
            score = np.float64(p - np.eye(7)[j])
            expected += float(p[j]) * np.outer(score, score)
    G = hotk.GGNOperator(
        lambda z: z, CoxLoss(times, events, reduction="sum"), jnp.asarray(z)
    )
    close(G.matrix(), expected)


@pytest.mark.thinned(1)
@each_ties
def test_scores_that_differ_by_orders_of_magnitude(ties):
    z = np.array([300.0, -800.0, 900.0, -700.0, 500.0, 0.0, -900.0, 650.0, -20.0])
    loss = CoxLoss(TIMES, EVENTS, ties=ties, reduction="sum")
    value, gradient, hessian = known(z, TIMES, EVENTS, ties)
    at = jnp.asarray(z)
    close(loss(at), value)
    close(loss.gradient(at), gradient, atol=1e-15)
    close(loss.hessian_product(at, jnp.asarray(U)), hessian @ U, atol=1e-14)
    with jax.enable_x64(False):
        single = loss(jnp.asarray(z, jnp.float32))
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, value, rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.library
@each_ties
def test_statsmodels(ties):
    regression = pytest.importorskip("statsmodels.duration.hazard_regression")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    times = np.ceil(6 * rng.exponential(size=80))
    events = (rng.random(80) < 0.7).astype(int)
    theirs = regression.PHReg(times, X, status=events, ties=ties)
    loss = CoxLoss(times, events, ties=ties, reduction="sum")
    model = lambda w: jnp.asarray(X) @ w
    w = jnp.array([0.3, -0.5, 0.2])
    f = hotk.curvature.GaussNewton(model, loss)
    np.testing.assert_allclose(f(w), -theirs.loglike(np.asarray(w)), rtol=1e-10)
    gradient = -theirs.score(np.asarray(w))
    np.testing.assert_allclose(hotk.gradient(f, w), gradient, rtol=1e-8)
    hessian = -theirs.hessian(np.asarray(w))
    np.testing.assert_allclose(hotk.hessian(f, w), hessian, rtol=1e-8)
    found = hotk.optim.minimize(f, jnp.zeros(3), hotk.optim.newton())
    fitted = theirs.fit()
    np.testing.assert_allclose(found.x, fitted.params, rtol=1e-6, atol=1e-6)
    errors = np.sqrt(np.diag(np.linalg.inv(hotk.hessian(f, found.x))))
    np.testing.assert_allclose(errors, fitted.bse, rtol=1e-6)


@pytest.mark.exhaustive
@each_ties
def test_curvature_of_a_model(ties):
    loss = CoxLoss(TIMES, EVENTS, ties=ties)
    X = np.random.default_rng(1).normal(size=(9, 2))
    model = lambda w: jnp.tanh(jnp.asarray(X) @ w)
    w = jnp.array([0.4, -0.3])
    jacobian = np.asarray(jax.jacobian(model)(w))
    hessian = known(np.asarray(model(w)), TIMES, EVENTS, ties)[2] / 9
    expected = jacobian.T @ hessian @ jacobian
    close(hotk.ggnvp(model, loss, w, w), expected @ np.asarray(w))
    G = hotk.GGNOperator(model, loss, w)
    close(G.matrix(), expected)
    assert G.positive_semidefinite
    close(G.value, loss(model(w)))
    close(G.gradient, jax.grad(lambda w: loss(model(w)))(w))
    batch = jnp.stack([w, 2 * w])
    several = jax.jit(jax.vmap(lambda w: hotk.ggnvp(model, loss, w, w)))(batch)
    close(several[0], expected @ np.asarray(w))


def test_nothing_has_happened_or_all_at_once():
    z = jnp.asarray(Z)
    none = CoxLoss(TIMES, np.zeros(9, bool))
    close(none(z), 0.0)
    close(none.gradient(z), np.zeros(9))
    close(none.hessian_product(z, z), np.zeros(9))
    for ties in ("efron", "breslow"):
        at_once = CoxLoss(np.ones(9), np.ones(9, bool), ties=ties, reduction="sum")
        value, gradient, _ = known(Z, np.ones(9), np.ones(9), ties)
        close(at_once(z), value)
        close(at_once.gradient(z), gradient)
        close(jax.grad(at_once)(z), gradient)


@pytest.mark.usefixtures("as_user")
def test_what_is_refused():
    loss = CoxLoss(TIMES, EVENTS)
    for shape in ((8,), (9, 2), ()):
        with pytest.raises(hotk.StructureError, match="one number for each row"):
            loss(jnp.ones(shape))
    with pytest.raises(hotk.StructureError, match="`times` and `events`"):
        CoxLoss(TIMES, EVENTS[:-1])
    with pytest.raises(ValueError, match="ties"):
        CoxLoss(TIMES, EVENTS, ties="exact")
    with pytest.raises(ValueError, match="reduction"):
        CoxLoss(TIMES, EVENTS, reduction="none")
    for operator in (hotk.FisherOperator, hotk.EmpiricalFisherOperator):
        with pytest.raises(TypeError, match="Gauss-Newton matrix"):
            operator(lambda z: z, loss, jnp.asarray(Z))
