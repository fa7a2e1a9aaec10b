"""A value of shape `(1,)`, as networks return it, is one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


X, V = jnp.array([0.5, -1.0, 2.0]), jnp.array([1.0, 0.0, -2.0])


def network(x):
    """Return the cubes' sum with one axis, as a layer of one output does."""
    return jnp.sum(x**3).reshape(1)


def bent(x):
    return jnp.maximum(jnp.sum(x), 0.0).reshape(1)


@pytest.mark.parametrize("mode", [hotk.Auto(), hotk.REVERSE_OVER_REVERSE], ids=str)
def test_products(mode):
    close(hotk.hvp(network, X, V, mode=mode), 6 * X * V)
    value, gradient, product = hotk.value_gradient_and_hvp(network, X, V, mode=mode)
    assert value.shape == ()
    close(value, jnp.sum(X**3))
    close(gradient, 3 * X**2)
    close(product, 6 * X * V)
    form = hotk.quadratic_form(network, X, V, mode=mode)
    assert form.shape == ()
    close(form, jnp.sum(6 * X * V**2))


def test_prepared_batched_and_with_auxiliary_output():
    close(hotk.hvp.prepare(network, X, V)(X, V), 6 * X * V)
    close(hotk.hvp(network, X, jnp.diag(V), batched=True), 6 * jnp.diag(X * V))
    product, aux = hotk.hvp(lambda x: (network(x), x[0]), X, V, has_aux=True)
    close(product, 6 * X * V)
    close(aux, X[0])
    opaque = lambda x: network(x) * np.random.default_rng().uniform(2.0, 2.0)
    close(hotk.hvp(opaque, X, V), 12 * X * V)


def test_the_program_of_the_function_is_shared():
    """The Hessian has the axis, the product has not; the function is traced once."""
    f = lambda x: jnp.sum(x**4).reshape(1)
    assert hotk.hessian(f, X).shape == (1, 3, 3)
    before = hotk.cache_info().traces
    close(hotk.hvp(f, X, V), 12 * X**2 * V)
    close(hotk.hessian(f, X)[0] @ V, 12 * X**2 * V)
    assert hotk.cache_info().traces - before <= 1


def test_one_that_is_linear_in_pieces_is_told_of():
    with pytest.warns(hotk.ZeroHessianWarning):
        hotk.hvp(bent, X, V)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("shape", [(1, 1), (2,)], ids=str)
def test_other_shapes_are_refused(shape):
    f = lambda x: jnp.sum(x**3) * jnp.ones(shape)
    with pytest.raises(hotk.OutputError, match="one real number"):
        hotk.quadratic_form(f, X, V)
    assert hotk.hvp(f, X, V).shape == (*shape, 3)  # a product for each
    with pytest.raises(hotk.OutputError, match="one real number"):
        hotk.gradient(network, X)  # as `jax.grad`
    with pytest.raises(TypeError):
        jax.grad(network)(X)
