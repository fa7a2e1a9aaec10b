"""The matrix, parts of it, its diagonal."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from tests.helpers import close


X = {
    "w": [np.array([[0.5, -1.0], [2.0, 1.5]]), np.array([1.0, 0.25, -0.5])],
    "b": np.array(0.75),
    "w2": np.array([3.0, -2.0]),
}


def mixed(x):
    first, second = x["w"]
    inner = jnp.sum(jnp.sin(first)) * jnp.sum(second**3) + x["b"] ** 3
    return inner * jnp.prod(x["w2"]) + jnp.exp(x["b"] * second[0])


def dense(f, x):
    flat, unravel = ravel_pytree(x)
    return np.asarray(jax.jit(jax.hessian(lambda flat: f(unravel(flat))))(flat))


@functools.cache  # when it is needed: each process of a run reads this file
def mixed_matrix():
    return dense(mixed, X)


RANGES = {
    "b": slice(0, 1),
    "w/0": slice(1, 5),
    "w/1": slice(5, 8),
    "w2": slice(8, 10),
    "w": slice(1, 8),
    "['w'][1]": slice(5, 8),
    "['w']": slice(1, 8),
    "": slice(0, 10),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block_size", [None, 1, 3, 10])
def test_the_matrix_is_that_of_the_raveled_function(block_size):
    H = hotk.HessianOperator(mixed, X)
    close(H.matrix(block_size), mixed_matrix())
    assert H.shape == (10, 10)
    assert H.size == 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_matrix_is_symmetric_to_the_last_bit(dtype):
    A = np.random.default_rng(0).normal(size=(40, 40))
    a = jnp.asarray(A, dtype)
    f = lambda x: jax.nn.logsumexp(a @ jnp.tanh(a @ x))
    H = hotk.HessianOperator(f, jnp.full(40, 0.01, dtype))
    matrix = np.asarray(H.matrix())
    assert matrix.dtype == H.x.dtype
    assert matrix.tobytes() == matrix.T.copy().tobytes()
    raw = np.asarray(jax.hessian(f)(jnp.full(40, 0.01, dtype)))
    assert raw.tobytes() != raw.T.copy().tobytes()


@pytest.mark.parametrize(("path", "expected"), RANGES.items(), ids=repr)
def test_the_index_finds_leaves_and_subtrees(path, expected):
    assert hotk.HessianOperator(mixed, X).index[path] == expected


def test_the_index_lists_and_shows_the_leaves():
    index = hotk.HessianOperator(mixed, X).index
    assert list(index) == ["b", "w/0", "w/1", "w2"]
    assert dict(index.items()) == {name: RANGES[name] for name in index}
    assert len(index) == 4
    assert "5:8" in repr(index)


def test_the_index_of_a_list_and_of_a_model():
    f = lambda x: jnp.sum(x[0] ** 2) * x[1]
    index = hotk.HessianOperator(f, [np.ones(2), 3.0]).index
    assert index[0] == index["0"] == index["[0]"] == slice(0, 2)
    assert index[1] == slice(2, 3)
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    index = hotk.HessianOperator(lambda m: m(jnp.ones(2))[0] ** 2, model).index
    assert index[".layers[1].weight"] == index["layers/1/weight"] == slice(9, 12)
    assert index[".layers[0]"] == index["layers/0"] == slice(0, 9)


@pytest.mark.parametrize("path", ["c", "w/2", "w/", "['w'][2]", "w/0/1", 7, "layers"])
def test_an_unknown_path_is_an_error_that_lists_the_paths(path):
    H = hotk.HessianOperator(mixed, X)
    with pytest.raises(KeyError, match=r"b\W+w/0\W+w/1\W+w2"):
        H.index[path]
    if isinstance(path, str):
        with pytest.raises(KeyError, match="w/0"):
            H.block("b", path)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize(
    ("row", "column"),
    [("b", "w"), ("w", "b"), ("w/1", "w/1"), ("w2", "['w'][1]"), ("", "w2"), ("w", "")],
)
def test_a_block_is_that_part_of_the_matrix(row, column, block_size):
    got = hotk.HessianOperator(mixed, X).block(row, column, block_size)
    close(got, mixed_matrix()[RANGES[row], RANGES[column]])


def test_a_block_of_an_operator_that_is_not_symmetric():
    H = hotk.HessianOperator(mixed, X)
    _, unravel = ravel_pytree(X)
    scale = np.arange(1.0, 11.0)
    product = hotk.Diagonal(unravel(jnp.asarray(scale))) @ H
    expected = scale[:, None] * mixed_matrix()
    close(product.matrix(), expected)
    close(product.block("b", "w"), expected[0:1, 1:8])
    close(product.block("w", "b"), expected[1:8, 0:1])


@pytest.mark.exhaustive
def test_leaves_of_two_precisions():
    x = {
        "a": jnp.array([1.0, -2.0], jnp.float32),
        "b": jnp.array([0.5, 2.0, 1.0], jnp.bfloat16),
    }
    f = lambda x: jnp.sum(x["a"] ** 3) * jnp.sum(x["b"].astype(jnp.float32) ** 2)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float64), x)
    expected = dense(lambda x: jnp.sum(x["a"] ** 3) * jnp.sum(x["b"] ** 2), wide)
    H = hotk.HessianOperator(f, x)
    assert H.matrix().dtype == jnp.float32
    np.testing.assert_allclose(H.matrix(), expected, rtol=2e-2)
    np.testing.assert_allclose(H.block("b", "a"), expected[2:, :2], rtol=2e-2)
    diagonal = H.diagonal()
    assert jax.tree.map(lambda a: a.dtype, diagonal) == {
        "a": jnp.float32,
        "b": jnp.bfloat16,
    }
    got = np.concatenate([np.asarray(a, np.float64) for a in diagonal.values()])
    np.testing.assert_allclose(got, np.diag(expected), rtol=2e-2)
    flat = H @ jnp.ones(5, jnp.float32)
    assert flat.dtype == jnp.float32
    np.testing.assert_allclose(flat, expected.sum(axis=1), rtol=2e-2)


def test_empty_leaves_have_no_rows():
    x = {"a": np.ones(2), "b": np.ones((0, 3)), "c": np.array(2.0)}
    H = hotk.HessianOperator(lambda x: jnp.sum(x["a"] ** 3) * x["c"], x)
    expected = np.array([[12.0, 0.0, 3.0], [0.0, 12.0, 3.0], [3.0, 3.0, 0.0]])
    close(H.matrix(), expected)
    assert H.block("b", "a").shape == (0, 2)
    close(H.block("a", "c"), expected[:2, 2:])
    close(H.diagonal()["a"], np.array([12.0, 12.0]))


@pytest.fixture
def small_budget():
    hotk.set_memory_budget(10**6)
    yield
    hotk.set_memory_budget(None)


@pytest.mark.usefixtures("small_budget", "as_user")
def test_more_than_the_budget_is_refused_before_it_is_made():
    x = {"w": jnp.ones(100_000), "b": jnp.ones(10)}
    H = hotk.HessianOperator(lambda x: jnp.sum(x["w"]) ** 2 * jnp.sum(x["b"] ** 2), x)
    for call in (H.matrix, H.cholesky, H.inertia, lambda: H.block("w", "b")):
        with pytest.raises(hotk.TooLargeError, match=r"at most 1000000 bytes"):
            call()
    assert H.block("b", "b").shape == (10, 10)
    assert H.block("b", "b").sum() > 0


@pytest.mark.parametrize("block_size", [None, 1, 3, 10])
def test_the_diagonal_is_that_of_the_matrix(block_size):
    got = hotk.HessianOperator(mixed, X).diagonal(block_size)
    flat, _ = ravel_pytree(got)
    close(flat, np.diag(mixed_matrix()))
    assert jax.tree.structure(got) == jax.tree.structure(X)


def test_the_diagonal_for_complex_leaves_has_both_parts():
    f = lambda z: jnp.sum(z.real**3) + jnp.sum(z.real * z.imag**2)
    z = np.array([1 + 2j, -0.5 + 3j])
    expected = 6 * z.real + 2j * z.real
    close(hotk.HessianOperator(f, z).diagonal(), expected)


def test_the_diagonal_of_a_separable_function_is_one_product():
    weights = jnp.linspace(1.0, 2.0, 4000)
    f = lambda x: jnp.sum(weights * jnp.sin(x["a"]) ** 2) + jnp.sum(x["b"] ** 4)
    x = {"a": np.linspace(-1, 1, 4000), "b": np.ones((2, 3))}
    diagonal = lambda x: hotk.HessianOperator(f, x).diagonal()
    program = str(jax.make_jaxpr(diagonal)(x))
    assert not any(loop in program for loop in ("while[", "scan["))
    assert "4000]" in program
    assert not re.search(r"[\[,]4006[,\]]", program)  # as all entries at once have
    expected = 2 * np.asarray(weights) * np.cos(2 * x["a"])
    close(diagonal(x), {"a": expected, "b": np.full((2, 3), 12.0)})


def test_the_diagonal_of_another_function_is_exact():
    """The row sums, one product with ones, would be wrong."""
    f = lambda x: jnp.sum(jnp.sin(x)) ** 2
    x = np.arange(3.0)
    expected = np.diag(dense(f, x))
    H = hotk.HessianOperator(f, x)
    close(H.diagonal(), expected)
    assert not np.allclose(H @ np.ones(3), expected)


@pytest.mark.exhaustive
def test_the_diagonal_needs_no_matrix():
    n = 4000
    a = jnp.ones((n, 3), jnp.float32)
    f = lambda x: jnp.sum(jnp.tanh(x @ a) ** 2) + jnp.sum(jnp.cos(x)) ** 2
    diagonal = jax.jit(lambda x: hotk.HessianOperator(f, x).diagonal())
    compiled = diagonal.lower(jnp.ones(n, jnp.float32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * 4 / 10
