"""The richest variant of `hvp`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import SCENARIOS, each_dtype, knowing
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0])
V = np.array([1.0, 0.5, -2.0])
W = np.array([-0.7, 3.0, 0.25])

each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


def power(x, c=2.0):
    return c * jnp.sum(x**4)


VALUE, GRADIENT, PRODUCT = 2 * np.sum(X**4), 8 * X**3, 24 * X**2 * V


@pytest.mark.thinned(3)
@each_nesting
@knowing("hvp", SCENARIOS)
def test_known_by_hand_in_each_nesting(make, nesting):
    check(make(), getattr(hotk, nesting))


@pytest.mark.thinned(4)
@knowing("hvp")
def test_known_by_hand(make):
    check(make(), hotk.Auto())


def check(case, mode):
    got = hotk.value_gradient_and_hvp(case.f, *case.inputs("hvp"), mode=mode)
    close(got, (case.value, case.gradient, case.hvp))


@pytest.mark.thinned(6, "nesting")
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    v = jnp.array([1.0, -1.0, 2.0], dtype)
    got = hotk.value_gradient_and_hvp(
        lambda x: jnp.sum(x**3), x, v, mode=getattr(hotk, nesting)
    )
    numbers = [8.875], [3.0, 12.0, 0.75], [6.0, -12.0, -6.0]
    value, gradient, product = (np.array(n).astype(x.dtype) for n in numbers)
    close(got, (value[0], gradient, product))


def test_of_an_empty_tree():
    got = hotk.value_gradient_and_hvp(lambda x: jnp.array(3.0), {}, {})
    close(got, (3.0, {}, {}))


@each_nesting
def test_nothing_depends_on_being_asked_for_together(nesting):
    """Value and gradient are those of the operators for them alone."""
    mode = getattr(hotk, nesting)
    value, gradient, product = hotk.value_gradient_and_hvp(power, X, V, mode=mode)
    close((value, gradient), hotk.value_and_gradient(power, X))
    close(product, hotk.hvp(power, X, V, mode=mode))
    close((value, gradient, product), (VALUE, GRADIENT, PRODUCT))


def test_jit_changes_nothing():
    got = jax.jit(lambda x, v: hotk.value_gradient_and_hvp(power, x, v))(X, V)
    close(got, (VALUE, GRADIENT, PRODUCT))


def test_vmap_is_a_loop():
    cs = np.array([2.0, -1.0])
    got = jax.vmap(lambda c: hotk.value_gradient_and_hvp(power, X, V, c))(cs)
    factor = np.array([[1.0], [-0.5]])
    close(got, (VALUE * factor[:, 0], GRADIENT * factor, PRODUCT * factor))


def test_differentiating_it_gives_one_order_more():
    def all_of_it(x):
        value, gradient, product = hotk.value_gradient_and_hvp(power, x, V)
        return 3 * value + W @ gradient + W @ product

    expected = 3 * GRADIENT + 24 * X**2 * W + 48 * X * V * W
    close(jax.grad(all_of_it)(X), expected)
    close(jax.jvp(all_of_it, (X,), (W,))[1], expected @ W)


@each_nesting
def test_aux_stands_beside_the_value(nesting):
    f = lambda x: (power(x), {"count": jnp.array(3), "x": x})
    aux = {"count": np.array(3), "x": X}
    got = hotk.value_gradient_and_hvp(
        f, X, V, has_aux=True, mode=getattr(hotk, nesting)
    )
    close(got, ((VALUE, aux), GRADIENT, PRODUCT))


@each_nesting
def test_a_batch_of_directions_has_one_value_and_gradient(nesting):
    vs = np.stack([V, W, -V])
    got = hotk.value_gradient_and_hvp(
        power, X, vs, batched=True, mode=getattr(hotk, nesting)
    )
    close(got, (VALUE, GRADIENT, 24 * X**2 * vs))
