"""`fit`: what NIST certified, and what SciPy, lmfit and statsmodels compute."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import hotk
from hotk.statistics import fit
from hotk.statistics._regression import LOSSES
from tests.counting import compiles
from tests.helpers import close, recorded
from tests.optim.nist import REGRESSIONS, digits


pytestmark = pytest.mark.usefixtures("as_user")

RNG = np.random.default_rng(5)
X = np.linspace(0.0, 3.0, 20)
Y = 2.5 * np.exp(-1.3 * X) + 0.1 * np.sin(20 * X)
SIGMA = 0.1 + X
WITH_OUTLIERS = Y + np.where(np.arange(20) % 6 == 2, 0.8, 0.0)
TIGHT = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
P0 = {"a": 1.0, "b": 1.0}
# Brownlee's stack loss data: air flow, water temperature, acid concentration, loss.
STACKLOSS = np.array(
    [
        *[[80, 27, 89, 42], [80, 27, 88, 37], [75, 25, 90, 37], [62, 24, 87, 28]],
        *[[62, 22, 87, 18], [62, 23, 87, 18], [62, 24, 93, 19], [62, 24, 93, 20]],
        *[[58, 23, 87, 15], [58, 18, 80, 14], [58, 18, 89, 14], [58, 17, 88, 13]],
        *[[58, 18, 82, 11], [58, 19, 93, 12], [50, 18, 89, 8], [50, 18, 86, 7]],
        *[[50, 19, 72, 8], [50, 19, 79, 8], [50, 20, 80, 9], [56, 20, 82, 15]],
        [70, 20, 91, 15],
    ],
    float,
)


def model(p, x):
    return p["a"] * jnp.exp(-p["b"] * x)


def curve(x, a, b):
    return a * np.exp(-b * x)


def by_scipy(y, **options):
    slopes = lambda x, a, b: np.stack([np.exp(-b * x), -x * curve(x, a, b)], axis=1)
    return scipy.optimize.curve_fit(
        curve, X, y, p0=[1.0, 1.0], jac=slopes, **TIGHT, **options
    )


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def line(p, x):
    return p[0] + p[1] * x


# ----- Known answers


# From its far start MGH10 takes more than a thousand steps.
STARTS = [(name, k) for name in REGRESSIONS for k in (0, 1)]
STARTS.remove(("MGH10", 0))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "start"), STARTS)
def test_what_is_certified(name, start):
    known = REGRESSIONS[name]
    found = fit(known.model, known.x, known.y, known.starts[start])
    assert found.converged
    assert known.digits(found.x) > 9
    if name == "Lanczos1":  # exact data: what is left are roundings of the data
        return
    both = found.standard_errors, known.standard_errors
    assert digits(*map(np.sort, both)) > 9  # terms may change places
    s = np.sqrt(known.sum_of_squares / found.dof)
    assert digits([found.residual_std], [s]) > 9


def test_longley_is_certified():
    """NIST StRD, linear regression: the columns are nearly dependent."""
    data = np.array(
        [
            [60323, 83.0, 234289, 2356, 1590, 107608, 1947],
            [61122, 88.5, 259426, 2325, 1456, 108632, 1948],
            [60171, 88.2, 258054, 3682, 1616, 109773, 1949],
            [61187, 89.5, 284599, 3351, 1650, 110929, 1950],
            [63221, 96.2, 328975, 2099, 3099, 112075, 1951],
            [63639, 98.1, 346999, 1932, 3594, 113270, 1952],
            [64989, 99.0, 365385, 1870, 3547, 115094, 1953],
            [63761, 100.0, 363112, 3578, 3350, 116219, 1954],
            [66019, 101.2, 397469, 2904, 3048, 117388, 1955],
            [67857, 104.6, 419180, 2822, 2857, 118734, 1956],
            [68169, 108.4, 442769, 2936, 2798, 120445, 1957],
            [66513, 110.8, 444546, 4681, 2637, 121950, 1958],
            [68655, 112.6, 482704, 3813, 2552, 123366, 1959],
            [69564, 114.2, 502601, 3931, 2514, 125368, 1960],
            [69331, 115.7, 518173, 4806, 2572, 127852, 1961],
            [70551, 116.9, 554894, 4007, 2827, 130081, 1962],
        ]
    )
    certified = [
        *[-3482258.63459582, 15.0618722713733, -0.0358191792925910],
        *[-2.02022980381683, -1.03322686717359, -0.0511041056535807, 1829.15146461355],
    ]
    errors = [
        *[890420.383607373, 84.9149257747669, 0.0334910077722432],
        *[0.488399681651699, 0.214274163161675, 0.226073200069370, 455.478499142212],
    ]
    columns = np.concatenate([np.ones((16, 1)), data[:, 1:]], axis=1)
    found = fit(lambda p, A: A @ p, columns, data[:, 0], np.zeros(7))
    assert digits(found.x, certified) > 10
    assert digits(found.standard_errors, errors) > 10
    close(found.r_squared, 0.995479004577296, rtol=1e-12)
    close(found.residual_std, 304.854073561965, rtol=1e-11)
    assert "correlation -0.9997 of x[0] and x[6]" in str(found)


@pytest.mark.exhaustive
def test_a_covariance_may_be_symmetric_up_to_rounding():
    """The inverse of a precision, in which small entries differ by their rounding."""
    precision = np.diag(1 / SIGMA**2) + 0.3 / SIGMA[:, None] / SIGMA
    matrix = np.linalg.inv(precision)
    matrix[0, -1] += 1e-12 * np.sqrt(matrix[0, 0] * matrix[-1, -1])
    for given, rtol in ((matrix, 1e-8), (matrix.astype(np.float32), 1e-3)):
        found = fit(model, X, Y, P0, sigma=given, absolute_sigma=True)
        popt, pcov = by_scipy(Y, sigma=matrix, absolute_sigma=True)
        close(flat(found.x), popt, rtol=rtol)
        close(np.asarray(found.covariance), pcov, rtol=rtol)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("sigma", [None, "each", "matrix"])
def test_curve_fit_of_scipy(sigma):
    matrix = np.diag(SIGMA**2) + 0.01 * np.exp(-np.abs(X[:, None] - X[None]))
    sigma = {None: None, "each": SIGMA, "matrix": matrix}[sigma]
    for absolute in (False, True):
        options = {"sigma": sigma, "absolute_sigma": absolute}
        popt, pcov = by_scipy(Y, **options)
        found = fit(model, X, Y, P0, **options)
        close(flat(found.x), popt, rtol=1e-8)
        close(np.asarray(found.covariance), pcov, rtol=1e-8)
        close(flat(found.standard_errors), np.sqrt(np.diag(pcov)), rtol=1e-8)
        close(np.asarray(found.residuals), Y - curve(X, *popt), atol=1e-9)
        size = scipy.stats.norm.ppf(0.95) if absolute else scipy.stats.t.ppf(0.95, 18)
        lower = popt - size * np.sqrt(np.diag(pcov))
        close(flat(found.interval(level=0.9).lower), lower, rtol=1e-7)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy", "arctan"])
def test_robust_losses_of_scipy(loss):
    options = {"loss": loss, "f_scale": 0.1}
    popt, _ = by_scipy(WITH_OUTLIERS, method="trf", **options)
    found = fit(model, X, WITH_OUTLIERS, P0, **options)
    close(flat(found.x), popt, rtol=1e-7)
    assert abs(popt - by_scipy(WITH_OUTLIERS)[0]).max() > 0.1


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_derivatives(name):
    """The formulas of the documentation of `scipy.optimize.least_squares`."""
    rho = {
        "linear": lambda z: z,
        "soft_l1": lambda z: 2 * ((1 + z) ** 0.5 - 1),
        "huber": lambda z: np.where(z <= 1, z, 2 * z**0.5 - 1),
        "cauchy": np.log1p,
        "arctan": np.arctan,
    }[name]
    loss, h = LOSSES[name], 1e-6
    u = np.array([-30.0, -1.5, -0.7, -1e-3, 0.2, 0.9, 1.1, 4.0])
    half = lambda u: rho(u**2) / 2
    root = np.asarray(loss.root(jnp.asarray(u)))
    close(root, np.sign(u) * rho(u**2) ** 0.5, rtol=1e-9)
    close(loss.influence(u), (half(u + h) - half(u - h)) / (2 * h), rtol=1e-6)
    slope = (loss.influence(u + h) - loss.influence(u - h)) / (2 * h)
    close(loss.slope(u), slope, rtol=1e-6, atol=1e-9)
    tiny = jnp.array([0.0, 1e-30, -1e-20, 1e-9])
    values, slopes = jax.vmap(jax.value_and_grad(loss.root))(tiny)
    close(np.asarray(values), np.asarray(tiny), rtol=1e-12)
    close(np.asarray(slopes), np.ones(4), rtol=1e-12)


def test_robust_errors_are_those_of_statsmodels():
    """statsmodels 0.15.0, RLM(y, X, HuberT(1.345)).fit(cov="H1", tol=1e-15)."""
    y, columns = STACKLOSS[:, 3], STACKLOSS.copy()
    columns = np.concatenate([np.ones((21, 1)), STACKLOSS[:, :3]], axis=1)
    scale = 2.4405360917210532
    found = fit(
        lambda p, A: A @ p, columns, y, np.zeros(4), loss="huber", f_scale=1.345 * scale
    )
    params = [-41.02649835, 0.8293843346, 0.92606596620, -0.12784672495]
    errors = [9.7918985413, 0.11100521335, 0.30293016311, 0.12864961494]
    close(np.asarray(found.x), np.array(params), rtol=1e-8)
    close(np.asarray(found.standard_errors), np.array(errors), rtol=1e-9)
    close(found.residual_std, scale, rtol=1e-8)  # the median absolute deviation
    assert np.isnan([found.r_squared, found.aic, found.bic]).all()
    with pytest.raises(ValueError, match="profiles are those of least squares"):
        found.profile()


@pytest.mark.exhaustive
def test_profiles_of_several_data_sets_share_their_programs():
    with recorded(hotk.ChangingValueWarning) as warned:
        for k in range(4):
            found = fit(model, X, Y + 0.02 * k * np.cos(9 * X), P0)
            with compiles() as compiled:
                found.profile(part="b")
    assert warned == []
    assert compiled() == 0


@pytest.mark.exhaustive
def test_figures_of_lmfit():
    """lmfit 1.3.4, Model.fit and conf_interval, on Chwirut2 of NIST."""
    known = REGRESSIONS["Chwirut2"]
    found = fit(known.model, known.x, known.y, known.starts[1])
    close(found.aic, 127.57481261513485, rtol=1e-11)
    close(found.bic, 133.54176475482768, rtol=1e-11)
    profile = found.profile()
    lower = [0.09425518052, 0.003763339333, 0.009049344700]
    upper = [0.2535640833951, 0.006474866541, 0.01532598482517]
    close(np.asarray(profile.lower), np.array(lower), rtol=2e-6)
    close(np.asarray(profile.upper), np.array(upper), rtol=2e-6)
    close(profile.standard_errors, found.standard_errors, rtol=1e-6)


def test_bands_of_a_line_by_their_formula():
    """Draper and Smith (1998), Applied Regression Analysis, section 1.4."""
    found = fit(line, X, Y, [1, 1])
    x, n = np.array([-1.0, 0.5]), 20
    s = np.sqrt(np.sum((Y - np.polyval(np.polyfit(X, Y, 1), X)) ** 2) / (n - 2))
    share = 1 / n + (x - X.mean()) ** 2 / np.sum((X - X.mean()) ** 2)
    center = np.polyval(np.polyfit(X, Y, 1), x)
    t = scipy.stats.t.ppf(0.95, n - 2)
    band = found.band(x, 0.9)
    close(np.asarray(band.upper), center + t * s * np.sqrt(share), rtol=1e-10)
    of_list = found.band(x.tolist(), 0.9)
    close(np.asarray(of_list.upper), np.asarray(band.upper), rtol=1e-12)
    band = found.band(x, 0.9, kind="prediction")
    close(np.asarray(band.lower), center - t * s * np.sqrt(1 + share), rtol=1e-10)
    band = found.band(x, 0.9, kind="prediction", sigma=np.array([2.0, 3.0]))
    spread = np.sqrt(np.array([4.0, 9.0]) + share)
    close(np.asarray(band.lower), center - t * s * spread, rtol=1e-10)


# ----- Parameters and data of any kind


class Decay(eqx.Module):
    a: jax.Array
    b: jax.Array
    power: int = 1

    def __call__(self, x):
        return self.a[0] * jnp.exp(-self.b * x["t"] ** self.power) + 0 * x["table"]


def test_modules_trees_and_tables():
    start = Decay(jnp.ones(1), jnp.array(1.0))
    x = {"t": X.reshape(4, 5), "table": np.zeros((4, 5), int), "unit": "s"}
    found = fit(lambda p, x: p(x), x, Y.reshape(4, 5), start)
    popt, pcov = by_scipy(Y)
    close(np.array([found.x.a[0], found.x.b]), popt, rtol=1e-8)
    close(np.asarray(found.covariance), pcov, rtol=1e-8)
    assert found.residuals.shape == (4, 5)
    assert found.x.power == 1


def test_a_parameter_that_is_held():
    found = fit(model, X, Y, {"a": 2.0, "b": 1.0}, where={"a": False, "b": True})
    one = lambda x, b: curve(x, 2.0, b)
    popt, pcov = scipy.optimize.curve_fit(one, X, Y, p0=[1.0], **TIGHT)
    assert found.x["a"] == 2.0
    close(flat(found.x["b"]), popt, rtol=1e-7)
    close(flat(found.standard_errors), np.sqrt(pcov[0]), rtol=1e-6)
    assert found.dof == 19
    assert "\na  " not in str(found)


@pytest.mark.exhaustive
def test_many_fits_under_vmap():
    data = np.stack([Y, WITH_OUTLIERS, np.zeros(20)])  # b is not determined by the last
    one = lambda y: fit(model, jnp.asarray(X), y, P0)
    found = eqx.filter_jit(eqx.filter_vmap(one))(jnp.asarray(data))
    errors = eqx.filter_vmap(lambda found: found.standard_errors)(found)
    for k, y in enumerate(data[:2]):
        popt, pcov = by_scipy(y)
        close(flat(found.x).reshape(2, 3)[:, k], popt, rtol=1e-7)
        close(flat(errors).reshape(2, 3)[:, k], np.sqrt(np.diag(pcov)), rtol=1e-7)
    assert np.isnan([errors["a"][2], errors["b"][2]]).all()


def test_other_data_compile_nothing_and_buffers_may_be_filled_again():
    x, y = X.copy(), Y.copy()
    once = lambda: fit(lambda p, x: p["a"] * jnp.exp(-p["b"] * x), x, y, P0)
    found, before = once(), by_scipy(Y)[0]
    found.band(x)
    with compiles() as count:
        y[:] = WITH_OUTLIERS
        again = once()
    assert count() == 0
    close(flat(again.x), by_scipy(WITH_OUTLIERS)[0], rtol=1e-8)
    x[:] = 0.0
    close(np.asarray(found.regression.x), X)
    close(np.asarray(found.residuals + found.band(X).value), Y, rtol=1e-9)
    close(flat(found.x), before, rtol=1e-8)


@pytest.mark.usefixtures("default_settings")
def test_in_single_precision():
    found = fit(model, X, Y, P0)
    popt, pcov = by_scipy(Y)
    assert found.x["a"].dtype == jnp.float32
    close(flat(found.x), popt.astype(np.float32), rtol=1e-5)
    errors = np.sqrt(np.diag(pcov)).astype(np.float32)
    close(flat(found.standard_errors), errors, rtol=1e-4)


@pytest.mark.exhaustive
def test_derivatives_by_the_data_and_what_the_model_captures():
    """Against differences of fits of SciPy, along one direction of each."""
    t = np.cos(7 * X)

    def by_hotk(s):
        bent = lambda p, x: p["a"] * jnp.exp(-p["b"] * x) + s[2] * jnp.asarray(t)
        y, sigma = jnp.asarray(Y) + s[0] * t, jnp.asarray(SIGMA) * (1 + s[1] * X)
        found = fit(bent, X, y, P0, sigma=sigma)
        return jnp.stack([found.x["b"], found.standard_errors["b"]])

    def by_differences(s):
        sigma = SIGMA * (1 + s[1] * X)
        popt, pcov = by_scipy(Y + s[0] * t - s[2] * t, sigma=sigma)
        return np.array([popt[1], np.sqrt(pcov[1, 1])])

    central = lambda e, h: (by_differences(h * e) - by_differences(-h * e)) / (2 * h)
    expected = [(4 * central(e, 5e-4) - central(e, 1e-3)) / 3 for e in np.eye(3)]
    found = jax.jacobian(by_hotk)(jnp.zeros(3))
    close(np.asarray(found), np.stack(expected, axis=1), rtol=1e-5, atol=1e-8)


# ----- Bounds


@pytest.mark.exhaustive
def test_bounds_that_do_not_bind():
    bounds = ({"a": 0.0, "b": None}, 5.0)
    popt, pcov = by_scipy(Y)
    found = fit(model, X, Y, P0, bounds=bounds)
    close(flat(found.x), popt, rtol=1e-7)
    close(np.asarray(found.covariance), pcov, rtol=1e-7)
    assert "bound" not in str(found)


def test_a_parameter_at_its_bound_is_held_in_what_is_said_of_others():
    """The truth is the fit of b alone, with a at its bound."""
    found = fit(model, X, Y, P0, bounds=(None, {"a": 2.0, "b": 10.0}))
    one = lambda x, b: curve(x, 2.0, b)
    popt, pcov = scipy.optimize.curve_fit(one, X, Y, p0=[1.0], **TIGHT)
    assert found.x["a"] == 2.0
    close(flat(found.x["b"]), popt, rtol=1e-6)
    # of 20 data two parameters are taken, also where one of them is at its bound
    error = np.sqrt(pcov[0] * 19 / 18)
    assert np.isnan(found.standard_errors["a"])
    close(flat(found.standard_errors["b"]), error, rtol=1e-6)
    t = scipy.stats.t.ppf(0.975, 18)
    close(flat(found.interval().upper["b"]), popt + t * error, rtol=1e-6)
    slope = 2.0 * 1.5 * np.exp(-1.5 * popt)
    close(flat(found.band(np.array([1.5])).standard_errors), slope * error, rtol=1e-5)
    assert "at a bound, and held there: a" in str(found)
    with pytest.raises(ValueError, match="a at a bound"):
        found.profile()


def test_bounds_of_robust_losses_of_scipy():
    options = {"loss": "soft_l1", "f_scale": 0.1}
    scipys = {"bounds": ([0, 0], [2.4, 9.0]), "method": "trf"}
    popt, _ = by_scipy(WITH_OUTLIERS, **options, **scipys)
    bounds = (0.0, {"a": 2.4, "b": 9.0})
    found = fit(model, X, WITH_OUTLIERS, P0, bounds=bounds, **options)
    close(flat(found.x), popt, rtol=1e-6)


# ----- What it says


def test_it_shows_as_a_table():
    found = fit(line, X + 40, Y, [1, 1])
    lines = str(found).splitlines()
    assert lines[0].split() == [
        "estimate",
        "std.",
        "error",
        "t",
        "2.5",
        "%",
        "97.5",
        "%",
    ]
    slope, offset = np.polyfit(X + 40, Y, 1)
    assert lines[2].split()[:2] == ["0", f"{offset:.5g}"]
    assert lines[3].split()[:2] == ["1", f"{slope:.5g}"]
    assert lines[4] == (
        "95 % intervals, QR of the Jacobian, Student's t with 18 degrees of freedom"
    )
    square = 1 - np.var(Y - np.polyval([slope, offset], X + 40)) / np.var(Y)
    assert f"R2 {square:.6g}" in lines[5]
    assert lines[6].startswith("correlation -0.99")
    assert lines[6].endswith("of 0 and 1")
    assert max(map(len, lines)) <= 100
    assert "<td>" in found._repr_html_()


def test_what_does_not_converge_says_so_first():
    with recorded(hotk.NotStationaryWarning) as warned:
        found = fit(model, X, Y, P0, max_steps=1)
    assert "did not converge" in str(warned[0].message)
    assert warned[0].filename == __file__
    assert str(found).startswith("not converged: the largest number of steps")
    assert found._repr_html_().startswith("<p>not converged")
    assert not found.converged
    assert found.reason == hotk.optim.Stop.most_steps


def test_what_the_data_do_not_determine_is_named():
    # 100 a and b are told apart by no data: (0.01, -1), nearly of length one
    twice = lambda p, x: 100 * p["a"] + p["b"] + p["c"] * x
    with pytest.raises(hotk.NotPositiveDefiniteError, match="full rank") as caught:
        fit(twice, X, Y, P0 | {"c": 0.0})
    found = flat(caught.value.direction)
    found *= np.sign(found[0]) * (1 + 1e-4) ** 0.5
    close(found, np.array([0.01, -1, 0]), atol=1e-9)
    assert re.search("along (0.01 a - 1 b|1 b - 0.01 a)", str(caught.value))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="along 1 b"):
        fit(model, X, np.zeros(20), P0)


HOLES = np.where(np.isin(np.arange(20), [3, 7]), np.nan, Y)
REFUSED = {
    "a NaN in y": ({"y": HOLES}, ValueError, r"nan in `y\[3\]`, and 1 more"),
    "infinity in y": ({"y": np.append(np.inf, Y[1:])}, ValueError, r"inf in `y\[0\]`"),
    "a NaN in x": ({"x": {"t": HOLES}}, ValueError, r"nan in `x\['t'\]\[3\]`"),
    "sigma of zero": ({"sigma": X}, ValueError, r"0.0 in `sigma\[0\]`"),
    "a negative sigma": ({"sigma": -1.0}, ValueError, "-1.0 in `sigma`"),
    "sigma of another shape": ({"sigma": X[:3]}, ValueError, r"shape \(3,\)"),
    "no covariance": ({"sigma": -np.eye(20)}, ValueError, "positive definite"),
    "few data": ({"x": X[:2], "y": Y[:2]}, ValueError, "2 numbers in `y`, and 2 param"),
    "no such loss": ({"loss": "l1"}, ValueError, "'l1' is not one of"),
    "outside of bounds": ({"bounds": (2.0, None)}, ValueError, "outside of the b"),
    "lower above upper": ({"bounds": (2.0, -2.0)}, ValueError, "above the upper"),
    "a robust loss with sigma": (
        {"loss": "huber", "absolute_sigma": True},
        ValueError,
        "leave `absolute_sigma` out",
    ),
    "a scale of zero": ({"f_scale": 0.0}, ValueError, "not a positive number"),
    "NaN at the start": (
        {"p0": {"a": np.nan, "b": 1.0}},
        ValueError,
        "nan in `model",
    ),
    "integers": (
        {"p0": {"a": np.arange(2), "b": 1.0}},
        TypeError,
        "has integers",
    ),
    "nothing to fit": ({"p0": {"a": "b"}}, TypeError, "no leaf"),
    "complex parameters": ({"p0": [1j, 1.0]}, TypeError, "complex parameters"),
    "complex data": ({"y": Y + 0j}, TypeError, "`y` is complex"),
    "no function": ({"model": 3}, TypeError, "not a function"),
    "another shape": (
        {"model": lambda p, x: p["a"] * p["b"]},
        ValueError,
        "must return an array of the shape of `y`",
    ),
    "weights of lmfit": ({"weights": X}, TypeError, "sigma=1 / weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_says_which(name):
    changed, error, text = REFUSED[name]
    given = {"model": model, "x": X, "y": Y, "p0": P0} | changed
    with pytest.raises(error, match=text):
        fit(**given)


def test_a_maximum_of_a_loss_has_no_covariance():
    ends, y = np.array([-1.0, -1.0, 1.0, 1.0]), np.array([-1.0, 1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="bends down"):
        fit(line, ends, y, [0.0, 0.0], loss="cauchy", f_scale=0.3)


def test_new_data_need_their_own_errors():
    found = fit(model, X, Y, P0, sigma=SIGMA)
    with pytest.raises(ValueError, match="different errors"):
        found.band(X, kind="prediction")
    with pytest.raises(ValueError, match="'both' is not"):
        found.band(X, kind="both")
    close(flat(found.band(X[:1]).value), by_scipy(Y, sigma=SIGMA)[0][:1], rtol=1e-8)


@pytest.mark.parametrize("loss", ["linear", "soft_l1"])
def test_small_units_have_errors_or_are_refused(loss):
    """Squares of 1e-19 are zero in single precision: so was an error."""
    model = lambda p, x: p["a"] * jnp.exp(-p["b"] * x)
    x = jnp.asarray(X, jnp.float32)

    def found(unit):
        y = jnp.asarray(Y * unit, jnp.float32)
        p0 = {"a": jnp.float32(unit), "b": jnp.float32(1)}
        return fit(model, x, y, p0, loss=loss, f_scale=0.05 * unit)

    one, small = found(1.0), found(1e-16)
    close(small.standard_errors["a"] * 1e16, one.standard_errors["a"], rtol=1e-3)
    close(small.correlation, one.correlation, rtol=1e-3)
    residuals = lambda p: p[0] * np.exp(-p[1] * X) - Y
    known = scipy.optimize.least_squares(residuals, [1, 1], loss=loss, f_scale=0.05)
    close(small.x["b"], np.float32(known.x[1]), rtol=1e-4)
    _, C = scipy.optimize.curve_fit(lambda x, a, b: a * np.exp(-b * x), X, Y, [1, 1])
    if loss == "linear":
        close(np.float64(small.standard_errors["a"]) * 1e16, C[0, 0] ** 0.5, rtol=1e-3)
    # a small parameter of data that are not: its variance is zero, and its error is not
    y = jnp.asarray(Y, jnp.float32)
    large = lambda p, x: p["a"] * 1e24 * jnp.exp(-p["b"] * x)
    p0 = {"a": jnp.float32(1e-24), "b": jnp.float32(1)}
    scaled = fit(large, x, y, p0, loss=loss, f_scale=0.05)
    close(scaled.standard_errors["a"] * 1e24, one.standard_errors["a"], rtol=1e-3)
    close(scaled.correlation, one.correlation, rtol=1e-3)
    for unit in (1e-17, 1.6e-19, 1e-30):
        with pytest.raises(ValueError, match="squares of data of this size are zero"):
            found(unit)
