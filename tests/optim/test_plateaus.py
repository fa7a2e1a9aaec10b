"""Starts where nothing bends, in any unit of the function: found, or said not to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk


ROWS = np.array([1.0, 2.0, -1.0, 3.0, -2.0])


def huber(x):
    """Return Huber's loss, linear at the start; its minimum is at 2."""
    r = jnp.abs(x - 2)
    return jnp.sum(jnp.where(r < 1, r**2 / 2, r - 0.5))


def logistic(x):
    """Return a logistic regression, saturated at the start."""
    return jnp.mean(jax.nn.softplus(-jnp.asarray(ROWS, x.dtype) * x[0]))


def exponential(x):
    """Return a function whose curvature at the start is next to nothing."""
    return jnp.sum(jnp.exp(x) - x)


def hyperbolic(x):
    """Return the logarithm of the hyperbolic cosine; its minimum is at 1."""
    return jnp.sum(jnp.logaddexp(x - 1, 1 - x))


def beale(x):
    """Return Beale's function, one entry of whose Hessian is zero at the start."""
    return sum(
        (c - x[0] + x[0] * x[1] ** k) ** 2 for k, c in enumerate((1.5, 2.25, 2.625), 1)
    )


# The root of the derivative of the regression, by bisection.
SLOPE = lambda t: -np.mean(ROWS / (1 + np.exp(ROWS * t)))
LOW, HIGH = 0.0, 1.0
for _ in range(60):
    middle = (LOW + HIGH) / 2
    LOW, HIGH = (middle, HIGH) if SLOPE(middle) < 0 else (LOW, middle)

STARTS = {
    "Huber": (huber, [5.0, -30.0], [2.0, 2.0]),
    "logistic": (logistic, [80.0], [LOW]),
    "exponential": (exponential, [-60.0, -40.0], [0.0, 0.0]),
    "hyperbolic": (hyperbolic, [30.0, -40.0], [1.0, 1.0]),
    "Beale": (beale, [1.0, 1.0], [3.0, 0.5]),
}
UNITS = (1.0, 1e6, 1e12, 1e-3, 1e-5, 1e-9)


def minimized(name, unit, dtype, *transform):
    """Minimize one of the functions in a unit; return what was found, and the end."""
    f, start, end = STARTS[name]
    x, c = (jnp.asarray(a, dtype) for a in (start, unit))
    found = hotk.optim.minimize(lambda x, c: c * f(x), x, *transform, args=(c,))
    return found, end


@pytest.mark.thinned(6)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", STARTS)
def test_the_default_finds_them_in_single_precision(name, unit):
    found, end = minimized(name, unit, jnp.float32)
    assert found.converged
    # where the gradient is rounded at: a logarithm of a sum is flat
    np.testing.assert_allclose(found.x, end, atol=5e-3)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", STARTS)
def test_what_has_converged_is_a_minimum(name, unit):
    for transform in (
        hotk.optim.cubic_newton(),
        hotk.optim.newton(),
        hotk.optim.newton_cg(),
    ):
        found, end = minimized(name, unit, jnp.float32, transform)
        assert np.allclose(found.x, end, atol=5e-3) or not found.converged


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", STARTS)
def test_the_steps_are_the_same_in_any_unit(name):
    steps = []
    for unit in (1.0, 1e12, 1e20, 1e-9, 1e-20):
        found, end = minimized(name, unit, jnp.float64)
        assert found.converged
        np.testing.assert_allclose(found.x, end, atol=1e-5)
        steps.append(int(found.steps))
    assert max(steps) - min(steps) <= 10


def test_a_linear_function_has_no_minimum():
    f = lambda x: 1e-20 * (x[0] - 2 * x[1])
    found = hotk.optim.minimize(f, jnp.array([1.0, 1.0]), max_steps=50)
    assert not found.converged
