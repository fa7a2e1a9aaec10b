"""Steps of a function that is multiplied by a number: the same, in single precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hotk import optim


D = np.arange(1.0, 6.0)


def f(x):
    """Return numbers of about one, without symmetry."""
    near = jnp.asarray(D, x.dtype) * ((x - 1) ** 4 + (x - 1) ** 2)
    return jnp.sum(near) + jnp.sum((x[1:] - x[:-1] ** 2) ** 2) / 4


# With no number that has the unit of f, or of its derivatives: no damping, no epsilon
# that is added, and no tolerance that is less near a minimum.
exactly = {"max_tol": 3e-4}
TRANSFORMS = {
    "newton": lambda: optim.newton(),
    "newton, sparse": lambda: optim.newton(linear_solver="sparse"),
    "newton_cg": lambda: optim.newton_cg(**exactly),
    "trust_region": lambda: optim.trust_region(subproblem="steihaug", **exactly),
    "trust_region, exact": lambda: optim.trust_region(subproblem="exact"),
    "trust_region, sparse": lambda: optim.trust_region(
        subproblem="exact", linear_solver="sparse"
    ),
    "cubic_newton": lambda: optim.cubic_newton(),
    "cubic_newton, sparse": lambda: optim.cubic_newton(linear_solver="sparse"),
    "levenberg_marquardt": lambda: optim.levenberg_marquardt(**exactly),
    "levenberg_marquardt, sparse": lambda: optim.levenberg_marquardt(
        linear_solver="sparse"
    ),
    "natural_gradient": lambda: optim.natural_gradient(1.0, damping=0.0, tol=3e-4),
    "adahessian": lambda: optim.adahessian(0.1, eps=0.0),
    "sophia": lambda: optim.sophia(0.1, eps=0.0),
}


def points(transform, scale, steps=4):
    g = lambda x: jnp.float32(scale) * f(x)
    x = jnp.linspace(-0.5, 2.5, 5, dtype=jnp.float32)
    state, found = transform.init(x), []
    for _ in range(steps):
        step, state = transform.update(jax.grad(g)(x), state, x, value_fn=g)
        x = optax.apply_updates(x, step)
        found.append(np.asarray(x))
    return np.stack(found)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_steps_do_not_depend_on_the_unit_of_the_function(name, scale, default_settings):
    usual = _usual(name)
    assert np.abs(np.diff(usual, axis=0)).max() > 1e-3  # there were steps
    np.testing.assert_allclose(points(TRANSFORMS[name](), scale), usual, atol=2e-4)


@functools.cache
def _usual(name):
    return points(TRANSFORMS[name](), 1.0)


# Those that measure variables by the curvature, and those that are told their sizes.
BY_CURVATURE = [
    name
    for name in TRANSFORMS
    if name.startswith(("trust_region, ", "cubic", "newton", "levenberg"))
    and name not in ("newton_cg", "levenberg_marquardt")
]
SIZED = {
    "newton": optim.newton,
    "trust_region": optim.trust_region,
    "trust_region, steihaug": functools.partial(
        optim.trust_region, subproblem="steihaug", **exactly
    ),
    "trust_region, sparse": functools.partial(
        optim.trust_region, linear_solver="sparse"
    ),
    "cubic_newton": optim.cubic_newton,
    "levenberg_marquardt": functools.partial(optim.levenberg_marquardt, **exactly),
    "levenberg_marquardt, sparse": functools.partial(
        optim.levenberg_marquardt, linear_solver="sparse"
    ),
    "natural_gradient": functools.partial(
        optim.natural_gradient, 1.0, damping=0.1, tol=3e-4
    ),
}
UNIT = 10.0 ** np.array([-6, 3, 0, 6, -2])


def in_units(transform, unit, steps=8):
    unit = jnp.asarray(unit, jnp.float32)
    g = lambda x: f(x / unit)
    x, each = jnp.linspace(-0.5, 2.5, 5, dtype=jnp.float32) * unit, []
    state = transform.init(x)
    for _ in range(steps):
        step, state = transform.update(jax.grad(g)(x), state, x, value_fn=g)
        x = optax.apply_updates(x, step)
        each.append(np.asarray(x / unit))
    return np.stack(each)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", BY_CURVATURE)
def test_steps_do_not_depend_on_the_units_of_the_variables(name, default_settings):
    """From -6 to 6 powers of ten: the same points, in single precision."""
    usual = in_units(TRANSFORMS[name](), np.ones(5))
    assert np.abs(np.diff(usual, axis=0)).max() > 1e-3  # there were steps
    np.testing.assert_allclose(in_units(TRANSFORMS[name](), UNIT), usual, atol=5e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SIZED)
def test_steps_do_not_depend_on_units_that_are_told(name, default_settings):
    usual = in_units(SIZED[name](scaling=None), np.ones(5))
    assert np.abs(np.diff(usual, axis=0)).max() > 1e-3  # there were steps
    told = in_units(SIZED[name](scaling=jnp.asarray(UNIT, jnp.float32)), UNIT)
    np.testing.assert_allclose(told, usual, atol=5e-4)


def test_a_first_step_does_not_leave_the_domain_along_a_flat_direction():
    """A nearly singular Hessian: the minimum along the gradient is 1e15 away."""
    met = []
    seen = lambda x: met.append(float(np.linalg.norm(x)))

    def objective(x):
        jax.debug.callback(seen, x)
        return jnp.sum(jnp.array([1e-15, 0.0]) * x**2 / 2) + x[0] + x[1] ** 4

    for subproblem in ("steihaug", "exact"):
        transform = optim.trust_region(subproblem=subproblem)
        x = jnp.array([3.0, 1e-8])
        g = jax.grad(objective)(x)
        transform.update(g, transform.init(x), x, value_fn=objective)
        jax.effects_barrier()
    assert 100 < max(met) < 1000


def _wood(x):
    return (
        100 * (x[1] - x[0] ** 2) ** 2
        + (1 - x[0]) ** 2
        + 90 * (x[3] - x[2] ** 2) ** 2
        + (1 - x[2]) ** 2
        + 10 * (x[1] + x[3] - 2) ** 2
        + 0.1 * (x[1] - x[3]) ** 2
    )


def _brown(x):
    return (x[0] - 1e6) ** 2 + (x[1] - 2e-6) ** 2 + (x[0] * x[1] - 2) ** 2


def _freudenstein_and_roth(x):
    a = x[0] - 13 + ((5 - x[1]) * x[1] - 2) * x[1]
    b = x[0] - 29 + ((x[1] + 1) * x[1] - 14) * x[1]
    return a**2 + b**2


def _with_a_constant(x):
    return 1000 + jnp.sum((x - 1) ** 2) + jnp.sum((x - 1) ** 4)


# Starts far away, or where the function bends down, and the values of the minima: by
# hand, and of More, Garbow and Hillstrom (1981), problems 14, 4 and 2.
FAR = {
    "Wood": (_wood, [-3.0, -1.0, -3.0, -1.0], [0.0]),
    "Brown": (_brown, [100.0, 100.0], [0.0]),
    "Freudenstein and Roth": (_freudenstein_and_roth, [50.0, -200.0], [0.0, 48.98425]),
    "a constant": (_with_a_constant, [200.0, 300.0], [1000.0]),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", ["trust_region", "newton", "cubic_newton"])
@pytest.mark.parametrize("name", FAR)
def test_a_small_unit_of_the_function_is_no_convergence(name, method, default_settings):
    """Every gradient is small then: runs ended at 1e12, at a saddle, at 161."""
    f, start, minima = FAR[name]
    transform = getattr(optim, method)()
    for unit in (1e-4, 1e-10, 1e-20):
        found = optim.minimize(
            lambda x, unit: unit * f(x),
            jnp.array(start, jnp.float32),
            transform,
            args=(jnp.float32(unit),),
        )
        assert bool(found.converged)
        value = float(f(found.x))
        assert min(abs(value - known) for known in minima) < 2e-3 * max(value, 0.01)
