"""A function as SciPy wants it."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.interop import PrecisionWarning, _scipy_problem, scipy_problem
from tests.counting import traces
from tests.helpers import close


START = np.full(50, -1.2)


def rosenbrock(x):
    return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def quartic(x):
    return jnp.sum(x**4)


def mixed(x):
    """A function of a tree with all kinds of leaves."""
    total = jnp.sum(jnp.sin(x["a"]) * x["scale"][None].astype(float)) * x["b"][0] ** 2
    low = jnp.sum(x["low"] ** 3).astype(float)
    return x["f"](total) + low * jnp.asarray(x["number"], float) ** 2


def mixed_point():
    return {
        "a": np.array([[0.5, -1.0], [2.0, 0.25]]),
        "b": jnp.array([1.5]),
        "f": jnp.tanh,
        "low": jnp.array([0.5, -2.0], jnp.float32),
        "name": "a name",
        "none": None,
        "number": 0.75,
        "scale": np.array([2, 3]),
    }


def mixed_flat(z):
    """The same function of a flat vector, written by hand."""
    a, b, low, number = z[:4].reshape(2, 2), z[4], z[5:7], z[7]
    total = jnp.sum(jnp.sin(a) * jnp.array([[2.0, 3.0]])) * b**2
    return jnp.tanh(total) + jnp.sum(low**3) * number**2


MIXED_FLAT = np.array([0.5, -1.0, 2.0, 0.25, 1.5, 0.5, -2.0, 0.75])
P = np.array([1.0, -0.5, 0.25, 2.0, -1.0, 0.5, 1.5, -2.0])


# ----- Numbers


def test_callbacks_of_a_mixed_tree_are_those_of_jax():
    with pytest.warns(PrecisionWarning, match="float32"):
        problem = scipy_problem(mixed, mixed_point())
    close(problem.x0, MIXED_FLAT)
    z = MIXED_FLAT
    loose = {"rtol": 1e-5, "atol": 1e-5}  # of the leaf in single precision
    hessian = np.asarray(jax.jit(jax.hessian(mixed_flat))(z))
    np.testing.assert_allclose(problem.fun(z), mixed_flat(jnp.asarray(z)), rtol=1e-6)
    close(problem.jac(z), np.asarray(jax.jit(jax.grad(mixed_flat))(z)), **loose)
    close(problem.hess(z), hessian, **loose)
    close(problem.hessp(z, P), hessian @ P, **loose)


def test_derivatives_are_in_double_precision():
    z, p = START + np.linspace(0, 1, 50), np.linspace(-1, 1, 50)
    problem = scipy_problem(rosenbrock, START)
    hessian = np.asarray(jax.jit(jax.hessian(rosenbrock))(z))
    close(problem.jac(z), np.asarray(jax.jit(jax.grad(rosenbrock))(z)))
    close(problem.hess(z), hessian)
    close(problem.hessp(z, p), hessian @ p)


def test_the_hessian_is_symmetric_to_the_last_bit():
    a = np.random.default_rng(0).normal(size=(20, 20))
    f = lambda x: jnp.sum(jnp.tanh(a @ x) ** 3)
    x = np.linspace(-1, 1, 20)
    computed = np.asarray(hotk.hessian(f, x))
    assert (computed != computed.T).any()
    matrix = scipy_problem(f, x).hess(x)
    assert (matrix == matrix.T).all()
    close(matrix, computed)


def test_callbacks_are_prepared_once(monkeypatch):
    problem = scipy_problem(lambda x: jnp.sum(x**4), np.ones(3))

    def calls(z):
        return problem.fun(z), problem.jac(z), problem.hessp(z, z), problem.hess(z)

    calls(np.ones(3))
    for name in ("value_and_gradient", "hvp", "hessian"):
        monkeypatch.setattr(_scipy_problem, name, None)
    with traces() as count:
        calls(np.full(3, 2.0))
    assert count() == 0


def test_complex_leaves_are_pairs_of_real_numbers():
    x = {"z": jnp.array([1 + 2j, -0.5 + 1j]), "r": np.array(0.5)}

    def f(x):
        return (x["z"][0] ** 2 * x["z"][1]).real * x["r"] + jnp.sum(x["z"].imag ** 4)

    def flat(z):
        return f({"r": z[0], "z": jax.lax.complex(z[1:3], z[3:5])})

    problem = scipy_problem(f, x)
    z = np.array([0.5, 1.0, -0.5, 2.0, 1.0])
    close(problem.x0, z)
    hessian = np.asarray(jax.jit(jax.hessian(flat))(z))
    close(problem.jac(z), np.asarray(jax.jit(jax.grad(flat))(z)))
    close(problem.hess(z), hessian)
    close(problem.hessp(z, P[:5]), hessian @ P[:5])
    close(problem.unravel(z), {"r": np.array(0.5), "z": np.asarray(x["z"])})


def test_unravel_is_the_tree_again():
    with pytest.warns(PrecisionWarning):
        problem = scipy_problem(mixed, mixed_point())
    tree = problem.unravel(problem.x0)
    close(tree, mixed_point())
    tree["scale"][:] = 0
    close(problem.unravel(problem.x0), mixed_point())
    np.testing.assert_allclose(problem.fun(problem.x0), mixed(mixed_point()), rtol=1e-6)


def test_probes_of_integers_and_lists_are_cast():
    problem = scipy_problem(quartic, np.array([1.0, 2.0]))
    for z in (np.array([1, 2]), [1, 2], jnp.array([1, 2]), np.array([[1.0], [2.0]])):
        close(problem.hessp(z, np.array([1, 0])), np.array([12.0, 0.0]))
        close(problem.jac(z), np.array([4.0, 32.0]))


def test_a_further_result_is_kept():
    f = lambda x, c: (c * jnp.sum(x**2), {"sum": jnp.sum(x)})
    problem = scipy_problem(f, np.array([1.0, 2.0]), 3.0, has_aux=True)
    close(problem.fun([1.0, 2.0]), 15.0)
    close(problem.aux([1.0, 2.0]), {"sum": np.array(3.0)})
    close(problem.jac([1.0, 2.0]), np.array([6.0, 12.0]))
    close(problem.hessp([1.0, 2.0], [1.0, 0.0]), np.array([6.0, 0.0]))
    close(problem.hess([1.0, 2.0]), np.array([[6.0, 0.0], [0.0, 6.0]]))
    assert scipy_problem(quartic, 1.5).aux([1.0]) is None


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_what_is_not_finite_comes_through(value):
    problem = scipy_problem(lambda x: jnp.sum(x), np.zeros(2))
    np.testing.assert_equal(problem.fun([value, 1.0]), value + 1.0)
    problem = scipy_problem(lambda x: jnp.sum(x**3), np.zeros(2))
    np.testing.assert_equal(problem.jac([value, 1.0]), [3 * value**2, 3.0])
    np.testing.assert_equal(np.diag(problem.hess([value, 1.0])), [6 * value, 6.0])
    got = problem.hessp([value, 1.0], [1.0, 1.0])
    np.testing.assert_equal(got, [6 * value, 6.0])


# ----- Arrays


def test_outputs_are_arrays_of_their_own():
    problem = scipy_problem(quartic, np.array([1.0, 2.0]))
    z = problem.x0
    assert type(problem.fun(z)) is float
    for call in (
        lambda: problem.x0,
        lambda: problem.jac(z),
        lambda: problem.hessp(z, z),
        lambda: problem.hess(z),
    ):
        got = call()
        expected = got.copy()
        assert type(got) is np.ndarray
        assert got.dtype == np.float64
        assert got.flags.writeable
        assert got.flags.owndata
        got[:] = 7.0
        close(call(), expected)


def test_a_vector_changed_in_place_is_another_point():
    problem = scipy_problem(quartic, np.array([1.0, 2.0]))
    z, p = np.array([1.0, 2.0]), np.array([1.0, 0.0])
    results = [problem.fun(z), problem.jac(z), problem.hessp(z, p), problem.hess(z)]
    z[:], p[:] = [2.0, 1.0], [0.0, 1.0]
    close(problem.hessp(z, p), np.array([0.0, 12.0]))
    close(problem.jac(z), np.array([32.0, 4.0]))
    close(problem.hess(z), np.diag([48.0, 12.0]))
    assert problem.fun(z) == 17.0
    kept = [17.0, np.array([4.0, 32.0]), np.array([12.0, 0.0]), np.diag([12.0, 48.0])]
    close(results, kept)


def test_points_are_told_apart_by_their_bits():
    problem = scipy_problem(lambda x: jnp.sum(1 / x), np.ones(1))
    assert [problem.fun([0.0]), problem.fun([-0.0])] == [np.inf, -np.inf]


def test_value_and_gradient_are_one_evaluation():
    runs = itertools.count()
    tick = runs.__next__

    def f(x):
        jax.debug.callback(tick)
        return jnp.sum(x**2)

    problem = scipy_problem(f, np.ones(2))
    start = next(runs)
    for z in (np.ones(2), np.full(2, np.nan), np.zeros(2)):
        problem.fun(z), problem.jac(z), problem.fun(z.copy()), problem.jac(z)
    jax.effects_barrier()
    assert next(runs) - start - 1 == 3


def test_x0_is_copied():
    x0 = np.array([1.0, 2.0])
    counts = np.array([1, 2])
    f = lambda x: jnp.sum(x["x"] * x["n"].astype(float))
    problem = scipy_problem(f, {"n": counts, "x": x0})
    x0[:], counts[:] = 0.0, 0
    close(problem.x0, np.array([1.0, 2.0]))
    assert problem.fun(problem.x0) == 5.0


# ----- Precision


@pytest.mark.usefixtures("default_settings")
def test_single_precision_is_said_once_and_computed():
    with pytest.warns(PrecisionWarning) as said:
        problem = scipy_problem(rosenbrock, START)
    assert len(said) == 1
    text = str(said[0].message)
    assert "float32" in text
    assert "jax_enable_x64" in text
    z = problem.x0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for got in (problem.jac(z), problem.hessp(z, z), problem.hess(z)):
            assert got.dtype == np.float64
        result = problem.minimize("trust-ncg", gtol=1e-2)
        assert problem.fun(np.full(50, 1e30)) == np.inf
        assert problem.jac(np.full(50, 1e300)).dtype == np.float64
    np.testing.assert_allclose(result.x, 1.0, atol=1e-2)


def test_double_precision_needs_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scipy_problem(mixed, mixed_point() | {"low": np.array([0.5, -2.0])})


def test_a_change_of_precision_is_loud():
    problem = scipy_problem(quartic, np.ones(2))
    with jax.enable_x64(False), pytest.raises(hotk.PreparationError, match="f64"):
        problem.fun(np.zeros(2))


# ----- Errors


@pytest.mark.usefixtures("as_user")
def test_errors_name_the_argument():
    problem = scipy_problem(quartic, np.ones(3))
    with pytest.raises(hotk.StructureError, match=r"`z`.*\n.*\[3\]"):
        problem.fun(np.ones(4))
    with pytest.raises(hotk.StructureError, match="`p`"):
        problem.hessp(np.ones(3), np.ones((3, 3)))
    with pytest.raises(hotk.DtypeError, match="cs"):
        problem.jac(np.ones(3) + 0j)
    with pytest.raises(hotk.DtypeError, match="differentiated"):
        scipy_problem(quartic, np.arange(3))
    with pytest.raises(hotk.OutputError):
        scipy_problem(lambda x: x, np.ones(3))


def test_a_hessian_that_cannot_fit_is_refused():
    problem = scipy_problem(quartic, np.ones(100))
    hotk.set_memory_budget(1000)
    try:
        with pytest.raises(hotk.TooLargeError, match="80000 bytes"):
            problem.hess(problem.x0)
        close(problem.hessp(problem.x0, problem.x0), np.full(100, 12.0))
    finally:
        hotk.set_memory_budget(None)


def test_it_shows_what_it_is():
    assert repr(scipy_problem(quartic, np.ones(3))) == "ScipyProblem(quartic, n=3)"
