"""Minima within bounds: from books, by hand, by SciPy, and by their conditions."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import hotk
from hotk.curvature import LeastSquares
from hotk.optim import levenberg_marquardt, minimize, trust_region
from hotk.optim._bounds import Bounds
from hotk.optim._factored import FactoredSystem
from hotk.optim._full_step import distance
from hotk.optim._local import LinearizedHessian
from hotk.optim._projected import projected_trial
from tests.counting import compiles
from tests.helpers import close
from tests.optim.bounded_problems import BOUNDED, CLASSICAL


INF = np.inf


def assert_first_order(f, x, lower, upper, tol):
    """The conditions of a minimum within bounds, with the gradient of plain JAX."""
    x, g = np.asarray(x), np.asarray(jax.grad(f)(x))
    assert (lower <= x).all()
    assert (x <= upper).all()
    free = (lower < x) & (x < upper)
    assert (abs(g[free]) <= tol).all()
    assert (g[(x == lower) & (x < upper)] >= -tol).all()
    assert (g[(x == upper) & (x > lower)] <= tol).all()


# The gradient is above 1e-10 times that of the start by its rounding, or nearly flat.
@pytest.mark.thinned(1)
@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize("name", BOUNDED)
def test_trust_regions_reach_the_minimum(name):
    problem = BOUNDED[name]
    x0, box = jnp.asarray(problem.start), (problem.lower, problem.upper)
    found = minimize(problem.value, x0, bounds=box, tol=1e-10)
    assert problem.solved(float(found.value)), found
    slope = np.abs(np.asarray(jax.grad(problem.value)(x0))).max()
    assert_first_order(problem.value, found.x, *box, 1e-7 * max(slope, 1.0))
    assert found.converged or name == "Meyer", found
    assert (np.diff(found.history) <= 1e-10 * np.abs(found.history[:-1])).all()


@pytest.mark.thinned(1)
@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize("name", [n for n in BOUNDED if BOUNDED[n].squares])
def test_least_squares_reach_the_minimum(name):
    problem = BOUNDED[name]
    x0, box = jnp.asarray(problem.start), (problem.lower, problem.upper)
    f = LeastSquares(problem.f)
    found = minimize(f, x0, levenberg_marquardt(), bounds=box)
    assert found.converged, found
    assert problem.solved(2 * float(found.value)), found
    J, r = np.asarray(jax.jacobian(problem.f)(found.x)), np.asarray(problem.f(found.x))
    scale = np.linalg.norm(J, axis=0) * np.linalg.norm(r)
    of_units = lambda z: f(z / jnp.where(scale > 0, scale, 1))
    units = np.where(scale > 0, scale, 1)
    # cosines of the angles between residuals and columns, where they are no rounding
    if 2 * found.value > 1e-20:
        assert_first_order(
            of_units,
            found.x * units,
            problem.lower * units,
            problem.upper * units,
            1e-5,
        )


@pytest.mark.exhaustive
def test_scipy_agrees_on_the_minima():
    """Those that come from no book."""
    for name in ("Bard", "Wood", "Watson", "Biggs"):
        problem = CLASSICAL[name]
        r = jax.jit(problem.f)
        found = scipy.optimize.least_squares(
            lambda x, r=r: np.asarray(r(x)),
            np.clip(problem.start, problem.lower + 1e-8, problem.upper - 1e-8),
            bounds=(problem.lower, problem.upper),
            x_scale="jac",
            **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15),
        )
        np.testing.assert_allclose(2 * found.cost, problem.minima[0], rtol=1e-8)


# ----- What is known by hand


def bowl(p):
    return jnp.sum((p["w"] - 2.0) ** 2) + (p["s"] + 1.0) ** 2


START = {"w": jnp.zeros(3), "s": jnp.array(3.0)}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("transform", [None, levenberg_marquardt()])
def test_multipliers_and_active_bounds(transform):
    f = bowl
    if transform is not None:
        r = lambda p: {"w": p["w"] - 2.0, "s": p["s"] + 1.0}
        f = LeastSquares(r)
    upper = {"w": jnp.array([1.0, 2.5, 1.5]), "s": None}
    found = minimize(f, START, transform, bounds=({"w": -1, "s": 0.5}, upper))
    assert found.converged
    assert found.x["w"][0] == 1.0
    assert found.x["w"][2] == 1.5
    close(found.x["w"][1], np.array(2.0), rtol=1e-9)
    assert found.x["s"] == 0.5
    assert found.active["w"].tolist() == [1, 0, 1]
    assert found.active["s"] == -1
    half = 1.0 if transform is None else 0.5
    close(found.multipliers["w"], half * np.array([-2.0, 0.0, -1.0]), rtol=1e-9)
    close(found.multipliers["s"], np.array(half * 3.0))
    assert found.gradient_norm < 1e-8
    free = minimize(bowl, START)
    assert free.multipliers is None
    assert free.active is None


@pytest.mark.thinned(1)
@pytest.mark.parametrize("squares", [False, True])
def test_fixed_parameters_do_not_move(squares):
    r = lambda x: jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0], x[2] * x[0] - 1])
    f, transform = LeastSquares(r), levenberg_marquardt() if squares else None
    x0 = jnp.array([-1.2, 1.0, 0.7])
    box = jnp.array([-INF, -INF, 0.7]), jnp.array([INF, INF, 0.7])
    found = minimize(f, x0, transform, bounds=box)
    assert found.x[2] == 0.7
    alone = lambda y: np.asarray(r(np.append(y, 0.7)))
    known = scipy.optimize.least_squares(alone, x0[:2], xtol=1e-15, ftol=1e-15)
    close(found.x[:2], known.x, rtol=1e-6)
    assert abs(found.active[2]) == 1
    whole = minimize(f, x0, transform, bounds=(x0, x0))
    assert whole.converged
    assert whole.steps == 0
    close(whole.x, x0)


@pytest.mark.exhaustive
def test_bounds_that_do_not_bind_change_no_product():
    """Then it is the method of Steihaug, as the trust region has it without bounds."""
    rosen = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    x0 = jnp.array([-1.2, 1.0, 0.5])
    free = minimize(rosen, x0, trust_region(subproblem="steihaug"))
    within = minimize(rosen, x0, trust_region(scaling=None), bounds=(-1e3, None))
    assert int(free.steps) == int(within.steps)
    close(within.x, free.x, rtol=1e-7)
    r = lambda x: jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])
    lm = levenberg_marquardt()
    free = minimize(LeastSquares(r), x0[:2], lm)
    within = minimize(LeastSquares(r), x0[:2], lm, bounds=(-1e3, 1e3))
    close(free.history, within.history, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("sizes", [[1e4, 1e-4], [1e6, 1e-6], [1e8, 1e-8, 1.0]])
def test_variables_of_very_different_sizes_are_all_at_the_minimum(
    sizes, default_settings
):
    """Conjugate gradients never saw the largest: its gradient is below their noise."""
    u = jnp.array(sizes)
    f = lambda x: jnp.sum((x / u - 1.0) ** 2 + 0.3 * (x / u - 1.0) ** 4)
    found = minimize(f, jnp.zeros(len(sizes)), bounds=(-9 * u, 9 * u))
    assert found.converged
    close(found.x / u, jnp.ones(len(sizes)), atol=1e-5)


def test_a_minimum_at_a_bound_is_found_in_very_different_sizes():
    u = np.array([1e6, 1.0, 1e-6])
    at = np.array([0.7, 1.4, -0.7])
    lower, upper = np.array([-9.0, -0.2, -9.0]), np.array([0.3, 9.0, -0.4])

    def g(z, m):
        own = m.sum(m.cosh(z - at))
        return own + 0.3 * z[0] * z[1] * math.cos(0.7) + 0.2 * z[2] * z[1]

    scaled = scipy.optimize.minimize(
        lambda z: g(z, np), np.clip(np.zeros(3), lower, upper), method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(lower, upper), options={"ftol": 0, "gtol": 1e-9},
    )  # fmt: skip
    f = lambda x: 1e-6 * g(x / u, jnp)
    x0 = jnp.asarray(np.clip(np.zeros(3), lower, upper) * u)
    found = minimize(f, x0, bounds=(lower * u, upper * u))
    assert found.converged
    assert found.active.tolist() == [1, 0, 0]
    close(found.x / u, scaled.x, rtol=1e-6)


def test_sizes_go_with_bounds():
    sizes = jnp.array([1e5, 1e-5])
    f = lambda x: jnp.sum((x / sizes - 1.0) ** 4 + (x / sizes - 1.0) ** 2)
    method = trust_region(scaling=sizes, max_steps=5)  # by conjugate gradients
    found = minimize(f, jnp.zeros(2), method, bounds=(None, 0.5 * sizes))
    assert found.converged
    assert found.active.tolist() == [1, 1]
    close(found.x / sizes, np.full(2, 0.5), rtol=1e-9)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("squares", [False, True])
def test_every_point_is_within(squares):
    """Where it is not, the objective says so: a root of a negative number is NaN."""
    rng = np.random.default_rng(4)
    seen = []
    for _ in range(20):
        lower = jnp.asarray(rng.normal(size=4) * 10.0 ** rng.integers(-8, 8, 4))
        upper = lower + 10.0 ** rng.integers(-6, 8, 4)
        a = jnp.asarray(rng.normal(size=(4, 4)))

        def r(x, lower=lower, upper=upper, a=a):
            outside = jnp.sqrt(x - lower) + jnp.sqrt(upper - x)
            z = (x - lower) / (upper - lower)
            return a @ z - 1 + 0 * jax.lax.stop_gradient(outside)

        x0 = lower + rng.uniform(size=4) * (upper - lower)
        x0 = jnp.clip(x0, lower, upper)
        f = LeastSquares(r)
        transform = levenberg_marquardt() if squares else None
        found = minimize(f, x0, transform, bounds=(lower, upper), max_steps=60)
        assert found.reason != hotk.optim.Stop.not_finite
        seen += np.asarray(found.active).tolist()
    assert {-1, 0, 1} == set(seen)


@pytest.mark.exhaustive
def test_bounded_linear_least_squares_of_scipy():
    rng = np.random.default_rng(0)
    for m, n in ((30, 12), (12, 20)):
        A, b = rng.normal(size=(m, n)), 3 * rng.normal(size=m)
        f = LeastSquares(lambda x, A=A, b=b: jnp.asarray(A) @ x - jnp.asarray(b))
        known = scipy.optimize.lsq_linear(A, b, (-0.3, 0.2), method="bvls", tol=1e-14)
        for transform in (levenberg_marquardt(), trust_region()):
            found = minimize(f, jnp.zeros(n), transform, bounds=(-0.3, 0.2), tol=1e-9)
            assert found.converged
            np.testing.assert_allclose(float(found.value), known.cost, rtol=1e-9)
            if m > n:
                close(found.x, known.x, atol=1e-6)
                assert found.active.tolist() == known.active_mask.tolist()


def test_a_narrow_box_is_no_convergence():
    """The projection of x - g is near x there, however long g is."""
    f = lambda x: jnp.sum((x * 1e9 - 3.0) ** 2)
    found = minimize(f, jnp.array([1e-10]), bounds=(0.0, 5e-9))
    close(found.x, np.array([3e-9]), rtol=1e-6)
    found = minimize(f, jnp.array([1e-10]), bounds=(0.0, 2e-9))
    assert found.x[0] == 2e-9


def test_a_saddle_between_bounds_is_left_along_negative_curvature():
    f = lambda x: -(x[0] ** 2) + (x[1] - 1) ** 2 + 1e-3 * x[0]
    found = minimize(f, jnp.array([0.1, 3.0]), bounds=(-2.0, 4.0))
    close(found.x, np.array([4.0, 1.0]), atol=1e-7)
    assert found.active.tolist() == [1, 0]
    assert found.smallest_curvature < 0


@pytest.mark.parametrize("limit", ["xtol", "rtol"])
def test_a_short_step_is_that_of_free_parameters(limit):
    known = BOUNDED["HS5"]
    f = lambda x: known.f(x[:2]) + 1e3 * (x[2] + 1) ** 2
    x0 = jnp.array([0.0, 0.0, 1.0])
    box = jnp.array([-1.5, -3, 0.5]), jnp.array([4, 3, 9.0])
    found = minimize(f, x0, bounds=box, tol=0.0, **{limit: 1e-6})
    assert found.converged
    close(found.x, np.array([-np.pi / 3 + 0.5, -np.pi / 3 - 0.5, 0.5]), rtol=1e-6)


@pytest.mark.exhaustive
def test_half_of_the_parameters_move():
    f = lambda p: jnp.sum((p["a"] - 2.0) ** 2) + jnp.sum((p["b"] - 2.0) ** 2) + p["n"]
    p = {"a": jnp.zeros(2), "b": jnp.full(2, 5.0), "n": 3}
    box = ({"a": -1.0, "b": 7.0, "n": None}, {"a": 1.0, "b": 8.0, "n": None})
    where = {"a": True, "b": False, "n": False}
    found = minimize(f, p, bounds=box, where=where)
    assert found.x["a"].tolist() == [1.0, 1.0]
    assert found.x["b"].tolist() == [5.0, 5.0]
    assert found.active == {"a": found.active["a"], "b": None, "n": None}
    inside = trust_region(where=lambda a: a.size == 2, bounds=(None, 1.0))
    q = {"a": jnp.zeros(2), "c": jnp.zeros(3)}
    f = lambda q: jnp.sum((q["a"] - 2.0) ** 2) + 0 * jnp.sum(q["c"])
    assert minimize(f, q, inside).x["a"].tolist() == [1.0, 1.0]


@pytest.mark.exhaustive
def test_modules_and_heads_of_trees():
    line = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    x = jnp.array([[1.0, 2.0], [0.5, -1.0], [2.0, 0.3]])
    f = lambda line: jnp.sum((jax.vmap(line)(x) - 5.0) ** 2)
    found = minimize(f, line, bounds=(None, 0.9)).x
    assert float(jnp.max(jnp.abs(found.weight))) <= 0.9
    nested = {"a": {"b": jnp.zeros(2), "c": jnp.zeros(())}, "d": jnp.zeros(1)}
    f = lambda t: sum(jnp.sum((a - 3.0) ** 2) for a in jax.tree.leaves(t))
    found = minimize(f, nested, bounds=(None, {"a": 1.0, "d": None}))
    assert found.x["a"]["b"].tolist() == [1.0, 1.0]
    close(found.x["d"], np.array([3.0]))


# ----- Parts


def test_sums_with_a_step_are_on_the_bound_or_within():
    rng = np.random.default_rng(2)
    pairs = rng.normal(size=(2, 10_000)) * 10.0 ** rng.integers(-3, 3, (2, 10_000))
    lower, x = jnp.asarray(np.sort(pairs, axis=0))
    bounds = Bounds(lower, jnp.full_like(x, INF))
    to_bound = lower - x
    rounded = x + to_bound
    assert bool(jnp.any(rounded < lower))
    assert bool(jnp.any(rounded > lower))
    assert bool(jnp.all(bounds.landed(rounded, x) == lower))
    assert bool(jnp.all(x + bounds.shortened(to_bound, x) >= lower))
    mirrored = Bounds(jnp.full_like(x, -INF), -lower)
    assert bool(jnp.all(mirrored.landed(-rounded, -x) == -lower))
    assert bool(jnp.all(-x + mirrored.shortened(-to_bound, -x) <= -lower))
    far = 1e-9 * jnp.maximum(jnp.abs(x), jnp.abs(lower))
    inside = bounds.landed(lower + far, x)
    assert bool(jnp.all(inside > lower))


def test_a_trial_is_a_decrease_of_the_model_within_bounds_and_region():
    """Badly conditioned and indefinite matrices: most projections are refused."""
    rng = np.random.default_rng(3)
    n, tol = 8, jnp.asarray(1e-6)

    @jax.jit
    def trial(H, g, x, lower, upper, radius):
        point = LinearizedHessian(lambda v: H @ v, x)
        box = Bounds(lower, upper)
        return projected_trial(point, g, box, x, tol, jnp.asarray(200), radius)

    for k in range(60):
        q = np.linalg.qr(rng.normal(size=(n, n))).Q
        values = 10.0 ** rng.uniform(-3, 3, n) * (
            rng.choice([-1, 1], n) if k % 2 else 1
        )
        H, g = q @ np.diag(values) @ q.T, rng.normal(size=n)
        lower, upper = (
            -rng.uniform(size=n),
            rng.uniform(size=n) * (rng.uniform(size=n) > 0.3),
        )
        x = np.zeros(n)
        radius = rng.uniform(0.3, 3)
        found = trial(*map(jnp.asarray, (H, g, x, lower, upper, radius)))
        s = np.asarray(found.step)
        assert (lower <= s).all()
        assert (s <= upper).all()
        assert np.linalg.norm(s) <= radius * (1 + 1e-12)
        model = g @ s + s @ H @ s / 2
        np.testing.assert_allclose(float(found.model), model, rtol=1e-7, atol=1e-10)
        # no less than along the projected gradient, for a length that surely decreases
        free = np.where(((upper <= 0) & (g < 0)), 0, g)
        short = min(1 / abs(values).max(), radius / np.linalg.norm(free))
        cauchy = np.clip(-short * free, lower, upper)
        assert model <= 0.1 * (g @ cauchy + cauchy @ H @ cauchy / 2)
        inside = (lower < s) & (s < upper)
        if not found.bounded:
            slope = np.linalg.norm((g + H @ s)[inside])
            assert slope <= 2e-6 * np.linalg.norm(free)


@pytest.mark.exhaustive
def test_a_factored_step_is_the_minimum_over_its_face():
    rng = np.random.default_rng(5)
    for _ in range(20):
        A, b = rng.normal(size=(9, 6)), 3 * rng.normal(size=9)
        x = jnp.zeros(6)
        lower, upper = -0.1 * rng.uniform(size=6), 0.1 * rng.uniform(size=6)
        box = Bounds(jnp.asarray(lower), jnp.asarray(upper))
        residuals = lambda x, A=A, b=b: jnp.asarray(A) @ x - jnp.asarray(b)
        system = FactoredSystem(residuals, x, jnp.zeros(6), box)
        gradient = jnp.asarray(-A.T @ b)
        damping = 10.0 ** rng.uniform(-6, 0)
        s = np.asarray(system.proposal(gradient, 0.0)(damping).step)
        D = np.diag(np.linalg.norm(A, axis=0))
        slope = A.T @ (A @ s - b) + damping * D @ D @ s
        inside = (lower + 1e-12 < s) & (s < upper - 1e-12)
        assert (lower - 1e-14 <= s).all()
        assert (s <= upper + 1e-14).all()
        assert not inside.all()
        np.testing.assert_allclose(slope[inside], 0, atol=1e-10)
        change = lambda s, A=A, b=b, D=D, c=damping: (
            np.sum((A @ s - b) ** 2) - b @ b + c * np.sum((D @ s) ** 2)
        )
        # of one matrix the best is at most so much better, here
        data = np.vstack([A, damping**0.5 * D])
        best = scipy.optimize.lsq_linear(
            data, np.append(b, np.zeros(6)), (lower, upper), method="bvls"
        )
        assert change(s) <= 0.8 * change(best.x) < 0


def test_the_distance_to_a_minimum_is_that_of_free_parameters():
    H = jnp.array([[1.0, -1.0], [-1.0, 1.5]])
    f = lambda x: (x @ H @ x / 2 - x[0] + 10 * x[1], None)
    x = jnp.array(
        [1.1, 0.0]
    )  # the gradient is (0.1, 8.9), and the second is at a bound
    held = jnp.array([False, True])
    mode = hotk.FORWARD_OVER_REVERSE
    found = distance(f, x, f(x)[0], jnp.array([0.1, 0.0]), mode, held)
    close(found.step, np.array(0.1 / 1.1), rtol=1e-6)
    close(found.decrease, np.array(0.1**2 / 2 / abs(float(f(x)[0]))), rtol=1e-6)


# ----- Programs


def test_other_bounds_compile_nothing():
    rosen = lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
    x0 = jnp.array([-1.2, 1.0])
    run = lambda top: minimize(rosen, x0, bounds=(np.full(2, -INF), np.full(2, top)))
    run(2.0), run(1.5)
    with compiles() as counted:
        found = run(1.1)
        minimize(rosen, x0, trust_region(bounds=(None, jnp.array([1.2, 1.2]))))
    assert counted() == 0
    close(found.x, np.ones(2), rtol=1e-6)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("transform", [None, levenberg_marquardt()])
def test_inside_of_jit_and_vmap(transform):
    f = LeastSquares(lambda x: jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]]))
    x0 = jnp.array([-1.2, 1.0])

    def solve(top, x0):
        found = minimize(f, x0, transform, bounds=(None, top), max_steps=60)
        return found.x, found.active

    tops = jnp.array([0.5, 0.8, 5.0])
    x, active = jax.jit(jax.vmap(solve, (0, None)))(tops, x0)
    # at x = t below one the best of the valley is (t, t^2), from the first variable
    expected = np.array([[0.5, 0.25], [0.8, 0.64], [1.0, 1.0]])
    close(x, expected, atol=1e-6)
    assert active.tolist() == [[1, 0], [1, 0], [0, 0]]
    # a start that is traced is clipped
    close(jax.jit(solve)(0.5, jnp.array([3.0, 4.0]))[0], expected[0], atol=1e-6)


@pytest.mark.exhaustive
def test_a_loop_of_ones_own_stays_within():
    rng = np.random.default_rng(1)
    for transform in (trust_region, levenberg_marquardt):
        lower, x = jnp.asarray(rng.normal(size=5)), jnp.asarray(3 + rng.normal(size=5))
        lower, upper = lower - jnp.abs(lower - x), x + 0.1
        a = jnp.asarray(rng.normal(size=(7, 5)))
        f = LeastSquares(lambda x, a=a: a @ x + 20)
        made = transform(bounds=(lower, upper))
        state = made.init(x)
        for _ in range(12):
            step, state = made.update(jax.grad(f)(x), state, x, value_fn=f)
            x = optax.apply_updates(x, step)
            assert bool(jnp.all((lower <= x) & (x <= upper)))
        cost = scipy.optimize.lsq_linear(
            np.asarray(a), -20 * np.ones(7), (lower, upper)
        ).cost
        np.testing.assert_allclose(float(f(x)), cost, rtol=1e-7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_lower_precision(dtype, default_settings):
    f = lambda x: jnp.sum((x - jnp.array([0.3, 2.0, -3.0], x.dtype)) ** 2)
    found = minimize(f, jnp.zeros(3, dtype), bounds=(-1.0, 1.0), tol=1e-2)
    assert found.x.dtype == dtype
    np.testing.assert_allclose(found.x.astype(float), [0.3, 1.0, -1.0], atol=5e-3)
    assert found.active.tolist() == [0, 1, -1]


@pytest.mark.exhaustive
def test_half_precision_of_squares(default_settings):
    f = LeastSquares(lambda x: x - jnp.array([0.3, 2.0], x.dtype))
    x0 = jnp.zeros(2, jnp.bfloat16)
    found = minimize(f, x0, levenberg_marquardt(), bounds=(-1.0, 1.0), tol=1e-2)
    np.testing.assert_allclose(found.x.astype(float), [0.3, 1.0], atol=5e-3)


# ----- Mistakes


X = {"w": jnp.zeros((2, 3)), "s": jnp.array(1.0)}
WRONG = {
    "no pair": (1.0, TypeError, "`bounds` is not a pair"),
    "pairs of scipy": ([(0, 1)] * 3, TypeError, r"jnp\.array\(pairs\)\.T"),
    "structure": (
        ({"w": 0.0}, None),
        hotk.StructureError,
        "lower bounds are another tree",
    ),
    "some entries": (
        ({"w": 0.0}, None),
        hotk.StructureError,
        r"write `\{\*\*dict.fromkeys\(x0\), ...\}`",
    ),
    "list": ((None, [0.0, 1.0]), hotk.StructureError, "list of numbers is a tree"),
    "shape": (
        ({"w": np.zeros(2), "s": 0}, None),
        hotk.StructureError,
        r"lower bound of `x0\['w'\]` has another shape",
    ),
    "words": (("0", None), TypeError, "not a real number"),
    "complex": ((None, 1j), TypeError, "upper bound of .* not a real number"),
    "nan": (
        (None, {"w": np.array([[1, 1, np.nan]] * 2), "s": 2}),
        ValueError,
        r"upper bound is NaN at `x0\['w'\]\[0, 2\]`",
    ),
    "crossed": (
        ({"w": -1.0, "s": 3.0}, {"w": 1.0, "s": 2.0}),
        ValueError,
        r"above the upper one at `x0\['s'\]`",
    ),
    "outside": (
        (None, {"w": np.array([[1.0, -1.0, 1.0]] * 2), "s": 2.0}),
        ValueError,
        r"start is outside of the bounds at `x0\['w'\]\[0, 1\]`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_bounds_say_which(name, as_user):
    bounds, error, match = WRONG[name]
    f = lambda p: jnp.sum(p["w"] ** 2) + p["s"] ** 2
    with pytest.raises(error, match=match):
        minimize(f, X, bounds=bounds)


def test_only_two_transformations_take_bounds(as_user):
    f, x = lambda x: x @ x, jnp.ones(2)
    for other in (hotk.optim.newton(), optax.adam(0.1)):
        with pytest.raises(TypeError, match=r"takes no bounds[\s\S]*levenberg_marq"):
            minimize(f, x, other, bounds=(0.0, 2.0))
    mask = optax.masked(trust_region(), {"a": True, "b": False})
    g = lambda p: p["a"] @ p["a"] + p["b"]
    with pytest.raises(TypeError, match="takes no bounds"):
        minimize(g, {"a": x, "b": x[0]}, mask, bounds=(0.0, 2.0))
    with pytest.raises(TypeError, match="bounds of its own"):
        minimize(f, x, trust_region(bounds=(0.0, 2.0)), bounds=(0.0, 2.0))
    for wrong in (
        trust_region(subproblem="exact"),
        trust_region(preconditioner=lambda A, key: hotk.Identity()),
        levenberg_marquardt(linear_solver="sparse"),
        levenberg_marquardt(system="samples"),
    ):
        with pytest.raises(ValueError, match="does not go with bounds"):
            minimize(f, x, wrong, bounds=(0.0, 2.0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", ["dense", "sparse"])
def test_many_variables_within_bounds_have_no_matrix(solver):
    f, x = lambda x: jnp.sum(jnp.cosh(x)), jnp.ones(100)
    method = trust_region(linear_solver=solver)
    info = hotk.optim.step_info(f, x, method, bounds=(0.5, None))
    assert info.temporary_bytes < 40 * x.nbytes


def test_step_info_of_bounds():
    # of more variables no matrix is made
    f, x = lambda x: jnp.sum(jnp.cosh(x)), jnp.ones(100)
    info = hotk.optim.step_info(f, x, bounds=(0.5, None))
    with compiles() as counted:
        assert minimize(f, x, bounds=(0.5, None)).x.tolist() == [0.5] * 100
    assert counted() == 0
    assert info.temporary_bytes < 40 * x.nbytes


def test_bounds_of_scipy():
    f = lambda x: jnp.sum((x - jnp.array([-2.0, 0.5, 3.0])) ** 2)
    given = scipy.optimize.Bounds([0, -np.inf, -1], [np.inf, np.inf, 1])
    found = minimize(f, jnp.full(3, 0.25), bounds=given, tol=1e-10)
    np.testing.assert_allclose(found.x, [0.0, 0.5, 1.0], atol=1e-9)
    assert found.active.tolist() == [-1, 0, 1]
