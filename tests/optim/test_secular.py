"""Minimizers of quadratic models by sparse factors, against eigenvectors of NumPy."""

import numpy as np
import pytest
import scipy.optimize

from hotk import SparseMatrix, sparse
from hotk.optim import _secular
from tests.sparse.matrices import scattered


def problem(seed, n, *, hard):
    """Return a random sparse matrix, its dense form, and a gradient.

    In the hard case the gradient has no part along the lowest eigenvectors.
    """
    rng = np.random.default_rng(seed)
    A, dense = scattered(rng, n, n, 2 * n, np.float64, symmetric=True)
    if seed % 3 == 0:
        A, dense = A + 10.0 * sparse.identity(n), dense + 10 * np.eye(n)
    g = rng.normal(size=n)
    if hard:
        values, vectors = np.linalg.eigh(dense)
        lowest = vectors[:, abs(values - values[0]) < 1e-12]
        g -= lowest @ (lowest.T @ g)
    return sparse.Shifted(A.pattern, A.values), dense, g


def lowest_model(dense, g, radius):
    """Return the least value of the model in a region: its dual, which is concave."""
    values, vectors = np.linalg.eigh(dense)
    c = vectors.T @ g

    def dual(shift):
        shifted = values + shift
        terms = np.where(abs(c) > 1e-14, c**2 / np.maximum(shifted, 1e-300), 0.0)
        return terms.sum() / 2 + shift * radius**2 / 2

    low = max(0.0, -values[0])
    high = low + np.linalg.norm(g) / radius + abs(values).max() + 1
    at = scipy.optimize.minimize_scalar(
        dual, bounds=(low, high), method="bounded", options={"xatol": 1e-13}
    )
    return -min(at.fun, dual(low + 1e-13 * (1 + low)))


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("radius", [0.03, 1.0, 40.0])
def test_in_a_region(radius, hard):
    for seed in range(12):
        shifted, dense, g = problem(seed, 4 + seed, hard=hard)
        found = _secular.minimizer(shifted, g, _secular.Region(radius))
        model = g @ found.s + found.s @ dense @ found.s / 2
        assert np.linalg.norm(found.s) <= radius * (1 + 1e-8)
        expected = lowest_model(dense, g, radius)
        np.testing.assert_allclose(model, expected, rtol=1e-6, atol=1e-12)
        assert found.lowest >= np.linalg.eigvalsh(dense)[0] - 1e-9
        assert found.factorizations < 60


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("weight", [0.01, 1.0, 50.0])
def test_with_a_cubic_term(weight, hard):
    """The conditions that are necessary and sufficient for a global minimizer."""
    for seed in range(12):
        shifted, dense, g = problem(seed, 4 + seed, hard=hard)
        found = _secular.minimizer(shifted, g, _secular.Cubic(weight))
        size = weight * np.linalg.norm(found.s)
        slope = g + dense @ found.s + size * found.s
        assert np.linalg.norm(slope) <= 1e-6 * np.linalg.norm(g)
        values = np.linalg.eigvalsh(dense)
        assert values[0] + size >= -1e-6 * abs(values).max()


def test_no_pivot_on_the_diagonal():
    """Each matrix [[t, 1], [1, t]] with t < 1 is indefinite, and t = 0 has no pivot."""
    A = SparseMatrix.from_coo([1.0, 1.0], [0, 1], [1, 0], symmetric=True)
    shifted = sparse.Shifted(A.pattern, A.values)
    found = _secular.minimizer(shifted, np.array([1.0, 1.0]), _secular.Region(2.0))
    # along (1, -1), where the curvature is -1, after a part of the step along (1, 1)
    model = found.s.sum() + found.s[0] * found.s[1]
    expected = lowest_model(np.array([[0.0, 1], [1, 0]]), np.ones(2), 2.0)
    np.testing.assert_allclose(model, expected, rtol=1e-7)
