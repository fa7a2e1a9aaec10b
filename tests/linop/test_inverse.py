"""`A.inverse()` against the inverse of NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


ROWS = np.random.default_rng(0).normal(size=(6, 6))
MATRIX = ROWS @ ROWS.T + np.eye(6)
POINT = {"u": jnp.zeros(2), "v": jnp.zeros((2, 2))}
METHODS = ("cholesky", "solve")


def quadratic(a):
    flat = lambda p: jnp.concatenate([p["u"], p["v"].ravel()])
    return lambda p: flat(p) @ jnp.asarray(a) @ flat(p) / 2


@pytest.fixture(scope="module")
def H():
    return hotk.HessianOperator(quadratic(MATRIX), POINT)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", METHODS)
def test_products_matrix_and_diagonal(H, method):
    inverse = H.inverse(0.5, method)
    expected = np.linalg.inv(MATRIX + 0.5 * np.eye(6))
    close(inverse.matrix(), expected)
    close(H.flat(inverse.diagonal()), np.diag(expected))
    close(inverse @ np.arange(6.0), expected @ np.arange(6.0))
    v = {"u": jnp.ones(2), "v": jnp.zeros((2, 2))}
    close(H.flat(inverse @ v), expected[:, :2].sum(axis=1))
    close(inverse.block("u", "v"), expected[:2, 2:])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", METHODS)
def test_it_is_an_operator_like_others(H, method):
    inverse = H.inverse(method=method)
    expected = np.linalg.inv(MATRIX)
    close((H + 2 * inverse).matrix(), MATRIX + 2 * expected)
    close(jax.jit(lambda A, v: A @ v)(inverse, np.ones(6)), expected.sum(axis=1))
    rows = {"u": jnp.eye(6)[:, :2], "v": jnp.eye(6)[:, 2:].reshape(6, 2, 2)}
    for block_size in (None, 2):
        close(inverse.many(rows, block_size)["u"], expected[:, :2])
    found = hotk.estimate.trace(inverse, jax.random.key(0), samples=6)
    close(found.value, np.trace(expected))
    assert repr(inverse) == f"Inverse(dict of f64[2], f64[2,2], n=6, {method})"


def test_by_iteration_it_may_be_indefinite():
    f = lambda x: x[0] ** 2 - 2 * x[1] ** 2 + x[2] ** 2 / 4
    inverse = hotk.HessianOperator(f, jnp.ones(3)).inverse(method="solve")
    close(inverse @ jnp.ones(3), np.array([0.5, -0.25, 2.0]))


def test_what_cannot_be_inverted_is_said():
    flat = hotk.HessianOperator(lambda x: jnp.sum(x) ** 2, jnp.ones(3))
    with pytest.raises(hotk.NotPositiveDefiniteError):
        flat.inverse()
    # An error of the run: JAX has no other one inside of a compiled program.
    with pytest.raises(eqx.EquinoxRuntimeError, match="did not converge"):
        flat.inverse(method="solve") @ jnp.array([1.0, -1.0, 0.0])
    close(flat.inverse(damping=2.0) @ jnp.ones(3), np.full(3, 1 / 8))


def test_what_is_no_inverse_is_refused(H, as_user):
    with pytest.raises(TypeError, match="symmetric"):
        (H @ (H + H)).inverse()
    with pytest.raises(ValueError, match="'lu'"):
        H.inverse(method="lu")


def test_the_inverse_over_batches_of_data():
    data = np.random.default_rng(1).normal(size=(10, 3))
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
    batches = [data[:4], data[4:8], data[8:]]
    over = hotk.HessianOperator.over(loss, jnp.ones(3), batches)
    expected = np.linalg.inv(data.T @ data / 10)
    close(over.inverse().matrix(), expected)
    by_passes = over.inverse(method="solve")
    close(by_passes @ jnp.ones(3), expected.sum(axis=1))
    close(by_passes.many(jnp.eye(3)), expected)
