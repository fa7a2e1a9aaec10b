"""`SparseMatrix` against dense NumPy."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import hotk
from hotk.sparse import Pattern
from tests.helpers import close
from tests.sparse.matrices import scattered


RNG = np.random.default_rng(1)
DTYPES = [np.float32, np.float64, np.complex128]


@pytest.mark.thinned(7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1)])
def test_products(shape, dtype):
    A, dense = scattered(RNG, *shape, 12, dtype)
    v, w = RNG.normal(size=shape[1]), RNG.normal(size=shape[0])
    wide = np.result_type(dtype, float)
    close(A @ jnp.asarray(v), (dense @ v).astype(wide), rtol=1e-6)
    close(A @ v, (dense @ v).astype(wide), rtol=1e-6)
    close(w @ A, (w @ dense).astype(wide), rtol=1e-6)
    close(jnp.asarray(w) @ A, (w @ dense).astype(wide), rtol=1e-6)
    close(A.T @ w, (dense.T @ w).astype(wide), rtol=1e-6)
    several = RNG.normal(size=(shape[1], 3))
    close(A @ several, (dense @ several).astype(wide), rtol=1e-6)
    close(several.T @ A.T, (several.T @ dense.T).astype(wide), rtol=1e-6)
    close(A.todense(), dense)
    close(A.T.todense(), dense.T)


def test_a_product_with_integers_is_one_of_floats():
    A, dense = scattered(RNG, 3, 3, 5, np.float32)
    close(A @ np.arange(3), (dense @ np.arange(3)).astype(np.float64), rtol=1e-6)


def test_trees_in_trees_out():
    """The rows of `w` are 1 to 3, the columns of `b` the last two."""
    output = {"a": jnp.zeros(()), "w": jnp.zeros(3, jnp.float32), "off": None}
    input_ = (jnp.zeros((2, 2)), {"b": jnp.zeros(2)})
    rows, cols = np.nonzero(RNG.normal(size=(4, 6)) > 0)
    values = RNG.normal(size=rows.size)
    dense = np.zeros((4, 6))
    dense[rows, cols] = values
    A = hotk.SparseMatrix(values, Pattern(rows, cols, output=output, input=input_))
    v = (RNG.normal(size=(2, 2)), {"b": RNG.normal(size=2)})
    flat = np.concatenate([v[0].ravel(), v[1]["b"]])
    product = dense @ flat
    expected = {"a": product[0], "w": product[1:].astype(np.float32), "off": None}
    close(A @ v, expected)
    close(A @ flat, product)
    close(A @ flat[:, None], product[:, None])
    block = A.block("w", "1/b")
    close(block.todense(), dense[1:, 4:])
    close(block @ v[1]["b"], dense[1:, 4:] @ v[1]["b"])
    close(A["['w']", "[1]['b']"].todense(), dense[1:, 4:])
    close(A["a", "1"] @ v[1], np.array(dense[0, 4:] @ v[1]["b"]))
    close(A["", "0"] @ v[0], {**expected, **_split(dense[:, :4] @ flat[:4])})
    with pytest.raises(KeyError, match="no leaf at 'q'"):
        A.block("q", "0")
    with pytest.raises(hotk.StructureError, match="not a vector of the space"):
        A @ (v[0], v[1]["b"])
    with pytest.raises(hotk.StructureError, match="not a vector of the space"):
        A @ np.ones(5)


def _split(product):
    return {"a": product[0], "w": product[1:].astype(np.float32)}


def test_complex_leaves_are_pairs_of_real_numbers():
    """Multiplication by i is the rotation [[0, -1], [1, 0]] of the pairs."""
    z = jnp.zeros(1, complex)
    A = hotk.SparseMatrix([-1.0, 1.0], Pattern([0, 1], [1, 0], output=z, input=z))
    close(A @ jnp.array([3 + 4j]), np.array([-4 + 3j]))
    close(A @ jnp.array([3.0, 4.0]), np.array([-4.0, 3.0]))
    D = hotk.sparse.diagonal(jnp.array([2 + 5j]))
    close(D.diagonal(), np.array([2 + 5j]))
    close(D.todense(), np.diag([2.0, 5.0]))


def test_a_flat_point_and_a_tree_of_outputs():
    output = {"a": jnp.zeros(()), "b": jnp.zeros(1)}
    pattern = Pattern([0, 1], [0, 1], output=output, input=jnp.zeros(2))
    A = hotk.SparseMatrix([2.0, 3.0], pattern)
    got = A @ jnp.ones(2)
    close(got, {"a": np.array(2.0), "b": np.array([3.0])})
    close(A.T @ got, np.array([4.0, 9.0]))


def test_the_diagonal_of_a_complex_matrix_between_real_vectors():
    A = hotk.SparseMatrix.from_coo([1 + 2j, 3.0], [0, 1], [0, 1])
    assert A.diagonal().tolist() == [1 + 2j, 3]
    assert (2j * hotk.sparse.identity(2)).diagonal().tolist() == [2j, 2j]


@pytest.mark.parametrize("symmetric", [False, True])
def test_diagonal(symmetric):
    A, dense = scattered(RNG, 8, 8, 30, symmetric=symmetric)
    close(A.diagonal(), np.diag(dense))
    wide, dense = scattered(RNG, 3, 5, 9)
    close(wide.diagonal(), np.diag(dense))
    tree = {"a": jnp.ones(2), "b": jnp.ones((), jnp.float32)}
    close(hotk.sparse.diagonal(tree).diagonal(), jax.tree.map(np.asarray, tree))


@pytest.mark.parametrize(
    "key",
    [
        (1, 2),
        (-1, -1),
        (slice(1, 5), slice(0, 6, 2)),
        (slice(None), 2),
        3,
        (np.array([0, 2, 4]), np.array([1, 1, 5])),
        np.ix_([0, 3], [5, 1, 2]),
        (slice(None), np.array([True, False, True, True, False, False])),
        slice(2, None),
    ],
    ids=str,
)
def test_indices_as_numpy_has_them(key):
    A, dense = scattered(RNG, 6, 6, 20)
    got = A[key]
    if isinstance(got, hotk.SparseMatrix):
        got = got.todense()
    close(got, np.asarray(dense[key]))
    part = jax.jit(lambda A: jax.tree.leaves(A[key])[0])(A)
    close(part, np.asarray(jax.tree.leaves(A[key])[0]))


def test_paths_come_in_pairs():
    A, _ = scattered(RNG, 3, 3, 4)
    with pytest.raises(TypeError, match="give two paths"):
        A["w"]


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_scipy_gets_copies(format):
    A, dense = scattered(RNG, 6, 4, 12)
    S = A.to_scipy(format)
    assert S.format == format
    assert np.array_equal(S.toarray(), dense)
    S.data[:] = 0
    for each in ("indices", "indptr", "row", "col"):
        part = getattr(S, each, None)
        if part is not None and part.flags.writeable:
            part[:] = 0
    assert np.array_equal(A.toarray(), dense)
    again = hotk.SparseMatrix.from_scipy(scipy.sparse.coo_array(dense))
    assert again.pattern == A.pattern
    close(again.values, np.asarray(A.values))


def test_scipy_inside_of_jit_says_what_to_do():
    A, _ = scattered(RNG, 3, 3, 4)
    with pytest.raises(TypeError, match="to_bcoo"):
        jax.jit(lambda A: A.to_scipy().data)(A)
    with pytest.raises(ValueError, match='"csr", "csc" or "coo"'):
        A.to_scipy("bsr")


def test_what_users_of_scipy_try_first():
    A, dense = scattered(RNG, 20, 20, 60, symmetric=True)
    assert A.shape == (20, 20)
    assert A.ndim == 2
    assert A.nnz == np.count_nonzero(dense)
    assert np.array_equal(A.toarray(), dense)
    assert np.array_equal(np.asarray(A), dense)
    assert np.asarray(A, np.float32).dtype == np.float32
    largest = scipy.sparse.linalg.eigsh(A, k=1, which="LA")[0]
    close(largest, np.linalg.eigvalsh(dense)[-1:], rtol=1e-8)
    C, dense = scattered(RNG, 9, 7, 30, np.complex128)
    singular = scipy.sparse.linalg.svds(C, k=2, rng=0, return_singular_vectors=False)
    close(np.sort(singular), np.linalg.svd(dense)[1][1::-1], rtol=1e-8)


def test_what_is_dense_is_refused():
    with pytest.raises(hotk.TooLargeError, match=r"`A @ v` for products"):
        hotk.sparse.identity(10**7).todense()


def test_jax_forms():
    A, dense = scattered(RNG, 5, 6, 12)
    for form in (hotk.SparseMatrix.to_bcoo, hotk.SparseMatrix.to_bcsr):
        close(form(A).todense(), dense)
        close(jax.jit(lambda A, form=form: form(A).todense())(A), dense)
    close(A.to_bcoo() @ jnp.ones(6), dense @ np.ones(6))


def test_from_entries_in_any_order():
    """Entries of one position are added."""
    A = hotk.SparseMatrix.from_coo([1.0, 2.0, 4.0, 8.0], [1, 0, 1, 0], [0, 2, 0, 1])
    close(A.todense(), np.array([[0.0, 8, 2], [5, 0, 0]]))
    gradient = jax.grad(
        lambda v: (
            hotk.SparseMatrix.from_coo(v, [1, 0, 1], [0, 1, 0]).values ** 2
        ).sum()
    )(jnp.array([1.0, 2.0, 4.0]))
    close(gradient, np.array([10.0, 4, 10]))
    with pytest.raises(hotk.StructureError, match="one length"):
        hotk.SparseMatrix.from_coo([1.0], [0, 1], [0])
    with pytest.raises(hotk.StructureError, match="outside of the shape"):
        hotk.SparseMatrix.from_coo([1.0], [2], [0], (2, 2))


def test_values_of_numpy_are_copied_and_checked():
    values = np.ones(2)
    A = hotk.SparseMatrix(values, Pattern([0, 1], [0, 1], (2, 2)))
    values[0] = 7
    assert A.values.tolist() == [1, 1]
    assert hotk.SparseMatrix([1, 2], A.pattern).dtype == np.float64
    with pytest.raises(hotk.StructureError, match="2 entries"):
        hotk.SparseMatrix(np.ones(3), A.pattern)


@pytest.mark.exhaustive
def test_jit_vmap_scan_and_gradients():
    A, dense = scattered(RNG, 5, 5, 12)
    v = RNG.normal(size=5)
    close(jax.jit(lambda A, v: A @ v)(A, v), dense @ v)
    batch = jax.vmap(lambda c: c * A)(jnp.array([1.0, 2.0]))
    assert batch.values.shape == (2, A.nnz)
    got = jax.vmap(lambda A: A @ jnp.asarray(v))(batch)
    close(got, np.stack([dense @ v, 2 * dense @ v]))
    with pytest.raises(hotk.StructureError, match=r"jax.vmap"):
        batch @ v
    assert "batch" in repr(batch)

    f = lambda A, v: jnp.sum((A @ v) ** 2)
    by_matrix, by_vector = jax.grad(f, (0, 1))(A, jnp.asarray(v))
    outer = 2 * np.outer(dense @ v, v)
    close(by_matrix.values, outer[A.rows, A.cols])
    close(by_vector, 2 * dense.T @ dense @ v)
    second = jax.hessian(f, 1)(A, jnp.asarray(v))
    close(second, 2 * dense.T @ dense)
    end, _ = jax.lax.scan(lambda A, _: (2.0 * A, None), A, length=3)
    close(end.todense(), 8 * dense)


def test_it_is_static_data_of_a_captured_function():
    A, dense = scattered(RNG, 4, 4, 9, symmetric=True)
    f = lambda x: x @ (A @ x) / 2
    assert hotk.explain(f).opaque is None
    close(hotk.hessian(f, jnp.ones(4)), dense, rtol=1e-12)


def test_pickles_and_copies():
    A, dense = scattered(RNG, 4, 4, 9)
    again = pickle.loads(pickle.dumps(A))
    assert again.pattern == A.pattern
    close(again.todense(), dense)
    assert copy.deepcopy(A) is A


def test_it_shows_well():
    A = hotk.sparse.identity(4)
    assert repr(A) == "SparseMatrix(4 x 4, 4 entries of f64, 25 %, 64 B)"
    assert "25 %" in A._repr_html_()
    assert jax.eval_shape(lambda: hotk.sparse.identity(4)).shape == (4, 4)


def test_blocks_beside_leaves_without_entries():
    x = {"a": jnp.ones(2), "b": jnp.zeros((0, 3)), "c": {"p": jnp.ones(3), "q": []}}
    x["d"] = jnp.zeros(0)
    f = lambda x: jnp.sum(x["a"]) ** 2 * jnp.sum(x["c"]["p"] ** 3)
    H = hotk.sparse_hessian(f, x)
    close(H.block("a", "c").todense(), np.full((2, 3), 12.0))
    assert H.block("a", "c").pattern.input["p"].shape == (3,)
    assert H.block("b", "c/p").shape == (0, 3)


def test_halves_that_differ_are_refused():
    rows, cols = [0, 0, 1, 1], [0, 1, 0, 1]
    make = lambda v: hotk.SparseMatrix.from_coo(v, rows, cols, symmetric=True)
    with pytest.raises(hotk.StructureError, match=r"halves differ[\s\S]*symmetrized"):
        make([1.0, 2.0, 5.0, 3.0])
    with pytest.raises(hotk.StructureError, match="halves differ"):
        # Both halves are sums of entries of one position.
        hotk.SparseMatrix.from_coo(
            np.ones(5), [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], symmetric=True
        )
    rounded = make([1.0, 0.1 + 0.2, 0.3, 1.0])
    assert rounded.symmetric
    assert np.isnan(make([1.0, np.nan, np.nan, 3.0]).values).any()
    assert jax.jit(make)(jnp.array([1.0, 2.0, 5.0, 3.0])).symmetric  # not known there


@pytest.mark.parametrize(
    "shape", [(-1, 2), (2.5, 2), (2, "2"), (2, None), 3, (2, 2, 2)]
)
def test_shapes_that_are_none_are_refused(shape):
    with pytest.raises(hotk.StructureError, match="numbers of rows and columns"):
        hotk.SparseMatrix.from_coo([], [], [], shape)


@pytest.mark.parametrize("values", [None, ["a"], "ab", [None], 3.0])
def test_values_that_are_no_numbers_are_refused(values):
    with pytest.raises(TypeError, match="number"):
        hotk.SparseMatrix.from_coo(values, [0], [0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_of_what_is_not_finite_are_refused(value):
    A = hotk.SparseMatrix.from_coo([value, 1.0], [0, 1], [0, 1], symmetric=True)
    with pytest.raises((ValueError, RuntimeError)):
        A.factorize()


def test_parts_of_a_matrix_without_entries():
    A = hotk.SparseMatrix.from_coo(np.zeros(0), [], [], (2, 3))
    assert A[0, 1] == 0
    np.testing.assert_array_equal(np.asarray(A[0]), np.zeros(3))
    assert A[:1, 1:].shape == (1, 2)
    np.testing.assert_array_equal(np.asarray(A[[0, 1], [1, 2]]), np.zeros(2))
