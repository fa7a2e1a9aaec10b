"""Colorings: every entry is recovered exactly, from few products."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from hotk.sparse import Pattern, color
from tests.helpers import close
from tests.sparse.matrices import scattered


def recovered(A, coloring):
    """Multiply with the directions, and read the entries off."""
    compressed = (A @ coloring.directions().T).T
    row_compressed = (A.T @ coloring.row_directions().T).T
    return coloring.entries(compressed, row_compressed)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "not"])
@pytest.mark.parametrize("seed", range(8))
def test_random_patterns_are_recovered_to_the_last_bit(seed, symmetric):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 40))
    n = m if symmetric else int(rng.integers(1, 40))
    A, _ = scattered(rng, m, n, int(rng.integers(0, 4 * m)), symmetric=symmetric)
    if seed % 3 == 0:  # a full row, and a full column
        row = np.r_[np.full(n, m // 2), np.arange(m)]
        col = np.r_[np.arange(n), np.full(m, n // 2)]
        full = hotk.SparseMatrix.from_coo(np.ones(m + n), row, col, (m, n))
        pattern = (A + full + full.T if symmetric else A + full).pattern
        A = hotk.SparseMatrix(
            rng.normal(size=pattern.nnz),
            Pattern(pattern.rows, pattern.cols, (m, n), symmetric=symmetric),
        )
        if symmetric:
            A = hotk.SparseMatrix(
                A.values + A.values[A.pattern.transposed()[1]], A.pattern
            )
    coloring = color(A.pattern)
    np.testing.assert_array_equal(recovered(A, coloring), A.values)
    assert coloring.count <= n + 1


def chain(n):
    parts = [np.ones(n - 1), np.ones(n), np.ones(n - 1)]
    return scipy.sparse.diags_array(parts, offsets=[-1, 0, 1])


def pattern_of(matrix, symmetric=True):
    return hotk.SparseMatrix.from_scipy(matrix, symmetric=symmetric).pattern


def test_counts_known_by_hand():
    """A chain: three. An arrow: two. A diagonal: one. A full matrix: its size."""
    n = 50
    arrow = np.eye(n)
    arrow[0] = arrow[:, 0] = 1
    for matrix, count in (
        (chain(n), 3),
        (scipy.sparse.coo_array(arrow), 2),
        (scipy.sparse.eye_array(n), 1),
        (scipy.sparse.coo_array(np.ones((7, 7))), 7),
        (scipy.sparse.coo_array((3, 3)), 0),
    ):
        assert color(pattern_of(matrix)).count == count
    # as Jacobians: the arrow needs a product of the transpose
    coloring = color(pattern_of(scipy.sparse.coo_array(arrow), symmetric=False))
    assert coloring.count == 3
    assert (coloring.row_count == 1) != (coloring.column_count == 1)
    one_row = color(pattern_of(scipy.sparse.coo_array(np.ones((1, 30))), False))
    assert (one_row.column_count, one_row.row_count) == (0, 1)


def test_a_star_coloring_needs_fewer_than_columns_without_common_rows():
    rng = np.random.default_rng(0)
    A, _ = scattered(rng, 800, 800, 1600, symmetric=True)
    as_jacobian = Pattern(A.rows, A.cols, A.shape)
    assert color(A.pattern).count < color(as_jacobian).count


def test_large_with_a_full_row_in_less_than_a_second():
    n = 100_000
    numbers = np.arange(n)
    rows, cols = np.r_[0 * numbers, numbers], np.r_[numbers, 0 * numbers]
    hub = scipy.sparse.coo_array((np.ones(2 * n), (rows, cols)), shape=(n, n))
    pattern = pattern_of(chain(n) + hub)
    before = time.process_time()
    coloring = color(pattern)
    assert time.process_time() - before < 1
    assert coloring.count == 4


def test_a_dense_pattern_is_not_searched_for_ever():
    n = 900
    before = time.process_time()
    assert color(pattern_of(scipy.sparse.coo_array(np.ones((n, n))))).count == n
    assert time.process_time() - before < 20


def test_inside_of_jit_and_with_a_hessian_of_jax():
    f = lambda x: jnp.sum(x[1:] ** 2 * x[:-1]) + x[0] * jnp.sum(x**3)
    x = jnp.linspace(0.5, 1.5, 9)
    dense = np.asarray(jax.hessian(f)(x))
    rows, cols = np.nonzero(dense)
    coloring = color(Pattern(rows, cols, (9, 9), symmetric=True))

    @jax.jit
    def values(x):
        push = lambda v: jax.jvp(jax.grad(f), (x,), (v,))[1]
        return coloring.entries(jax.vmap(push)(coloring.directions()))

    close(values(x), dense[rows, cols], rtol=1e-12)
    assert coloring.count < 9


def test_it_is_kept_with_the_pattern_and_says_what_is_missing():
    pattern = pattern_of(scipy.sparse.coo_array(np.ones((1, 30))), False)
    coloring = color(pattern)
    assert color(pattern) is coloring
    with pytest.raises(TypeError, match="row_compressed"):
        coloring.entries(jnp.zeros((0, 1)))
    assert repr(coloring).startswith("Coloring(0 products and 1 of the transpose, ")
