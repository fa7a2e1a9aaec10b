"""Differential operators from random directions, against known answers."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


KEY = jax.random.key(3)
W = np.random.default_rng(0).normal(size=(8, 8)) / 3


def f(x):
    return jnp.sum(jnp.tanh(x @ W) ** 3)


def nested_laplacian(f):
    return lambda x: jnp.trace(jax.hessian(f)(x))


X = jnp.linspace(-0.7, 0.9, 8)


@functools.cache  # when it is needed: each process of a run reads this file
def laplacian():
    return float(jax.jit(nested_laplacian(f))(X))


@functools.cache
def biharmonic():
    return float(jax.jit(nested_laplacian(nested_laplacian(f)))(X))


def covers(estimate, exact, known):
    """Whether about 95 % of many intervals of two errors hold the truth."""
    keys = jax.random.split(KEY, 300)
    found = jax.jit(jax.vmap(estimate))(keys)
    inside = np.abs(found.value - exact) < 2 * found.error
    assert 0.88 < np.mean(inside) < 0.99
    error = np.std(np.asarray(found.value)) / np.sqrt(300)
    assert abs(np.mean(found.value) - exact) < 4 * error  # no bias
    close(float(np.sqrt(np.mean(found.error**2))), float(np.std(found.value)), rtol=0.2)
    assert known is None or np.allclose(np.std(found.value), known, rtol=0.2)


@pytest.mark.exhaustive
def test_the_error_of_a_laplacian_covers():
    hessian = np.asarray(jax.hessian(f)(X))
    outside = hessian - np.diag(np.diag(hessian))
    known = np.sqrt(2 * np.sum(outside**2) / 32)
    estimate = lambda key: hotk.estimate.laplacian(f, X, key, samples=32)
    covers(estimate, laplacian(), known)


def test_the_error_of_a_biharmonic_covers():
    estimate = lambda key: hotk.estimate.biharmonic(f, X, key, samples=32)
    covers(estimate, biharmonic(), None)


def test_the_error_of_sampled_terms_covers():
    indices = {(2, 0, 0): 1.0, (1, 1, 0): -2.0, (0, 0, 1): 3.0, (0, 0, 0): 0.5}
    g = lambda x: jnp.exp(x[0] * x[1]) * jnp.sin(x[2]) + x[0] ** 3
    operator, x = hotk.differential_operator(indices), X[:3]
    y = [float(a) for a in x]
    product, wave = np.exp(y[0] * y[1]), np.sin(y[2])
    exact = (
        (y[1] ** 2 * product * wave + 6 * y[0])
        - 2 * (1 + y[0] * y[1]) * product * wave
        + 3 * product * np.cos(y[2])
        + 0.5 * (product * wave + y[0] ** 3)
    )
    estimate = lambda key: hotk.estimate.differential(operator, g, x, key, samples=48)
    covers(estimate, exact, None)


def test_what_has_no_variance_is_exact():
    diagonal = lambda x: jnp.sum(x**4)
    found = hotk.estimate.laplacian(diagonal, X, KEY, samples=3)
    close(found.value, float(12 * jnp.sum(X**2)))
    assert found.error < 1e-12
    radial = lambda x: jnp.sum(x**2) ** 2
    found = hotk.estimate.biharmonic(radial, X, KEY, samples=3)
    close(found.value, 8.0 * 8 * 10)
    assert found.error < 1e-9
    assert found.products == 3


@pytest.mark.exhaustive
def test_trees_arguments_and_blocks():
    p = {"w": np.ones((2, 3), np.float32), "b": 0.5, "n": 2}
    g = lambda p, c: {"y": c * jnp.sum(p["w"] ** 2) * p["n"] * jnp.ones(2, jnp.float32)}
    for block_size in (None, 1, 2, 5):
        found = hotk.estimate.laplacian(
            g, p, KEY, jnp.float32(3.0), samples=5, block_size=block_size
        )
        close(found.value, {"y": np.full(2, 72.0, np.float32)})
        whole = hotk.estimate.laplacian(f, X, KEY, samples=5)
        parts = hotk.estimate.laplacian(f, X, KEY, samples=5, block_size=block_size)
        close((parts.value, parts.error), (np.asarray(whole.value), whole.error))


def test_a_hundred_thousand_dimensions():
    n = 100_000
    x = jnp.linspace(-1, 1, n)
    waves = lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(x[1:] * x[:-1] * x[0])
    found = hotk.estimate.laplacian(waves, x, KEY, samples=8, block_size=4)
    exact = float(-jnp.sum(jnp.sin(x)) + 2 * x[1])
    assert abs(found.value - exact) < 4 * found.error
    compiled = hotk.derivatives.prepare(
        waves, x, jnp.ones((4, n)), order=2, batched=True
    )
    assert compiled.info.peak_bytes < 60 * x.nbytes


def test_bad_input_is_refused(as_user):
    for call in (hotk.estimate.laplacian, hotk.estimate.biharmonic):
        with pytest.raises(ValueError, match="samples"):
            call(f, X, KEY, samples=0)
        with pytest.raises(hotk.DtypeError):
            call(jnp.abs, 1j, KEY)
        with pytest.raises(hotk.DtypeError):
            call(jnp.abs, 1, KEY)
    with pytest.raises(TypeError, match="differential_operator"):
        hotk.estimate.differential({(2,): 1.0}, f, X, KEY)


@pytest.mark.exhaustive
def test_the_derivative_by_the_coefficients_is_right_in_the_mean():
    f = lambda x: jnp.sum(jnp.sin(x)) * x[0]
    x = jnp.array([0.5, 0.7, 0.3])
    operator = hotk.differential_operator({(2, 0, 0): 1.0, (0, 2, 0): -2.0})
    estimate = lambda c, key: (
        hotk.estimate.differential(
            eqx.tree_at(lambda o: o.coefficients, operator, c), f, x, key
        ).value
    )
    keys = jax.random.split(jax.random.key(0), 500)
    slopes = jax.vmap(jax.grad(estimate), (None, 0))(operator.coefficients, keys)
    exact = jax.hessian(f)(x)
    for found, wanted in zip(slopes, (exact[0, 0], exact[1, 1]), strict=True):
        error = jnp.std(found) / jnp.sqrt(len(keys))
        assert abs(jnp.mean(found) - wanted) < 4 * error


def test_counts_are_whole_numbers():
    for keywords in ({"samples": 2.5}, {"samples": 4, "block_size": 2.0}):
        with pytest.raises(TypeError, match="int"):
            hotk.estimate.laplacian(jnp.sum, jnp.ones(3), jax.random.key(0), **keywords)


# ---- of some leaves

POINT = {"x": jnp.array([0.4, -0.3]), "w": jnp.array([1.0 + 2.0j]), "c": jnp.ones(3)}
ONLY_X = {"x": True, "w": False, "c": False}


def field(p):
    """Without mixed derivatives by `x`: random signs give its Laplacian exactly."""
    return jnp.sum(p["x"] ** 4) * jnp.abs(p["w"][0]) ** 2 + jnp.sum(p["c"] ** 2)


@pytest.mark.parametrize(
    "where", [ONLY_X, lambda a: jnp.shape(a) == (2,)], ids=["a tree", "a predicate"]
)
def test_where_sums_over_the_leaves_that_it_selects(where):
    x, key = np.asarray(POINT["x"]), jax.random.key(0)
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.estimate.laplacian(field, POINT, key)
    found = hotk.estimate.laplacian(field, POINT, key, where=where)
    close((found.value, found.error), (5 * 12 * np.sum(x**2), 0.0), atol=1e-12)
    flow = lambda p: {"x": p["x"] ** 3, "w": None, "c": None}
    found = hotk.estimate.divergence(flow, POINT, key, where=where)
    close((found.value, found.error), (3 * np.sum(x**2), 0.0), atol=1e-12)
    radial = lambda p: jnp.sum(p["x"] ** 2) ** 2 * jnp.abs(p["w"][0]) ** 2
    found = hotk.estimate.biharmonic(radial, POINT, key, where=where)
    close(found.value, 5 * 64.0)  # of |x|^4 in two dimensions
    operator = hotk.differential_operator([({"x": (4, 0)}, 1.0), ({"x": (0, 4)}, 1.0)])
    found = hotk.estimate.differential(operator, field, POINT, key, where=where)
    close((found.value, found.error), (5 * 48.0, 0.0), atol=1e-12)


def test_where_that_selects_nothing_is_refused():
    with pytest.raises(hotk.DtypeError, match="`where=` selects none"):
        hotk.estimate.laplacian(
            field, POINT, jax.random.key(0), where=lambda a: a.ndim > 5
        )
