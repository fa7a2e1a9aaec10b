"""`argnums=` and `kwargs=` of an operator, and rows in place of trees for `many`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


def f(a, x, *, power):
    return jnp.sum(a * x**power) + a[0] * x[1] ** 2


A, X = jnp.array([1.0, 2.0]), jnp.array([0.5, -1.5])
KWARGS = {"power": jnp.array(3.0)}


def dense(argnums):
    return jax.hessian(lambda a, x: f(a, x, **KWARGS), argnums)(A, X)


def test_the_hessian_by_another_argument():
    H = hotk.HessianOperator(f, A, X, argnums=1, kwargs=KWARGS)
    close(H.matrix(), dense(1))
    close(H.x, X)
    close(H @ A, dense(1) @ A)
    moved = jax.hessian(lambda x: f(A, x, **KWARGS))(2 * X)
    close(H.at(2 * X).matrix(), moved)
    last = hotk.HessianOperator(lambda a, x: f(a, x, **KWARGS), A, X, argnums=-1)
    close(last.matrix(), dense(1))


def test_the_hessian_by_several_arguments():
    H = hotk.HessianOperator(f, A, X, argnums=(0, 1), kwargs=KWARGS)
    close(H.matrix(), np.block([[np.asarray(b) for b in row] for row in dense((0, 1))]))


def test_an_operator_made_anew_compiles_nothing():
    make = lambda c: hotk.HessianOperator(f, c * A, X, argnums=1, kwargs=KWARGS)
    make(1.0).matrix()
    before = hotk.cache_info().compiles
    close(make(2.0).matrix(), 2 * dense(1))
    assert hotk.cache_info().compiles == before


def test_positions_that_there_are_not(as_user):
    with pytest.raises(ValueError, match="argnums"):
        hotk.HessianOperator(f, A, X, argnums=2, kwargs=KWARGS)
    with pytest.raises(TypeError, match="kwargs"):
        hotk.HessianOperator(f, A, X, kwargs=[1])


@pytest.mark.parametrize("block_size", [None, 2])
def test_many_takes_rows(block_size):
    g = lambda p: jnp.sum(p["a"] ** 3) * p["b"]
    p = {"a": jnp.arange(1.0, 5.0).reshape(2, 2), "b": jnp.array(2.0)}
    H = hotk.HessianOperator(g, p)
    rows = np.random.default_rng(0).normal(size=(3, 5))
    close(H.many(rows, block_size), jnp.asarray(rows @ np.asarray(H.matrix()).T))
    trees = {"a": jnp.asarray(rows[:, :4]).reshape(3, 2, 2), "b": rows[:, 4]}
    assert H.many(trees, block_size)["a"].shape == (3, 2, 2)
    square = hotk.HessianOperator(lambda x: jnp.sum(x**3), jnp.ones((2, 2)))
    close(square.many(rows[:, :4], block_size), jnp.asarray(6 * rows[:, :4]))
    flat = hotk.HessianOperator(lambda x: jnp.sum(x**3), jnp.ones(4))
    close(flat.many(jnp.asarray(rows[:, :4]), block_size), jnp.asarray(6 * rows[:, :4]))
    both = hotk.Diagonal(p) + H
    close(both.many(rows), jnp.asarray(rows @ np.asarray(both.matrix()).T))


def test_a_matrix_in_place_of_a_vector_is_told_of_many(as_user):
    H = hotk.HessianOperator(lambda x: jnp.sum(x**3), jnp.ones(3))
    with pytest.raises(hotk.StructureError, match=r"A\.many\(rows\)"):
        H @ jnp.eye(3)
    with pytest.raises(hotk.StructureError, match=r"solve\(rows, batched=True\)"):
        H.solve(jnp.ones((2, 3)))
    with pytest.raises(hotk.StructureError) as caught:
        H @ jnp.ones(4)
    assert "many" not in str(caught.value)
