"""The loop: its result, its reasons to stop, its compiles."""

import functools
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest
import scipy.optimize

import hotk
from hotk import optim
from tests.counting import compiles
from tests.helpers import close
from tests.optim.bounded_problems import BOUNDED
from tests.optim.problems import PROBLEMS, SIZES


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


START = jnp.array([-1.2, 1.0, 0.5])


def test_it_agrees_with_scipy():
    found = hotk.optim.minimize(rosenbrock, START, hotk.optim.newton_cg())
    known = scipy.optimize.rosen(np.asarray(found.x))
    close(found.value, known, atol=1e-15)
    close(found.x, np.ones(3), atol=1e-6)
    assert found.converged
    assert float(found.gradient_norm) <= 1.5e-8
    close(found.history[0], np.asarray(rosenbrock(START)))
    assert "below the tolerance" in repr(found)
    assert "x: [1, 1, 1]" in repr(found)


@pytest.mark.exhaustive
def test_optimizers_of_optax_run_as_well():
    f = lambda x: jnp.sum((x - 2.0) ** 2)
    with jax.numpy_dtype_promotion("standard"):
        for transform in (optax.sgd(0.2), optax.adam(0.2), optax.lbfgs()):
            found = hotk.optim.minimize(f, jnp.zeros(3), transform, tol=1e-4)
            close(found.x, np.full(3, 2.0), atol=1e-3)
            assert np.isinf(found.smallest_curvature)


@pytest.mark.exhaustive
def test_reasons_to_stop():
    transform = hotk.optim.trust_region()
    few = hotk.optim.minimize(rosenbrock, START, transform, max_steps=3)
    assert few.reason == hotk.optim.Stop.most_steps
    assert int(few.steps) == 3
    none = hotk.optim.minimize(rosenbrock, START, transform, max_steps=0)
    close(none.x, np.asarray(START))
    broken = hotk.optim.minimize(
        lambda x: jnp.sum(jnp.log(x)), jnp.ones(2), optax.sgd(0.3)
    )
    assert broken.reason == hotk.optim.Stop.not_finite
    assert jnp.all(jnp.isfinite(broken.x))
    assert jnp.isfinite(broken.value)
    at_once = hotk.optim.minimize(lambda x: jnp.sum(x) * jnp.nan, START, transform)
    assert at_once.reason == hotk.optim.Stop.not_finite
    close(at_once.x, np.asarray(START))
    still = hotk.optim.minimize(rosenbrock, START, optax.sgd(0.0))
    assert still.reason == hotk.optim.Stop.stuck
    with pytest.raises(ValueError, match="max_steps"):
        hotk.optim.minimize(rosenbrock, START, transform, max_steps=-1)


def steps_until(stops, most=200):
    """Return the number of steps of x - 0.1 f'(x) for f = (x - 2)^2 + 1, from zero."""
    x = 0.0
    for k in range(1, most):
        before, x = x, x - 0.2 * (x - 2)
        if stops(before, x):
            return k
    return most


def test_tolerances_by_the_names_of_scipy_and_optimistix():
    f = lambda x: jnp.sum((x - 2.0) ** 2) + 1.0
    value = lambda x: (x - 2.0) ** 2 + 1.0
    sgd = optax.sgd(0.1)
    find = lambda **options: hotk.optim.minimize(f, jnp.zeros(()), sgd, **options)
    found = find(gtol=1e-3)
    assert int(found.steps) == steps_until(lambda _, x: abs(2 * (x - 2)) <= 1e-3)
    assert found.reason == hotk.optim.Stop.converged
    found = find(xtol=1e-3)
    t = 1e-3
    near = lambda b: abs(2 - b) <= t * abs(b)  # the whole step of Newton's method
    short = lambda a, b: abs(b - a) <= t * (t + abs(b)) and near(b)
    assert int(found.steps) == steps_until(short)
    assert found.reason == hotk.optim.Stop.small_step
    assert found.converged
    found = find(rtol=1e-3)
    close_by = lambda a, b: (
        abs(b - a) <= t * abs(b)
        and abs(value(b) - value(a)) <= t * value(b)
        and near(b)
    )
    assert int(found.steps) == steps_until(close_by)
    assert found.reason == hotk.optim.Stop.small_change
    assert found.converged
    traced = jax.jit(lambda rtol: find(rtol=rtol))(1e-3)
    assert int(traced.steps) == steps_until(close_by)
    with pytest.raises(TypeError, match="give one of them"):
        find(tol=1e-3, gtol=1e-3)


@pytest.mark.exhaustive
def test_a_relative_tolerance_does_not_depend_on_the_scale_of_a_loss():
    t = jnp.linspace(0.0, 3.0, 40)
    y = 2 * jnp.exp(-1.3 * t) + 0.1 * jnp.cos(40 * t)
    r = lambda w: w[0] * jnp.exp(-w[1] * t) - y
    known = scipy.optimize.least_squares(
        lambda w: np.asarray(r(w)), [1.0, 0.3], xtol=1e-12, ftol=1e-12, gtol=1e-12
    )
    for scale in (1.0, 1e-9 / 40):
        f = hotk.curvature.GaussNewton(r, lambda z, c=scale: c * jnp.sum(z**2))
        found = hotk.optim.minimize(
            f,
            jnp.array([1.0, 0.3]),
            hotk.optim.levenberg_marquardt(),
            gtol=0.0,
            rtol=1e-6,
        )
        assert found.converged
        close(found.x, known.x, rtol=1e-6)


def test_a_step_that_was_refused_is_not_a_short_one():
    found = hotk.optim.minimize(
        rosenbrock, START, hotk.optim.trust_region(), xtol=1e-12, rtol=1e-12
    )
    close(found.x, np.ones(3), atol=1e-6)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("of", [dict, "module"])
@pytest.mark.parametrize("make", [optim.newton_cg, optim.trust_region])
def test_a_filter_of_the_transformation_is_one_of_the_loop(make, of):
    """f = (u - 3 c)^2 + (v - u)^2 with c held is smallest at u = v = 3 c."""

    class Point(eqx.Module):
        u: jax.Array
        v: jax.Array
        c: jax.Array

    names = ("u", "v", "c")
    new = dict if of is dict else Point
    get = (lambda p, k: p[k]) if of is dict else getattr
    f = lambda p: (
        (get(p, "u") - 3 * get(p, "c")) ** 2 + (get(p, "v") - get(p, "u")) ** 2
    )
    where = new(u=True, v=True, c=False)

    def found(c):
        start = new(u=jnp.asarray(0.0), v=jnp.asarray(1.0), c=c)
        return optim.minimize(f, start, make(where=where), max_steps=50)

    end = found(jnp.asarray(2.0))
    assert end.converged
    close(jnp.stack([get(end.x, k) for k in names]), np.array([6.0, 6.0, 2.0]))
    slope = jax.grad(lambda c: get(found(c).x, "v"))(2.0)
    close(slope, 3.0, rtol=1e-6)


OF_NEWTON = {
    "newton": optim.newton(),
    "newton, sparse": optim.newton(linear_solver="sparse"),
    "newton_cg": optim.newton_cg(),
    "trust_region": optim.trust_region(subproblem="steihaug"),
    "trust_region, exact": optim.trust_region(subproblem="exact"),
    "cubic_newton": optim.cubic_newton(),
    "cubic_newton, sparse": optim.cubic_newton(linear_solver="sparse"),
}
K = np.arange(1.0, 5.0)
UNITS = [1e-30, 1e-12, 1e-3, 1e3, 1e12, 1e30]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", OF_NEWTON)
def test_the_unit_of_the_value_does_not_end_a_run(unit, name):
    """In a small unit the gradient is small anywhere. The minimum is at one."""
    f = lambda x, c: c * ((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)
    start = jnp.array([-1.2, 1.0])
    found, usual = (
        optim.minimize(f, start, OF_NEWTON[name], args=(c,)) for c in (unit, 1.0)
    )
    assert found.converged
    close(found.x, np.ones(2), rtol=1e-6)
    # in a large unit the value goes on to fall until nothing changes it
    assert -3 <= int(found.steps) - int(usual.steps) <= 10


@pytest.mark.thinned(2)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", OF_NEWTON)
def test_rounding_ends_a_run(unit, name):
    """In a large unit the gradient is never small. The minimum is at log 3."""
    f = lambda x, c: c * jnp.sum(K * (jnp.exp(x) - 3 * x))
    found = optim.minimize(f, jnp.zeros(4), OF_NEWTON[name], args=(unit,))
    assert found.converged
    close(found.x, np.full(4, np.log(3)), rtol=1e-6)
    assert int(found.steps) < 40
    small = found.gradient_norm <= 1.5e-8
    assert found.reason == (optim.Stop.converged if small else optim.Stop.rounding)


def test_a_step_that_a_damping_shortened_ends_no_run():
    """A step of a damping of one promises 1e-9 of the value."""
    f = lambda x: jnp.sum((x - 1) ** 2) * 1e-9 / 2
    whole = functools.partial(optim.newton, scaling=None)
    for make in (whole, optim.newton_cg):
        found = optim.minimize(f, jnp.zeros(2), make(1.0, damping=1.0), max_steps=30)
        assert not found.converged
    found = optim.minimize(f, jnp.zeros(2), whole(1.0, damping=1e-12))
    assert found.converged
    close(found.x, np.ones(2))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", OF_NEWTON)
def test_a_step_that_changed_the_value_ends_no_run(name):
    """A line search goes 1e11 times further than a model that has no minimum."""
    for f in (lambda x: -jnp.sum(x**2), lambda x: x[1] ** 2 - x[0] ** 2):
        start = jnp.array([1.0, 2.0])
        found = optim.minimize(f, start, OF_NEWTON[name], max_steps=100)
        assert not found.converged


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "times"), [("trust_region, exact", 9), ("cubic_newton", 10)]
)
def test_a_value_that_fell_far_still_falls(name, times):
    """From 1e41 to zero: 1e4, far below the rounding of the first, is not a minimum.

    The almost linear function of Brown (MGH 27), from nine or ten times its start. A
    trust region from ten times it goes where rounding sends it: to 0, or to 1/2, where
    the gradient is 1e-9 and the product of the variables is nearly zero.
    """
    problem = SIZES["Brown, almost linear, 30"]
    f = hotk.curvature.LeastSquares(problem.residuals)
    start = jnp.asarray(problem.farther(times))
    found = optim.minimize(f, start, OF_NEWTON[name])
    assert found.converged
    assert float(found.value) < 1e-20


def test_a_plateau_is_no_minimum():
    """HS25 of Hock and Schittkowski: at its start the gradient is 1e-11, f is 32.8.

    The minimum is zero, at (50, 25, 1.5).
    """
    problem = BOUNDED["HS25"]
    bounds = jnp.asarray(problem.lower), jnp.asarray(problem.upper)
    found = optim.minimize(problem.value, jnp.asarray(problem.start), bounds=bounds)
    assert found.converged
    close(found.x, np.array([50.0, 25.0, 1.5]), rtol=1e-6)


def test_variables_of_other_units_do_not_end_a_run():
    """Powell's badly scaled problem: (1.098e-5, 9.106), where the value is zero."""
    problem = PROBLEMS["Powell, badly scaled"]
    found = optim.minimize(problem.value, jnp.asarray(problem.start))
    assert found.converged
    close(found.x, np.array([1.0981593e-5, 9.1061467]), rtol=1e-6)


@pytest.mark.parametrize("subproblem", ["steihaug", "exact"])
def test_a_singular_minimum_ends_a_run(subproblem):
    """Of three equations for twenty unknowns: no step has to be a whole one."""
    A = jnp.ones((3, 20))
    f = lambda x: jnp.sum(jnp.cosh(A @ x - 1))
    transform = optim.trust_region(subproblem=subproblem)
    found = optim.minimize(f, jnp.linspace(0, 1, 20), transform, max_steps=30)
    assert found.converged
    close(found.value, 3.0)
    again = optim.minimize(f, found.x, transform, max_steps=30)
    assert again.converged


def test_a_fresh_objective_over_other_data_is_not_compiled():
    transform = hotk.optim.newton_cg()

    def solve(data, scale):
        f = lambda x, scale: scale * jnp.sum((x - data) ** 4 + (x - data) ** 2)
        return hotk.optim.minimize(f, jnp.zeros(3), transform, args=(scale,)).x

    solve(jnp.ones(3), 1.0)
    solve(2 * jnp.ones(3), 3.0)
    with compiles() as counted:
        found = solve(3 * jnp.ones(3), 2.0)
    assert counted() == 0
    close(found, np.full(3, 3.0), atol=1e-5)


MADE = {
    "newton_cg": lambda: hotk.optim.newton_cg(),
    "trust_region": lambda: hotk.optim.trust_region(subproblem="exact"),
    "sophia": lambda: hotk.optim.sophia(0.1),
    "frozen": lambda: hotk.optim.newton_cg(1.0, where=lambda a: a.ndim == 1),
    "another damping": lambda: hotk.optim.newton(damping=float(DAMPINGS.uniform())),
    "lbfgs": lambda: optax.lbfgs(),
    "chain": lambda: optax.chain(
        optax.clip(1.0), optax.adam(optax.exponential_decay(0.1, 10, 0.9))
    ),
    "schedule": lambda: optax.scale_by_schedule(lambda count: -0.1 / (1 + count)),
    "inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
}
DAMPINGS = np.random.default_rng(0)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", MADE)
def test_a_transformation_that_is_made_anew_is_not_compiled(name, default_settings):
    make = MADE[name]  # those of optax need JAX's implicit promotion
    start = jnp.array([-1.2, 1.0, 0.5])
    run = lambda: hotk.optim.minimize(rosenbrock, start, make(), max_steps=3)
    first = run()
    run()
    with compiles() as counted:
        again = run()
    assert counted() == 0
    if name != "another damping":
        close(again.x, first.x)


def descent(rate):
    return optax.scale_by_schedule(lambda count: -rate[0])


class Descent:
    rate = 0.1

    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        return jax.tree.map(lambda g: -self.rate * g, updates), state


def test_what_a_transformation_captured_is_read_in_each_call():
    f, x0 = lambda x: jnp.sum(x**2), jnp.ones(2)
    after = lambda transform: hotk.optim.minimize(f, x0, transform, max_steps=1).x
    rate, held = [0.1], Descent()
    kept = descent(rate)
    close(after(kept), np.full(2, 0.8))
    close(after(held), np.full(2, 0.8))
    rate[0] = held.rate = 0.25
    close(after(kept), np.full(2, 0.5))
    close(after(descent(rate)), np.full(2, 0.5))
    close(after(held), np.full(2, 0.5))
    # Arrays are arguments of the program, also where they are tracers.
    step = lambda rate: after(optax.scale_by_schedule(lambda count: -rate))
    close(step(jnp.array(0.25)), np.full(2, 0.5))
    rates = jnp.array([0.1, 0.25])
    close(jax.vmap(step)(rates), np.array([[0.8, 0.8], [0.5, 0.5]]))


def test_a_transformation_that_no_walk_sees_through_is_known_by_itself():
    lock = threading.Lock()

    def update(updates, state, params=None):
        with lock:
            return jax.tree.map(lambda g: -0.25 * g, updates), state

    transform = optax.GradientTransformation(lambda params: (), update)
    run = lambda: hotk.optim.minimize(rosenbrock, START, transform, max_steps=2).x
    first = run()
    with compiles() as counted:
        close(run(), first)
    assert counted() == 0


@pytest.mark.exhaustive
def test_trees_modules_and_what_is_no_number():
    network = eqx.nn.MLP(2, 1, 3, 1, jnp.tanh, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (20, 2))
    y = jnp.sin(x[:, :1]) * x[:, 1:]

    def loss(network):
        return jnp.mean((jax.vmap(network)(x) - y) ** 2)

    found = hotk.optim.minimize(loss, network, hotk.optim.trust_region(), max_steps=20)
    assert isinstance(found.x, eqx.nn.MLP)
    assert found.x.activation is network.activation
    assert found.value < 0.5 * loss(network)
    close(float(found.value), float(loss(found.x)))
    f = lambda p: p["scale"] * (p["x"] - 3.0) ** 2 + len(p["name"])
    tree = {"scale": 2, "x": 0.0, "name": "a"}
    found = hotk.optim.minimize(f, tree, hotk.optim.newton())
    assert found.x["scale"] == 2
    assert found.x["name"] == "a"
    close(found.x["x"], 3.0, atol=1e-7)


@pytest.mark.exhaustive
def test_inside_of_jit_and_vmap():
    transform = hotk.optim.trust_region()

    def solve(x, shift):
        f = lambda x: rosenbrock(x - shift)
        return hotk.optim.minimize(f, x, transform, max_steps=80)

    found = jax.jit(solve)(START, 0.5)
    close(found.x, np.full(3, 1.5), atol=1e-6)
    assert found.history.shape == (81,)
    mapped = jax.jit(jax.vmap(solve, (None, 0)))(START, jnp.array([0.0, 0.5]))
    close(mapped.x, np.array([[1.0] * 3, [1.5] * 3]), atol=1e-6)


def test_tracers_in_the_closure():
    transform = hotk.optim.trust_region()

    def solve(a, tol):
        f = lambda x: jnp.sum((x - a) ** 2)
        return hotk.optim.minimize(f, jnp.zeros(2), transform, max_steps=20, tol=tol).x

    close(jax.jit(solve)(2.0, 1e-6), np.full(2, 2.0), atol=1e-6)


def test_what_is_no_transformation_and_no_tuple():
    with pytest.raises(TypeError, match="Call the factory"):
        hotk.optim.minimize(rosenbrock, START, optax.adam)
    with pytest.raises(TypeError, match="tuple"):
        hotk.optim.minimize(rosenbrock, START, optax.sgd(0.1), args=1.0)


@pytest.mark.exhaustive
def test_a_bar_is_shown(capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    hotk.optim.minimize(rosenbrock, START, hotk.optim.newton_cg(), progress=True)
    assert "minimize" in capfd.readouterr().err


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "factory", [hotk.optim.newton_cg, hotk.optim.trust_region, hotk.optim.cubic_newton]
)
def test_under_optimistix(factory):
    solver = optimistix.OptaxMinimiser(factory(), rtol=1e-8, atol=1e-8)
    with jax.numpy_dtype_promotion("standard"):
        found = optimistix.minimise(
            lambda x, _: rosenbrock(x), solver, START, max_steps=300
        )
    close(found.value, np.ones(3), atol=1e-5)


def test_sharded_parameters_stay_where_they_are():
    # on one device here; on eight in `test_sharded.py`
    mesh = jax.make_mesh((1,), ("i",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    x = jax.device_put(jnp.array([2.0, 3.0]), spec)
    found = hotk.optim.minimize(
        lambda x: jnp.sum(x**4), x, hotk.optim.newton_cg(), tol=1e-3
    )
    assert found.x.sharding.is_equivalent_to(spec, 1)


def test_a_run_goes_on_from_a_state():
    """As one run of both lengths: the radius of a region, and momentum."""
    for transform in (None, optax.sgd(1e-4, momentum=0.9)):
        run = lambda x, n, t=transform, **more: hotk.optim.minimize(
            rosenbrock, x, t, max_steps=n, **more
        )
        first = run(START, 7)
        rest = run(first.x, 5, state=first.state)
        whole = run(START, 12)
        close(rest.x, np.asarray(whole.x), rtol=1e-12)
        close(rest.history, np.asarray(whole.history[7:]), rtol=1e-12)
        assert float(abs(run(first.x, 5).x - whole.x).max()) > 1e-12


def test_a_state_of_another_transformation_is_refused(as_user):
    newton = hotk.optim.newton()
    state = hotk.optim.minimize(rosenbrock, START, newton, max_steps=1).state
    with pytest.raises(hotk.StructureError, match="`state` is not one of this"):
        hotk.optim.minimize(rosenbrock, START, state=state)
    momentum = optax.sgd(0.1, momentum=0.9)
    shorter = hotk.optim.minimize(rosenbrock, START[:2], momentum, max_steps=1)
    with pytest.raises(hotk.StructureError, match="`state` is not one of this"):
        hotk.optim.minimize(rosenbrock, START, momentum, state=shorter.state)


@pytest.mark.parametrize("every", [1, 3])
def test_a_callback_sees_each_point_and_stops(every):
    seen = []

    def callback(found):
        seen.append((int(found.steps), found.value, np.asarray(found.x)))
        assert int(found.state[0].rejections) >= 0
        return len(seen) == 3

    transform = hotk.optim.trust_region()
    run = lambda **more: hotk.optim.minimize(rosenbrock, START, transform, **more)
    run(callback=lambda found: None)  # compiles
    with compiles() as count:
        found = run(callback=callback, callback_every=every)
    assert count() == 0
    assert found.reason == hotk.optim.Stop.asked
    assert not found.converged
    assert [steps for steps, *_ in seen] == [every, 2 * every, 3 * every]
    for steps, value, x in seen:
        known = run(max_steps=steps)
        close(x, np.asarray(known.x), rtol=1e-12)
        close(value, scipy.optimize.rosen(x), rtol=1e-9)
    close(found.x, seen[-1][2])
    assert len(found.history) == 3 * every + 1


def test_a_callback_that_does_not_ask_changes_nothing():
    seen = []
    without = hotk.optim.minimize(rosenbrock, START)
    found = hotk.optim.minimize(rosenbrock, START, callback=seen.append)
    assert len(seen) == int(found.steps) == int(without.steps)
    assert found.converged
    close(found.x, np.asarray(without.x), rtol=1e-12)
    assert seen[-1].converged
    assert not seen[0].converged


def test_a_callback_stops_as_those_of_scipy(as_user):
    def callback(found):
        raise StopIteration

    found = hotk.optim.minimize(rosenbrock, START, callback=callback)
    assert found.reason == hotk.optim.Stop.asked
    assert int(found.steps) == 1
    with pytest.raises(TypeError, match="cannot be inside of a transformation"):
        jax.jit(lambda x: hotk.optim.minimize(rosenbrock, x, callback=callback).x)(
            START
        )
    with pytest.raises(ValueError, match="an integer from 1 to 64"):
        hotk.optim.minimize(rosenbrock, START, callback=callback, callback_every=65)
