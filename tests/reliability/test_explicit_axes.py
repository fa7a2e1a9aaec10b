"""Data divided along explicit axes of a mesh, the default of `jax.make_mesh`.

The right numbers are those of plain JAX and of SciPy for the same data in one place.
"""

import pytest

from tests.devices import run_on_eight_devices


DATA = """
import jax, jax.numpy as jnp, numpy as np, scipy
import hotk
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
rows = rng.normal(size=(64, 3))
labels = (rng.random(64) < 0.5).astype(float)
mesh = jax.make_mesh((8,), ("data",))
assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)

def divided(a, *rest):
    return jax.device_put(a, jax.NamedSharding(mesh, jax.P("data", *rest)))

def close(a, b, digits):
    np.testing.assert_allclose(a, b, rtol=10.0**-digits, atol=1e-9)
"""


@pytest.mark.exhaustive
def test_a_regression_is_that_of_scipy():
    run_on_eight_devices(
        DATA
        + """
t = np.linspace(0, 3, 64)
y = 2 * np.exp(-0.7 * t) + 0.01 * rng.normal(size=64)
model = lambda p, t: p[0] * jnp.exp(-p[1] * t)
p, C = scipy.optimize.curve_fit(
    lambda t, a, b: a * np.exp(-b * t), t, y, [1.0, 1.0], xtol=1e-14, ftol=1e-14
)
with jax.set_mesh(mesh):
    T, Y = divided(t), divided(y)
    found = hotk.statistics.fit(model, T, Y, jnp.ones(2))
    close(found.x, p, 6)
    close(found.covariance, C, 4)
    bounded = hotk.statistics.fit(model, T, Y, jnp.ones(2), bounds=(0.0, 1.5))
    at_bound = scipy.optimize.minimize_scalar(
        lambda b: np.sum((1.5 * np.exp(-b * t) - y) ** 2), tol=1e-12
    )
    close(bounded.x, [1.5, at_bound.x], 5)
    losses = hotk.curvature.LeastSquares(lambda p: model(p, T) - Y)
    levenberg_marquardt = hotk.optim.levenberg_marquardt()
    close(hotk.optim.minimize(losses, jnp.ones(2), levenberg_marquardt).x, p, 6)
print("fine")
"""
    )


def test_jitted_functions_inside_keep_how_their_arrays_are_divided():
    run_on_eight_devices(
        DATA
        + """
def potential(rows, labels):
    # `softplus` is jitted and has a rule of its own: its program is traced again.
    return lambda p: jnp.sum(jax.nn.softplus(rows @ p) - labels * (rows @ p))

p, v = jnp.array([0.3, 0.2, 0.4]), jnp.array([1.0, -0.5, 0.25])
whole = potential(jnp.asarray(rows), jnp.asarray(labels))
H = jax.hessian(whole)(p)
T = jax.jacfwd(jax.hessian(whole))(p)

def minimum(c):  # by Newton's method
    x = p
    f = lambda p: whole(p) + c * jnp.sum(p**2)
    for _ in range(20):
        x = x - jnp.linalg.solve(jax.hessian(f)(x), jax.grad(f)(x))
    return jnp.sum(x)

slope = (minimum(0.7 + 1e-4) - minimum(0.7 - 1e-4)) / 2e-4
with jax.set_mesh(mesh):
    f = potential(divided(rows, None), divided(labels))
    close(hotk.hessian(f, p), H, 10)
    close(hotk.sparse_hessian(f, p).todense(), H, 10)
    close(hotk.hessian_diagonal(f, p), jnp.diag(H), 10)
    close(hotk.derivative_tensor(f, p, order=3), T, 10)
    close(jax.grad(lambda p: hotk.hvp(f, p, v) @ v)(p), T @ v @ v, 10)
    close(jax.vmap(lambda u: hotk.hvp(f, p, u))(jnp.eye(3)), H, 10)
    solved = lambda c: hotk.optim.minimize(lambda p: f(p) + c * jnp.sum(p**2), p).x
    close(jax.grad(lambda c: jnp.sum(solved(c)))(0.7), slope, 6)
print("fine")
"""
    )


@pytest.mark.exhaustive
def test_robust_standard_errors_are_those_by_hand():
    run_on_eight_devices(
        DATA
        + """
each = lambda p, row, label: jax.nn.softplus(row @ p) - label * (row @ p)
p = jnp.zeros(3)
for _ in range(20):
    q = 1 / (1 + jnp.exp(-rows @ p))
    H = (rows.T * (q * (1 - q))) @ rows
    p = p - jnp.linalg.solve(H, rows.T @ (q - labels))
scores = rows * (q - labels)[:, None]
C = jnp.linalg.inv(H) @ scores.T @ scores @ jnp.linalg.inv(H)
with jax.set_mesh(mesh):
    found = hotk.statistics.sandwich(each, p, divided(rows, None), divided(labels))
    close(found.covariance, C, 8)
    B = jnp.linalg.inv(H)
    leverage = np.einsum("ni,ij,nj,n->n", rows, B, rows, q * (1 - q))
    wider = hotk.statistics.sandwich(
        each, p, divided(rows, None), divided(labels), kind="HC3"
    )
    scores = scores / (1 - leverage)[:, None]
    close(wider.covariance, B @ scores.T @ scores @ B, 8)
print("fine")
"""
    )


def test_fits_inside_of_jit_and_fits_without_an_example():
    run_on_eight_devices(
        DATA
        + """
y = rows @ np.array([1.0, -0.5, 2.0]) + 0.1 * np.cos(np.arange(64))
p = np.linalg.lstsq(rows, y)[0]
model = lambda p, rows: jnp.sum(rows * p, axis=1)
losses = lambda p, rows, y: (model(p, rows) - y) ** 2 / 2
left = lambda i: np.linalg.lstsq(np.delete(rows, i, 0), np.delete(y, i))[0]
without = np.stack([left(i) for i in range(64)])
with jax.set_mesh(mesh):
    R, Y = divided(rows, None), divided(y)
    run = jax.jit(lambda R, Y, p: hotk.statistics.fit(model, R, Y, p).x)
    close(run(R, Y, jnp.zeros(3)), p, 6)
    q = jnp.asarray(p)
    close(hotk.statistics.leave_one_out(losses, q, R, Y).parameters, without, 6)
    captured = hotk.statistics.leave_one_out(lambda p: losses(p, R, Y), q)
    close(captured.parameters, without, 6)
    close(captured.losses, (np.sum(rows * without, 1) - y) ** 2 / 2, 6)

    wide = rng.normal(size=(40, 8))
    few = hotk.laplace_approximation(
        lambda w: jnp.sum((wide @ w) ** 2) / 2 + jnp.sum(w**2) / 2,
        divided(jnp.zeros(8)),
        form="lanczos",
        rank=8,
        prior_precision=1.0,
    )
    C = np.linalg.inv(wide.T @ wide + np.eye(8))
    close(few.standard_errors, np.sqrt(np.diag(C)), 6)
print("fine")
"""
    )
