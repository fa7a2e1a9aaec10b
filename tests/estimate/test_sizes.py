"""Estimates of operators so small or large that squares vanish or overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.estimate.operators import wide


KEY = jax.random.key(0)


@pytest.fixture(params=[1e-20, 1e18, 1e30])
def diagonal(request):
    return np.float32(np.linspace(1, 3, 30) * request.param)


@pytest.mark.thinned(2)
def test_a_diagonal(diagonal):
    found = wide(hotk.estimate.diagonal(hotk.Diagonal(jnp.asarray(diagonal)), KEY))
    exact = np.float64(diagonal)
    assert np.mean(np.abs(found.value - exact) <= 3 * found.error + 1e-5 * exact) > 0.9
    assert np.min(found.value) > 0


@pytest.mark.thinned(1)
def test_a_spectrum(diagonal):
    A = hotk.Diagonal(jnp.asarray(diagonal))
    found = hotk.estimate.spectrum(A, KEY, samples=4, steps=25)
    np.testing.assert_allclose(found.smallest, diagonal[0], rtol=1e-3)
    np.testing.assert_allclose(found.largest, diagonal[-1], rtol=1e-3)


@pytest.mark.thinned(2)
def test_a_logarithm(diagonal):
    A = hotk.Diagonal(jnp.asarray(diagonal))
    found = wide(hotk.estimate.logdet(A, KEY, samples=8, steps=25))
    exact = np.sum(np.log(np.float64(diagonal)))
    assert abs(found.value - exact) <= 3 * found.error < 10
