"""What is called converged is a minimum: problems by methods, in any units."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import hotk
from hotk.curvature import LeastSquares
from hotk.optim import Stop, minimize
from tests.counting import compiles
from tests.optim.bounded_problems import BOUNDED
from tests.optim.nist import REGRESSIONS
from tests.optim.problems import PROBLEMS, SIZES


METHODS = {
    "trust_region": hotk.optim.trust_region(),
    "trust_region, exact": hotk.optim.trust_region(subproblem="exact"),
    "newton": hotk.optim.newton(),
    "newton_cg": hotk.optim.newton_cg(),
    "cubic_newton": hotk.optim.cubic_newton(),
    "levenberg_marquardt": hotk.optim.levenberg_marquardt(),
    "natural_gradient": hotk.optim.natural_gradient(0.5),
    "adahessian": hotk.optim.adahessian(0.1),
    "sophia": hotk.optim.sophia(0.02),
    "lbfgs": optax.lbfgs(),
    "adam": optax.adam(0.05),
}


def residuals_of(name):
    """Return the residuals of a problem, and its starts."""
    if name in REGRESSIONS:
        return REGRESSIONS[name].residuals, REGRESSIONS[name].starts
    problem = {**PROBLEMS, **SIZES}[name]
    return problem.residuals, (problem.farther(1), problem.farther(10))


def lower(residuals, x):
    """Return the least sum of squares that SciPy gets to from a point."""
    r, slopes = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
    jacobian: Any = lambda x: np.asarray(slopes(x))
    found = [2 * np.inf]
    for method in ("trf", "lm"):
        try:
            ended = scipy.optimize.least_squares(
                lambda x: np.asarray(r(x)),
                np.asarray(x),
                jacobian,
                method=method,
                x_scale="jac",
                **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15),
            )
        except (ValueError, np.linalg.LinAlgError):
            continue
        found.append(2 * ended.cost)
    return min(found)


def assert_no_lower(found, residuals, x, start, name):
    """From a point that converged SciPy gets no lower."""
    if not found.converged:
        return
    value, first = (float(np.sum(np.asarray(residuals(p)) ** 2)) for p in (x, start))
    least = lower(residuals, x)
    # where that is zero beside the value at the start, as in `Problem.solved`
    zero = 1e-10 * max(first, 1.0) if least < 1e-20 else 0.0
    assert value <= (1 + 1e-4) * least + zero, (name, found, least)


SOME = [
    ("Powell, badly scaled", "newton_cg"),
    ("Powell, badly scaled", "trust_region"),
    ("Lanczos2", "trust_region"),
    ("Lanczos3", "newton"),
    ("Osborne 1", "lbfgs"),
    ("Rosenbrock", "adam"),
]
ALL = [(p, m) for p in (*PROBLEMS, *SIZES, *REGRESSIONS) for m in METHODS]
REST = [pair for pair in ALL if pair not in SOME]


@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize(
    ("name", "method"),
    [*SOME, *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in REST)],
)
def test_no_point_is_called_converged_that_is_no_minimum(name, method):
    residuals, starts = residuals_of(name)
    # in other units of the function, and of the parameters
    scaled = lambda x, unit, scale: scale * residuals(x / unit)
    f = LeastSquares(scaled)
    n = len(starts[0])
    units = 10.0 ** np.random.default_rng(n).integers(-4, 5, n)
    for start in starts:
        for unit, scale in ((np.ones(n), 1.0), (np.ones(n), 1e-8), (units, 1.0)):
            args = jnp.asarray(unit), jnp.asarray(scale)
            x0 = jnp.asarray(start * unit)
            with jax.numpy_dtype_promotion("standard"):  # of optax
                found = minimize(f, x0, METHODS[method], args=args)
            x = jnp.asarray(np.asarray(found.x) / unit)
            assert_no_lower(found, residuals, x, jnp.asarray(start), (name, scale))


WRONG_ONCE = ("HS25", "Powell, badly scaled", "Meyer")


@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize(
    "name",
    [
        name if name in WRONG_ONCE else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in BOUNDED
    ],
)
def test_within_bounds(name):
    """By the gradient alone the first two are called converged at 33 and at 6e-9."""
    problem = BOUNDED[name]
    f = LeastSquares(problem.f) if problem.squares else problem.f
    box = problem.lower, problem.upper
    found = minimize(f, jnp.asarray(problem.start), bounds=box)
    factor = 2 if problem.squares else 1
    assert found.converged, found
    assert problem.solved(factor * float(found.value)), found


def test_reasons():
    """By hand: a gradient of 1e-9 at the start, whose step is as long as the point."""
    x0 = jnp.ones(2)
    tiny = lambda x: 1e-9 * jnp.sum(x**2) / 2 + 1e-9 * jnp.sum((x - 1.0) ** 4)
    found = minimize(tiny, x0)
    assert found.reason == Stop.confirmed
    assert int(found.steps) > 0
    assert minimize(tiny, x0, tol=1e-8).reason == Stop.converged
    assert minimize(tiny, x0, tol=1e-8).steps == 0
    inside = jax.jit(lambda x: minimize(tiny, x))(x0)
    np.testing.assert_allclose(inside.x, found.x, rtol=1e-8)
    assert inside.reason == Stop.confirmed
    assert minimize(tiny, jnp.zeros(2), max_steps=0).reason != Stop.confirmed
    at_minimum = minimize(lambda x: jnp.sum(x**2), jnp.zeros(2))
    assert at_minimum.reason == Stop.stationary
    assert minimize(tiny, jnp.ones(301)).reason == Stop.small_gradient


def test_a_run_that_was_refused_goes_on_with_no_other_program():
    tiny = lambda x: 1e-9 * jnp.sum(x**2) / 2 + 1e-9 * jnp.sum((x - 1.0) ** 4)
    minimize(tiny, jnp.ones(2), tol=1e-8)
    with compiles() as counted:
        assert minimize(tiny, jnp.ones(2)).reason == Stop.confirmed
    assert counted() == 1
    with compiles() as counted:
        minimize(tiny, 2 * jnp.ones(2))
    assert counted() == 0
