"""Operations whose numbers are not known: the entries that their structure allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse as jax_sparse

import hotk
from tests.sparse.test_programs import dense


N = 24
X = jnp.asarray(np.random.default_rng(4).normal(size=N))
OF_CHANNELS = jnp.asarray(np.random.default_rng(5).normal(size=(3, 1, 4)))
NEXT_TO_ALL = 3 * N - 2 + 2 * (N - 2)  # pairs with a distance of up to two
NEIGHBORS = jax_sparse.BCOO.fromdense(jnp.eye(N) + 2 * jnp.eye(N, k=1))
rows = lambda x: x.reshape(6, 4)


def _pool(x, window, step, padding="VALID", **options):
    return lax.reduce_window(
        jnp.sin(x), -jnp.inf, lax.max, window, step, padding, **options
    )


def _tridiagonal(x):
    side = jnp.full((6, 4), -0.1)
    return lax.linalg.tridiagonal_solve(
        side.at[:, 0].set(0.0),
        4 + jnp.sin(rows(x)),
        side.at[:, -1].set(0.0),
        jnp.ones((6, 4, 1)),
    )


def _per_channel(x):
    numbers = ("NHC", "HIO", "NHC")
    return lax.conv_general_dilated(
        x.reshape(1, 6, 4),
        OF_CHANNELS,
        (1,),
        "SAME",
        dimension_numbers=numbers,
        feature_group_count=4,
    )


def _gram(x):
    a = x.reshape(6, 2, 2)
    return a @ a.swapaxes(1, 2) + 3 * jnp.eye(2)[None]


# What depends on what is known by hand: six rows of four have 6 * 4 * 4 entries.
CASES = {
    "pool of pairs": (lambda x: jnp.sum(_pool(x, (2,), (2,)) ** 2), 12 * 4),
    "pool that overlaps": (
        lambda x: jnp.sum(_pool(x, (3,), (1,)) ** 3),
        NEXT_TO_ALL,
    ),
    "pool with padding": (lambda x: jnp.sum(_pool(x, (3,), (2,), "SAME") ** 3), None),
    "pool of an image": (
        lambda x: jnp.sum(_pool(rows(x), (2, 2), (2, 2)) ** 3),
        6 * 16,
    ),
    "sort of rows": (
        lambda x: jnp.sum(jnp.sort(rows(x), 1)[:, :3] ** 3),
        96,
    ),
    "sort of columns": (
        lambda x: jnp.sum(jnp.sort(rows(x), 0)[:2] ** 3),
        4 * 36,
    ),
    "largest of rows": (
        lambda x: jnp.sum(
            jnp.take_along_axis(rows(x), jnp.argmax(rows(x), 1)[:, None], 1) ** 3
        ),
        96,
    ),
    "two largest of rows": (lambda x: jnp.sum(lax.top_k(rows(x), 2)[0] ** 3), 96),
    "median of rows": (lambda x: jnp.sum(jnp.median(rows(x), 1) ** 3), 96),
    "a whole row": (
        lambda x: jnp.sum(jnp.sin(rows(x)[jnp.argmax(rows(x)[:, 0])]) ** 2),
        4 * 36,
    ),
    "set in rows": (
        lambda x: jnp.sum(
            jnp.put_along_axis(
                rows(x) ** 2, jnp.argmin(rows(x), 1)[:, None], 0.5, 1, inplace=False
            )
            * jnp.roll(rows(x), 1, 1)
        ),
        24 + 2 * 24,
    ),
    "tridiagonal systems": (lambda x: jnp.sum(_tridiagonal(x) ** 2), 96),
    "a convolution for each channel": (
        lambda x: jnp.sum(_per_channel(x) ** 3),
        4 * (6 + 2 * 5 + 2 * 4),
    ),
    "cholesky of examples": (lambda x: jnp.sum(jnp.linalg.cholesky(_gram(x))), 96),
    "fft along the first axis": (
        lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(rows(x), axis=0)) ** 4),
        4 * 36,
    ),
    "a sparse matrix of JAX": (
        lambda x: jnp.sum((NEIGHBORS @ x) ** 3),
        N + 2 * 23,
    ),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_entries_are_those_of_one_example(name):
    f, count = CASES[name]
    exact = np.asarray(jax.jit(jax.hessian(f))(X))
    H = hotk.sparse_hessian(f, X)
    assert np.abs(dense(H) - exact).max() < 1e-12 * max(1.0, np.abs(exact).max())
    assert count is None or H.nnz == count
    assert H.pattern.density < 0.5
    pattern = hotk.sparsity(f, X)
    assert set(zip(H.rows, H.cols, strict=True)) <= set(
        zip(pattern.rows, pattern.cols, strict=True)
    )
    assert pattern.nnz <= 1.5 * H.nnz


def test_a_pool_with_gaps_has_a_jacobian():
    f = lambda x: _pool(x, (2,), (1,), window_dilation=(3,))  # JAX has no reverse rule
    J = hotk.sparse_jacobian(f, X)
    assert np.allclose(dense(J), jax.jacfwd(f)(X))
    assert J.nnz == 2 * 21


def test_what_wins_among_equals_is_as_in_jax():
    f = lambda x: jnp.sum(
        lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME") ** 3
    )
    x = jnp.asarray([1.0, 1.0, 1.0, 0.0, 2.0, 2.0])
    assert np.allclose(dense(hotk.sparse_hessian(f, x)), jax.hessian(f)(x))
