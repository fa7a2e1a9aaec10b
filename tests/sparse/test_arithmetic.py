"""Sums, differences and multiples of sparse matrices against dense NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from tests.helpers import close
from tests.sparse.matrices import scattered


RNG = np.random.default_rng(2)


def test_sums_and_differences():
    A, a = scattered(RNG, 6, 5, 10)
    B, b = scattered(RNG, 6, 5, 10)
    close((A + B).todense(), a + b)
    close((A - B).todense(), a - b)
    close((-A).todense(), -a)
    close((A + scipy.sparse.csr_array(b)).todense(), a + b)
    close(sum([A, B], start=-A).todense(), b, atol=1e-15)
    C = A + A
    assert C.pattern is A.pattern
    close(C.todense(), 2 * a)


def test_a_sum_that_adds_no_position_keeps_the_pattern():
    A, a = scattered(RNG, 5, 5, 25)
    A = A + hotk.sparse.identity(5)
    damped = A + 0.5 * hotk.sparse.identity(A)
    assert damped.pattern == A.pattern
    close(damped.todense(), a + 1.5 * np.eye(5))
    again = hotk.sparse.identity(A) + A
    assert again.pattern == A.pattern


def test_a_sum_of_one_pattern_is_derived_once():
    A, _ = scattered(RNG, 6, 6, 10)
    B, _ = scattered(RNG, 6, 6, 10)
    assert (A + B).pattern is (A + 2.0 * B).pattern


def test_multiples_keep_the_dtype():
    A, a = scattered(RNG, 4, 4, 8, np.float32)
    for got in (2 * A, A * 2.0, 2.0 * A, A / 0.5):
        assert got.dtype == np.float32
        close(got.todense(), 2 * a)
    assert (np.float64(2) * A).dtype == np.float64
    assert (1j * A).dtype == np.complex64
    close((jnp.asarray(2.0) * A).todense(), 2.0 * a.astype(float))


def test_products_of_matrices():
    A, a = scattered(RNG, 6, 4, 11)
    B, b = scattered(RNG, 4, 7, 13)
    close((A @ B).todense(), a @ b, rtol=1e-12, atol=1e-15)
    J, j = scattered(RNG, 9, 5, 20)
    d = RNG.uniform(1, 2, 9)
    gram = J.T @ hotk.sparse.diagonal(d) @ J
    close(gram.todense(), j.T @ np.diag(d) @ j, rtol=1e-12, atol=1e-15)
    gradient = jax.grad(lambda J: (J.T @ J).values.sum())(J)
    expected = 2 * np.outer(np.ones(9), np.zeros(5))
    both = (j != 0).astype(float)
    expected = 2 * (j @ np.ones((5, 5))) * both
    close(gradient.values, expected[J.rows, J.cols], rtol=1e-12)


def test_products_of_empty_matrices():
    A = hotk.SparseMatrix(np.zeros(0), hotk.sparse.Pattern([], [], (3, 2)))
    B, _ = scattered(RNG, 2, 4, 5)
    assert (A @ B).nnz == 0
    close(A @ np.ones(2), np.zeros(3))
    assert (A + A).nnz == 0


def test_what_would_be_dense_says_what_to_write():
    A, _ = scattered(RNG, 3, 3, 5)
    for other in (2.0, np.ones((3, 3)), jnp.ones(3)):
        with pytest.raises(TypeError, match=r"hotk.sparse.identity\(A\)"):
            A + other
        with pytest.raises(TypeError, match=r"hotk.sparse.identity\(A\)"):
            other - A
    for factor in (np.ones(3), jnp.ones((3, 3))):
        with pytest.raises(TypeError, match=r"hotk.sparse.diagonal\(d\) @ A"):
            A * factor
    with pytest.raises(TypeError):
        A + "text"


def test_shapes_that_do_not_fit():
    A, _ = scattered(RNG, 3, 4, 5)
    B, _ = scattered(RNG, 3, 3, 5)
    with pytest.raises(hotk.StructureError, match="do not fit together"):
        A + B
    with pytest.raises(hotk.StructureError, match="do not fit together"):
        A @ B
    with pytest.raises(hotk.StructureError, match="its transpose"):
        A @ np.ones(3)


def test_identities_of_trees():
    tree = {"a": jnp.ones(2), "b": jnp.ones((), jnp.float32)}
    close(hotk.sparse.identity(tree) @ tree, jax.tree.map(np.asarray, tree))
    assert hotk.sparse.identity(3, np.float32).dtype == np.float32


def test_what_is_derived_of_two_patterns_depends_on_all_of_them():
    """Symmetry and trees of the second one too: a sum is no sum of another pair."""
    one = hotk.sparse.identity(2)
    rows, cols = [0, 0, 1, 1], [0, 1, 0, 1]
    symmetric = hotk.SparseMatrix.from_coo(
        [1.0, 2, 2, 3], rows, cols, (2, 2), symmetric=True
    )
    other = hotk.SparseMatrix.from_coo([1.0, 2, 5, 3], rows, cols, (2, 2))
    assert (one + symmetric).symmetric
    sum_ = one + other
    assert not sum_.symmetric
    close(sum_.T.todense(), np.array([[2.0, 5.0], [2.0, 4.0]]))

    tree = {"a": jnp.array([1.0]), "b": jnp.array([2.0])}
    in_trees, in_arrays = hotk.sparse.diagonal(tree), hotk.sparse.diagonal(np.ones(2))
    assert in_trees.pattern.digest == in_arrays.pattern.digest
    assert (other @ in_trees).pattern.input.keys() == tree.keys()
    close((other @ in_arrays) @ np.ones(2), np.array([3.0, 8.0]))
    assert (other @ in_arrays).pattern.input.shape == (2,)


def test_a_sum_has_the_trees_of_the_matrix_that_has_some():
    tree = {"a": jnp.array([1.0]), "b": jnp.array([2.0])}
    D = hotk.sparse.diagonal(tree)
    for total in (D + hotk.sparse.identity(2), hotk.sparse.identity(2) + D):
        close((total @ tree)["b"], np.array([6.0]))


def test_matrices_of_scipy_and_sums_from_zero():
    A, a = scattered(RNG, 4, 4, 8)
    close((A @ scipy.sparse.csr_array(a)).todense(), a @ a, rtol=1e-12)
    close(sum([A, A]).todense(), 2 * a)


def test_the_identity_of_complex_numbers():
    z = jnp.array([1.0 + 2.0j, -3.0j])
    close(hotk.sparse.identity(z) @ z, np.asarray(z))


def test_integers_become_floating():
    for values in ([1, 2], np.array([1, 2]), jnp.array([1, 2])):
        A = hotk.SparseMatrix.from_coo(values, [0, 1], [0, 1])
        assert A.dtype == jnp.asarray(1.0).dtype
    with pytest.raises(TypeError, match="no integers"):
        hotk.SparseMatrix.from_coo([1.0], [0.5], [0])


def test_a_symmetric_matrix_has_both_halves():
    with pytest.raises(hotk.StructureError, match="give both halves"):
        hotk.SparseMatrix.from_coo([1.0, 2.0], [0, 0], [0, 1], (2, 2), symmetric=True)
    with pytest.raises(hotk.StructureError, match="mirror image"):
        hotk.sparse.Pattern([0], [0], (1, 2), symmetric=True)
    with pytest.raises(hotk.StructureError, match="32 bits"):
        hotk.SparseMatrix.from_coo([1.0], [3 * 10**9], [0])
