"""An operator with its linearization kept: the same matrix, from what is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.helpers import close


A = np.random.default_rng(0).normal(size=(6, 4))
X, V = np.array([0.5, -1.0, 2.0, 0.1]), np.array([1.0, 0.5, -2.0, 3.0])


def make(a=A, x=X):
    a = jnp.asarray(a)
    return hotk.HessianOperator(lambda x: jnp.sum(jnp.tanh(a @ x)), jnp.asarray(x))


def dense(a=A, x=X):
    y = np.tanh(a @ x)
    return a.T @ np.diag(-2 * y * (1 - y**2)) @ a


@pytest.mark.exhaustive
def test_it_is_the_same_matrix():
    kept = make().linearize()
    assert kept.plan == "store"
    close(kept @ V, dense() @ V)
    close(kept.many(jnp.eye(4)), dense())
    close(kept.many(jnp.eye(4), block_size=3), dense())
    close(kept.matrix(), dense())
    close(kept.diagonal(), np.diag(dense()))
    close((kept + 2.0 * hotk.Identity()) @ V, dense() @ V + 2 * V)
    close(kept.eigh(2).values, np.linalg.eigvalsh(dense())[-2:])
    close(kept.value, np.sum(np.tanh(A @ X)))
    close(kept.gradient, A.T @ (1 - np.tanh(A @ X) ** 2))


def test_moving_it_traces_and_compiles_nothing():
    kept = make().linearize()
    other, v = jnp.asarray(X) / 3, jnp.asarray(V)
    kept.at(other).mv(v)
    with traces() as traced, compiles() as compiled:
        moved = kept.at(other)
        product = moved.mv(v)
        fresh = make(2 * A).linearize().mv(v)
        assert compiled() == 0
        assert traced() == 0
    close(product, dense(x=X / 3) @ V)
    close(fresh, dense(2 * A) @ V)


def test_the_data_are_not_kept_a_second_time():
    a = np.random.default_rng(1).normal(size=(500, 40))
    kept = make(a, np.zeros(40) + 0.1).linearize()
    # the slope of tanh and its derivative, a few vectors of one number for each row
    assert 8 * 500 <= kept.bytes <= 8 * 500 * 8 < a.nbytes
    assert "store" in repr(kept)
    assert jax.tree.structure(kept) == jax.tree.structure(kept.at(np.zeros(40)))


@pytest.mark.exhaustive
def test_what_is_elementwise_is_computed_again():
    shifted = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    H = hotk.HessianOperator(shifted, jnp.asarray(np.tile(X, 5)))
    chosen = H.linearize()
    assert (chosen.plan, chosen.bytes) == ("recompute", 0)
    kept = H.linearize("store")
    assert kept.bytes > 0
    close(kept.matrix(), jax.hessian(shifted)(jnp.asarray(np.tile(X, 5))))
    assert make().linearize("recompute").plan == "recompute"
    close(make().linearize("recompute").at(X / 2) @ V, dense(x=X / 2) @ V)


def test_it_is_a_pytree():
    kept = make().linearize()
    scanned = jax.lax.scan(lambda v, _: (kept.mv(v), None), jnp.asarray(V), None, 3)[0]
    close(scanned, np.linalg.matrix_power(dense(), 3) @ V)
    close(jax.jit(lambda L, v: L @ v)(kept, V), dense() @ V)
    xs = np.stack([X, X / 2])
    got = jax.vmap(lambda x: kept.at(x).mv(jnp.asarray(V)))(jnp.asarray(xs))
    close(got, np.stack([dense(x=x) @ V for x in xs]))
    slope = jax.jacfwd(lambda x: kept.at(x).mv(jnp.asarray(V)))(jnp.asarray(X))
    step = lambda h: (dense(x=X + h) - dense(x=X - h)) @ V / 2e-6
    expected = np.stack([step(1e-6 * e) for e in np.eye(4)], axis=1)
    close(slope, expected, rtol=1e-6)


def test_complex_leaves_and_gauss_newton():
    c = A[:, :2] + 1j * A[:, 2:]
    z = np.array([0.3 + 0.2j, -0.4 + 1j])

    def f(z):
        return jnp.sum(jnp.tanh(jnp.real(jnp.asarray(c) @ z)))

    real = np.concatenate([c.real, -c.imag], axis=1)
    H = hotk.HessianOperator(f, jnp.asarray(z)).linearize()
    close(H.matrix(), dense(real, np.concatenate([z.real, z.imag])))
    loss = hotk.curvature.SquaredError(jnp.zeros(6))
    G = hotk.GGNOperator(lambda x: jnp.tanh(jnp.asarray(A) @ x), loss, jnp.asarray(X))
    J = np.diag(1 - np.tanh(A @ X) ** 2) @ A
    close(G.linearize() @ V, J.T @ J @ V / 6)


def test_a_budget_and_a_plan_are_checked(as_user):
    with pytest.raises(ValueError, match="'keep' is neither 'store' nor 'recompute'"):
        make().linearize("keep")
    hotk.set_memory_budget(16)
    try:
        with pytest.raises(hotk.TooLargeError, match=r"H\.linearize\(\)"):
            make().linearize()
    finally:
        hotk.set_memory_budget(None)
