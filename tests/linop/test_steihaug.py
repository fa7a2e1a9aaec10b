"""The trust-region step, against the exact minimizer in the region."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import Reason, steihaug
from tests.helpers import close


def problem(seed, n, lowest):
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.normal(size=(n, n)))
    values = np.append(lowest, random.uniform(0.5, 5.0, n - 1))
    return (q * values) @ q.T, random.normal(size=n)


def operator(matrix):
    a = jnp.asarray(matrix)
    return hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(len(a), a.dtype))


def model(A, g, x):
    return g @ x + x @ A @ x / 2


def cauchy(A, g, radius):
    """The minimizer along the steepest descent within the region."""
    curvature, size = g @ A @ g, np.linalg.norm(g)
    share = 1.0 if curvature <= 0 else min(1.0, size**3 / (radius * curvature))
    return -share * radius / size * g


def exact(A, g, radius):
    """The global minimizer in the region, by bisection for its multiplier."""
    values, vectors = np.linalg.eigh(A)
    c = vectors.T @ g
    step = lambda shift: -vectors @ (c / (values + shift))
    if values[0] > 0 and np.linalg.norm(step(0.0)) <= radius:
        return step(0.0)
    low = max(0.0, -values[0]) + 1e-14
    high = low + 10 * np.linalg.norm(g) / radius + 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if (np.linalg.norm(step(middle)) > radius) else (low, middle)
        )
    return step(high)


each_problem = pytest.mark.parametrize("lowest", [0.4, 0.0, -1.0, -20.0])


@pytest.mark.thinned(2)
@each_problem
@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_stays_inside_and_does_no_worse_than_steepest_descent(seed, radius, lowest):
    A, g = problem(seed, 12, lowest)
    found = steihaug(operator(A), g, radius, tol=1e-12)
    x = np.asarray(found.x)
    assert np.linalg.norm(x) <= radius * (1 + 1e-12)
    np.testing.assert_allclose(found.model, model(A, g, x), rtol=1e-9)
    best = model(A, g, exact(A, g, radius))
    assert best - 1e-9 <= found.model
    assert found.model <= model(A, g, cauchy(A, g, radius)) + 1e-12
    if lowest > 0:  # Yuan (2000): at least half of the best decrease
        assert found.model <= best / 2


@pytest.mark.thinned(1)
@each_problem
def test_in_two_dimensions_no_point_of_a_grid_is_twice_as_good_if_convex(lowest):
    A, g = problem(4, 2, lowest)
    found = steihaug(operator(A), g, 0.7, tol=1e-12)
    angles = np.linspace(0, 2 * np.pi, 721)
    points = np.stack([np.cos(angles), np.sin(angles)])
    grid = [model(A, g, r * p) for r in np.linspace(0, 0.7, 71) for p in points.T]
    share = 0.5 if lowest >= 0 else 0.0
    assert min(grid) - 1e-3 <= found.model <= share * min(grid)


def test_inside_of_the_region_it_is_the_newton_step():
    A, g = problem(1, 10, 0.5)
    newton = -np.linalg.solve(A, g)
    found = steihaug(operator(A), g, 1.01 * np.linalg.norm(newton), tol=1e-13)
    assert found.reason == Reason.converged
    assert found.converged
    np.testing.assert_allclose(found.x, newton, rtol=1e-9)


def test_where_the_newton_step_leaves_the_region_it_ends_on_the_boundary():
    A, g = problem(1, 10, 0.5)
    radius = 0.3 * np.linalg.norm(np.linalg.solve(A, g))
    found = steihaug(operator(A), g, radius, tol=1e-13)
    assert found.reason == Reason.boundary
    np.testing.assert_allclose(np.linalg.norm(found.x), radius, rtol=1e-12)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("lowest", [0.0, -1.0, -20.0])
def test_negative_curvature_is_followed_to_the_boundary(lowest):
    A, g = np.diag([lowest, lowest, 2.0]), np.array([1.0, -1.0, 0.0])
    found = steihaug(operator(A), g, 3.0)
    assert found.reason == Reason.negative_curvature
    close(found.x, -3.0 * g / np.sqrt(2))
    p = np.asarray(found.direction)
    assert p @ A @ p <= 0
    assert not found.definite


def test_a_tiny_radius_gives_steepest_descent():
    A, g = problem(2, 8, -3.0)
    found = steihaug(operator(A), g, 1e-9)
    np.testing.assert_allclose(found.x, -1e-9 * g / np.linalg.norm(g), rtol=1e-6)


def test_without_a_gradient_there_is_no_step():
    found = steihaug(operator(np.diag([1.0, -1.0])), np.zeros(2), 1.0)
    assert found.converged
    assert found.x.tolist() == [0.0, 0.0]


@pytest.mark.thinned(1)
@each_problem
@pytest.mark.parametrize("radius", [0.1, 1.0, 100.0])
def test_with_a_preconditioner_the_region_is_an_ellipsoid(radius, lowest):
    """It is the step in the variables in which the region is a ball."""
    A, g = problem(3, 9, lowest)
    m = np.linspace(0.5, 4.0, 9)
    root = np.sqrt(m)
    found = steihaug(operator(A), g, radius, preconditioner=hotk.Diagonal(m), tol=1e-13)
    x = np.asarray(found.x)
    assert np.sqrt(x @ (x / m)) <= radius * (1 + 1e-10)
    inner = steihaug(operator(root[:, None] * A * root), root * g, radius, tol=1e-13)
    np.testing.assert_allclose(x, root * np.asarray(inner.x), rtol=1e-6, atol=1e-9)
    scaled, slope = root[:, None] * A * root, root * g
    assert found.model <= model(scaled, slope, cauchy(scaled, slope, radius)) + 1e-12


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_tiny_and_huge_gradients_are_no_special_case(size):
    A, g = problem(1, 5, -2.0)
    A, g = A.astype(np.float32), g.astype(np.float32)
    one = steihaug(operator(A), g, 1.5)
    other = steihaug(operator(A), np.float32(size) * g, np.float32(size) * 1.5)
    assert other.reason == one.reason
    np.testing.assert_allclose(other.x / np.float32(size), one.x, rtol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_a_success(bad):
    found = steihaug(operator(np.eye(2)), np.array([1.0, bad]), 1.0)
    assert found.reason == Reason.not_finite
    found = steihaug(operator(np.diag([1.0, bad])), np.ones(2), 1.0)
    assert found.reason == Reason.not_finite
    assert np.isfinite(found.x).all()


@pytest.mark.exhaustive
def test_the_radius_may_be_mapped_over():
    A, g = problem(1, 6, -1.0)
    radii = jnp.array([0.1, 1.0, 2.0])
    H = operator(A)
    found = jax.jit(jax.vmap(lambda r: steihaug(H, jnp.asarray(g), r).x))(radii)
    np.testing.assert_allclose(jnp.linalg.norm(found, axis=1), radii, rtol=1e-10)


def test_a_tree_of_complex_and_real_leaves():
    f = lambda x: jnp.sum(jnp.abs(x["z"]) ** 2) * 2 - jnp.sum(x["r"] ** 2)
    x = {"r": np.array([1.0, 2.0]), "z": np.array([1 + 1j])}
    H = hotk.HessianOperator(f, x)
    found = steihaug(H, H.gradient, 1.0)
    norm = np.sqrt(np.sum(np.abs(found.x["z"]) ** 2) + np.sum(found.x["r"] ** 2))
    np.testing.assert_allclose(norm, 1.0, rtol=1e-12)
    assert found.model < 0
