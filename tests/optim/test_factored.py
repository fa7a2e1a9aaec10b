"""Fits of few parameters: right, whatever the units, and converged only where they are.

Against what NIST certified, dense least squares in NumPy, and minima known by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import hotk
from hotk.curvature import GaussNewton, LeastSquares, SquaredError
from hotk.optim import levenberg_marquardt, minimize
from hotk.optim._full_step import distance
from tests.devices import run_on_eight_devices
from tests.helpers import close
from tests.optim.nist import REGRESSIONS


X = jnp.arange(1.0, 3.0)
T = jnp.linspace(0.0, 3.0, 9)
Y = 2.0 * jnp.exp(-0.7 * T) + jnp.sin(5 * T) / 20


def residuals(p):
    return {"all": p["a"] * jnp.exp(-p["b"] * T) - Y}


P = {"a": jnp.array(1.0), "b": jnp.array(0.2)}


def jacobian():
    flat = lambda v: residuals({"a": v[0], "b": v[1]})["all"]
    at = jnp.array([1.0, 0.2])
    return np.asarray(jax.jacobian(flat)(at)), np.asarray(flat(at))


def updated(transform, gradient):
    step, state = transform.update(
        gradient, transform.init(P), P, value_fn=LeastSquares(residuals)
    )
    return np.array([step["a"], step["b"]]), state


@pytest.mark.exhaustive
def test_a_step_is_that_of_least_squares_with_scaled_damping():
    transform = hotk.optim.scale_by_levenberg_marquardt(
        damping=1.0, max_acceleration=0.0, max_rejections=0
    )
    J, r = jacobian()
    D = np.linalg.norm(J, axis=0)
    largest = np.linalg.eigvalsh((J / D).T @ (J / D))[-1]
    below = np.concatenate([J, np.sqrt(largest) * np.diag(D)])
    s = np.linalg.lstsq(below, np.concatenate([-r, np.zeros(2)]), rcond=None)[0]
    step, state = updated(transform, jax.grad(LeastSquares(residuals))(P))
    close(-step, s, rtol=1e-12)
    assert str(state.solver) == "by a factor of the Jacobian of the residuals"
    close(state.scale, D, rtol=1e-12)
    q = np.linalg.qr(J)[0]
    close(state.cosine, np.linalg.norm(q.T @ r) / np.linalg.norm(r), rtol=1e-10)
    full = np.linalg.lstsq(J, -r, rcond=None)[0]
    relative = np.max(np.abs(full) / np.array([1.0, 0.2]))
    close(state.relative_step, relative, rtol=1e-6)
    # a gradient that something before it has changed is stepped along as it is
    g = J.T @ r * np.array([0.5, 0.8])
    step, _ = updated(transform, {"a": jnp.array(g[0]), "b": jnp.array(g[1])})
    expected = np.linalg.solve(J.T @ J + largest * np.diag(D**2), g)
    close(step, expected, rtol=1e-10)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mean", [False, True])
def test_a_squared_error_of_a_model_has_residuals_too(mean):
    model = lambda p: p["a"] * jnp.exp(-p["b"] * T)
    loss = SquaredError(Y, reduction="mean" if mean else "sum")
    found = minimize(GaussNewton(model, loss), P, levenberg_marquardt())
    same = minimize(LeastSquares(residuals), P, levenberg_marquardt())
    assert found.converged
    assert same.converged
    assert np.isfinite(found.state[0].cosine)
    close(found.x["b"], np.asarray(same.x["b"]), rtol=1e-7)


def test_residuals_are_found_in_a_program():
    w, e = jnp.array([0.3, 0.5]), jnp.arange(6.0).reshape(3, 2)
    whole = LeastSquares(lambda w: {"a": jnp.sin(w) - 1, "b": jnp.sum(w)})
    of_each = LeastSquares(lambda w, e: e @ w - 1, e)
    expected = np.array([np.sin(0.3) - 1, np.sin(0.5) - 1, 0.8])
    for f in (whole, jax.jit(whole), lambda w: whole(w)):
        close(hotk.curvature.residuals_of(f, w)(w), expected)
    close(hotk.curvature.residuals_of(of_each, w)(w), np.asarray(e @ w - 1))
    for other in (lambda w: 2 * whole(w), lambda w: jnp.sum(w**2)):
        assert hotk.curvature.residuals_of(other, w) is None


@pytest.mark.parametrize("examples", [False, True])
def test_units_of_parameters_change_nothing(examples):
    known = REGRESSIONS["Hahn1"]
    start = jnp.asarray(known.starts[0])
    rng = np.random.default_rng(3)
    if examples:
        t, y = jnp.linspace(0.1, 3.0, 30), jnp.cos(jnp.arange(30.0))
        start = jnp.array([0.5, 1.0, 2.0])
        of_one = lambda p, e: p[0] * jnp.sin(p[1] * e[0]) + p[2] * e[0] - e[1]
        make = lambda u: LeastSquares(lambda p, e: of_one(p / u, e), (t, y))
    else:
        make = lambda u: LeastSquares(lambda p: known.residuals(p / u))
    plain = minimize(make(jnp.ones(len(start))), start, levenberg_marquardt())
    for _ in range(3):
        u = jnp.asarray(10.0 ** rng.integers(-6, 7, len(start)))
        found = minimize(make(u), start * u, levenberg_marquardt())
        assert found.converged
        close(found.x / u, np.asarray(plain.x), rtol=1e-6)
        few = min(len(found.history), len(plain.history), 10)
        close(found.history[:few], np.asarray(plain.history[:few]), rtol=1e-4)


@pytest.mark.exhaustive
def test_the_scale_of_the_residuals_changes_nothing():
    """f times 1e30 or 1e-34 in single precision, which has numbers down to 1e-38."""
    known = minimize(LeastSquares(residuals), P, levenberg_marquardt()).x
    start = jax.tree.map(jnp.float32, P)
    t, y = jnp.float32(T), jnp.float32(Y)
    for factor in (1.0, 1e15, 1e-17):
        r = lambda p, c: jnp.float32(c) * (p["a"] * jnp.exp(-p["b"] * t) - y)
        f = LeastSquares(lambda p, c=factor, r=r: r(p, c))
        found = minimize(f, start, levenberg_marquardt())
        close(found.x["b"], np.float32(known["b"]), rtol=1e-3)
        assert found.converged


@pytest.mark.thinned(2)
@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_regressions_of_nist(name, k):
    known = REGRESSIONS[name]
    start = jnp.asarray(known.starts[k])
    found = minimize(LeastSquares(known.residuals), start, levenberg_marquardt())
    if (name, k) == ("MGH10", 0):  # a valley that bends too much: see limitations
        assert not found.converged
        return
    assert found.converged or name == "Lanczos3"
    assert known.digits(found.x) >= 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("of", ["parameters", "residuals"])
def test_half_precision_is_fitted_by_products(dtype, of):
    """LAPACK has no factors of it."""
    narrow = lambda a: jax.tree.map(lambda leaf: leaf.astype(dtype), a)
    wide = lambda a: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), a)
    if of == "parameters":
        f, start = LeastSquares(lambda p: residuals(wide(p))["all"]), narrow(P)
    else:
        f, start = LeastSquares(lambda p: narrow(residuals(p)["all"])), wide(P)
    with jax.numpy_dtype_promotion("standard"):
        for limits in ({}, {"xtol": 1e-2}):
            found = minimize(f, start, levenberg_marquardt(), max_steps=30, **limits)
            close(found.x["b"].astype(float), np.array(0.70), atol=0.05)


@pytest.mark.exhaustive
def test_parameters_that_the_data_do_not_determine():
    """The Jacobian has half of the rank: all minima are as good."""
    r = lambda p: jnp.stack([p[0] + p[1] - 3, 2 * (p[0] + p[1]) - 5, 0 * p[2]])
    found = minimize(LeastSquares(r), jnp.zeros(3), levenberg_marquardt())
    assert found.converged
    close(found.x[0] + found.x[1], np.array(13 / 5), rtol=1e-7)
    # fewer residuals than parameters
    few = lambda p: p[:1] * p[1] - 2
    found = minimize(LeastSquares(few), jnp.ones(4), levenberg_marquardt())
    assert found.converged
    close(found.x[0] * found.x[1], np.array(2.0), rtol=1e-7)


def test_at_the_minimum_there_is_nothing_to_do():
    zero = LeastSquares(lambda p: p - 1)
    found = minimize(zero, jnp.ones(2), levenberg_marquardt())
    assert found.converged
    assert found.steps <= 1


UNITS = np.array([500.0, 1e-6])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["trust_region", "newton_cg", "levenberg_marquardt"])
@pytest.mark.parametrize("limit", ["xtol", "rtol"])
def test_a_short_step_in_some_units_is_no_convergence(name, limit):
    """One step was made, to a quarter, and called converged."""
    r = lambda x: x / UNITS - 0.5
    f = LeastSquares(r) if name == "levenberg_marquardt" else lambda x: r(x) @ r(x) / 2
    start = jnp.asarray(UNITS)
    transform = getattr(hotk.optim, name)()
    found = minimize(f, start, transform, **{limit: 1e-8})
    assert not found.converged or found.value < 1e-14


def test_no_minimum_is_no_convergence():
    """A step was short beside a point that runs away."""
    f = lambda x: jnp.sum(-jnp.log1p(x**2))
    transform = hotk.optim.trust_region()
    found = minimize(f, jnp.array([0.1]), transform, xtol=1e-3, tol=0.0, max_steps=200)
    assert not found.converged


def test_a_slope_that_does_not_bend_is_no_minimum():
    f = lambda x: (x[0] - 1) ** 2 + 1e-3 * x[1]
    start, transform = jnp.array([1.0, 5.0]), optax.sgd(0.1)
    found = minimize(f, start, transform, xtol=1e-3, tol=0.0, max_steps=50)
    assert not found.converged


def test_a_hessian_that_is_not_finite_confirms_nothing():
    kink = lambda x: (jnp.sum(jnp.log(x) * x**2), None)
    mode = hotk.FORWARD_OVER_REVERSE
    assert not jnp.isfinite(jax.hessian(lambda x: kink(x)[0])(0 * X)).all()
    far = distance(kink, 0 * X, jnp.array(1.0), jnp.zeros(2), mode)
    assert not far.is_within(1.0)
    at_rest = distance(lambda x: (x @ x, None), 0 * X, 0 * X[0], 0 * X, mode)
    assert at_rest.is_within(0.0)


def test_a_jacobian_that_is_not_finite_is_no_convergence():
    r = lambda p: jnp.stack([p[0] - 3, jnp.where(p[1] > 0, p[1], 0.0) ** 0.5])
    found = minimize(LeastSquares(r), jnp.array([1.0, 0.0]), levenberg_marquardt())
    assert not found.converged


def test_where_the_minimum_is_confirmed_a_short_step_ends():
    rosen = lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
    found = minimize(rosen, jnp.array([-1.2, 1.0]), xtol=1e-6, tol=0.0)
    assert found.converged
    close(found.x, np.ones(2), rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("examples", [False, True])
def test_a_fit_of_rows_on_several_devices(examples):
    """With examples it raised an error of JAX about what varies over devices."""
    run_on_eight_devices(f"""
        import jax, jax.numpy as jnp, numpy as np, scipy.optimize, hotk
        from hotk.curvature import LeastSquares
        from jax.sharding import AxisType, PartitionSpec as P

        jax.config.update("jax_enable_x64", True)
        mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))
        t = np.linspace(0.0, 3.0, 24)
        y = 2 * np.exp(-t) + np.sin(5 * t) / 50
        curve = lambda t, a, b: a * np.exp(-b * t)
        tight = dict(xtol=1e-14, ftol=1e-14)
        known = scipy.optimize.curve_fit(curve, t, y, p0=[1, 0.3], **tight)[0]
        r = lambda p, t, y: p[0] * jnp.exp(-p[1] * t) - y

        def loss(p, t, y):
            if {examples}:
                return LeastSquares(lambda p, e: r(p, *e), (t, y))(p)
            return LeastSquares(r)(p, t, y)

        def fit(t, y):
            whole = hotk.over_axis(loss, "a", "sum")
            start, transform = jnp.array([1.0, 0.3]), hotk.optim.levenberg_marquardt()
            args = {{"args": (t, y), "tol": 1e-10, "max_steps": 60}}
            return hotk.optim.minimize(whole, start, transform, **args).x

        for check in (True, False):
            specs = {{"in_specs": (P("a"), P("a")), "out_specs": P()}}
            over = jax.shard_map(fit, mesh=mesh, check_vma=check, **specs)
            np.testing.assert_allclose(jax.jit(over)(t, y), known, rtol=1e-7)
        print("fine")
    """)


@jax.custom_vjp
def fourth_power(p):
    return jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * p), (0, p)
    )[1]


def _pull(p, u):
    """4 p^3 u by a loop, which JAX cannot transpose: as solvers with checkpoints do."""
    more = lambda s: s[0] < 3
    return (4 * jax.lax.while_loop(more, lambda s: (s[0] + 1, s[1] * p), (0, u))[1],)


fourth_power.defvjp(lambda p: (fourth_power(p), p), _pull)


@pytest.mark.exhaustive
@pytest.mark.parametrize("bounds", [None, (0.5, 10.0)])
def test_residuals_with_a_reverse_rule_that_cannot_be_transposed(bounds):
    y = jnp.array([16.0, 81.0, 1.0])
    f = hotk.curvature.LeastSquares(lambda p: fourth_power(p) - y)
    found = hotk.optim.minimize(
        f, jnp.full(3, 1.5), hotk.optim.levenberg_marquardt(), tol=1e-9, bounds=bounds
    )
    assert bool(found.converged)
    np.testing.assert_allclose(found.x, [2.0, 3.0, 1.0], rtol=1e-7)


@pytest.mark.parametrize("unit", [1e-17, 1.6e-19])
def test_residuals_whose_squares_are_zero_are_no_convergence(unit):
    """In single precision a run ended far from the minimum, converged."""
    t = np.linspace(0, 3, 30)
    y = 2.5 * np.exp(-1.3 * t) + 0.05 * np.sin(37 * t)
    T, Y = jnp.asarray(t, jnp.float32), jnp.asarray(y * unit, jnp.float32)
    f = LeastSquares(lambda p: p["a"] * jnp.exp(-p["b"] * T) - Y)
    p0 = {"a": jnp.float32(unit), "b": jnp.float32(1)}
    found = hotk.optim.minimize(f, p0, hotk.optim.levenberg_marquardt())
    assert found.reason == hotk.optim.Stop.underflow
    assert not found.converged
    # in units of its own it is found
    p0 = {"a": jnp.float32(1), "b": jnp.float32(1)}
    g = LeastSquares(lambda p: p["a"] * jnp.exp(-p["b"] * T) - Y / unit)
    found = hotk.optim.minimize(g, p0, hotk.optim.levenberg_marquardt())
    assert found.converged
    (_, b), _ = scipy.optimize.curve_fit(lambda t, a, b: a * np.exp(-b * t), t, y)
    close(found.x["b"], np.float32(b), rtol=1e-4)
