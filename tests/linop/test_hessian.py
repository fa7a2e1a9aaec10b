"""The Hessian at a point: products, value and gradient, what is a vector of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from tests.helpers import close


X = {"a": np.array([0.5, -1.0, 2.0]), "b": np.array([[1.0, 0.25], [-0.5, 3.0]])}
V = {"a": np.array([1.0, 0.0, -2.0]), "b": np.array([[0.5, -1.0], [2.0, 0.25]])}


def mixed(x):
    return jnp.sum(jnp.sin(x["a"])) * jnp.sum(x["b"] ** 3) + jnp.exp(x["a"][0])


def dense(f, x):
    """The Hessian of the raveled function, by JAX."""
    flat, unravel = ravel_pytree(x)
    return np.asarray(jax.jit(jax.hessian(lambda flat: f(unravel(flat))))(flat))


MATRIX = dense(mixed, X)
FLAT = np.concatenate([V["a"], V["b"].ravel()])


def as_tree(flat):
    return {"a": flat[:3], "b": flat[3:].reshape(2, 2)}


def test_a_product_with_a_tree_is_the_product_with_the_matrix():
    H = hotk.HessianOperator(mixed, X)
    close(H @ V, as_tree(MATRIX @ FLAT))
    close(H @ jax.tree.map(jnp.asarray, V), as_tree(MATRIX @ FLAT))


def test_a_flat_vector_gives_a_flat_vector():
    H = hotk.HessianOperator(mixed, X)
    close(H @ FLAT, MATRIX @ FLAT)
    close(H @ jnp.asarray(FLAT), MATRIX @ FLAT)


def test_a_point_that_is_one_array_takes_an_array_of_its_shape_or_a_flat_one():
    f = lambda x: jnp.sum(x**3) * x[0, 1]
    x, v = X["b"], V["b"]
    H = hotk.HessianOperator(f, x)
    product = dense(f, x) @ v.ravel()
    close(H @ v, product.reshape(2, 2))
    close(H @ v.ravel(), product)


def test_a_number_is_a_point():
    H = hotk.HessianOperator(lambda x: x**3, 2.0)
    close(H @ 1.0, 12.0)
    close(H.matrix(), np.array([[12.0]]))
    close(H.at(3.0) @ 2.0, 36.0)


def test_value_gradient_and_quadratic_form():
    H = hotk.HessianOperator(mixed, X)
    close(H.value, np.asarray(mixed(X)))
    close(H.gradient, jax.grad(mixed)(jax.tree.map(jnp.asarray, X)))
    close(H.quadratic_form(V), FLAT @ MATRIX @ FLAT)
    close(H.quadratic_form(FLAT), FLAT @ MATRIX @ FLAT)


@pytest.mark.parametrize("block_size", [None, 1, 2, 3, 7])
def test_many_products_are_a_loop(block_size):
    H = hotk.HessianOperator(mixed, X)
    flat = np.random.default_rng(0).normal(size=(5, 7))
    vectors = {"a": flat[:, :3], "b": flat[:, 3:].reshape(5, 2, 2)}
    got = H.many(jax.tree.map(jnp.asarray, vectors), block_size)
    expected = flat @ MATRIX
    close(got, {"a": expected[:, :3], "b": expected[:, 3:].reshape(5, 2, 2)})


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize(
    ("make", "matrix"),
    [
        (lambda H: H + 0.5 * hotk.Identity(), MATRIX + 0.5 * np.eye(7)),
        (lambda H: H @ (2 * H), 2 * MATRIX @ MATRIX),
        (lambda H: -H, -MATRIX),
    ],
    ids=["sum", "product", "negative"],
)
def test_many_products_of_an_expression_are_a_loop(make, matrix, block_size):
    flat = np.random.default_rng(1).normal(size=(3, 7))
    vectors = {
        "a": jnp.asarray(flat[:, :3]),
        "b": jnp.asarray(flat[:, 3:].reshape(3, 2, 2)),
    }
    got = make(hotk.HessianOperator(mixed, X)).many(vectors, block_size)
    expected = flat @ matrix.T
    close(got, {"a": expected[:, :3], "b": expected[:, 3:].reshape(3, 2, 2)})


def test_what_is_not_differentiated_passes_through():
    def f(x, power, scale):
        assert x["name"] == "cosine"
        return scale * jnp.sum(x["a"] ** x["n"]) + jnp.sum(x["b"] ** power["of"])

    x = {**X, "n": jnp.array(3), "name": "cosine", "none": None}
    H = hotk.HessianOperator(f, x, {"of": 2.0, "why": "static"}, 10.0)
    diagonal = np.concatenate([60 * X["a"], np.full(4, 2.0)])
    close(H.matrix(), np.diag(diagonal))
    close(H @ FLAT, diagonal * FLAT)
    assert list(H.index) == ["a", "b"]


def test_entries_at_leaves_that_are_not_differentiated_are_ignored():
    f = lambda x: jnp.sum(x["a"] ** 3) * x["n"]
    x = {"a": X["a"], "n": 2, "name": "cubes"}
    H = hotk.HessianOperator(f, x)
    expected = {"a": 12 * X["a"] * V["a"], "n": None, "name": None}
    for rest in ({"n": 7, "name": "x"}, {"n": None, "name": None}):
        close(H @ {"a": V["a"], **rest}, expected)


def test_an_equinox_model_is_a_point():
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    inputs = jnp.array([[0.5, -1.0], [2.0, 0.25], [1.0, 1.0]])

    def loss(model):
        return jnp.mean(jax.vmap(model)(inputs) ** 2)

    arrays, rest = eqx.partition(model, eqx.is_array)
    expected = dense(lambda a: loss(eqx.combine(a, rest)), arrays)
    H = hotk.HessianOperator(loss, model)
    close(H.matrix(), (expected + expected.T) / 2)
    assert jax.tree.structure(H @ model) == jax.tree.structure(arrays)
    bigger = jax.tree.map(lambda a: 2 * a if eqx.is_array(a) else a, model)
    twice = jax.tree.map(lambda a: 2 * a, arrays)
    close(H.at(bigger).matrix(), dense(lambda a: loss(eqx.combine(a, rest)), twice))
    close(H.at(twice).matrix(), dense(lambda a: loss(eqx.combine(a, rest)), twice))


Z = np.array([1 + 2j, -0.5 + 1j])


def wave(z):
    return (z[0] ** 2 * z[1]).real + jnp.sum(jnp.abs(z) ** 4) + jnp.sum(z.real * z.imag)


def embedded(x):
    return wave(jax.lax.complex(x[:2], x[2:]))


@pytest.mark.exhaustive
def test_for_complex_parameters_it_is_the_hessian_of_the_real_embedding():
    expected = jax.hessian(embedded)(jnp.append(Z.real, Z.imag))
    H = hotk.HessianOperator(wave, Z)
    close(H.matrix(), np.asarray(expected))
    v = np.array([0.25 - 1j, 3 + 0.5j])
    parts = np.append(v.real, v.imag)
    product = np.asarray(expected) @ parts
    close(H @ v, product[:2] + 1j * product[2:])
    close(H @ parts, product)
    close(H.quadratic_form(v), parts @ product)
    gradient = np.asarray(jax.grad(embedded)(jnp.append(Z.real, Z.imag)))
    close(H.gradient, gradient[:2] + 1j * gradient[2:])


def test_newton_for_a_complex_quadratic_arrives_in_one_step():
    goal = np.array([3 - 1j, 0.5 + 2j])
    weights = np.array([2.0, 0.5])
    f = lambda z: jnp.sum(weights * jnp.abs(z - goal) ** 2)
    H = hotk.HessianOperator(f, Z)
    close(Z - np.asarray(H.solve(H.gradient, tol=1e-14).x), goal)


def test_newton_for_complex_parameters_descends():
    H = hotk.HessianOperator(wave, Z)
    step = H.solve(H.gradient)
    assert bool(step.definite)
    assert wave(jnp.asarray(Z - 0.1 * np.asarray(step.x))) < wave(jnp.asarray(Z))


WRONG = {
    "a leaf too few": {"a": jnp.ones(3)},
    "a leaf too many": {**V, "c": jnp.ones(1)},
    "another name": {"a": jnp.ones(3), "c": jnp.ones((2, 2))},
    "another shape": {"a": jnp.ones(4), "b": jnp.ones((2, 2))},
    "no shape": {"a": jnp.ones(()), "b": jnp.ones((2, 2))},
    "another dtype": {"a": jnp.ones(3, jnp.float32), "b": jnp.ones((2, 2))},
    "complex": {"a": np.ones(3) * 1j, "b": np.ones((2, 2))},
    "None": {"a": None, "b": np.ones((2, 2))},
    "text": {"a": "abc", "b": np.ones((2, 2))},
    "a list": [jnp.ones(3), jnp.ones((2, 2))],
    "too long": jnp.ones(8),
    "a batch": jnp.ones((2, 7)),
    "a number": 1.0,
}


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("v", WRONG.values(), ids=WRONG)
def test_what_is_no_vector_of_the_space_is_refused_and_both_are_shown(v):
    H = hotk.HessianOperator(mixed, X)
    for use in (lambda: H @ v, lambda: H.quadratic_form(v), lambda: H.solve(v)):
        with pytest.raises(hotk.StructureError) as error:
            use()
        text = str(error.value)
        assert "f64[3], f64[2,2]" in text.split("expected:")[1]
        assert text.split("got:")[1].strip()


@pytest.mark.usefixtures("as_user")
def test_a_point_without_anything_to_differentiate_is_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.HessianOperator(lambda x: jnp.array(1.0), jnp.arange(3))


@pytest.mark.usefixtures("as_user")
def test_it_shows_function_point_and_size():
    text = repr(hotk.HessianOperator(mixed, X))
    assert "mixed" in text
    assert "n=7" in text
