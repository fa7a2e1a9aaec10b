"""The richest variant of `hessian`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import CASES, each_dtype, knowing
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0])

each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


def power(x, c=2.0):
    return c * jnp.sum(x**4)


VALUE, GRADIENT, HESSIAN = 2 * np.sum(X**4), 8 * X**3, np.diag(24 * X**2)


@pytest.mark.thinned(2)
@knowing("hessian", [make for make in CASES if "gradient" in make.operators])
def test_known_by_hand(make):
    case = make()
    got = hotk.value_gradient_and_hessian(case.f, *case.inputs("hessian"))
    close(got, (case.value, case.gradient, case.hessian))


@pytest.mark.thinned(4, "nesting")
@each_nesting
@pytest.mark.parametrize("block_size", [None, 1, 2, 3, 4])
def test_every_nesting_and_block_size_gives_the_same(nesting, block_size):
    got = hotk.value_gradient_and_hessian(
        power, X, mode=getattr(hotk, nesting), block_size=block_size
    )
    close(got, (VALUE, GRADIENT, HESSIAN))


@pytest.mark.thinned(4, "nesting")
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    got = hotk.value_gradient_and_hessian(
        lambda x: jnp.sum(x**3), x, mode=getattr(hotk, nesting)
    )
    numbers = [8.875], [3.0, 12.0, 0.75], np.diag([6.0, 12.0, -3.0])
    value, gradient, hessian = (np.array(n).astype(x.dtype) for n in numbers)
    close(got, (value[0], gradient, hessian))


def test_of_an_empty_tree():
    got = hotk.value_gradient_and_hessian(lambda x: jnp.array(3.0), {})
    close(got, (3.0, {}, {}))


def test_of_several_outputs_has_their_jacobian():
    x = np.array([1.0, 2.0, 3.0])
    try:
        got = hotk.value_gradient_and_hessian(jnp.cumprod, x)
    except hotk.OutputError:
        return  # one real number is asked for
    expected = jnp.cumprod(x), jax.jacobian(jnp.cumprod)(x), jax.hessian(jnp.cumprod)(x)
    close(got, expected)


def test_jit_changes_nothing():
    got = jax.jit(lambda x: hotk.value_gradient_and_hessian(power, x))(X)
    close(got, (VALUE, GRADIENT, HESSIAN))


def test_vmap_is_a_loop():
    cs = np.array([2.0, -1.0])
    got = jax.vmap(lambda c: hotk.value_gradient_and_hessian(power, X, c))(cs)
    factor = np.array([1.0, -0.5])
    expected = VALUE * factor, np.multiply.outer(factor, GRADIENT)
    close(got, (*expected, np.multiply.outer(factor, HESSIAN)))


def test_differentiating_it_gives_one_order_more():
    def all_of_it(x):
        value, gradient, hessian = hotk.value_gradient_and_hessian(power, x)
        return value + jnp.sum(gradient) + jnp.sum(hessian)

    expected = GRADIENT + 24 * X**2 + 48 * X
    close(jax.grad(all_of_it)(X), expected)
    close(jax.jvp(all_of_it, (X,), (X,))[1], expected @ X)


@pytest.mark.thinned(4, "nesting")
@each_nesting
@pytest.mark.parametrize("block_size", [None, 2])
def test_aux_stands_beside_the_value(nesting, block_size):
    f = lambda x: (power(x), {"count": jnp.array(3), "x": x})
    got = hotk.value_gradient_and_hessian(
        f, X, has_aux=True, mode=getattr(hotk, nesting), block_size=block_size
    )
    close(got, ((VALUE, {"count": np.array(3), "x": X}), GRADIENT, HESSIAN))
