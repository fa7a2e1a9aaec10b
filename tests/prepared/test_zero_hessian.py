"""A Hessian that is zero by structure is told of, once, and no other is."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.helpers import close


W = jnp.arange(12.0).reshape(3, 4) / 7 - 0.6
X = jnp.array([0.3, -0.7, 1.1])


def relu_network(x):
    return jnp.sum(jax.nn.relu(x @ W))


def leaky_layers(x):
    layer = lambda c, w: (jnp.maximum(w @ c, 0.1 * (w @ c)), None)
    return jnp.sum(jax.lax.scan(layer, x, jnp.ones((2, 3, 3)))[0])


FLAT = {
    "relu": relu_network,
    "layers in a scan": leaky_layers,
    "where": lambda x: jnp.sum(jnp.where(x > 0, x, 2 * x)),
    "absolute value": lambda x: jnp.sum(jnp.abs(x)),
    "sorted": lambda x: jnp.sort(x)[0],
    "median of a product": lambda x: jnp.max(3 * x) - jnp.min(x / 2),
}
BENT = {
    "tanh": lambda x: jnp.sum(jnp.tanh(x @ W)),
    "relu, then squared": lambda x: jnp.sum((jax.nn.relu(x @ W) - 1) ** 2),
    "product of pieces": lambda x: jnp.maximum(x[0], 0) * jnp.abs(x[1]),
    "where of squares": lambda x: jnp.sum(jnp.where(x > 0, x * x, x)),
    "softplus": lambda x: jnp.sum(jax.nn.softplus(x)),
    "linear, as it is written": lambda x: jnp.sum(2 * x),
}
CALLS = {
    "hvp": lambda f: hotk.hvp(f, X, X),
    "hessian": lambda f: hotk.hessian(f, X),
    "hessian_diagonal": lambda f: hotk.hessian_diagonal(f, X),
    "quadratic_form": lambda f: hotk.quadratic_form(f, X, X),
    "value_gradient_and_hvp": lambda f: hotk.value_gradient_and_hvp(f, X, X),
    "prepared": lambda f: hotk.hvp.prepare(f, X, X),
    "in jit": lambda f: jax.jit(lambda x: hotk.hvp(f, x, x))(X),
}


def warned(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            call()
    return found


def test_single_precision_and_integers_beside():
    def f(x):
        value = jnp.sum(jax.nn.relu(x))
        return value, jnp.argmax(x)

    x = jnp.ones(3, jnp.float32)
    with jax.numpy_dtype_promotion("strict"):
        found = warned(lambda: hotk.hvp(f, x, x, has_aux=True))
        assert len(found) == 1
        outputs = lambda x: {"a": jax.nn.relu(x), "b": jax.nn.relu(x).astype(float)}
        assert len(warned(lambda: hotk.hessian(outputs, x))) == 1


def test_a_warning_that_is_an_error_is_raised_as_it_is():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(hotk.ZeroHessianWarning, match="piecewise linear"):
            hotk.hvp(relu_network, 2 * X, X)
    close(hotk.hvp(lambda x: jnp.sum(x**3), X, X), 6 * X * X)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", FLAT)
def test_a_function_that_is_linear_in_pieces_warns_once(name):
    hotk.clear_cache()
    assert not jnp.any(jax.hessian(FLAT[name])(X))
    found = warned(lambda: hotk.hvp(FLAT[name], X, X))
    assert [w.category for w in found] == [hotk.ZeroHessianWarning]


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("call", ["hvp", "hessian"])
def test_any_other_does_not(name, call):
    hotk.clear_cache()
    assert warned(lambda: CALLS[call](BENT[name])) == []


@pytest.mark.parametrize("name", CALLS)
def test_every_operator_of_second_order_warns(name):
    hotk.clear_cache()
    with pytest.warns(hotk.ZeroHessianWarning, match="relu_network"):
        CALLS[name](relu_network)


def test_an_operator_at_a_point_warns():
    f = lambda x: 3 * jnp.sum(jnp.maximum(x, 2 * x))  # none has seen it before
    with pytest.warns(hotk.ZeroHessianWarning, match="`max`"):
        assert not jnp.any(hotk.HessianOperator(f, X) @ X)


@pytest.mark.parametrize("name", ["gradient", "jacobian", "value_and_gradient"])
def test_operators_of_first_order_do_not(name):
    hotk.clear_cache()
    assert warned(lambda: getattr(hotk, name)(relu_network, X)) == []


CURVED = {
    "laplacian": lambda f: hotk.laplacian(f, X),
    "value_and_laplacian": lambda f: hotk.value_and_laplacian(f, X),
    "biharmonic": lambda f: hotk.biharmonic(f, X),
    "partial": lambda f: hotk.partial(f, X, (2,) + (0,) * (len(X) - 1)),
    "tensor": lambda f: hotk.derivative_tensor(f, X, order=3),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", CURVED)
def test_sums_of_derivatives_of_second_order_and_above_warn(name):
    hotk.clear_cache()
    with pytest.warns(hotk.ZeroHessianWarning, match="relu_network"):
        CURVED[name](relu_network)
    assert warned(lambda: CURVED[name](lambda x: jnp.sum(jnp.maximum(x, 0) ** 3))) == []


def test_those_that_have_a_first_derivative_do_not():
    hotk.clear_cache()
    index = (1,) + (0,) * (len(X) - 1)
    assert warned(lambda: hotk.partial(relu_network, X, index)) == []
    assert warned(lambda: hotk.derivatives(relu_network, X, X, order=2)) == []
    assert warned(lambda: hotk.derivative_tensor(relu_network, X, order=1)) == []


def test_it_names_the_function_the_kink_and_the_line_of_the_call():
    hotk.clear_cache()
    (found,) = warned(lambda: hotk.hvp(relu_network, X, X))
    line = relu_network.__code__.co_firstlineno
    assert f"`relu_network` (test_zero_hessian.py:{line})" in str(found.message)
    assert f"test_zero_hessian.py:{line + 1}" in str(found.message)
    assert "`max`" in str(found.message)
    assert found.filename == __file__


def test_weights_of_a_network_bend_its_output():
    f = lambda p: jnp.sum(jax.nn.relu(X @ p[0]) @ p[1])
    p = (W, jnp.ones(4))
    assert warned(lambda: hotk.hvp(f, p, p)) == []
    last = lambda b: f((W, b))
    assert warned(lambda: hotk.hvp(last, p[1], p[1])) != []
    assert not jnp.any(jax.hessian(last)(p[1]))


def test_a_rule_of_the_user_may_bend_what_its_body_does_not():
    @jax.custom_jvp
    def spike(x):
        return jnp.where(x > 0, 1.0, 0.0)

    spike.defjvp(lambda p, t: (spike(p[0]), t[0] / (1 + p[0] ** 2)))
    f = lambda x: jnp.sum(spike(x))
    assert warned(lambda: hotk.hvp(f, X, X)) == []
    assert jnp.any(hotk.hvp(f, X, X))
