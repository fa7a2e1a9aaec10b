"""`influence` and `leave_one_out` against fits without the example."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


RNG = np.random.default_rng(0)
N = 30
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 2))])
Y = X @ [1.0, 2.0, -1.0] + RNG.normal(size=N)
B = jnp.asarray(np.linalg.lstsq(X, Y)[0])
NEWTON = hotk.optim.trust_region(subproblem="exact")


def losses(b, X, y):
    return (X @ b - y) ** 2 / 2


def without(i):
    return np.arange(N) != i


def test_leave_one_out_is_exact_for_least_squares():
    found = hotk.statistics.leave_one_out(losses, B, X, Y)
    for i in (0, 7, 29):
        again = np.linalg.lstsq(X[without(i)], Y[without(i)])[0]
        close(found.parameters[i], again)
        close(found.losses[i], (X[i] @ again - Y[i]) ** 2 / 2)
    hat = X @ np.linalg.inv(X.T @ X) @ X.T
    close(found.leverage, np.diag(hat))
    residuals = (Y - X @ np.asarray(B)) / (1 - np.diag(hat))  # PRESS
    close(found.score, np.sum(residuals**2) / 2)
    assert "leave-one-out score" in str(found)


@pytest.mark.exhaustive
def test_leave_one_out_of_a_tree_with_a_part_held():
    rate = lambda p, X: X @ p["w"] + p["offset"] * p["unit"]
    poisson = lambda p, X, y: jnp.exp(rate(p, X)) - y * rate(p, X)
    y = RNG.poisson(np.exp(X @ [0.3, 0.5, -0.2])).astype(float)
    start = {"w": jnp.zeros(3), "offset": jnp.array(0.5), "unit": 2}
    where = {"w": True, "offset": False, "unit": False}
    fit = lambda X, y: hotk.optim.minimize(
        lambda p: jnp.sum(poisson(p, X, y)), start, NEWTON, where=where
    )
    mode = fit(jnp.asarray(X), jnp.asarray(y)).x
    found = hotk.statistics.leave_one_out(poisson, mode, X, y, where=where)
    again = fit(jnp.asarray(X[1:]), jnp.asarray(y[1:])).x["w"]
    moved = np.asarray(again - mode["w"])
    close(found.parameters["w"][0] - mode["w"], moved, atol=0.05 * abs(moved).max())
    assert found.parameters["offset"] is None


def test_influence_is_the_first_order_of_leaving_out():
    test_loss = lambda b: losses(b, X[:4], Y[:4])
    found = hotk.statistics.influence(losses, B, X, Y, target=test_loss)
    scores = X * (X @ np.asarray(B) - Y)[:, None]
    of_target = X[:4] * (X[:4] @ np.asarray(B) - Y[:4])[:, None]
    expected = scores @ np.linalg.inv(X.T @ X) @ of_target.T
    close(found.value, expected)
    close(found.error, np.zeros((N, 4)))
    of_one = hotk.statistics.influence(losses, B, X, Y, target=lambda b: b[1])
    close(of_one.value, scores @ np.linalg.inv(X.T @ X)[1])


@pytest.mark.exhaustive
def test_influence_by_iteration_tells_its_error(monkeypatch):
    monkeypatch.setattr(hotk.statistics._influence, "LARGEST_FACTOR", 0)
    scale = jnp.logspace(0, -3, 40)
    A = jnp.asarray(RNG.normal(size=(60, 40))) * scale
    of_each = lambda w: (A @ w - 1) ** 2 / 2 + 1e-6 * jnp.sum(w**2)
    H = A.T @ A + 1.2e-4 * jnp.eye(40)
    w = jnp.linalg.solve(H, A.T @ jnp.ones(60))
    target = lambda w: jnp.sum(w**2)
    found = hotk.statistics.influence(of_each, w, target=target, tol=1e-4)
    scores = hotk.jacobian(of_each, w)
    expected = scores @ jnp.linalg.solve(H, 2 * w)
    wrong, error = np.abs(found.value - expected), np.asarray(found.error)
    assert wrong.max() > 1e-12 * np.abs(expected).max()
    assert np.linalg.norm(wrong) < np.linalg.norm(error)
    assert np.mean(wrong <= error) > 0.85  # some corrections happen to be near zero
    assert np.linalg.norm(error) < 1e-2 * np.linalg.norm(expected)


def test_influence_with_the_curvature_of_a_model_and_damping():
    model = lambda w: jnp.tanh(X @ w)
    loss = hotk.curvature.SquaredError(jnp.asarray(Y), reduction="sum")
    G = hotk.GGNOperator(model, loss, B)
    of_each = lambda w: (model(w) - Y) ** 2 / 2
    found = hotk.statistics.influence(
        of_each, B, target=lambda w: w[0], curvature=G, damping=0.5
    )
    J = np.asarray(hotk.jacobian(model, B))
    matrix = J.T @ J + 0.5 * np.eye(3)
    scores = J * (np.asarray(model(B)) - Y)[:, None]
    close(found.value, scores @ np.linalg.inv(matrix)[0])


def test_under_jit():
    run = lambda b: hotk.statistics.leave_one_out(losses, b, X, Y).score
    close(jax.jit(run)(B), run(B))


def test_what_is_refused():
    total = lambda b: jnp.sum(losses(b, X, Y))
    with pytest.raises(hotk.OutputError, match="one number for each example"):
        hotk.statistics.influence(total, B, target=lambda b: b)
    with pytest.raises(hotk.OutputError, match="must return a real array"):
        hotk.statistics.influence(losses, B, X, Y, target=lambda b: {"b": b})


def test_leave_one_out_of_captured_data():
    found = hotk.statistics.leave_one_out(lambda b: losses(b, X, Y), B)
    again = np.linalg.lstsq(X[without(7)], Y[without(7)])[0]
    close(found.parameters[7], again)
    close(found.losses[7], (X[7] @ again - Y[7]) ** 2 / 2)


def test_many_fits_in_parts(monkeypatch):
    monkeypatch.setattr("hotk.statistics._examples._MOST_LOSSES", 7 * N)
    found = hotk.statistics.leave_one_out(lambda b: losses(b, X, Y), B)
    hat = np.diag(X @ np.linalg.inv(X.T @ X) @ X.T)
    close(found.losses, ((Y - X @ np.asarray(B)) / (1 - hat)) ** 2 / 2)


def test_leave_one_out_from_a_point_that_is_no_minimum():
    """A Newton step of what is left: exact for least squares from anywhere."""
    with pytest.warns(hotk.NotStationaryWarning, match="standard errors away"):
        found = hotk.statistics.leave_one_out(losses, B + 1.0, X, Y)
    close(found.parameters[3], np.linalg.lstsq(X[without(3)], Y[without(3)])[0])


@pytest.mark.parametrize("kind", ["HC2", "HC3", None])
def test_an_example_that_alone_determines_a_parameter(kind):
    """One has a dummy variable of its own: rounding leaves it 1e-16 of leverage."""
    dummy = np.column_stack([np.ones(8), np.eye(8)[2], np.arange(8) / 3])
    y = np.random.default_rng(1).normal(size=8)
    b = jnp.asarray(np.linalg.lstsq(dummy, y)[0])
    sandwich = functools.partial(hotk.statistics.sandwich, kind=kind)
    call = hotk.statistics.leave_one_out if kind is None else sandwich
    with pytest.raises(ValueError, match="without example or cluster 2"):
        call(losses, b, dummy, y)


@pytest.mark.parametrize("of", ["influence", "leave_one_out", "sandwich"])
def test_losses_that_are_not_finite_are_refused_by_their_example(of):
    X = np.random.default_rng(0).normal(size=(9, 2))
    y = np.where(np.arange(9) == 4, np.nan, X.sum(1))
    losses = lambda w, X, y: (X @ w - y) ** 2 / 2
    call = getattr(hotk.statistics, of)
    if of == "influence":
        call = functools.partial(call, target=lambda w: w[0])
    with pytest.raises(ValueError, match="the loss of example 4 is nan"):
        call(losses, jnp.ones(2), X, y)
