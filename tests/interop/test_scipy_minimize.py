"""SciPy finds minima that are known."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hotk
from hotk.interop import scipy_problem, scipy_residuals
from tests.counting import compiles
from tests.helpers import close


START = np.full(50, -1.2)
SECOND_ORDER = {
    "trust-ncg": {"gtol": 1e-9},
    "Newton-CG": {"xtol": 1e-12},
    "trust-krylov": {"gtol": 1e-7},
    "trust-exact": {"gtol": 1e-9},
}
OTHERS = {
    "trust-constr": {"gtol": 1e-9, "xtol": 1e-14, "maxiter": 2000},
    "L-BFGS-B": {"gtol": 1e-9, "ftol": 0.0, "maxiter": 5000, "maxfun": 10**5},
    "BFGS": {"gtol": 1e-8},
    "CG": {"gtol": 1e-8, "maxiter": 10**4},
    "TNC": {"gtol": 1e-8, "ftol": 0.0, "xtol": 0.0, "maxfun": 10**5},
    "SLSQP": {"ftol": 1e-16, "maxiter": 1000},
}


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def quartic(x):
    return jnp.sum(x**4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", SECOND_ORDER)
def test_rosenbrock_by_hand_with_one_compile_a_callback(method):
    hotk.clear_cache()
    calls = itertools.count()
    tick = calls.__next__

    def f(x):
        tick()
        return rosenbrock(x)

    jnp.asarray(START)
    with compiles() as count:
        problem = scipy_problem(f, START)
        second = (
            {"hess": problem.hess}
            if method == "trust-exact"
            else {"hessp": problem.hessp}
        )
        result = scipy.optimize.minimize(
            problem.fun,
            problem.x0,
            jac=problem.jac,
            method=method,
            options=SECOND_ORDER[method],
            **second,
        )
    assert np.abs(result.x - 1).max() < 1e-8
    assert result.nit > 10
    assert count() == 2
    assert next(calls) <= 6


@pytest.mark.thinned(5)
@pytest.mark.parametrize("method", ["trust-ncg", "trust-exact", *OTHERS])
def test_minimize_gives_each_method_what_it_takes(method):
    problem = scipy_problem(lambda x: rosenbrock(x["x"]), {"x": START[:10]})
    result = problem.minimize(method, **(SECOND_ORDER | OTHERS)[method])
    np.testing.assert_allclose(result.x, np.ones(10), atol=1e-6)
    close(result.tree, {"x": np.ones(10)}, atol=1e-6)


@pytest.mark.parametrize("method", ["Nelder-Mead", "Powell", "COBYLA", "COBYQA"])
def test_minimize_without_derivatives(method):
    problem = scipy_problem(quartic, np.array([0.5, 1.0]))
    result = problem.minimize(method)
    np.testing.assert_allclose(result.x, 0.0, atol=0.05)


def test_minimize_a_convex_function_by_dogleg():
    problem = scipy_problem(lambda x: jnp.sum(jnp.cosh(x - 2.0)), np.zeros(3))
    close(problem.minimize("dogleg", gtol=1e-12).x, np.full(3, 2.0))


def test_minimize_passes_bounds_constraints_tolerance_and_callback_on():
    problem = scipy_problem(lambda x: jnp.sum((x - 2.0) ** 2), np.zeros(2))
    seen = []
    result = problem.minimize("L-BFGS-B", bounds=[(0, 1), (0, 5)], callback=seen.append)
    np.testing.assert_allclose(result.x, [1.0, 2.0], atol=1e-6)
    assert seen
    on_a_line = {"type": "eq", "fun": lambda z: z[0] + z[1] - 2.0}
    result = problem.minimize("SLSQP", tol=1e-12, constraints=on_a_line)
    np.testing.assert_allclose(result.x, [1.0, 1.0], atol=1e-6)


# ----- What belongs to SciPy, and bounds as trees


def test_options_as_scipy_takes_them():
    problem = scipy_problem(lambda x: jnp.sum(jnp.cosh(x - 1)), jnp.zeros(3))
    with pytest.warns(scipy.optimize.OptimizeWarning, match="Unknown solver options"):
        problem.minimize("L-BFGS-B", options={"no_such": 2})
    assert problem.minimize("L-BFGS-B", options={"maxiter": 1}).nit == 1
    assert problem.minimize("L-BFGS-B", options={"maxiter": 5}, maxiter=1).nit == 1
    residuals = scipy_residuals(lambda x: jnp.sinh(x - 1), jnp.zeros(3))
    assert residuals.solve(options={"max_nfev": 2}).nfev == 2
    close(residuals.solve("lm").x, np.ones(3), rtol=1e-6)


@pytest.mark.parametrize("name", ["fun", "x0", "args", "jac", "hess", "hessp"])
def test_what_the_problem_gives_to_scipy_is_refused(name):
    problem = scipy_problem(lambda x: x @ x, jnp.zeros(3))
    residuals = scipy_residuals(lambda x: x, jnp.zeros(3))
    for call in (problem.minimize, residuals.solve):
        with pytest.raises(TypeError, match="the problem itself gives to SciPy"):
            call(**{name: None})


def test_bounds_as_trees_like_the_start():
    f = lambda x: jnp.sum((x["a"] - 3.0) ** 2) + (x["b"] - 1.0) ** 2
    start = {"a": jnp.zeros(2), "b": jnp.array(0.0), "n": 3}
    low = {"a": -1.0, "b": -np.inf, "n": 0}
    high = {"a": np.array([1.0, 5.0]), "b": 0.5, "n": 0}
    found = scipy_problem(f, start).minimize("L-BFGS-B", bounds=(low, high))
    close(found.tree["a"], np.array([1.0, 3.0]), rtol=1e-6)
    close(found.tree["b"], 0.5)
    arrays = (-np.ones(3), np.array([0.5, 2.0, 2.0]))
    problem = scipy_problem(lambda x: jnp.sum((x - 1.0) ** 2), jnp.zeros(3))
    close(problem.minimize("L-BFGS-B", bounds=arrays).x, np.array([0.5, 1.0, 1.0]))
    r = lambda x: jnp.append(x["a"] - 3.0, x["b"] - 1.0)
    start = {"a": jnp.zeros(2), "b": jnp.array(0.0)}
    low, high = ({k: t[k] for k in start} for t in (low, high))
    found = scipy_residuals(r, start).solve(bounds=(low, high))
    close(found.tree["a"], np.array([1.0, 3.0]), rtol=1e-6)
    problem = scipy_problem(lambda x: jnp.sum((x["a"] - 3) ** 2), {"a": jnp.zeros(2)})
    found = problem.minimize("L-BFGS-B", bounds=({"a": -1.0}, {"a": 1.0}))
    close(found.x, np.ones(2))


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_two_arrays_of_two_numbers_are_lower_and_upper(of):
    """As they are of any other number; a list of pairs is as SciPy takes it."""
    f = lambda x: jnp.sum((x - jnp.array([3.0, -5.0])) ** 2)
    problem = scipy_problem(f, jnp.array([0.5, -2.0]))
    bounds = of([0.0, -3.0]), of([1.0, -1.0])
    found = problem.minimize("L-BFGS-B", bounds=bounds)
    close(found.x, np.array([1.0, -3.0]))
    pairs = [(0.0, 1.0), (-3.0, -1.0)]
    close(problem.minimize("L-BFGS-B", bounds=pairs).x, np.array([1.0, -3.0]))


@pytest.mark.parametrize("make", [scipy_problem, scipy_residuals])
def test_within_a_trace_is_refused(make):
    with pytest.raises(TypeError, match=r"outside of `jax\.jit`"):
        jax.jit(lambda x: make(lambda x: x**2, x).x0)(jnp.ones(3))


@pytest.mark.parametrize(
    "r", [lambda w: jax.lax.complex(w, w), lambda w: (w, jnp.arange(2))]
)
def test_residuals_that_are_not_real_are_refused(r):
    with pytest.raises(hotk.OutputError, match="`r` must return real"):
        scipy_residuals(r, jnp.ones(2))
