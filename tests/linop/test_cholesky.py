"""Factorizations: what is not positive definite is refused, with a number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")


def quadratic(values, seed=0):
    n = len(values)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    A = (q * np.asarray(values, float)) @ q.T
    A = (A + A.T) / 2
    return A, hotk.HessianOperator(lambda x: x @ jnp.asarray(A) @ x / 2, np.ones(n))


def test_the_factor_is_that_of_the_matrix():
    A, H = quadratic([1.0, 3.0, 0.5, 10.0])
    L = H.cholesky()
    close(L, np.linalg.cholesky(A))
    close(H.cholesky(2.5), np.linalg.cholesky(A + 2.5 * np.eye(4)))
    close(H.cholesky(jnp.array(2.5)), np.linalg.cholesky(A + 2.5 * np.eye(4)))
    assert (np.triu(L, 1) == 0).all()


def test_a_saddle_is_refused_and_the_smallest_eigenvalue_told():
    H = hotk.HessianOperator(lambda x: x[0] ** 2 - 0.1 * x[1] ** 2, np.array([3.0, 1]))
    with pytest.raises(hotk.NotPositiveDefiniteError) as error:
        H.cholesky()
    np.testing.assert_allclose(error.value.smallest, -0.2)
    text = str(error.value)
    assert "-0.2" in text
    assert "gradient's norm here is 6" in text
    assert "damping=" in text
    assert isinstance(error.value, ValueError)
    np.testing.assert_allclose(H.cholesky(0.21), np.diag(np.sqrt([2.21, 0.01])))
    with pytest.raises(hotk.NotPositiveDefiniteError) as error:
        H.cholesky(0.1)
    np.testing.assert_allclose(error.value.smallest, -0.1)


@pytest.mark.parametrize("values", [[0.0, 1.0], [1e-18, 1.0], [-1e-18, 1.0], [0.0, 0]])
def test_what_is_singular_up_to_rounding_is_refused(values):
    _, H = quadratic(values)
    with pytest.raises(hotk.NotPositiveDefiniteError):
        H.cholesky()


def test_what_is_not_finite_is_refused():
    H = hotk.HessianOperator(lambda x: jnp.sum(jnp.log(x) * x), np.array([1.0, -1.0]))
    H = H + hotk.Diagonal(np.array([1.0, np.nan]))
    with pytest.raises(hotk.NotPositiveDefiniteError) as error:
        H.cholesky()
    assert np.isnan(error.value.smallest)


def test_inside_of_a_transformation_the_factor_is_nan():
    f = lambda x, c: x[0] ** 2 + c * x[1] ** 2
    factor = jax.jit(lambda c: hotk.HessianOperator(f, np.ones(2), c).cholesky())
    close(factor(2.0), np.diag(np.sqrt([2.0, 4.0])))
    assert np.isnan(factor(-1.0)).any()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], (3, 0, 0)),
        ([-1.0, 2.0, 0.0, 5.0], (2, 1, 1)),
        ([-1.0, -2.0], (0, 0, 2)),
        ([0.0, 0.0], (0, 2, 0)),
        ([1e-20, 1.0, -1e-3], (1, 1, 1)),
    ],
)
def test_inertia_counts_the_signs(values, expected):
    _, H = quadratic(values)
    assert tuple(int(count) for count in H.inertia()) == expected
    assert tuple(int(count) for count in jax.jit(lambda H: H.inertia())(H)) == expected
