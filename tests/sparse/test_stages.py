"""Where the algebra gives up: compressed products, dense columns, an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.sparse import _stages
from hotk.sparse._linear import TooDense
from tests.benchmarks import sparse_problems
from tests.sparse.programs import PROGRAMS, point
from tests.sparse.test_programs import dense


X = jnp.linspace(-1.0, 2.0, 24)


@pytest.fixture
def without_the_algebra(monkeypatch):
    """Let the algebra find patterns alone, and count the dense matrices."""
    counted = []
    own, full = _stages.Task.entries, _stages._all_entries

    def entries(task, *, valued):
        if valued:
            raise TooDense
        return own(task, valued=False)

    def count(*args):
        counted.append(args)
        return full(*args)

    monkeypatch.setattr(_stages.Task, "entries", entries)
    monkeypatch.setattr(_stages, "_all_entries", count)
    hotk.clear_cache()
    yield counted
    hotk.clear_cache()


def hub(x):
    """Return an arrow: one variable meets all others."""
    return x[0] ** 2 * jnp.sum(x**2) + jnp.sum(x**4)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("f", [PROGRAMS["roll"], hub], ids=["roll", "hub"])
def test_hessians_by_a_coloring(f, without_the_algebra):
    H = hotk.sparse_hessian(f, X)
    assert np.allclose(dense(H), jax.hessian(f)(X))
    assert not without_the_algebra
    assert H.pattern.density < 0.5


@pytest.mark.parametrize("mode", [hotk.Forward(), hotk.Reverse()], ids=str)
def test_jacobians_by_a_coloring(mode, without_the_algebra):
    f = lambda x: {"a": x[1:] * x[:-1], "b": jnp.sum(x)[None] * x[:1]}
    J = hotk.sparse_jacobian(f, X, mode=mode)
    exact = jax.jacobian(f)(X)
    assert np.allclose(dense(J), np.concatenate([exact["a"], exact["b"]]))
    assert not without_the_algebra


def test_what_is_dense_is_computed_by_columns(without_the_algebra):
    f = lambda x: jnp.sum(jnp.sin(x)) ** 3
    H = hotk.sparse_hessian(f, X)
    assert np.allclose(dense(H), jax.hessian(f)(X))
    assert len(without_the_algebra) == 1


def network(x):
    """Return the loss of a network without any zero in its Hessian."""
    data = jnp.sin(jnp.arange(400.0)).reshape(50, 8)
    hidden = x.size // 9
    w, v = x[: 8 * hidden].reshape(8, hidden), x[8 * hidden :]
    return jnp.mean((jnp.tanh(data @ w) @ v) ** 2)


def test_a_dense_network_is_found_to_be_dense_at_once():
    x = jnp.cos(jnp.arange(900.0))
    H = hotk.sparse_hessian(network, x)
    assert H.nnz == 900**2
    assert np.allclose(dense(H), hotk.hessian(network, x))


@pytest.mark.exhaustive
def test_a_network_beside_a_chain_is_no_reason_to_be_dense():
    x = {"net": jnp.cos(jnp.arange(36.0)), "chain": jnp.sin(jnp.arange(2000.0))}
    f = lambda x: network(x["net"]) + jnp.sum(x["chain"][1:] ** 2 * x["chain"][:-1])
    H = hotk.sparse_hessian(f, x)
    assert H.nnz <= 36**2 + 3 * 2000
    assert np.allclose(H.block("net", "net"), jax.hessian(network)(x["net"]))


def test_a_dense_matrix_beyond_the_budget_is_refused():
    f = lambda x: jnp.sum(jnp.cumsum(jnp.sin(x))) ** 2
    hotk.set_memory_budget(1 << 20)
    try:
        with pytest.raises(hotk.TooLargeError, match=r"hotk\.hvp"):
            hotk.sparse_hessian(f, jnp.ones(30_000))
    finally:
        hotk.set_memory_budget(None)


@pytest.mark.exhaustive
def test_an_operation_that_is_not_known_depends_on_all():
    f = lambda x: jnp.sum(x[jnp.argsort(x)][:2] ** 2) + x[0] ** 3
    for seed in range(2):
        x = point(seed)
        assert np.allclose(dense(hotk.sparse_hessian(f, x)), jax.hessian(f)(x))


def test_a_pattern_that_is_all_dense_is_refused_with_its_bytes():
    at_the_largest = lambda x: x[jnp.argmax(x)] ** 3
    with pytest.raises(hotk.TooLargeError, match=r"n = 1000000 .*does not fit"):
        hotk.sparsity(at_the_largest, jnp.ones(1_000_000))


@pytest.mark.exhaustive
def test_a_large_mesh_is_sparse_if_there_is_memory(monkeypatch):
    """What the algebra makes may take memory as a dense result may."""
    f, n = sparse_problems.solid(sparse_problems.linear_elastic, 500)
    monkeypatch.setattr("hotk.sparse._work._SOME", 1000)
    before = hotk.memory_budget()
    try:
        hotk.set_memory_budget(48 * 1000)
        with pytest.raises(hotk.TooLargeError):
            hotk.sparse_hessian(f, jnp.zeros(n))
        hotk.set_memory_budget(before)
        H = hotk.sparse_hessian(f, jnp.zeros(n))
    finally:
        hotk.set_memory_budget(None)
    _, cells = sparse_problems.block_of_tetrahedra(500)
    meet = np.zeros((n // 3, n // 3), bool)
    for cell in cells:
        meet[np.ix_(cell, cell)] = True
    assert H.nnz == 9 * meet.sum()
    # Energies of displacements by hand: stretched, and turned (to first order).
    nodes, _ = sparse_problems.block_of_tetrahedra(500)
    form = lambda u: float(u.ravel() @ np.asarray(H @ jnp.asarray(u.ravel()))) / 2
    stretched = nodes * np.array([1.0, 0.0, 0.0])
    np.testing.assert_allclose(form(stretched), 1.0 + 5.0, rtol=1e-10)
    turned = np.stack([-nodes[:, 1], nodes[:, 0], 0 * nodes[:, 0]], 1)
    assert abs(form(turned)) < 1e-12
