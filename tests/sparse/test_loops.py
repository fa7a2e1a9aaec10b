"""Loops whose carry keeps one pattern: of any length, and until a condition fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from tests.sparse.test_programs import dense


N = 12
X = jnp.asarray(np.random.default_rng(6).normal(size=N))
counted = lambda count, step, x: lax.while_loop(
    lambda c: c[0] < count, lambda c: (c[0] + 1, step(c[1])), (0, x)
)[1]


def _square_root(a):
    """Newton's method, until it has converged."""
    close_ = lambda c: jnp.abs(c * c - a) > 1e-12
    return lax.while_loop(close_, lambda c: 0.5 * (c + a / c), a)


def _long(x):
    step = lambda c, r: (jnp.sin(c) + 0.1 * c * r * x, c[:3] * r)
    return lax.scan(step, x, jnp.linspace(0.0, 1.0, 100))


def _pulled(x):
    """A loop that reads another entry in each step: its carry is in all of them."""
    step = lambda c, u: (c * 0.9 + u, c * u)
    return lax.scan(step, x[:1], jnp.tile(x, 6)[:, None])[1]


# By how many entries a Jacobian has.
LOOPS = {
    "entry by entry": (lambda x: counted(5, lambda c: jnp.sin(c) * x, x), N),
    "until all have converged": (
        lambda x: lax.while_loop(
            lambda c: jnp.max(jnp.abs(c**2 - jnp.exp(x))) > 1e-10,
            lambda c: 0.5 * (c + jnp.exp(x) / c),
            1 + 0 * x,
        ),
        N,
    ),
    "each until it has converged": (lambda x: jax.vmap(_square_root)(jnp.exp(x)), N),
    "products of blocks": (
        lambda x: counted(3, lambda c: jnp.sin(c @ c), x.reshape(3, 2, 2)),
        3 * 16,
    ),
    "two parts": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 7,
            lambda c: (c[0] + 1, c[2] * 2, jnp.sin(c[1])),
            (0, x, x[::-1] ** 2),
        )[1:],
        4 * N,
    ),
    "as many steps as the point says": (
        lambda x: lax.fori_loop(
            0, 3 + (x[0] > 0).astype(int), lambda i, c: jnp.sin(c) + x[::-1] * i, x
        ),
        2 * N,
    ),
    "no step": (lambda x: counted(0, lambda c: jnp.sin(c), x), N),
    "a part that is cut": (lambda x: counted(3, lambda c: c * 2, x)[2:5] ** 2, 3),
    "a hundred steps": (_long, N + 300),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", LOOPS)
def test_jacobians_are_those_of_jax(name):
    f, count = LOOPS[name]
    blocks = jax.tree.leaves(jax.jit(jax.jacfwd(f))(X))
    exact = np.concatenate([np.asarray(b).reshape(-1, N) for b in blocks])
    J = hotk.sparse_jacobian(f, X)
    assert np.abs(dense(J) - exact).max() < 1e-12
    assert J.nnz == count
    assert hotk.sparsity(f, X, of="jacobian") == J.pattern


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", LOOPS)
def test_hessians_are_those_of_jax(name):
    loop, _ = LOOPS[name]
    f = lambda x: sum(jnp.sum(y**3) for y in jax.tree.leaves(loop(x)))
    exact = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(f)))(X))
    H = hotk.sparse_hessian(f, X)
    scale = max(1.0, np.abs(exact).max())
    assert np.abs(dense(H) - exact).max() < 1e-12 * scale
    assert H.pattern.density < 0.5


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", [hotk.Forward(), hotk.Reverse()], ids=str)
@pytest.mark.parametrize("loop", [_long, _pulled], ids=["long", "pulled"])
def test_long_loops_in_both_directions(loop, mode):
    blocks = jax.tree.leaves(jax.jit(jax.jacfwd(loop))(X))
    exact = np.concatenate([np.asarray(b).reshape(-1, N) for b in blocks])
    J = hotk.sparse_jacobian(loop, X, mode=mode)
    assert np.abs(dense(J) - exact).max() < 1e-12


@pytest.mark.exhaustive
def test_what_moves_on_in_each_step_is_dense_and_right():
    f = lambda x: jnp.sum(counted(2, lambda c: c * jnp.roll(c, 1), jnp.tile(x, 3)) ** 2)
    exact = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(f)))(X))
    assert np.allclose(dense(hotk.sparse_hessian(f, X)), exact)


def test_a_long_loop_is_one_loop_in_the_program():
    def program(length):
        step = lambda c, r: (jnp.sin(c) + r * c, None)
        f = lambda x: jnp.sum(lax.scan(step, x, jnp.ones(length))[0] ** 2)
        return str(jax.make_jaxpr(lambda x: hotk.sparse_hessian(f, x).values)(X))

    assert "scan[" in program(100)
    assert len(program(200).splitlines()) <= len(program(100).splitlines())


@pytest.mark.exhaustive
def test_values_can_be_differentiated():
    f = lambda x: jnp.sum(counted(3, jnp.sin, x) * x)
    along = lambda v: jax.jvp(lambda x: hotk.sparse_hessian(f, x).values, (X,), (v,))[1]
    ones = jnp.ones(N)
    exact = jax.jvp(jax.jacfwd(jax.jacfwd(f)), (X,), (ones,))[1]
    assert np.allclose(along(ones), jnp.diag(exact))


def test_a_loop_without_steps_returns_its_carry():
    f = lambda y: jax.lax.scan(lambda c, a: (c * a, c), y[0], y[:0])[0] ** 2
    x = jnp.arange(1.0, 6.0)
    assert hotk.sparsity(f, x, of="jacobian").nnz == 1
    J = hotk.sparse_jacobian(f, x).todense()
    np.testing.assert_allclose(J, [[2.0, 0, 0, 0, 0]])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("n", [20, 150], ids=["unrolled", "by a coloring"])
def test_entries_written_by_their_number_stay_sparse(n):
    def f(x):
        step = lambda i, y: y.at[i].set(jnp.sin(x[i]) * x[i - 1])
        return jnp.sum(lax.fori_loop(1, n, step, jnp.zeros(n)) ** 2)

    x = jnp.asarray(np.random.default_rng(7).normal(size=n))
    without_loop = lambda x: jnp.sum((jnp.sin(x[1:]) * x[:-1]) ** 2)
    exact = np.asarray(jax.hessian(without_loop)(x))
    H = hotk.sparse_hessian(f, x)
    assert np.abs(dense(H) - exact).max() < 1e-12
    assert H.nnz == 3 * n - 2
    assert hotk.sparsity(f, x) == H.pattern


@pytest.mark.exhaustive
def test_layers_read_by_their_number_are_as_unrolled_ones():
    w = jnp.asarray(np.random.default_rng(8).normal(size=(5, 4)))
    layer = lambda i, c, w: jnp.sin(c * w[i])
    loop = lambda w: lax.fori_loop(0, 5, lambda i, c: layer(i, c, w), jnp.ones(4))

    def unrolled(w):
        c = jnp.ones(4)
        for i in range(5):
            c = layer(i, c, w)
        return c

    f, g = (lambda w, c=c: jnp.sum(c(w) ** 2) for c in (loop, unrolled))
    assert hotk.sparsity(f, w) == hotk.sparsity(g, w)
    exact = np.asarray(jax.hessian(g)(w)).reshape(20, 20)
    assert np.abs(dense(hotk.sparse_hessian(f, w)) - exact).max() < 1e-12


@pytest.mark.exhaustive
def test_a_step_that_reads_one_of_several_layers_stays_sparse():
    """The carry has all entries at once where the index of a layer is not known."""
    w = jnp.asarray(np.random.default_rng(9).normal(size=(6, 3, 4)))
    mixed = lambda i, c: jnp.stack([c[0] * w[i, 0], jnp.sin(c[1] + c[0]), c[2]])
    f = lambda x: jnp.sum(
        lax.fori_loop(0, 6, lambda i, y: y.at[i].set(mixed(i, y[i])), x) ** 3
    )
    x = jnp.asarray(np.random.default_rng(10).normal(size=(6, 3, 4)))
    exact = np.asarray(jax.hessian(f)(x)).reshape(72, 72)
    H = hotk.sparse_hessian(f, x)
    assert np.abs(dense(H) - exact).max() < 1e-12
    assert H.nnz == 6 * 4 * 5
