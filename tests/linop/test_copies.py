"""Copies of operators and of results compute the same; what has code is not pickled."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.helpers import close


SCALE = jnp.array([1.0, 2.0, 3.0])
X = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(1.5, float)}


def loss(x, c=2.0):
    return jnp.sum(SCALE * x["a"] ** 4) * c * x["b"] ** 2


def make():
    return hotk.HessianOperator(loss, X)


OPERATORS = {
    "Hessian": make,
    "of a closure": lambda: hotk.HessianOperator(lambda x: loss(x, 3.0), X),
    "some leaves": lambda: hotk.HessianOperator(loss, X, where=lambda a: a.ndim == 1),
    "sum": lambda: 2.0 * make() + hotk.Identity(),
    "linearized": lambda: make().linearize("store"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_copy_of_an_operator(name):
    H = OPERATORS[name]()
    for copied in (copy.copy(H), copy.deepcopy(H)):
        close(copied.matrix(), H.matrix())
        v = jax.tree.map(jnp.ones_like, H.like)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, copied @ v, H @ v))


def test_a_copy_compiles_nothing():
    H = make()
    v = jax.tree.map(jnp.ones_like, H.like)
    H @ v
    before = hotk.cache_info()
    copy.deepcopy(H) @ v
    after = hotk.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)


RESULTS = {
    "solution": lambda: make().solve(make().gradient),
    "eigenvalues": lambda: make().eigh(2),
    "estimate": lambda: hotk.estimate.trace(make(), jax.random.key(0)),
    "minimum": lambda: hotk.optim.minimize(
        loss, X, hotk.optim.newton_cg(), max_steps=2
    ),
    "state": lambda: hotk.optim.newton_cg().init(X),
    "differential operator": lambda: hotk.differential_operator({"a": 2.0}),
    "loss": lambda: hotk.curvature.SquaredError(jnp.ones(2)),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", RESULTS)
def test_results_and_states_survive_pickle(name):
    result = RESULTS[name]()
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert type(again) is type(result)
        pairs = zip(jax.tree.leaves(again), jax.tree.leaves(result), strict=True)
        assert all(jnp.array_equal(a, b, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize(
    "operator",
    [hotk.hvp, hotk.gradient, hotk.hessian, hotk.partial, hotk.tvp, hotk.cross_hvp],
    ids=str,
)
def test_an_operator_is_pickled_by_its_name(operator):
    assert pickle.loads(pickle.dumps(operator)) is operator
    assert copy.deepcopy(operator) is operator


def test_what_has_code_says_what_to_send():
    with pytest.raises(TypeError, match="Send the function and the arguments"):
        pickle.dumps(hotk.Closure.of(loss))
    prepared = hotk.gradient.prepare(loss, X)
    with pytest.raises(TypeError, match=r"hotk\.export"):
        pickle.dumps(prepared)


def test_a_prepared_is_exported():
    """The way out that the message names."""
    prepared = hotk.gradient.prepare(loss, X)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), X)
    got = jax.export.export(jax.jit(prepared))(shapes).call(X)
    expected = jax.grad(loss)(X)
    assert all(map(jnp.allclose, jax.tree.leaves(got), jax.tree.leaves(expected)))
