"""Factors of shifted matrices, bounds of their work, and who is sparse."""

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.sparse import Shifted, factorization_work, hessian_if_sparse
from tests.helpers import close
from tests.sparse.matrices import scattered


@pytest.mark.parametrize("seed", range(6))
def test_shifts_of_one_matrix(seed):
    A, dense = scattered(
        np.random.default_rng(seed), 15, 15, 30, np.float64, symmetric=True
    )
    shifted = Shifted(A.pattern, A.values)
    values, b = np.linalg.eigvalsh(dense), np.arange(15.0)
    assert shifted.norm >= abs(values).max()
    close(shifted.diagonal, np.diag(dense).copy())
    for shift in (-values[0] + 0.1, 20.0):
        factors = shifted.definite(shift)
        close(factors.solve(b), np.linalg.solve(dense + shift * np.eye(15), b))
    assert shifted.definite(-values[0] - 0.1) is None
    low = shifted.factors(-values[0] - 0.1)
    if low is not None and low.on_diagonal:
        p = low.direction(int(np.argmin(low.pivots)))
        form = p @ (dense + (-values[0] - 0.1) * np.eye(15)) @ p
        np.testing.assert_allclose(form, low.pivots.min(), rtol=1e-6)


def test_full_rows_come_last():
    """A hub in the first row: eliminated first, it would fill the whole matrix."""
    f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2) + x[0] * jnp.sum(x)
    x = jnp.ones(3000)
    A = hotk.sparse_hessian(f, x) + 9000.0 * hotk.sparse.identity(3000, float)
    F = A.symmetrized().factorize()
    entries = int(repr(F).split()[-2])
    assert entries < 10 * 3000
    b = np.cos(np.arange(3000))
    close(np.asarray(A.todense()) @ np.asarray(F.solve(b)), b)
    assert F.inertia() == (3000, 0, 0)
    assert factorization_work(A.symmetrized().pattern) < 20 * 3000


def test_the_work_is_an_upper_bound():
    """Of the squares of the columns of the factor: a dense and a banded one."""
    dense = hotk.sparsity(lambda x: jnp.sum(x) ** 4, jnp.ones(30))
    assert factorization_work(dense) >= sum(k**2 for k in range(1, 31))
    band = hotk.sparsity(lambda x: jnp.sum(x[3:] * x[:-3]), jnp.ones(300))
    assert 300 <= factorization_work(band) <= 300 * 16
    assert hotk.sparse.is_worth_factors(band)


def test_who_is_sparse():
    x = jnp.ones(300)
    chain = lambda x: jnp.sum(x[1:] ** 2 * x[:-1])
    assert hessian_if_sparse(chain, x).nnz == 897
    assert hessian_if_sparse(lambda x: jnp.sum(x) ** 4, x) is None
    assert (
        hessian_if_sparse(lambda x: jnp.sum(jnp.abs(x) ** 2), jnp.ones(9, complex))
        is None
    )
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(300, 300)))
    network = lambda x: jnp.sum(jnp.tanh(weights @ jnp.tanh(weights @ x)))
    assert hessian_if_sparse(network, x) is None


def test_the_mean_with_the_transpose():
    B = hotk.SparseMatrix.from_coo([1.0, 4.0, 2.0], [0, 0, 2], [0, 1, 1], (3, 3))
    dense = np.asarray(B.todense())
    assert B.symmetrized().symmetric
    close(B.symmetrized().todense(), (dense + dense.T) / 2)
    once = B.symmetrized()
    assert once.symmetrized() is once
