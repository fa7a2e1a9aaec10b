"""The trace of a Jacobian: exact by either mode, and estimated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles
from tests.helpers import close


A = jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)))
X = jnp.asarray(np.random.default_rng(1).normal(size=6))


def field(x):
    return jnp.tanh(A @ x) * jnp.sum(x**2)


def exact(x):
    return jnp.trace(jax.jacobian(field)(x))


EXACT = float(exact(X))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("mode", [hotk.Auto(), hotk.Forward(), hotk.Reverse()], ids=str)
@pytest.mark.parametrize("block_size", [None, 1, 4])
def test_it_is_the_trace_of_the_jacobian(mode, block_size):
    y, found = hotk.value_and_divergence(field, X, mode=mode, block_size=block_size)
    close(found, EXACT)
    close(y, field(X))
    close(hotk.divergence(field, X, mode=mode, block_size=block_size), EXACT)


def test_of_a_linear_field_it_is_the_trace_of_the_matrix():
    close(hotk.divergence(lambda x: A @ x, X), np.trace(A))


def nested(p, c):
    total = jnp.sum(p["b"]) * p["n"]
    return {"a": [c * p["a"][0] * total], "b": jnp.sin(p["b"]), "n": None}


P = {"a": [jnp.ones((2, 2))], "b": jnp.array([0.5, 1.0, -1.0]), "n": 3}


@pytest.mark.parametrize("mode", [hotk.Forward(), hotk.Reverse()], ids=str)
def test_trees_filters_and_further_arguments(mode):
    whole = 2.0 * 4 * 0.5 * 3 + float(np.sum(np.cos([0.5, 1.0, -1.0])))
    close(hotk.divergence(nested, P, 2.0, mode=mode), whole)
    only = {"a": False, "b": True, "n": False}
    some = hotk.divergence(nested, P, 2.0, mode=mode, where=only)
    close(some, np.sum(np.cos([0.5, 1.0, -1.0])))
    swapped = lambda c, p: nested(p, c)
    close(hotk.divergence(swapped, 2.0, P, mode=mode, argnums=1), whole)


def test_auxiliary_output_numbers_and_transformations():
    f = lambda x: (x**3, {"aux": x})
    assert hotk.divergence(f, 2.0, has_aux=True) == (12.0, {"aux": 2.0})
    (y, aux), found = hotk.value_and_divergence(f, 2.0, has_aux=True)
    assert (y, aux, found) == (8.0, {"aux": 2.0}, 12.0)
    close(jax.vmap(lambda x: hotk.divergence(field, x))(X[None]), np.array([EXACT]))
    # The gradient of a divergence, as training by score matching takes it.
    slope = hotk.gradient(lambda x: hotk.divergence(lambda y: y**3, x), X)
    close(slope, 6 * X)


def test_a_fresh_closure_compiles_nothing():
    of = lambda c: hotk.divergence(lambda x: c * jnp.tanh(x), X)
    of(jnp.array(2.0))
    with compiles() as count:
        close(of(jnp.array(3.0)), 3 * np.sum(1 - np.tanh(X) ** 2))
    assert count() == 0


@pytest.mark.exhaustive
def test_a_prepared_one_compiles_nothing_and_nests():
    prepared = hotk.divergence.prepare(field, X)
    with compiles() as count:
        close(prepared(X), EXACT)
    assert count() == 0
    close(hotk.jvp(prepared, X, X), jax.jvp(exact, (X,), (X,))[1])


def test_a_loop_has_it_forward_and_a_reverse_rule_reverse():
    def halved(x):
        return jax.lax.while_loop(lambda y: y[0] > 1, lambda y: y / 2, x)

    close(hotk.divergence(halved, jnp.array([3.0, 1.0])), 0.5)

    @jax.custom_vjp
    def cubed(x):
        return x**3

    cubed.defvjp(lambda x: (x**3, x), lambda x, u: (3 * x**2 * u,))
    close(hotk.divergence(cubed, X), np.sum(3 * X**2))


@pytest.mark.parametrize(
    ("f", "x", "error"),
    [
        (lambda x: jnp.sum(x), X, hotk.StructureError),
        (lambda x: (x, x), X, hotk.StructureError),
        (lambda x: x[:2], X, hotk.StructureError),
        (lambda x: x, jnp.ones(2, complex), hotk.DtypeError),
        (lambda x: jnp.argsort(x), X, hotk.OutputError),
        (lambda x: jax.lax.complex(x, 2.0 * x), X, hotk.OutputError),
        (lambda p: {"x": p["x"]}, {"x": X, "n": 3}, hotk.StructureError),
    ],
)
def test_what_has_no_divergence_is_refused(f, x, error):
    with pytest.raises(error, match="divergence"):
        hotk.divergence(f, x)
    with pytest.raises(hotk.HotkError):
        hotk.estimate.divergence(f, x, jax.random.key(0))


@pytest.mark.exhaustive
def test_the_estimate_covers_the_trace():
    found = hotk.estimate.divergence(field, X, jax.random.key(0), samples=400)
    assert abs(found.value - EXACT) < 3 * found.error
    assert found.products == 400
    blocks = hotk.estimate.divergence(
        field, X, jax.random.key(0), samples=400, block_size=64
    )
    close(blocks.value, found.value)
    # The variance for random signs, from the matrix.
    J = np.asarray(jax.jacobian(field)(X))
    off = (J + J.T) - np.diag(np.diag(J + J.T))
    close(found.error, np.sqrt(np.sum(off**2) / 2 / 400), rtol=0.15)


def test_the_estimate_of_a_tree_is_exact_where_nothing_is_coupled():
    f = lambda p: {"a": [p["a"][0] ** 2], "b": jnp.sin(p["b"]), "n": None}
    found = hotk.estimate.divergence(f, P, jax.random.key(1), samples=3)
    close(found.value, 8.0 + np.sum(np.cos([0.5, 1.0, -1.0])))
