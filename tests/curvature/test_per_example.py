"""Rows of Jacobians by gradients of single examples, and curvatures by rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import (
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    LeastSquares,
    PerExample,
    PoissonLoss,
    SampledFisher,
    SoftmaxCrossEntropy,
    SquaredError,
    rows_program,
)
from tests.helpers import close


X = jax.random.normal(jax.random.key(0), (5, 3))
P = {
    "a": jax.random.normal(jax.random.key(1), (3, 4)),
    "n": 2,
    "b": jax.random.normal(jax.random.key(2), (4, 3)),
}
CLASSES = SoftmaxCrossEntropy(jnp.arange(5) % 3)


def model(p, x):
    return jnp.tanh(x @ p["a"]) @ p["b"] * p["n"]


def test_rows_are_those_of_the_whole_jacobian():
    batch = lambda a: jax.vmap(lambda x: model(P | {"a": a}, x))(X)
    found = PerExample(model, X).rows(P)
    assert found["n"] is None
    assert found["b"].shape == (5, 3, 4, 3)
    close(found["a"], jax.jacrev(batch)(P["a"]), rtol=1e-12)


OF = PerExample(model, X)
FUNCTIONS = {
    "classes": GaussNewton(OF, CLASSES),
    "squares": GaussNewton(OF, SquaredError(jnp.ones((5, 3)))),
    "counts": GaussNewton(
        PerExample(lambda p, x: jnp.sum(model(p, x)) / 9, X), PoissonLoss(jnp.ones(5))
    ),
    "fisher": Fisher(OF, CLASSES),
    "sampled": SampledFisher(OF, CLASSES, jax.random.key(3), 2),
    "empirical": EmpiricalFisher(OF, CLASSES),
    "residuals": LeastSquares(lambda p, x: model(p, x) - 1, X),
    "several": LeastSquares(
        (lambda p, x: model(p, x)[0], lambda p, x: jnp.sum(p["b"] ** 2)), (X, X[:1])
    ),
}


def dense(name):
    """Return the matrix of a batch, by jacobians and Hessians of JAX alone."""
    moving = lambda ab: {"a": ab[0], "n": P["n"], "b": ab[1]}
    ab = (P["a"], P["b"])
    batch = lambda ab: jax.vmap(lambda x: model(moving(ab), x))(X)
    if name in ("classes", "fisher"):
        z, outer = batch, lambda z: CLASSES(z)
    elif name == "squares":
        z, outer = batch, lambda z: jnp.sum((z - 1) ** 2) / 10
    elif name == "counts":
        z = lambda ab: jnp.sum(batch(ab), axis=1) / 9
        outer = lambda z: jnp.mean(jnp.exp(z) - z)
    elif name == "residuals":
        z, outer = batch, lambda z: jnp.sum((z - 1) ** 2) / 2
    else:
        z = lambda ab: jnp.append(batch(ab)[:, 0], jnp.sum(ab[1] ** 2))
        outer = lambda z: jnp.sum(z**2) / 2
    size = z(ab).size
    j = jnp.concatenate([a.reshape(size, -1) for a in jax.jacobian(z)(ab)], axis=1)
    h = jax.hessian(outer)(z(ab)).reshape(size, size)
    return np.asarray(j.T @ h @ j), np.asarray(j.T @ jax.grad(outer)(z(ab)).reshape(-1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_a_function_have_its_curvature_for_their_gram_matrix(name):
    f = FUNCTIONS[name]
    moving = {"a": P["a"], "b": P["b"]}
    g = lambda p: f(p | {"n": P["n"]})
    program = rows_program(g, moving)
    rows, weights, again = program.compute()
    flat = lambda t: np.concatenate([np.ravel(t["a"]), np.ravel(t["b"])])
    a = np.stack(
        [flat(jax.tree.map(lambda r, i=i: r[i], rows)) for i in range(program.number)]
    )
    if name in ("sampled", "empirical"):
        hessian = jax.hessian(g)(moving)
        matrix = np.block(
            [[np.asarray(hessian[i][j]).reshape(12, 12) for j in "ab"] for i in "ab"]
        )
        gradient = flat(jax.grad(g)(moving))
    else:
        matrix, gradient = dense(name)
    close(a.T @ a, matrix, rtol=1e-10, atol=1e-12)
    if name != "sampled":
        close(a.T @ np.asarray(weights), gradient, rtol=1e-10, atol=1e-12)
    assert (again is not None) == (name in ("squares", "residuals", "several"))
    if again is not None:
        moved = jax.tree.map(lambda a: 1.1 * a, moving)
        close(jnp.sum(again(moved) ** 2) / 2, g(moved), rtol=1e-12)


def test_what_is_not_the_value_itself_has_no_rows():
    f = FUNCTIONS["residuals"]
    for changed in (lambda p: 2 * f(p), lambda p: f(p) + jnp.sum(p["a"])):
        assert rows_program(changed, {"a": P["a"], "n": 2, "b": P["b"]}) is None
    assert rows_program(lambda p: jnp.sum(p), jnp.ones(2)) is None


@pytest.mark.exhaustive
def test_values_derivatives_and_batches_are_those_without_rows():
    f = FUNCTIONS["classes"]
    plain = GaussNewton(lambda p: jax.vmap(lambda x: model(p, x))(X), CLASSES)
    p = {"a": P["a"], "n": 2, "b": P["b"]}
    v = jax.tree.map(lambda a: a / 2 if hasattr(a, "shape") else a, p)
    close(f(p), plain(p), rtol=1e-14)
    close(hotk.hvp(f, p, v)["b"], hotk.hvp(plain, p, v)["b"], rtol=1e-12)
    several = jax.vmap(lambda a: f(p | {"a": a}))(jnp.stack([P["a"], 2 * P["a"]]))
    close(several[0], f(p), rtol=1e-14)


def test_empty_leaves_and_no_examples_are_values_as_others():
    r = lambda p, e: p["a"] * e - 1.0
    p = {"a": jnp.array(1.5), "none": jnp.zeros(0)}
    f = hotk.curvature.LeastSquares(r, jnp.arange(1.0, 5.0))
    close(f(p), np.array(sum((1.5 * k - 1) ** 2 / 2 for k in range(1, 5))))
    slope = sum(k * (1.5 * k - 1) for k in range(1, 5))
    close(hotk.gradient(f, p)["a"], np.array(slope))
    assert hotk.curvature.LeastSquares(r, jnp.zeros(0))(p) == 0


def test_several_functions_of_residuals_need_examples(as_user):
    f = hotk.curvature.LeastSquares((lambda p, e: p - e, lambda p, e: p + e))
    with pytest.raises(TypeError, match="several residual functions"):
        f(jnp.ones(2))
