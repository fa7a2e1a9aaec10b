"""Gauss-Newton and Fisher matrices depend on the point: products have derivatives.

What is expected is `J^T B J v` by plain JAX, the curvature `B` of the loss by hand.
"""

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.helpers import close


X = jnp.array([0.5, -0.25, 0.75])
V = jnp.array([1.0, -2.0, 0.5])
LABELS = jnp.array([0, 2])
NESTINGS = [
    hotk.FORWARD_OVER_REVERSE,
    hotk.REVERSE_OVER_REVERSE,
    hotk.REVERSE_OVER_FORWARD,
    hotk.FORWARD_OVER_FORWARD,
]


def model(x):
    """Return two examples of three outputs."""
    first = jnp.stack([x[0] * x[1] + x[0], x[1] ** 3 / 8 + x[1], x[2] * x[0] ** 2])
    return jnp.stack([first, jnp.sin(first)])


def coupled(z):
    return jnp.sum(jnp.cosh(z)) + jnp.sum(z) ** 2 / 8


def softmax_curvature(z):
    """Return the mean of `diag(p) - p p^T` over examples, as one matrix."""
    p = jax.nn.softmax(z)
    blocks = [jnp.diag(row) - jnp.outer(row, row) for row in p]
    return jax.scipy.linalg.block_diag(*blocks) / len(p)


def outer_products(z):
    slopes = jax.nn.softmax(z) - jax.nn.one_hot(LABELS, 3)
    return jax.scipy.linalg.block_diag(*(jnp.outer(g, g) for g in slopes)) / len(z)


SOFTMAX = hotk.curvature.SoftmaxCrossEntropy(LABELS)
SQUARES = hotk.curvature.SquaredError(jnp.ones((2, 3)))
# What has the matrix for its Hessian, and the curvature of the loss at its outputs.
CURVATURES = {
    "a function": (
        hotk.curvature.GaussNewton(model, coupled),
        lambda z: jax.hessian(lambda a: coupled(a.reshape(z.shape)))(z.ravel()),
    ),
    "softmax": (hotk.curvature.GaussNewton(model, SOFTMAX), softmax_curvature),
    "squares": (
        hotk.curvature.GaussNewton(model, SQUARES),
        lambda z: jnp.eye(z.size) / len(z),
    ),
    "Fisher": (hotk.curvature.Fisher(model, SOFTMAX), softmax_curvature),
    "empirical": (hotk.curvature.EmpiricalFisher(model, SOFTMAX), outer_products),
}


def matrix(curvature, x):
    J = jax.jacfwd(lambda x: model(x).ravel())(x)
    return J.T @ curvature(model(x)) @ J


@pytest.mark.thinned(8, "name", "mode")
@pytest.mark.parametrize("name", CURVATURES)
@pytest.mark.parametrize("mode", NESTINGS, ids=str)
def test_a_product_has_the_derivatives_of_the_matrix(name, mode):
    f, curvature = CURVATURES[name]
    product = lambda x: hotk.hvp(f, x, V, mode=mode)
    expected = lambda x: matrix(curvature, x) @ V
    close(product(X), expected(X))
    close(jax.jacfwd(product)(X), jax.jacfwd(expected)(X))
    close(jax.jacrev(product)(X), jax.jacfwd(expected)(X))
    twice = jax.jacfwd(jax.jacfwd(expected))(X)
    close(jax.jacfwd(jax.jacrev(product))(X), twice)


OPERATORS = {
    "quadratic_form": (lambda f, x: hotk.quadratic_form(f, x, V), lambda M: V @ M @ V),
    "hessian": (hotk.hessian, lambda M: M),
    "hessian_diagonal": (hotk.hessian_diagonal, jnp.diag),
    "laplacian": (hotk.laplacian, jnp.trace),
    "sparse_hessian": (lambda f, x: hotk.sparse_hessian(f, x).todense(), lambda M: M),
    "matrix": (lambda f, x: hotk.HessianOperator(f, x).matrix(), lambda M: M),
    "linearize": (
        lambda f, x: hotk.HessianOperator(f, x).linearize("store") @ V,
        lambda M: M @ V,
    ),
}


@pytest.mark.thinned(8, "name")
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("curvature", ["a function", "softmax", "empirical"])
def test_operators_of_it_have_its_derivatives(curvature, name):
    f, by_outputs = CURVATURES[curvature]
    operator, part = OPERATORS[name]
    expected = jax.jacfwd(lambda x: part(matrix(by_outputs, x)))(X)
    close(jax.jacfwd(lambda x: operator(f, x))(X), expected)
    close(jax.jacrev(lambda x: operator(f, x))(X), expected)


def test_the_gradient_is_that_of_the_loss_and_its_derivative_the_matrix():
    f, curvature = CURVATURES["softmax"]
    slope = lambda x: hotk.gradient(f, x)
    close(slope(X), jax.grad(lambda x: SOFTMAX(model(x)))(X))
    close(jax.jacfwd(slope)(X), matrix(curvature, X))
