"""`fit` on real data beside SciPy, lmfit and statsmodels, where they mean the same.

The data are those that scikit-learn and statsmodels bring, and three sets of NIST.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hotk
from tests.helpers import close
from tests.optim.nist import REGRESSIONS


RTOL = 1e-8
# MINPACK, which both call, stops where the sum of squares no longer changes: that is
# sooner where residuals are large. `test_curve_fit_of_scipy` sees who is nearer.
REACHED = {"sunspots": 2e-7}
TIGHT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}


class Data(NamedTuple):
    """A regression, and what is asked of it."""

    model: Callable[..., Any]
    x: Any
    y: Any
    start: Any
    sigma: Any = None


def linear(columns, y, **options):
    columns = np.column_stack([np.ones(len(y)), np.asarray(columns, float)])
    start = np.zeros(columns.shape[1])
    return Data(lambda p, x: x @ p, columns, np.asarray(y, float), start, **options)


def of_sklearn(name):
    datasets = pytest.importorskip("sklearn.datasets")
    return getattr(datasets, f"load_{name}")()


def of_statsmodels(name):
    pytest.importorskip("statsmodels")
    from statsmodels import datasets

    return getattr(datasets, name).load_pandas()


def of_nist(name):
    known = REGRESSIONS[name]
    return Data(known.model, known.x, known.y, known.starts[1])


def power(p, x):
    return p[0] * x ** p[1]


def wave(p, t):
    return p[0] + p[1] * jnp.cos(p[3] * t) + p[2] * jnp.sin(p[3] * t)


def iris():
    data = of_sklearn("iris").data
    return Data(power, data[:, 2], data[:, 3], [0.3, 1.0], sigma=data[:, 2])


def linnerud():
    target = of_sklearn("linnerud").target
    return Data(power, target[:, 0], target[:, 1], [5.0, 0.5])


def engel():
    data = of_statsmodels("engel").data
    income = data["income"].to_numpy()
    return Data(power, income, data["foodexp"].to_numpy(), [1.0, 0.9], sigma=income)


def nile():
    """The flow falls in 1898, where the dam of Aswan was begun."""
    y = of_statsmodels("nile").data["volume"].to_numpy()
    t = np.arange(len(y), dtype=float)
    step = lambda p, t: p[0] - p[1] * jax.nn.sigmoid((t - p[2]) / 2)
    return Data(step, t, y, [1100.0, 250.0, 28.0])


def sunspots():
    y = of_statsmodels("sunspots").data["SUNACTIVITY"].to_numpy()
    return Data(wave, np.arange(len(y), dtype=float), y, [50.0, -20.0, -5.0, 0.571])


def carbon_dioxide():
    weekly = of_statsmodels("co2").data["co2"].dropna()
    t = weekly.index.to_julian_date().to_numpy() / 365.25
    t = t - t.mean()
    year = 2 * np.pi * t
    return linear(np.column_stack([t, t**2, np.cos(year), np.sin(year)]), weekly)


def copper():
    y = of_statsmodels("copper").data["WORLDCONSUMPTION"].to_numpy()
    t = np.arange(len(y), dtype=float)
    return Data(lambda p, t: p[0] * jnp.exp(p[1] * t), t, y, [4000.0, 0.03])


def stack_loss():
    data = of_statsmodels("stackloss")
    return linear(data.exog, data.endog)


def diabetes():
    data = of_sklearn("diabetes")
    return linear(data.data, data.target)


SETS = {
    "iris": iris,
    "linnerud": linnerud,
    "diabetes": diabetes,
    "engel": engel,
    "nile": nile,
    "sunspots": sunspots,
    "co2": carbon_dioxide,
    "copper": copper,
    "stack loss": stack_loss,
    **{
        name: functools.partial(of_nist, name)
        for name in ("DanWood", "Misra1a", "Chwirut1")
    },
}


@functools.cache
def both(name):
    """Return data, and the fit of hotk."""
    data = SETS[name]()
    options = {} if data.sigma is None else {"sigma": data.sigma}
    return data, hotk.statistics.fit(
        data.model, data.x, data.y, jnp.asarray(data.start), **options
    )


def for_numpy(model):
    """Return a model and its Jacobian as functions of numbers, by JAX alone."""
    compiled, slopes = jax.jit(model), jax.jit(jax.jacfwd(model))
    flat = lambda p: jnp.asarray(p, float)
    value = lambda x, *p: np.asarray(compiled(flat(p), x))
    return value, lambda x, *p: np.asarray(slopes(flat(p), x))


def offset(data, value, slopes, p):
    """Return the cosine of the angle of the residuals and the tangent plane.

    It is zero at a minimum: the criterion of Bates and Watts (1988), section 2.2.3.
    """
    sigma = 1.0 if data.sigma is None else data.sigma
    r = (value(data.x, *p) - data.y) / sigma
    basis = np.linalg.qr((slopes(data.x, *p).T / sigma).T)[0]
    return np.linalg.norm(basis.T @ r) / np.linalg.norm(r)


def estimates_agree(found, expected, atol):
    """Compare in units of the standard errors."""
    errors = np.asarray(found.standard_errors)
    close(np.asarray(found.x) / errors, expected / errors, rtol=RTOL, atol=atol)


def covariances_agree(found, expected):
    """Compare in units of the standard errors."""
    errors = np.sqrt(np.diag(expected))
    unit = np.outer(errors, errors)
    close(np.asarray(found.covariance) / unit, expected / unit, atol=10 * RTOL)
    close(np.asarray(found.standard_errors), errors, rtol=RTOL)


@pytest.mark.library
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SETS)
def test_curve_fit_of_scipy(name):
    data, found = both(name)
    value, slopes = for_numpy(data.model)
    options = {"p0": data.start, "sigma": data.sigma, "jac": slopes}
    popt, pcov = scipy.optimize.curve_fit(value, data.x, data.y, **options, **TIGHT)
    assert found.converged
    estimates_agree(found, popt, REACHED.get(name, RTOL))
    covariances_agree(found, pcov)
    offsets = [offset(data, value, slopes, p) for p in (np.asarray(found.x), popt)]
    assert offsets[0] <= max(offsets[1], 1e-11)


@pytest.mark.library
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SETS)
def test_lmfit(name):
    lmfit = pytest.importorskip("lmfit")
    data, found = both(name)
    names = [f"p{i}" for i in range(len(data.start))]
    value, slopes = for_numpy(data.model)
    weights = 1.0 if data.sigma is None else 1 / data.sigma
    of = lambda p: [p[name].value for name in names]
    params = lmfit.create_params(**dict(zip(names, data.start, strict=True)))
    fitter = lmfit.Minimizer(
        lambda p: weights * (value(data.x, *of(p)) - data.y), params
    )
    rows = lambda p: (weights * slopes(data.x, *of(p)).T).T
    result = fitter.leastsq(Dfun=rows, **TIGHT)
    estimates_agree(found, np.array(of(result.params)), REACHED.get(name, RTOL))
    covariances_agree(found, result.covar)
    close(found.residual_std**2, result.redchi, rtol=RTOL)
    close(found.aic, result.aic, rtol=RTOL)
    close(found.bic, result.bic, rtol=RTOL)
    assert found.dof == result.nfree


@pytest.mark.library
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["diabetes", "co2", "stack loss"])
def test_least_squares_of_statsmodels(name):
    pytest.importorskip("statsmodels")
    import statsmodels.api as sm

    data, found = both(name)
    result = sm.OLS(data.y, data.x).fit(method="qr")
    close(np.asarray(found.x), result.params, rtol=RTOL)
    covariances_agree(found, np.asarray(result.cov_params()))
    limits = np.asarray(result.conf_int(0.1))
    interval = found.interval(level=0.9)
    errors = result.bse
    for got, expected in (
        (interval.lower, limits[:, 0]),
        (interval.upper, limits[:, 1]),
    ):
        close(np.asarray(got) / errors, expected / errors, atol=1e-7)
    close(found.r_squared, result.rsquared, rtol=RTOL)
    rest = len(data.y) * (1 + np.log(2 * np.pi))  # of the normal likelihood
    close(found.aic + rest, result.aic, rtol=RTOL)
    frame = result.get_prediction(data.x[:5]).summary_frame()
    close(found.band(data.x[:5]).lower, frame["mean_ci_lower"].to_numpy(), rtol=1e-7)
    noisy = found.band(data.x[:5], kind="prediction")
    close(noisy.upper, frame["obs_ci_upper"].to_numpy(), rtol=1e-7)
