"""Optimizers with sparse factors on large problems, against SciPy."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg

import hotk
from hotk.optim import LinearSolver, Stop
from tests.counting import compiles
from tests.helpers import close


EXACT = {
    "newton": hotk.optim.newton(),
    "trust_region": hotk.optim.trust_region(subproblem="exact"),
    "cubic_newton": hotk.optim.cubic_newton(),
}


def solver_of(found):
    """Return the solver that the last step used."""
    [(_, solver)] = optax.tree_utils.tree_get_all_with_path(found.state, "solver")
    return LinearSolver[solver]


def membrane(u):
    """Strings over a square that are held at its border, pressed upon."""
    n = round(u.size**0.5)
    u = jnp.pad(u.reshape(n, n), 1)
    lengths = [jnp.sqrt(1 + jnp.diff(u, axis=axis) ** 2) for axis in (0, 1)]
    return sum(map(jnp.sum, lengths)) - 0.01 * jnp.sum(u)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXACT)
def test_a_membrane_of_ten_thousand_variables(name):
    x0 = jnp.zeros(10_000)
    found = hotk.optim.minimize(membrane, x0, EXACT[name], tol=1e-9)
    assert found.converged
    assert solver_of(found) == LinearSolver[LinearSolver.sparse]
    value_and_gradient = jax.jit(jax.value_and_grad(membrane))
    product = jax.jit(lambda x, v: jax.jvp(jax.grad(membrane), (x,), (v,))[1])
    expected = scipy.optimize.minimize(
        value_and_gradient,
        np.zeros(10_000),
        jac=True,
        hessp=product,
        method="trust-ncg",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(found.x, expected.x, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXACT)
def test_a_chain_of_ten_thousand_variables(name):
    f = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    x0 = 1 + 0.05 * jnp.sin(jnp.arange(10_000.0))
    found = hotk.optim.minimize(f, x0, EXACT[name], tol=1e-8)
    assert found.converged
    assert solver_of(found) == LinearSolver[LinearSolver.sparse]
    close(found.x, np.ones(10_000), atol=1e-7)


def views(cameras, points, seed=0):
    """Cameras that see points: residuals of positions and scales, and a start."""
    rng = np.random.default_rng(seed)
    seen = rng.integers(0, cameras, 4 * points), np.arange(4 * points) % points

    def seen_from(p):
        at, scale = p["cameras"][seen[0]][:, :3], p["cameras"][seen[0]][:, 3:]
        return (p["points"][seen[1]] - at) * jnp.exp(scale) + scale**2

    true = {
        "cameras": 0.3 * rng.normal(size=(cameras, 4)),
        "points": rng.normal(size=(points, 3)),
    }
    data = seen_from(true) + 1e-2 * rng.normal(size=(4 * points, 3))
    start = jax.tree.map(
        lambda a: jnp.asarray(a + 0.1 * rng.normal(size=a.shape)), true
    )
    # what fixes position and scale of the whole
    prior = lambda p: 1e-1 * (p["cameras"] - true["cameras"])
    return lambda p: {"views": seen_from(p) - data, "prior": prior(p)}, start


@pytest.mark.exhaustive
@pytest.mark.parametrize("points", [60, 700])
def test_least_squares_of_cameras_and_points(points):
    r, start = views(6, points)
    f = hotk.curvature.GaussNewton(
        r, lambda z: sum(jnp.sum(a**2) for a in jax.tree.leaves(z)) / 2
    )
    # the measurements are told apart by captured indices: they are asked for
    choice = {"linear_solver": "sparse"}
    found = hotk.optim.minimize(
        f, start, hotk.optim.levenberg_marquardt(**choice), tol=1e-8
    )
    assert found.converged
    assert solver_of(found) == LinearSolver[LinearSolver.sparse]
    flat, whole = jax.flatten_util.ravel_pytree(found.x)
    residuals = jax.jit(lambda x: jax.flatten_util.ravel_pytree(r(whole(x)))[0])
    if points < 100:
        from_start = jax.flatten_util.ravel_pytree(start)[0]
        expected = scipy.optimize.least_squares(
            residuals,
            np.asarray(from_start),
            jac=jax.jit(jax.jacobian(residuals)),
            tr_solver="exact",
            xtol=1e-12,
            ftol=1e-14,
            gtol=1e-12,
            max_nfev=200,
        )
        np.testing.assert_allclose(float(found.value), expected.cost, rtol=1e-9)
        np.testing.assert_allclose(flat, expected.x, atol=1e-5)
    _, pull = jax.vjp(residuals, flat)
    np.testing.assert_allclose(pull(residuals(flat))[0], 0.0, atol=1e-7)


def net(edges, n):
    """Springs between pairs of nodes, each node held weakly: quadratic."""
    weight = jnp.asarray(np.linspace(1.0, 2.0, n))
    return lambda x: (
        jnp.sum((x[edges[:, 0]] - x[edges[:, 1]]) ** 2) / 2
        + jnp.sum(weight * (x - 1) ** 2 * 0.1) / 2
        + jnp.sum(jnp.sin(x)) * 0.01
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_captured_indices_are_known_by_content(kind):
    n = 2_100
    ring = np.stack([np.arange(n), np.roll(np.arange(n), 1)], axis=1)
    far = np.stack([np.arange(n), np.roll(np.arange(n), 700)], axis=1)
    transform = hotk.optim.newton(linear_solver="sparse")
    for edges in (ring, far, ring[:7]):
        f = net(kind(edges), n)
        found = hotk.optim.minimize(f, jnp.zeros(n), transform, tol=1e-9)
        assert found.converged
        assert solver_of(found) == LinearSolver[LinearSolver.sparse]
        state = transform.init(jnp.zeros(n))
        x = jnp.zeros(n)
        step, state = transform.update(jax.grad(f)(x), state, x, value_fn=f)
        assert step.shape == (n,)
    again = net(kind(ring), n)
    hotk.optim.minimize(again, jnp.zeros(n), transform, tol=1e-9)
    other, x0 = net(kind(ring), n), jnp.ones(n)
    with compiles() as count:
        hotk.optim.minimize(other, x0, transform, tol=1e-9)
    assert count() == 0


@pytest.mark.exhaustive
def test_within_jit_and_vmap():
    f = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    transform = hotk.optim.newton(linear_solver="sparse")
    run = lambda x: hotk.optim.minimize(f, x, transform, max_steps=30, tol=1e-8)
    x0 = jnp.linspace(0.5, 1.5, 40)
    found = jax.jit(run)(x0)
    assert found.converged
    close(found.x, np.ones(40), atol=1e-7)
    several = jax.vmap(lambda x: run(x).x)(jnp.stack([x0, x0[::-1]]))
    close(several, np.ones((2, 40)), atol=1e-7)


@pytest.mark.exhaustive
def test_labels_that_change_compile_nothing():
    """Captured integers decide a pattern only where one was asked for."""
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(8, 700)))
    x = jnp.asarray(rng.normal(size=(700, 3)) / 30)
    transform = hotk.optim.levenberg_marquardt(max_steps=5)
    state = transform.init(x)

    def step(labels):
        model = lambda w: inputs @ w
        loss = hotk.curvature.SoftmaxCrossEntropy(labels)
        f = hotk.curvature.GaussNewton(model, loss)
        return transform.update(2 * x, state, x, value_fn=f)

    batches = [jnp.asarray(rng.integers(0, 3, 8)) for _ in range(4)]
    for labels in batches[:3]:
        step(labels)
    with compiles() as count:
        step(batches[3])
    assert count() == 0


@pytest.mark.exhaustive
def test_what_is_dense_stays_dense():
    a = jnp.asarray(np.random.default_rng(0).normal(size=(2_050, 2)) / 50)
    f = lambda x: jnp.sum(jnp.cosh(x @ a)) + jnp.sum(x**2)
    found = hotk.optim.minimize(
        f, jnp.ones(2_050), hotk.optim.newton(), tol=1e-6, max_steps=8
    )
    assert solver_of(found) == LinearSolver[LinearSolver.dense]
    assert Stop[found.reason] == Stop[Stop.converged]


@pytest.mark.exhaustive
def test_a_robust_loss_that_is_linear_at_the_start():
    """There Huber's loss has a slope and no curvature, and variables no unit by it."""
    rng = np.random.default_rng(0)
    count, points = 4, rng.normal(size=(24, 3))
    camera, point = np.repeat(np.arange(count), 24), np.tile(np.arange(24), count)
    angles = 2 * np.pi * np.arange(count) / count
    truth = {"cameras": np.stack([angles, 8.0 + 0 * angles], axis=1), "points": points}

    def seen_from(x, np=jnp):
        (angle, distance), p = x["cameras"][camera].T, x["points"][point]
        c, s = np.cos(angle), np.sin(angle)
        depth = distance + c * p[:, 0] + s * p[:, 1]
        sideways = c * p[:, 1] - s * p[:, 0]
        return 100 * np.stack([sideways, p[:, 2]], axis=1) / depth[:, None]

    seen = seen_from(truth, np) + rng.normal(size=(camera.size, 2))
    start = jax.tree.map(lambda a: a + 0.3 * rng.normal(size=a.shape), truth)
    loss = hotk.curvature.HuberLoss(seen, delta=2.0, reduction="sum")
    found = hotk.optim.minimize(
        hotk.curvature.GaussNewton(seen_from, loss),
        jax.tree.map(jnp.asarray, start),
        hotk.optim.levenberg_marquardt(linear_solver="sparse"),
        rtol=1e-8,
        max_steps=100,
    )
    flat, tree = jax.flatten_util.ravel_pytree(start)
    known = scipy.optimize.least_squares(
        lambda x: (seen_from(jax.tree.map(np.asarray, tree(x)), np) - seen).ravel(),
        np.asarray(flat),
        loss="huber",
        f_scale=2.0,
    )
    assert found.converged
    assert found.steps <= 20  # 34 with units by the curvature alone
    close(found.value, known.cost, rtol=1e-6)
