"""An operator by the names that SciPy has: `shape`, `dtype`, `matvec`, `rmatvec`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator, cg, eigsh, gmres

import hotk
from tests.helpers import close


A = np.diag(np.arange(1.0, 13.0)) + 0.1 * np.ones((12, 12))
POINT = {"a": jnp.ones((2, 3)), "b": jnp.zeros(6)}


def energy(p):
    z = jnp.concatenate([p["a"].ravel(), p["b"]])
    return z @ jnp.asarray(A, z.dtype) @ z / 2


def test_eigenvalues_and_solutions_by_scipy_itself():
    H = hotk.HessianOperator(energy, POINT)
    assert H.dtype == np.float64
    found = eigsh(H, k=3, which="LA", return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(found), np.linalg.eigvalsh(A)[-3:], rtol=1e-10)
    for solver in (cg, gmres):  # the latter writes into a product
        x, failed = solver(H, np.ones(12), rtol=1e-12)
        assert not failed
        np.testing.assert_allclose(A @ x, np.ones(12), rtol=1e-9)


def test_products_are_flat_arrays_of_numpy(as_user):
    small = hotk.HessianOperator(energy, jax.tree.map(jnp.float32, POINT))
    assert small.dtype == np.float32
    v = np.arange(12.0)
    wrapped = aslinearoperator(small)
    assert wrapped.dtype == np.float32
    for product in (wrapped.matvec(v), wrapped.rmatvec(v)):
        assert isinstance(product, np.ndarray)
        np.testing.assert_allclose(product, A @ v, rtol=1e-5)
    # SciPy before 1.20 may give a matrix of one column.
    for given in (v, v[:, None]):
        close(small.matvec(given), np.asarray(small @ jnp.asarray(v, jnp.float32)))


def test_what_is_no_vector_or_has_no_transpose_is_refused(as_user):
    H = hotk.HessianOperator(energy, POINT)
    with pytest.raises(hotk.StructureError, match=r"A\.matvec"):
        H.matvec(np.ones(11))
    product = H @ hotk.Diagonal(jax.tree.map(jnp.ones_like, POINT))
    with pytest.raises(TypeError, match="not known to be symmetric"):
        product.rmatvec(np.ones(12))


def test_an_operator_over_batches_is_taken_too():
    loss = lambda x, rows: jnp.mean((rows @ x) ** 2) / 2
    rows = np.random.default_rng(0).normal(size=(20, 12))
    H = hotk.HessianOperator.over(loss, jnp.zeros(12), [rows[:15], rows[15:]])
    found = eigsh(H, k=2, which="LA", return_eigenvectors=False)
    expected = np.linalg.eigvalsh(rows.T @ rows / 20)[-2:]
    np.testing.assert_allclose(np.sort(found), expected, rtol=1e-9)
