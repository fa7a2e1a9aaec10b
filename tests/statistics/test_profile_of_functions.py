"""Profile intervals of functions of the parameters, against closed forms and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import hotk
from tests.helpers import close


Z = scipy.stats.norm.ppf(0.975)
DROP = Z**2 / 2
profile_intervals = hotk.statistics.profile_intervals


def line(slope, noise=0.3, sample=0):
    """Return a Gaussian regression with known noise: its potential, mode, covariance.

    The potential is quadratic, so all profiles are known in closed form.
    """
    errors = np.random.default_rng(1).normal(size=(2, 9))[sample]
    x = np.linspace(0, 4, 9)
    y = 1.2 + slope * x + noise * errors
    A = np.column_stack([np.ones(9), x]) / noise
    covariance = np.linalg.inv(A.T @ A)
    a, b = covariance @ A.T @ (y / noise)
    data = (jnp.asarray(x), jnp.asarray(y))

    def nll(p, x, y):
        return jnp.sum((p["a"] + p["b"] * x - y) ** 2) / (2 * noise**2)

    mode = {"a": jnp.array(a), "b": jnp.array(b)}
    return nll, mode, data, covariance


def ratio(p):
    return -p["a"] / p["b"]


def fieller(mode, v):
    """Return the limits of -a / b: the roots of (a + r b)^2 = z^2 var(a + r b)."""
    a, b = float(mode["a"]), float(mode["b"])
    coefficients = [
        b**2 - Z**2 * v[1, 1],
        2 * (a * b - Z**2 * v[0, 1]),
        a**2 - Z**2 * v[0, 0],
    ]
    return sorted(np.roots(coefficients)), coefficients[0]


@pytest.mark.exhaustive
def test_a_ratio_of_coefficients_has_the_limits_of_fieller():
    nll, mode, data, v = line(slope=0.5)
    found = profile_intervals(nll, mode, *data, function=ratio)
    (low, high), _ = fieller(mode, v)
    close((found.lower, found.upper), (low, high), rtol=1e-7)
    slope = np.array([-1 / mode["b"], mode["a"] / mode["b"] ** 2])
    close(found.standard_errors, np.sqrt(slope @ v @ slope))
    close(found.value, ratio(mode))
    assert "profile likelihood" in str(found)


# In the second sample the denominator is nearly zero at the mode: the standard error is
# 449 thousand times the distance of the limit from what is fitted beside it.
@pytest.mark.parametrize("sample", [0, 1])
def test_a_ratio_whose_denominator_may_be_zero_has_no_limit(sample):
    nll, mode, data, v = line(slope=0.02, sample=sample)
    roots, leading = fieller(mode, v)
    assert leading < 0  # the set of Fieller is the outside of both roots
    assert ratio(mode) < min(roots)
    found = profile_intervals(nll, mode, *data, function=ratio)
    assert found.lower == -np.inf
    close(found.upper, min(roots), rtol=1e-6)


def test_a_linear_function_has_the_limits_of_the_delta_method():
    nll, mode, data, _ = line(slope=0.5)
    predict = lambda p: {"at": p["a"] + p["b"] * jnp.array([0.0, 2.0, 7.0])}
    found = profile_intervals(nll, mode, *data, function=predict, level=0.9)
    fit = hotk.laplace_approximation(nll, mode, *data)
    linear = fit.interval(predict, level=0.9)
    close(found.lower, linear.lower, rtol=1e-7)
    close(found.upper, linear.upper, rtol=1e-7)
    third = {"at": np.array([False, False, True])}
    part = profile_intervals(nll, mode, *data, function=predict, level=0.9, part=third)
    close(part.upper["at"], linear.upper["at"][2:], rtol=1e-7)


def gamma_model():
    y = np.random.default_rng(1).gamma(1.7, 2.0, size=25)

    def nll(p):
        shape, scale = jnp.exp(p["log_shape"]), jnp.exp(p["log_scale"])
        terms = (shape - 1) * jnp.log(y) - y / scale
        log_norm = jax.scipy.special.gammaln(shape) + shape * p["log_scale"]
        return -jnp.sum(terms) + len(y) * log_norm

    start = {"log_shape": jnp.array(0.0), "log_scale": jnp.array(1.0)}
    newton = hotk.optim.trust_region(subproblem="exact")
    return y, nll, hotk.optim.minimize(nll, start, newton).x


@pytest.mark.exhaustive
def test_quantities_of_a_gamma_distribution_against_scipy():
    y, nll, mode = gamma_model()
    # Its mean and its coefficient of variation, both nonlinear in the parameters.
    functions = {
        "mean": lambda p: jnp.exp(p["log_shape"] + p["log_scale"]),
        "cv": lambda p: jnp.exp(-p["log_shape"] / 2),
    }
    found = profile_intervals(
        nll, mode, function=lambda p: {k: f(p) for k, f in functions.items()}
    )

    def by_scipy(shape, scale):
        return -np.sum(scipy.stats.gamma.logpdf(y, shape, scale=scale))

    least = by_scipy(np.exp(mode["log_shape"]), np.exp(mode["log_scale"]))

    def of_mean(m):  # with the mean held, the shape is free
        held = lambda u: by_scipy(np.exp(u), m / np.exp(u))
        return scipy.optimize.minimize_scalar(
            held, bracket=(-1, 1), options={"xtol": 1e-10}
        ).fun

    def of_cv(c):  # with the shape held, the best mean is that of the sample
        return by_scipy(c**-2, np.mean(y) * c**2)

    for name, profile in (("mean", of_mean), ("cv", of_cv)):
        center = float(functions[name](mode))
        above = lambda t, profile=profile: profile(t) - least - DROP
        low = scipy.optimize.brentq(above, center / 3, center, xtol=1e-13)
        high = scipy.optimize.brentq(above, center, 3 * center, xtol=1e-13)
        close(found.lower[name], low, rtol=1e-6)
        close(found.upper[name], high, rtol=1e-6)


@pytest.mark.exhaustive
def test_a_parameter_as_a_function_has_its_own_interval():
    _, nll, mode = gamma_model()
    entries = profile_intervals(nll, mode)
    as_function = profile_intervals(nll, mode, function=lambda p: p)
    close(as_function.lower, entries.lower, rtol=1e-7)
    close(as_function.upper, entries.upper, rtol=1e-7)
    # A monotone transformation transforms the limits; a falling one swaps them.
    shape = profile_intervals(nll, mode, function=lambda p: jnp.exp(-p["log_shape"]))
    close(shape.lower, np.exp(-entries.upper["log_shape"]), rtol=1e-7)
    close(shape.upper, np.exp(-entries.lower["log_shape"]), rtol=1e-7)


@pytest.mark.exhaustive
def test_fits_of_all_values_share_one_program():
    nll, mode, data, _ = line(slope=0.5)
    of = lambda c: profile_intervals(
        nll, mode, *data, function=lambda p: c * p["a"] * jnp.array([1.0, 2.0, 3.0])
    )
    of(jnp.array(1.0))
    before = hotk.cache_info().compiles
    of(jnp.array(2.0))
    assert hotk.cache_info().compiles == before


@pytest.mark.exhaustive
def test_a_function_with_a_largest_value():
    flat = lambda x: 1 - jnp.exp(-(x**2) / 2)  # never as much as 1.92 above
    found = profile_intervals(flat, jnp.array(0.0), function=jnp.tanh)
    close((found.lower, found.upper), (-1.0, 1.0), rtol=1e-6)
    wave = lambda x: jnp.sin(x) / 3  # the largest value is attained
    slow = lambda x: x**2 / 8
    found = profile_intervals(slow, jnp.array(0.0), function=wave)
    close((found.lower, found.upper), (-1 / 3, 1 / 3), rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("center", [0.0, 10.0])
def test_a_function_with_a_largest_value_near_the_mode_in_single_precision(center):
    """Its slope is rounding there, so the fits beyond do not converge."""
    size = 1e-2 if center else 1.0
    mode = jnp.asarray(center + 0.3 * size, jnp.float32)
    f = lambda x, mode: ((x - mode) / size) ** 2 / 2
    square = lambda x: ((x - center) / size) ** 2
    found = profile_intervals(f, mode, mode, function=square)
    close(found.lower, np.float32(0.0), atol=1e-6)
    close(found.upper, np.float32((0.3 + Z) ** 2), rtol=1e-3)
    wave = lambda x: jnp.cos((x - center) / size)
    found = profile_intervals(f, mode, mode, function=wave)
    close(found.lower, np.float32(np.cos(0.3 + Z)), rtol=1e-3)
    close(found.upper, np.float32(1.0), rtol=1e-6)


def test_values_that_do_not_depend_on_the_parameters():
    f = lambda x: jnp.sum(x**2) / 2
    both = lambda x: jnp.stack([jnp.array(3.0), x[0] + x[1]])
    found = profile_intervals(f, jnp.zeros(2), function=both)
    wide = Z * np.sqrt(2)
    close(found.lower, np.array([3.0, -wide]), rtol=1e-7)
    close(found.upper, np.array([3.0, wide]), rtol=1e-7)


def test_what_is_refused():
    f = lambda x: jnp.sum(x**2) / 2
    with pytest.raises(ValueError, match="derivative of the function is zero"):
        profile_intervals(f, jnp.zeros(2), function=lambda x: {"s": jnp.sum(x**2)})
    with pytest.raises(hotk.OutputError):
        profile_intervals(f, jnp.zeros(2), function=lambda x: jnp.argmax(x))
    with pytest.raises(hotk.DtypeError, match="complex"):
        profile_intervals(f, jnp.zeros(2), function=lambda x: x + 1j)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale):
    nll, mode, data, v = line(slope=0.5)
    scaled = lambda p, *data: nll({"a": p["a"] / scale, "b": p["b"] * scale}, *data)
    moved = {"a": mode["a"] * scale, "b": mode["b"] / scale}
    at_zero = lambda p: -p["a"] / p["b"] / scale**2
    found = profile_intervals(scaled, moved, *data, function=at_zero)
    (low, high), _ = fieller(mode, v)
    close((found.lower, found.upper), (low, high), rtol=1e-6)


@pytest.mark.exhaustive
def test_single_precision():
    nll, mode, data, v = line(slope=0.5)
    mode, data = jax.tree.map(lambda a: a.astype(jnp.float32), (mode, data))
    newton = hotk.optim.trust_region(subproblem="exact")
    mode = hotk.optim.minimize(nll, mode, newton, args=data).x
    found = profile_intervals(nll, mode, *data, function=ratio)
    assert found.upper.dtype == jnp.float32
    (low, high), _ = fieller(mode, v)
    close(np.array([found.lower, found.upper], float), np.array([low, high]), rtol=1e-4)
