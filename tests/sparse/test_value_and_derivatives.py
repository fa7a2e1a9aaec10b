"""Sparse derivatives with the value and the gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import traces
from tests.helpers import close
from tests.sparse.test_programs import dense


X = jnp.linspace(-1.0, 2.0, 12)


def chain(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2)


def test_value_gradient_and_hessian():
    y, g, H = hotk.value_gradient_and_sparse_hessian(chain, X)
    close(y, chain(X))
    close(g, jax.grad(chain)(X))
    assert np.allclose(dense(H), jax.hessian(chain)(X))
    assert H.pattern == hotk.sparse_hessian(chain, X).pattern


def test_value_and_jacobian():
    f = lambda x: {"a": x[1:] * x[:-1], "b": jnp.sum(x[:2])[None]}
    for mode in (hotk.Forward(), hotk.Reverse()):
        y, J = hotk.value_and_sparse_jacobian(f, X, mode=mode)
        close(y, f(X))
        exact = jax.jacobian(f)(X)
        assert np.allclose(dense(J), np.concatenate([exact["a"], exact["b"]]))


def test_trees_parts_and_auxiliary_outputs():
    f = lambda p, c: (c * chain(p["u"]) * p["s"], p["s"])
    p = {"u": X, "s": jnp.asarray(3.0)}
    where = {"u": True, "s": False}
    (y, aux), g, H = hotk.value_gradient_and_sparse_hessian(
        f, p, 2.0, has_aux=True, where=where
    )
    close(y, 6 * chain(X))
    close(aux, p["s"])
    close(g["u"], 6 * jax.grad(chain)(X))
    assert np.allclose(dense(H), 6 * jax.hessian(chain)(X))
    (y, aux), J = hotk.value_and_sparse_jacobian(
        lambda x: (x[1:] ** 2, x[0]), X, has_aux=True
    )
    close(aux, X[0])
    assert J.nnz == 11


def test_prepared_and_under_jit():
    prepared = hotk.value_gradient_and_sparse_hessian.prepare(chain, X)
    twice = 2 * X
    with traces() as count:
        y, g, H = prepared(twice)
    assert not count()
    close(y, chain(2 * X))
    y, g, H = eqx.filter_jit(
        lambda x: hotk.value_gradient_and_sparse_hessian(chain, x)
    )(X)
    close(H @ g, jax.hessian(chain)(X) @ jax.grad(chain)(X))
    pair = hotk.value_and_sparse_jacobian.prepare(jnp.diff, X)(X**2)
    close(pair[0], jnp.diff(X**2))


@pytest.mark.exhaustive
def test_dense_ones_have_all_of_it():
    f = lambda x: jnp.sum(jnp.sin(jnp.outer(x, x)))
    y, g, H = hotk.value_gradient_and_sparse_hessian(f, X)
    close(g, jax.grad(f)(X))
    assert np.allclose(dense(H), jax.hessian(f)(X))
    assert y == pytest.approx(float(f(X)))


def test_a_method_of_a_matrix_is_a_function_of_jit():
    H = hotk.sparse_hessian(lambda x: chain(x) + jnp.sum(x**4 + x**2), X)
    K = hotk.sparse_hessian(lambda x: chain(x) + jnp.sum(x**4 + x**2), 2 * X)
    for A in (H, K):  # of one pattern
        close(jax.jit(A.solve)(X), jnp.linalg.solve(A.todense(), X))
        close(jax.jit(A.todense)(), A.todense())
    assert hash(H) == hash(K)
    assert not bool(H == K)
