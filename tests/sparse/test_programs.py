"""The algebra on each kind of program, against `jax.hessian`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.sparse.programs import CONSERVATIVE, PROGRAMS, N, point


def dense(matrix):
    """Return a sparse matrix as an array, by its entries alone."""
    full = np.zeros(matrix.shape)
    np.add.at(full, (matrix.rows, matrix.cols), np.asarray(matrix.values))
    return full


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_hessian_is_that_of_jax_at_every_point(name):
    f = PROGRAMS[name]
    exact = jax.jit(jax.hessian(f))
    seen = np.zeros((N, N), bool)
    for seed in range(3):
        x = point(seed)
        expected = np.asarray(exact(x))
        H = hotk.sparse_hessian(f, x)
        scale = max(1.0, np.abs(expected).max())
        tolerance = 1e-5 if name == "other dtype" else 1e-12
        assert np.abs(dense(H) - expected).max() <= tolerance * scale
        seen |= np.abs(expected) > 1e-12
    inside = np.zeros((N, N), bool)
    inside[H.rows, H.cols] = True
    assert len(H.rows) == inside.sum()
    assert not (seen & ~inside).any()
    if name not in CONSERVATIVE:
        assert inside.sum() == seen.sum()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pattern_alone_has_all_entries(name):
    f = PROGRAMS[name]
    pattern = hotk.sparsity(f, point(0))
    inside = np.zeros((N, N), bool)
    inside[pattern.rows, pattern.cols] = True
    for seed in range(2):
        seen = np.abs(np.asarray(jax.jit(jax.hessian(f))(point(seed)))) > 1e-12
        assert not (seen & ~inside).any()
    if name not in CONSERVATIVE | {"triangular solve"}:
        assert hotk.sparse_hessian(f, point(0)).nnz == pattern.nnz


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", [hotk.Forward(), hotk.Reverse()], ids=str)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("custom_vjp",)])
def test_jacobian_of_the_gradient_is_the_hessian(name, mode):
    f = PROGRAMS[name]
    x = point(1)
    J = hotk.sparse_jacobian(jax.grad(f), x, mode=mode)
    expected = np.asarray(jax.jit(jax.hessian(f))(x))
    scale = max(1.0, np.abs(expected).max())
    tolerance = 1e-5 if name == "other dtype" else 1e-11
    assert np.abs(dense(J) - expected).max() <= tolerance * scale


def test_nan_and_infinity_change_no_pattern():
    f = PROGRAMS["roll"]
    ordinary = hotk.sparse_hessian(f, point(0)).pattern
    x = point(0).at[3].set(jnp.nan).at[7].set(jnp.inf)
    assert hotk.sparse_hessian(f, x).pattern == ordinary
    assert hotk.sparse_hessian(f, jnp.zeros(N)).pattern == ordinary
