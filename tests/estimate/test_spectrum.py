"""The spectral density by stochastic Lanczos quadrature."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.estimate import spectrum
from tests.counting import compiles
from tests.estimate.digits import KEY, coverage, digits, digits_over_seeds, distance
from tests.estimate.operators import Dense, Recording, hessian, square, symmetric, wide
from tests.helpers import close


OPTIONS = {"samples": 4, "steps": 8}
MATRIX = np.float32(symmetric(np.linspace(-1, 2, 40)))


@pytest.mark.exhaustive
def test_nodes_and_weights_integrate_polynomials_exactly():
    """The rule of m steps has degree 2 m - 1 for the measure of its start."""
    a, seen = symmetric(np.linspace(-1, 2, 40)), []
    found = spectrum(Recording(a, seen), KEY, samples=1, steps=5)
    assert found.products == len(seen) == 5
    start = seen[0]
    close(np.linalg.norm(start), 1.0)
    for degree in range(10):
        moment = start @ np.linalg.matrix_power(a, degree) @ start
        rule = found.weights[0] @ found.nodes[0] ** degree
        np.testing.assert_allclose(rule, moment, rtol=1e-10)


@pytest.mark.exhaustive
def test_a_digits_network_in_its_own_space():
    H, exact = digits()
    found = spectrum(H, KEY, samples=10, steps=20)
    assert distance(wide(found.nodes), wide(found.weights), exact) <= 0.01
    np.testing.assert_allclose(found.largest, exact[-1], rtol=1e-5)
    assert found.products == 200
    assert found.size == 310


@pytest.mark.exhaustive
def test_a_digits_network_over_seeds():
    exact, found = digits()[1], digits_over_seeds()
    each = zip(wide(found.nodes), wide(found.weights), strict=True)
    assert max(distance(*rule, exact) for rule in each) <= 0.01


@pytest.mark.exhaustive
def test_errors_of_the_density_cover_a_digits_network():
    covered, error, density = coverage()
    # where there is anything: the rest is zero but for rounding
    there = density > 1e-3 * np.max(density)
    assert np.sum(there) >= 25
    assert np.mean(covered[:, there]) >= 0.9
    assert np.min(np.mean(covered[:, there], axis=0)) >= 0.85
    assert np.mean(error[:, there]) < 0.15 * np.mean(density[there])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "fun", [lambda t: t, jnp.square, jnp.exp, jnp.abs], ids=["1", "2", "exp", "abs"]
)
def test_errors_of_traces_cover_a_digits_network(fun):
    exact = np.sum(np.float64(fun(jnp.asarray(digits()[1]))))
    got = wide(jax.vmap(lambda one: one.integrate(fun))(digits_over_seeds()))
    assert np.mean(np.abs(got.value - exact) <= 2 * got.error) >= 0.9
    rms = np.sqrt(np.mean((got.value - exact) ** 2))
    assert 0.7 * rms < np.mean(got.error) < 1.4 * rms


@pytest.mark.parametrize("value", [1.0, 0.0, -3.0])
def test_of_a_multiple_of_the_identity(value):
    found = spectrum(hessian(value * np.eye(40)), KEY, **OPTIONS)
    close(found.nodes, np.full((4, 8), value, np.float32))
    close(found.smallest, np.float32(value))
    close(np.sum(found.weights, axis=1), np.ones(4, np.float32))
    assert found.products == 4  # each Krylov space is exhausted by one product
    trace = found.integrate(lambda t: t)
    close((trace.value, trace.error), (np.float32(40 * value), np.float32(0)))


def test_an_exhausted_space_has_no_part_in_anything():
    """Three different eigenvalues: three nodes with weight, the others inside."""
    values = np.repeat([1.0, 2.0, 4.0], [10, 20, 10])
    found = spectrum(hessian(symmetric(values)), KEY, **OPTIONS)
    assert found.products <= 4 * 5
    near = np.min(np.abs(wide(found.nodes)[..., None] - np.array([1, 2, 4])), axis=-1)
    assert np.all((near < 1e-4) | (found.weights < 1e-6))
    assert found.smallest > 0.999
    assert found.largest < 4.001
    assert abs(float(found.cdf(1.5).value) - 0.25) < 0.15


@pytest.mark.exhaustive
def test_no_ghosts_in_single_precision():
    """Without re-orthogonalization the top eigenvalue comes three times."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(300, 300)) / 17
    a = (a + a.T) / 2
    a[0, 0] += 5
    found = spectrum(hessian(a), KEY, samples=2, steps=60)
    top = np.linalg.eigvalsh(a)[-1]
    near = np.abs(wide(found.nodes) - top) < 1e-3 * top
    assert np.sum(near, axis=1).tolist() == [1, 1]
    np.testing.assert_allclose(found.largest, top, rtol=1e-5)


def test_density_has_integral_one_and_the_cdf_rises_to_one():
    found = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    grid = np.linspace(-4, 5, 1001)
    density = wide(found.density(grid, 0.3).value)
    close(np.sum(density) * (grid[1] - grid[0]), 1.0, rtol=1e-3)
    cdf = wide(found.cdf(grid))
    assert np.all(np.diff(cdf.value) >= -1e-6)
    close((cdf.value[0], cdf.value[-1]), (0.0, 1.0), rtol=1e-5)
    assert cdf.error.shape == (1001,)
    assert float(found.cdf(0.5).value) == pytest.approx(0.5, abs=0.15)


@pytest.mark.exhaustive
def test_quantiles_invert_the_cdf():
    found = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    shares = np.linspace(0, 1, 21)
    at = found.quantile(shares)
    assert at.shape == (21,)
    assert at[0] == found.smallest
    assert at[-1] == found.largest
    assert np.all(wide(found.cdf(at).value) >= shares - 1e-4)
    assert np.all(wide(found.cdf(wide(at) - 1e-3).value) <= shares + 1e-4)


@pytest.mark.exhaustive
def test_blocks_change_nothing():
    expected = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    found = spectrum(hessian(MATRIX), KEY, block_size=3, **OPTIONS)
    close(found.nodes, expected.nodes, rtol=1e-3, atol=1e-4)
    close(found.weights, expected.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
def test_a_bar_changes_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    expected = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    assert not capsys.readouterr().err
    found = spectrum(hessian(MATRIX), KEY, progress=True, block_size=3, **OPTIONS)
    assert "Lanczos steps" in capsys.readouterr().err
    close(found.nodes, expected.nodes, rtol=1e-3, atol=1e-4)
    # two windows of two
    assert found.products == expected.products


def test_a_bar_compiles_one_step_and_fresh_operators_nothing():
    run = lambda A: spectrum(A, KEY, progress=True, block_size=3, **OPTIONS)
    run(hessian(MATRIX))
    with compiles() as count:
        run(hessian(2 * MATRIX))
    assert count() == 0


@pytest.mark.usefixtures("as_user")
def test_a_bar_needs_tqdm_and_the_host(monkeypatch):
    A = hessian(MATRIX)
    with pytest.raises(ValueError, match="progress"):
        jax.jit(lambda key: spectrum(A, key, progress=True, **OPTIONS))(KEY)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"hotk\["):
        spectrum(A, KEY, progress=True, **OPTIONS)


def test_one_program_and_none_for_fresh_operators():
    first, second = hessian(MATRIX), hessian(2 * MATRIX)
    one = spectrum(first, KEY, **OPTIONS)
    with compiles() as count:
        two = spectrum(second, KEY, **OPTIONS)
    assert count() == 0
    close(two.nodes, 2 * one.nodes, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_raw_keys_change_nothing():
    A = hessian(MATRIX)
    found = spectrum(A, jax.random.key_data(KEY), **OPTIONS)
    close(found.nodes, spectrum(A, KEY, **OPTIONS).nodes, rtol=1e-3, atol=1e-4)


def test_products_on_the_host():
    A = Recording(MATRIX, [])
    found = spectrum(A, KEY, **OPTIONS)
    expected = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    close(found.nodes, expected.nodes, rtol=1e-3, atol=1e-4)
    assert len(A.seen) == 32


def test_complex_leaves_have_two_eigenvalues_each():
    z = {"z": jnp.array([1 + 2j, 0.5 - 1j]), "r": jnp.array([0.5])}
    f = lambda x: jnp.sum(x["z"].real ** 2 + 3 * x["z"].imag ** 2) * x["r"][0] ** 2
    H = hotk.HessianOperator(f, z)
    found = spectrum(H, KEY, samples=3)
    exact = np.linalg.eigvalsh(H.matrix())
    assert found.size == 5
    assert found.nodes.shape == (3, 5)  # no more steps than dimensions
    # each start finds each different eigenvalue
    for value in exact:
        assert np.all(np.min(np.abs(found.nodes - value), axis=1) < 1e-8)


@pytest.mark.exhaustive
def test_mixed_precision():
    c = {"a": np.float32(np.linspace(1, 2, 30)), "b": np.float32(3 * np.ones(10))}
    x = {"a": jnp.ones(30, jnp.bfloat16), "b": jnp.ones(10, jnp.float32)}
    f = lambda x: sum(jnp.sum(c[k] * x[k].astype(c[k].dtype) ** 2) / 2 for k in "ab")
    found = spectrum(hotk.HessianOperator(f, x), KEY, samples=20, steps=8)
    assert found.nodes.dtype == jnp.float32
    assert abs(float(found.largest) - 3) < 0.03
    trace = found.integrate(lambda t: t)
    assert abs(float(trace.value) - 75) < 3 * float(trace.error) + 75 * 0.01


def test_prints():
    found = spectrum(hessian(MATRIX), KEY, **OPTIONS)
    assert repr(found).startswith("Spectrum(n=40, from -")
    assert "4 x 8" in str(found)
    assert found._repr_html_().startswith("<table>")
    assert "Spectrum(" in str(jax.eval_shape(lambda: found))


@pytest.mark.usefixtures("as_user")
def test_nonsense_is_refused():
    A = hessian(MATRIX)
    for options in ({"samples": 0}, {"steps": 0}, {"block_size": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            spectrum(A, KEY, **options)
    with pytest.raises(TypeError, match="symmetric"):
        spectrum(Dense(jnp.asarray(square(6)), False), KEY)
    with pytest.raises(TypeError, match="symmetric"):
        spectrum(A @ (A + A), KEY)
    with pytest.raises(TypeError, match="identities"):
        spectrum(hotk.Identity(), KEY)


def test_a_function_for_its_values_is_told_of(as_user):
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 4.0))
    found = hotk.estimate.spectrum(H, jax.random.key(0))
    for values in (jnp.log, found.nodes[0]):
        with pytest.raises(hotk.StructureError, match=r"spectrum.integrate\(f\)"):
            found.total(values)
    close(found.total(found.nodes**2).value, np.sum((12 * np.arange(1.0, 4) ** 2) ** 2))
