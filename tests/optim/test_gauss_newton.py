"""Gauss-Newton and Fisher matrices in steps, against dense ones and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import hotk
from tests.counting import compiles
from tests.helpers import close
from tests.optim.problems import PROBLEMS


X = jax.random.normal(jax.random.key(0), (12, 3))
Y = (X[:, 0] > 0.2).astype(float)


def model(w):
    return jnp.sin(X @ w)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "name", ["Rosenbrock", "Beale", "Bard", "Kowalik and Osborne", "Osborne 1", "Box"]
)
def test_least_squares_agree_with_scipy(name):
    problem = PROBLEMS[name]
    start = np.asarray(problem.start, float)
    half = lambda r: jnp.sum(r**2) / 2
    f = hotk.curvature.GaussNewton(problem.residuals, half)
    transform = hotk.optim.levenberg_marquardt()
    found = hotk.optim.minimize(f, jnp.asarray(start), transform, tol=1e-9)
    assert problem.solved(2 * float(found.value)), found
    assert (np.diff(np.asarray(found.history)) <= 0).all()
    residuals = jax.jit(problem.residuals)
    known = scipy.optimize.least_squares(
        lambda x: np.asarray(residuals(x)), start, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    close(found.x, known.x, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_residuals_and_models_are_keywords():
    r = lambda w: model(w) - Y
    loss = hotk.curvature.SquaredError(Y, reduction="sum")
    w = jnp.array([0.3, -0.2, 0.1])
    scale = float(jax.hessian(loss)(model(w))[0, 0])
    jacobian = np.asarray(jax.jacobian(model)(w))
    transform = hotk.optim.levenberg_marquardt(damping=0.0, max_acceleration=0.0)
    g = jacobian.T @ np.asarray(r(w))
    expected = -np.linalg.solve(jacobian.T @ jacobian, g)
    state = transform.init(w)
    got, _ = transform.update(jnp.asarray(g), state, w, residual_fn=r)
    close(got, expected, rtol=1e-6)
    g = scale * jnp.asarray(g)
    got, _ = transform.update(g, state, w, model_fn=model, loss_fn=loss)
    close(got, expected, rtol=1e-6)
    with pytest.raises(TypeError, match="loss_fn"):
        transform.update(g, state, w, model_fn=model)
    with pytest.raises(TypeError, match="value_fn"):
        transform.update(g, state, w)


@pytest.mark.parametrize("scale", [2.0, 1e-3, 1.0 / len(X)])
def test_a_step_is_that_of_the_gradient_that_is_given(scale):
    """As in all optimizers: a clipped gradient gives a shorter step."""
    r = lambda w: model(w) - Y
    w = jnp.array([0.3, -0.2, 0.1])
    jacobian = np.asarray(jax.jacobian(model)(w))
    g = jacobian.T @ np.asarray(r(w))
    expected = -np.linalg.solve(jacobian.T @ jacobian, scale * g)
    transform = hotk.optim.levenberg_marquardt(damping=0.0, max_acceleration=0.0)
    got, _ = transform.update(
        jnp.asarray(scale * g), transform.init(w), w, residual_fn=r
    )
    close(got, expected, rtol=1e-6)


def test_clipping_by_the_norm_is_not_undone():
    clipped = optax.chain(
        optax.clip_by_global_norm(1e-4), hotk.optim.levenberg_marquardt(damping=1.0)
    )
    w, r = jnp.array([3.0, -2.0]), lambda w: 2 * w  # J'J is 4, and so is the damping
    g = jax.grad(lambda w: jnp.sum(r(w) ** 2) / 2)(w)
    step, _ = clipped.update(g, clipped.init(w), w, residual_fn=r)
    close(step, -1e-4 * g / jnp.linalg.norm(g) / 8, rtol=1e-2)


@pytest.mark.exhaustive
def test_the_natural_gradient_is_that_of_the_dense_fisher_matrix():
    logits = lambda w: X @ w
    loss = hotk.curvature.SigmoidCrossEntropy(Y)
    w = jnp.array([0.3, -0.2, 0.1])
    g = jax.grad(lambda w: loss(logits(w)))(w)
    p = 1 / (1 + np.exp(-np.asarray(X @ w)))
    fisher = np.asarray(X).T @ (np.asarray(X) * (p * (1 - p))[:, None]) / len(X)
    expected = -np.linalg.solve(fisher + 0.01 * np.eye(3), np.asarray(g))
    transform = hotk.optim.natural_gradient(1.0, damping=0.01, tol=1e-12)
    got, state = transform.update(
        g, transform.init(w), w, model_fn=logits, loss_fn=loss
    )
    close(got, expected, rtol=1e-9)
    assert state[0].curvature > 0
    sampled = hotk.optim.natural_gradient(1.0, damping=0.01, tol=1e-9, samples=4000)
    near, _ = sampled.update(g, sampled.init(w), w, model_fn=logits, loss_fn=loss)
    close(near, expected, rtol=0.2, atol=0.1)
    assert jnp.any(near != got)


def shifted(by):
    return lambda w: X @ w + by


def test_samples_differ_from_step_to_step_and_compile_nothing():
    loss = hotk.curvature.SigmoidCrossEntropy(Y)
    transform = hotk.optim.natural_gradient(1.0, damping=0.1, samples=1)
    w = jnp.array([0.3, -0.2, 0.1])
    g = jnp.ones(3)
    state, steps = transform.init(w), []
    for k in range(4):
        with compiles() as counted:
            logits = shifted(jnp.asarray(0.0 * k))
            step, state = transform.update(g, state, w, model_fn=logits, loss_fn=loss)
        steps.append(np.asarray(step))
    assert counted() == 0
    assert not np.allclose(steps[0], steps[1])
    assert int(state[0].count) == 4


@pytest.mark.exhaustive
def test_a_network_is_fitted():
    network = lambda p: jnp.tanh(X @ p["a"]) @ p["b"]
    p = {
        "a": jax.random.normal(jax.random.key(1), (3, 8)),
        "b": 0.1 * jax.random.normal(jax.random.key(2), (8,)),
    }
    transform = hotk.optim.levenberg_marquardt()
    state = transform.init(p)
    r = lambda p: network(p) - Y
    value = lambda p: jnp.sum(r(p) ** 2) / 2
    first = value(p)
    for _ in range(30):
        step, state = transform.update(jax.grad(value)(p), state, p, residual_fn=r)
        p = optax.apply_updates(p, step)
    assert value(p) < 1e-3 * first


@pytest.mark.thinned(1)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_diagonal_from_drawn_targets_is_right_in_the_mean(reduction):
    loss = hotk.curvature.SigmoidCrossEntropy(Y, reduction=reduction)
    logits = lambda w: X @ w
    w = jnp.array([0.3, -0.2, 0.1])
    known = np.diag(jax.hessian(lambda w: loss(logits(w)))(w))

    def estimate(seed):
        transform = hotk.optim.scale_by_sophia(b2=0.0, estimator="gnb", seed=seed)
        state = transform.init(w)
        g = jnp.ones(3)
        _, state = transform.update(g, state, w, model_fn=logits, loss_fn=loss)
        return state.diagonal

    found = jax.jit(jax.vmap(estimate))(jnp.arange(3000))
    error = jnp.std(found, axis=0) / len(found) ** 0.5
    assert jnp.all(jnp.abs(jnp.mean(found, axis=0) - known) < 4 * error)
    transform = hotk.optim.sophia(0.1, estimator="gnb")
    with pytest.raises(TypeError, match="loss_fn"):
        transform.update(w, transform.init(w), w, model_fn=logits, loss_fn=jnp.sum)
    with pytest.raises(ValueError, match="estimator"):
        hotk.optim.sophia(0.1, estimator="exact")


def test_residuals_and_models_take_keywords_of_the_update():
    transform = hotk.optim.levenberg_marquardt(damping=0.0, max_acceleration=0.0)
    w = jnp.array([0.3, -0.2, 0.1])
    r = lambda w, X, y: jnp.sin(X @ w) - y
    g = jax.grad(lambda w: jnp.sum(r(w, X, Y) ** 2) / 2)(w)
    state = transform.init(w)
    got, _ = transform.update(g, state, w, residual_fn=r, X=X, y=Y)
    jacobian = np.asarray(jax.jacobian(r)(w, X, Y))
    close(got, -np.linalg.solve(jacobian.T @ jacobian, np.asarray(g)), rtol=1e-6)


def test_line_searches_that_refuse_keywords():
    loss = hotk.curvature.SigmoidCrossEntropy(Y)
    logits = lambda w: X @ w
    f = lambda w: loss(logits(w))
    search = optax.scale_by_backtracking_linesearch(20)
    natural = hotk.optim.natural_gradient(5.0)
    w = jnp.zeros(3)
    value, g = jax.value_and_grad(f)(w)
    keywords = {"value": value, "grad": g, "value_fn": f}
    keywords |= {"model_fn": logits, "loss_fn": loss}
    with jax.numpy_dtype_promotion("standard"):
        refused = optax.chain(natural, search)
        with pytest.raises(TypeError):
            refused.update(g, refused.init(w), w, **keywords)
        taken = optax.chain(natural, hotk.optim.strip_extra_args(search))
        step, _ = taken.update(g, taken.init(w), w, **keywords)
    assert f(w + step) < value
