"""The derivative by one number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import SCENARIOS, each_dtype, knowing
from tests.helpers import close


each_mode = pytest.mark.parametrize("mode", ["Auto", "Forward", "Reverse"])


@knowing("derivative")
def test_known_by_hand(make):
    case = make()
    got = hotk.value_and_derivative(case.f, case.x, *case.args)
    close(got, (case.value, case.derivative))


@each_mode
@knowing("derivative", SCENARIOS)
def test_known_by_hand_in_each_mode(make, mode):
    case = make()
    got = hotk.derivative(case.f, case.x, mode=getattr(hotk, mode)())
    close(got, case.derivative)


def test_of_a_constant_is_exactly_zero():
    assert hotk.derivative(lambda x: jnp.array([7.0, 8.0]), 0.3).tolist() == [0, 0]


@each_mode
def test_any_tree_comes_out(mode):
    def f(x, powers):
        return {"all": x**powers, "none": None, "pair": (x, [jnp.sin(x)])}

    powers = jnp.array([[1.0, 2.0], [3.0, 0.0]])
    expected = {
        "all": np.array([[1.0, 4.0], [12.0, 0.0]]),
        "none": None,
        "pair": (1.0, [np.cos(2.0)]),
    }
    close(hotk.derivative(f, 2.0, powers, mode=getattr(hotk, mode)()), expected)


@pytest.mark.parametrize("x", [2.0, np.float64(2.0), np.array(2.0), jnp.array(2.0)])
def test_any_kind_of_number_goes_in(x):
    close(hotk.derivative(lambda x: x**3, x), np.array(12.0))


@each_dtype
def test_keeps_the_dtype(dtype):
    x = jnp.array(-0.5, dtype)
    got = hotk.derivative(lambda x: jnp.stack([x**3, x]), x)
    close(got, np.array([0.75, 1.0]).astype(x.dtype))


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.derivative(jnp.sin, x))(0.5), np.cos(0.5))


def test_vmap_is_a_loop():
    xs = np.linspace(-1, 1, 5)
    got = jax.vmap(lambda x: hotk.derivative(jnp.tanh, x))(xs)
    close(got, jnp.stack([reference.derivative(jnp.tanh, x) for x in xs]))


def test_differentiating_it_gives_the_next_derivative():
    first = lambda x: hotk.derivative(lambda x: x**5, x)
    close(jax.grad(first)(2.0), np.array(160.0))
    close(jax.jacfwd(first)(2.0), np.array(160.0))


def test_five_of_them_give_the_fifth_derivative():
    f = jnp.sin
    for _ in range(5):
        f = functools.partial(hotk.derivative, f)
    close(f(0.7), np.cos(0.7))


def test_aux_travels_beside():
    def f(x, c):
        return c * x**2, {"count": jnp.array(3)}

    aux = {"count": np.array(3)}
    close(hotk.derivative(f, 3.0, 2.0, has_aux=True), (12.0, aux))
    got = hotk.value_and_derivative(f, 3.0, 2.0, has_aux=True)
    close(got, ((18.0, aux), 12.0))


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("x", [np.zeros(1), np.zeros((2, 2))], ids=["1", "2x2"])
def test_an_array_is_refused(x):
    with pytest.raises(hotk.StructureError):
        hotk.derivative(jnp.sin, x)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("x", [3, True, jnp.array(3)], ids=["int", "bool", "array"])
def test_an_integer_is_refused(x):
    with pytest.raises(hotk.DtypeError):
        hotk.derivative(lambda x: x * 1.0, x)
