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


@pytest.mark.exhaustive
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


@pytest.mark.thinned(1)
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


SLOPES = {
    "hvp": (lambda g, x: hotk.hvp(g, x, V), lambda D: D @ V),
    "quadratic_form": (lambda g, x: hotk.quadratic_form(g, x, V), lambda D: V @ D @ V),
    "second_derivative": (
        lambda g, x: hotk.second_derivative(lambda t: g(x + t * V), 0.0),
        lambda D: V @ D @ V,
    ),
    "hessian_diagonal": (hotk.hessian_diagonal, jnp.diag),
    # not symmetric, so there is nothing to mirror
    "sparse_hessian": (lambda g, x: hotk.sparse_hessian(g, x).todense(), lambda D: D),
}


@pytest.mark.thinned(2)
@pytest.mark.counts  # not symmetric: plain JAX finds the transpose in another nesting
@pytest.mark.parametrize("name", SLOPES)
def test_second_derivatives_of_a_slope_are_those_of_a_product(name):
    f, curvature = CURVATURES["a function"]
    operator, part = SLOPES[name]
    by_point = jax.jacfwd(lambda x: matrix(curvature, x) @ V)(X)
    assert jnp.abs(by_point - by_point.T).max() > 0.1
    close(operator(lambda x: hotk.gradient(f, x) @ V, X), part(by_point))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a function", "softmax", "empirical"])
def test_taylor_mode_refuses_derivatives_of_the_matrix(name):
    f, curvature = CURVATURES[name]
    slope = lambda x: hotk.gradient(f, x) @ V
    close(hotk.derivatives(f, X, V, order=2)[2], V @ matrix(curvature, X) @ V)
    traces = jax.hessian(lambda x: jnp.trace(matrix(curvature, x)))(X)
    close(hotk.biharmonic(f, X), jnp.trace(traces))  # the Laplacian of a Laplacian
    for call in (
        lambda: hotk.derivatives(f, X, V, order=3),
        lambda: hotk.tvp(f, X, V, V, V),
        lambda: hotk.partial(f, X, (3, 0, 0)),
        lambda: hotk.derivative_tensor(f, X, order=3),
        lambda: hotk.laplacian(slope, X),
        lambda: hotk.tvp(slope, X, V, V),
    ):
        with pytest.raises(hotk.ModeError, match="differentiate a product"):
            call()


@pytest.mark.parametrize("mode", [hotk.Taylor(), hotk.FORWARD_OVER_FORWARD], ids=str)
def test_derivatives_by_an_argument_are_none_by_the_point(mode):
    model = lambda w, c: jnp.sin(c * w)
    f = hotk.curvature.GaussNewton(model, lambda z: jnp.sum(z**4))
    w, c = jnp.array([0.7, -0.4]), 1.5
    curvature = lambda w: hotk.quadratic_form(lambda c: f(w, c), c, 1.0, mode=mode)
    twice = lambda w: jax.grad(jax.grad(lambda c: f(w, c)))(c)
    close(curvature(w), twice(w))
    close(jax.hessian(curvature)(w), jax.hessian(twice)(w))
