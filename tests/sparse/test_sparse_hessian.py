"""`sparse_hessian`, `sparse_jacobian`, `sparse_ggn` and `sparsity` as operators."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.helpers import close
from tests.sparse.test_programs import dense


def chain(x, scale=1.0):
    """Return a chain with its tridiagonal Hessian."""
    return scale * jnp.sum(x[1:] ** 2 * x[:-1] ** 3)


X = jnp.arange(1.0, 6.0)


def blocks(tree, x):
    """Return a Hessian of JAX, a tree of trees, as one matrix."""
    structure, leaves = jax.tree.structure(x), jax.tree.leaves(x)
    rows = []
    for row, a in zip(structure.flatten_up_to(tree), leaves, strict=True):
        own = zip(structure.flatten_up_to(row), leaves, strict=True)
        rows.append([np.asarray(b).reshape(a.size, c.size) for b, c in own])
    return np.block(rows)


def test_known_by_hand():
    H = hotk.sparse_hessian(lambda x: x[0] * x[1] ** 2 + x[2] ** 3, jnp.ones(3))
    assert H.rows.tolist() == [0, 1, 1, 2]
    assert H.cols.tolist() == [1, 0, 1, 2]
    assert H.values.tolist() == [2.0, 2.0, 2.0, 6.0]
    assert H.symmetric


def test_trees_and_further_arguments():
    x = {"a": jnp.arange(1.0, 4.0), "b": (jnp.ones((2, 2)), jnp.asarray(2.0))}

    def f(x, c):
        return c * jnp.sum(x["a"] ** 3) * x["b"][1] + jnp.sum(x["b"][0] ** 2)

    H = hotk.sparse_hessian(f, x, 2.0)
    assert np.allclose(dense(H), blocks(jax.hessian(f)(x, 2.0), x))
    assert jax.tree.structure(H.pattern.input) == jax.tree.structure(x)
    product = H @ jax.tree.map(jnp.ones_like, x)
    assert jax.tree.structure(product) == jax.tree.structure(x)


def test_where_selects_leaves():
    x = {"a": X, "b": 2 * X}
    f = lambda x: jnp.sum(x["a"] ** 2 * x["b"])
    H = hotk.sparse_hessian(f, x, where={"a": True, "b": False})
    assert np.allclose(dense(H), np.diag(4 * np.arange(1.0, 6.0)))


def test_auxiliary_output_travels():
    H, aux = hotk.sparse_hessian(lambda x: (chain(x), {"n": x[0]}), X, has_aux=True)
    assert np.allclose(dense(H), jax.hessian(chain)(X))
    assert aux["n"].item() == 1.0
    J, aux = hotk.sparse_jacobian(lambda x: (jnp.diff(x), x[0]), X, has_aux=True)
    assert J.nnz == 8
    assert aux.item() == 1.0


def test_prepared_gives_the_same():
    prepared = hotk.sparse_hessian.prepare(chain, X, 2.0)
    assert np.allclose(dense(prepared(X + 1, 3.0)), jax.hessian(chain)(X + 1, 3.0))


def test_fresh_closures_trace_and_compile_nothing():
    run = lambda c, at: hotk.sparse_hessian(lambda x: chain(x[at], c), X)
    scales = [jnp.asarray(c) for c in (1.0, 2.0, 3.0)]
    for at in (None, np.arange(4), jnp.arange(4)):
        at = slice(None) if at is None else at
        run(scales[0], at)
        with traces() as traced, compiles() as compiled:
            found = [run(c, at) for c in scales[1:]]
        assert (traced(), compiled()) == (0, 0)
        for c, H in zip(scales[1:], found, strict=True):
            exact = jax.hessian(lambda x, c=c, at=at: chain(x[at], c))(X)
            assert np.allclose(dense(H), exact)


INDICES = ([0, 1, 2], [4, 2, 0], [3, 3, 1])


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_captured_indices_decide_the_pattern(array):
    for each in INDICES:
        at = array(each)
        f = lambda x, at=at: jnp.sum(x[at] ** 2 * x[jnp.flip(at)])
        H = hotk.sparse_hessian(f, X)
        assert np.allclose(dense(H), jax.hessian(f)(X))
        assert H.nnz <= 5


def test_an_index_array_changed_in_place_is_seen():
    at = np.array([0, 1])
    f = lambda x: jnp.prod(x[at]) ** 2
    first = hotk.sparse_hessian(f, X)
    at[:] = [3, 4]
    second = hotk.sparse_hessian(f, X)
    assert first.rows.max() == 1
    assert second.rows.min() == 3
    assert np.allclose(dense(second), jax.hessian(f)(X))


def test_views_and_floating_numpy_arrays_make_no_function_opaque(recwarn):
    pairs = np.random.default_rng(0).integers(0, 5, (7, 2))
    first, second, weights = pairs[:, 0], pairs[::-1, 1], np.linspace(1, 2, 7)
    f = lambda x: jnp.sum(weights * x[first] ** 2 * x[second])
    hotk.sparse_hessian(f, X)
    with traces() as traced:
        H = hotk.sparse_hessian(f, X)
    assert traced() == 0
    assert np.allclose(dense(H), jax.hessian(f)(X))
    weights[:] = 0
    assert not hotk.sparse_hessian(f, X).values.any()
    assert not recwarn.list


def test_large_index_arrays_are_known_as_well():
    at = jnp.asarray(np.random.default_rng(0).integers(0, 500, (300, 2)))
    x = jnp.linspace(0, 1, 500)
    H = hotk.sparse_hessian(lambda x: jnp.sum(jnp.sin(x[at[:, 0]] * x[at[:, 1]])), x)
    assert H.nnz < 1600


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_indices_among_the_arguments(array):
    f = lambda x, at: jnp.sum(x[at] ** 2 * x[jnp.flip(at)])
    for each in INDICES:
        H = hotk.sparse_hessian(f, X, array(each))
        assert np.allclose(dense(H), jax.hessian(f)(X, jnp.array(each)))
        assert H.nnz <= 5
    prepared = hotk.sparse_hessian.prepare(f, X, array(INDICES[0]))
    assert prepared(X, array(INDICES[0])).nnz <= 5
    with pytest.raises(hotk.PreparationError, match="content of args"):
        prepared(X, array(INDICES[1]))


def test_indices_that_are_traced_outside_are_not_known():
    f = lambda x, at: jnp.sum(x[at] ** 2 * x[jnp.flip(at)])
    inside = jax.jit(lambda at: hotk.sparse_hessian(f, X, at))
    for each in INDICES:
        assert np.allclose(
            dense(inside(jnp.array(each))), jax.hessian(f)(X, jnp.array(each))
        )


def test_zeros_among_captured_numbers_change_no_pattern():
    patterns = set()
    for c in (jnp.zeros(5), jnp.ones(5)):
        f = lambda x, c=c: jnp.sum(c * x**2)
        patterns.add(hotk.sparse_hessian(f, X).pattern)
    assert len(patterns) == 1


def test_under_transformations():
    H = lambda x: hotk.sparse_hessian(chain, x)
    exact = jax.hessian(chain)
    assert np.allclose(dense(jax.jit(H)(X)), exact(X))
    both = jnp.stack([X, X + 1])
    batch = jax.vmap(H)(both)
    for i in range(2):
        one = hotk.SparseMatrix(batch.values[i], batch.pattern)
        assert np.allclose(dense(one), exact(both[i]))
    got = jax.grad(lambda x: jnp.sum(H(x).values ** 3))(X)
    assert np.allclose(got, jax.grad(lambda x: jnp.sum(exact(x) ** 3))(X))


def test_jacobian_of_a_tree_with_complex_outputs():
    f = lambda x: {"u": jnp.diff(x), "v": jax.lax.complex(x[:2], x[1:3] ** 2)}
    J = hotk.sparse_jacobian(f, X)
    exact = jax.jacobian(lambda x: (f(x)["u"], f(x)["v"].real, f(x)["v"].imag))(X)
    assert np.allclose(dense(J), np.concatenate(exact))
    assert J.nnz <= 8 + 2 * (2 + 2)  # each part may depend on both


@pytest.mark.parametrize("mode", [hotk.Forward(), hotk.Reverse()], ids=str)
def test_both_modes_of_a_jacobian(mode):
    f = lambda x: x[1:] * x[:-1]
    J = hotk.sparse_jacobian(f, X, mode=mode)
    assert np.allclose(dense(J), jax.jacobian(f)(X))
    assert J.nnz == 8


def test_a_rule_that_is_no_derivative_is_not_mirrored():
    @jax.custom_jvp
    def product(x, y):
        return x * y

    # Of `dx` alone: the second derivatives are not symmetric.
    product.defjvp(lambda p, t: (p[0] * p[1], p[1] * t[0]))
    f = lambda x: product(x[0], x[1])
    H = hotk.sparse_hessian(f, X)
    assert np.allclose(dense(H), jax.hessian(f)(X))
    assert not H.symmetric


def test_gauss_newton_of_residuals():
    model = lambda x, c: c * (x[1:] - x[:-1] ** 2)
    loss = lambda r: jnp.sum(r**2) / 2
    G = hotk.sparse_ggn(model, loss, X, 2.0)
    J = jax.jacobian(model)(X, 2.0)
    assert np.allclose(dense(G), J.T @ J)
    assert G.nnz == 13
    assert G.symmetric


def test_gauss_newton_prepared():
    model = lambda x, c: {"u": c * (x["u"][1:] - x["u"][:-1] ** 2), "n": x["n"] * 1.0}
    loss = lambda r: jnp.sum(r["u"] ** 2) / 2
    point = {"u": X, "n": 3}
    prepared = hotk.sparse_ggn.prepare(model, loss, point, 2.0)
    other = {"u": 2 * X, "n": 3}
    with compiles() as count:
        G = prepared(other, 5.0)
    assert count() == 0
    J = jax.jacobian(lambda u: 5.0 * (u[1:] - u[:-1] ** 2))(2 * X)
    assert np.allclose(dense(G), J.T @ J)
    assert pickle.loads(pickle.dumps(hotk.sparse_ggn)) is hotk.sparse_ggn


def test_sparsity_of_both_kinds():
    pattern = hotk.sparsity(chain, X)
    assert pattern == hotk.sparse_hessian(chain, X).pattern
    pattern = hotk.sparsity(jnp.diff, X, of="jacobian")
    assert pattern == hotk.sparse_jacobian(jnp.diff, X).pattern
    with pytest.raises(ValueError, match="hessian"):
        hotk.sparsity(chain, X, of="gradient")


def test_a_million_variables():
    pattern = hotk.sparsity(chain, jax.ShapeDtypeStruct((1_000_000,), float))
    assert pattern.nnz == 3_000_000 - 2


@pytest.mark.exhaustive
def test_single_precision_and_half():
    for dtype in (jnp.float32, jnp.bfloat16):
        x = X.astype(dtype)
        f = lambda x: jnp.sum(x[1:] ** 2 * x[:-1])
        H = hotk.sparse_hessian(f, x)
        assert H.values.dtype == dtype
        expected = np.asarray(jax.hessian(f)(x), float)
        assert np.allclose(dense(H), expected, rtol=1e-2)


def test_nothing_to_differentiate_twice():
    assert hotk.sparse_hessian(jnp.sum, X).nnz == 0
    assert hotk.sparse_hessian(lambda x: x["a"] ** 3, {"a": 2.0}).values.tolist() == [
        12
    ]
    empty = hotk.sparse_hessian(lambda x: jnp.sum(x["a"] ** 2), {"a": X, "b": X[:0]})
    assert empty.nnz == 5


def test_a_loop_of_unknown_length():
    def f(x):
        body = lambda c: (c[0] + 1, c[1] * c[1])
        return jax.lax.while_loop(lambda c: c[0] < 2, body, (0, x[:3]))[1]

    J = hotk.sparse_jacobian(f, X)
    assert np.allclose(dense(J), jax.jacfwd(f)(X))


def test_what_is_read_outside_of_an_array():
    """XLA clips an index of which JAX promises that it lies inside, as in `x[i]`."""
    places = jnp.array([1, 20, -30])
    for mode in (None, "clip", "fill"):
        f = lambda x, mode=mode: x.at[places].get(mode=mode, fill_value=0.0) ** 2
        x = jnp.arange(1.0, 13.0)
        found = hotk.sparse_jacobian(f, x, mode=hotk.Forward()).todense()
        close(found, np.asarray(jax.jacfwd(f)(x)))


def test_shapes_of_another_width_warn_of_nothing(default_settings):
    shape = jax.ShapeDtypeStruct((3,), np.float64)
    assert hotk.sparsity(lambda x: jnp.sum(x**2), shape).nnz == 3
