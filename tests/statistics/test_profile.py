"""`profile_intervals` against closed forms and against root finding by SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import hotk
from tests.helpers import close


RNG = np.random.default_rng(0)
DROP = scipy.stats.chi2.ppf(0.95, 1) / 2
NEWTON = hotk.optim.trust_region(subproblem="exact")


def ends(profile, mode, low, high):
    """Return where a profile lies `DROP` above its value at the mode, by SciPy."""
    above = lambda t: profile(t) - profile(mode) - DROP
    options = {"xtol": 1e-14, "rtol": 1e-14}
    return [scipy.optimize.brentq(above, *pair, **options) for pair in (low, high)]


@pytest.mark.exhaustive
def test_a_binomial_probability():
    nll = lambda p: -jnp.log(p) - 9 * jnp.log1p(-p)
    found = hotk.statistics.profile_intervals(nll, jnp.array(0.1))
    by_scipy = lambda p: -np.log(p) - 9 * np.log1p(-p)
    low, high = ends(by_scipy, 0.1, (1e-6, 0.1), (0.1, 0.9))
    close(found.lower, low, rtol=1e-7)
    close(found.upper, high, rtol=1e-7)
    # A function of the parameter has the same interval: not so by the Hessian.
    logit = lambda z: nll(jax.nn.sigmoid(z))
    of_logit = hotk.statistics.profile_intervals(logit, jnp.log(jnp.array(1 / 9)))
    close(jax.nn.sigmoid(of_logit.upper), high, rtol=1e-7)


@pytest.mark.exhaustive
def test_mean_and_deviation_of_normal_observations():
    y = RNG.normal(size=12) * 2 + 1
    n, mean, s2 = len(y), y.mean(), y.var()

    def nll(p):
        square = jnp.sum((y - p["mean"]) ** 2)
        return square / (2 * jnp.exp(2 * p["log_sd"])) + n * p["log_sd"]

    mode = {"mean": jnp.array(mean), "log_sd": jnp.array(np.log(s2) / 2)}
    found = hotk.statistics.profile_intervals(nll, mode)
    of_mean = lambda m: n / 2 * np.log(s2 + (m - mean) ** 2)
    low, high = ends(of_mean, mean, (mean - 9, mean), (mean, mean + 9))
    close(found.lower["mean"], low, rtol=1e-7)
    close(found.upper["mean"], high, rtol=1e-7)
    of_log_sd = lambda t: n * s2 / (2 * np.exp(2 * t)) + n * t
    center = np.log(s2) / 2
    low, high = ends(of_log_sd, center, (center - 3, center), (center, center + 3))
    close(found.lower["log_sd"], low, rtol=1e-7)
    close(found.upper["log_sd"], high, rtol=1e-7)
    close(found.standard_errors["mean"], np.sqrt(s2 / n))
    assert "profile likelihood" in str(found)


@pytest.mark.exhaustive
def test_parts_of_the_parameters_and_data_as_arguments():
    A = RNG.normal(size=(30, 4))
    precision = A.T @ A
    f = lambda p, a: jnp.append(p["u"], p["v"]) @ a @ jnp.append(p["u"], p["v"]) / 200
    zero = {"u": jnp.zeros(3), "v": jnp.zeros(1)}
    errors = np.sqrt(np.diag(np.linalg.inv(precision)))
    options = {"scale": 100.0, "level": 0.9}
    z = scipy.stats.norm.ppf(0.95)
    part = hotk.statistics.profile_intervals(f, zero, precision, part="v", **options)
    assert part.upper["u"] is None
    close(part.upper["v"], z * errors[3:], rtol=1e-7)
    mask = {"u": np.array([False, True, False]), "v": False}
    part = hotk.statistics.profile_intervals(f, zero, precision, part=mask, **options)
    close(part.lower["u"], -z * errors[1:2], rtol=1e-7)
    assert "u[1]" in str(part)  # not its place in `leaf[mask]`
    assert "u[0]" not in str(part)
    held = {"u": True, "v": False}
    part = hotk.statistics.profile_intervals(f, zero, precision, where=held, **options)
    errors = np.sqrt(np.diag(np.linalg.inv(precision[:3, :3])))
    close(part.lower["u"], -z * errors, rtol=1e-7)


@pytest.mark.exhaustive
def test_fits_share_one_program():
    X = RNG.normal(size=(20, 3))

    def intervals(y):
        nll = lambda w: jnp.sum(jnp.exp(X @ w) - y * (X @ w))
        found = hotk.optim.minimize(nll, jnp.zeros(3), NEWTON)
        return hotk.statistics.profile_intervals(nll, found.x)

    intervals(jnp.asarray(RNG.poisson(np.exp(X @ [0.2, 0.1, 0.3])), float))
    before = hotk.cache_info().compiles
    intervals(jnp.asarray(RNG.poisson(np.exp(X @ [0.2, 0.1, 0.3])), float))
    assert hotk.cache_info().compiles == before


@pytest.mark.exhaustive
def test_a_limit_that_does_not_exist_is_infinite():
    bounded = lambda x: 1 - jnp.exp(-(x**2) / 2)  # never as much as 1.92 above
    found = hotk.statistics.profile_intervals(bounded, jnp.array(0.0))
    assert found.lower == -np.inf
    assert found.upper == np.inf


@pytest.mark.exhaustive
def test_the_end_of_a_domain_is_a_limit():
    nll = lambda u: jnp.where(u > -0.5, u**2 / 8, jnp.nan)
    found = hotk.statistics.profile_intervals(nll, jnp.array(0.0))
    close(found.lower, -0.5, rtol=1e-6)
    close(found.upper, 2 * scipy.stats.norm.ppf(0.975), rtol=1e-7)


@pytest.mark.exhaustive
def test_another_minimum_is_told():
    f = lambda x: (x**2 - 1) ** 2 * 2 + 0.1 * x
    upper = hotk.optim.minimize(f, jnp.array(1.0), NEWTON).x
    with pytest.raises(ValueError, match="not the minimum"):
        hotk.statistics.profile_intervals(f, upper)


def test_what_is_refused():
    f = lambda x: jnp.sum(x**2)
    with pytest.raises(hotk.NotPositiveDefiniteError):
        hotk.statistics.profile_intervals(lambda x: -f(x), jnp.zeros(2))
    with pytest.raises(TypeError, match="outside of"):
        jax.jit(lambda x: hotk.statistics.profile_intervals(f, x).lower)(jnp.zeros(2))
    nll = lambda p: -jnp.log(p) - 9 * jnp.log1p(-p)
    with pytest.raises(ValueError, match="1 fits for `x`"):
        hotk.statistics.profile_intervals(nll, jnp.array(0.1), max_refits=1)


TIMES = np.linspace(0.5, 4.0, 8)
SEEN = np.array([0.95, 1.08, 1.03, 0.87, 1.09, 1.04, 0.95, 1.06])


def saturation(share):
    """Return a potential of a level and the logarithm of a rate."""
    model = lambda p: p["A"] * (1 - share(p["k"]))
    return lambda p: jnp.sum((SEEN - model(p)) ** 2) / 0.02


def mode_of(nll):
    start = {"A": jnp.array(1.0), "k": jnp.array(1.0)}
    return hotk.optim.minimize(nll, start, NEWTON, tol=1e-8).x


@pytest.mark.exhaustive
def test_derivatives_that_overflow_are_no_limit():
    nll = saturation(lambda k: jnp.exp(-jnp.exp(k) * TIMES))
    mode = mode_of(nll)

    def profile(k):  # the level is found by linear regression
        shape = 1 - np.exp(-np.exp(k) * TIMES)
        rest = SEEN - shape * (shape @ SEEN) / (shape @ shape)
        return rest @ rest / 0.02

    center = float(mode["k"])
    above = lambda k: profile(k) - profile(center) - DROP
    low = scipy.optimize.brentq(above, 0.1, center, xtol=1e-13)
    assert above(100.0) < -1  # as flat for any larger rate: exp(k) overflows at 709.78
    found = hotk.statistics.profile_intervals(nll, mode, part="k")
    close(found.lower["k"], low, rtol=1e-6)
    assert found.upper["k"] == np.inf
    with pytest.raises(ValueError, match="no limit was found in 40 fits"):
        hotk.statistics.profile_intervals(nll, mode, function=lambda p: p["k"])


@pytest.mark.exhaustive
def test_a_flat_profile_up_to_the_end_of_the_potential_is_told():
    share = lambda k: jnp.exp(-jnp.exp(jnp.minimum(k, 20.0)) * TIMES)
    nll = saturation(lambda k: jnp.where(k < 20.0, share(k), jnp.nan))
    with pytest.warns(UserWarning, match="number overflows there, the limit is infin"):
        found = hotk.statistics.profile_intervals(nll, mode_of(nll), part="k")
    close(found.upper["k"], 20.0, rtol=1e-6)


@pytest.mark.exhaustive
def test_a_profile_that_cannot_be_followed_is_told():
    # its derivative is not a number beyond 1, its value is
    root = lambda x: jnp.sqrt(jnp.where(x > 1, 0 * x, 1.0))
    kink = lambda x: x + jnp.where(x > 1, root(x), 0.0)
    with pytest.raises(ValueError, match="cannot be followed beyond 1 stand"):
        hotk.statistics.profile_intervals(lambda x: kink(x) ** 2 / 2, jnp.array(0.0))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("function", [None, jnp.sum], ids=["parameters", "a function"])
def test_a_mode_that_is_no_minimum_is_told(function):
    """Half a standard error away: the interval is another one, by 3 to 12 %."""
    A = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    potential = lambda t: t @ A @ t / 2
    away = 0.5 * jnp.sqrt(jnp.linalg.inv(A)[0, 0])
    intervals = hotk.statistics.profile_intervals
    found = lambda at: intervals(potential, at, function=function)
    with pytest.warns(hotk.NotStationaryWarning, match=r"0\.5 standard errors"):
        found(jnp.array([away, 0.0]))
    exact = found(jnp.zeros(2))  # no warning, which would be an error
    C = np.linalg.inv(A)
    close(
        exact.upper, 1.959964 * np.sqrt(C.sum() if function else np.diag(C)), rtol=1e-4
    )


@pytest.mark.parametrize(("rate", "n"), [(1e4, 100), (50.0, 100_000)])
def test_a_rise_that_single_precision_does_not_know_is_found(rate, n):
    """The potential is known to 1, and limits of a rise of 1.92 were 30 % off."""
    k = np.random.default_rng(1).poisson(rate, size=n)
    nll = lambda e, k: jnp.sum(jnp.exp(e) - k * e)
    total, mode = k.sum(), np.log(k.mean())
    error = 1 / np.sqrt(total)
    rise = lambda e: total * (np.expm1(e) - e)
    expected = ends(rise, 0.0, (-4 * error, 0.0), (0.0, 4 * error))
    found = hotk.statistics.profile_intervals(
        nll, jnp.asarray(mode, jnp.float32), jnp.asarray(k, jnp.float32)
    )
    limits = np.array([found.lower, found.upper], float) - mode
    np.testing.assert_allclose(limits, expected, atol=2e-3 * error)
    rates = hotk.statistics.profile_intervals(
        nll,
        jnp.asarray(mode, jnp.float32),
        jnp.asarray(k, jnp.float32),
        function=jnp.exp,
    )
    limits = np.log(np.array([rates.lower, rates.upper], float)) - mode
    np.testing.assert_allclose(limits, expected, atol=4e-3 * error)
