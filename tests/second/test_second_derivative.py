"""The second derivative by one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import each_dtype, knowing
from tests.helpers import close


each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


@knowing("second_derivative")
def test_known_by_hand(make):
    case = make()
    got = hotk.second_derivative(case.f, *case.inputs("second_derivative"))
    close(got, case.second_derivative)


@each_nesting
def test_of_degree_below_two_is_exactly_zero(nesting):
    line = lambda x: jnp.stack([3 * x - 1, jnp.array(5.0)])
    got = hotk.second_derivative(line, 0.3, mode=getattr(hotk, nesting))
    assert got.tolist() == [0.0, 0.0]


@each_nesting
def test_any_tree_comes_out(nesting):
    def f(x, powers):
        return {"all": x**powers, "none": None, "pair": (x, [jnp.sin(x)])}

    powers = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    expected = {
        "all": np.array([[0.0, 2.0], [12.0, 48.0]]),
        "none": None,
        "pair": (0.0, [-np.sin(2.0)]),
    }
    mode = getattr(hotk, nesting)
    close(hotk.second_derivative(f, 2.0, powers, mode=mode), expected)


@pytest.mark.parametrize("x", [2.0, np.float64(2.0), np.array(2.0), jnp.array(2.0)])
def test_any_kind_of_number_goes_in(x):
    close(hotk.second_derivative(lambda x: x**3, x), np.array(12.0))


@pytest.mark.thinned(6, "nesting")
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array(-0.5, dtype)
    f = lambda x: jnp.stack([x**3, x**2])
    got = hotk.second_derivative(f, x, mode=getattr(hotk, nesting))
    close(got, np.array([-3.0, 2.0]).astype(x.dtype))


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.second_derivative(jnp.sin, x))(0.5), -np.sin(0.5))


def test_vmap_is_a_loop():
    xs = np.linspace(-1, 1, 5)
    got = jax.vmap(lambda x: hotk.second_derivative(jnp.tanh, x))(xs)
    close(got, jnp.stack([reference.second_derivative(jnp.tanh, x) for x in xs]))


@pytest.mark.thinned(3)
@each_nesting
def test_differentiating_it_gives_the_third_derivative(nesting):
    mode = getattr(hotk, nesting)
    second = lambda x: hotk.second_derivative(lambda x: x**5, x, mode=mode)
    close(jax.grad(second)(2.0), np.array(240.0))
    close(jax.jacfwd(second)(2.0), np.array(240.0))


def test_of_itself_is_the_fourth_derivative():
    second = lambda x: hotk.second_derivative(lambda x: x**6, x)
    close(hotk.second_derivative(second, 2.0), np.array(1440.0))


def test_aux_travels_beside():
    f = lambda x, c: (c * x**3, {"count": jnp.array(3)})
    got = hotk.second_derivative(f, 2.0, 5.0, has_aux=True)
    close(got, (60.0, {"count": np.array(3)}))


@pytest.mark.usefixtures("as_user")
def test_what_is_not_a_real_number_is_refused():
    with pytest.raises(hotk.StructureError):
        hotk.second_derivative(jnp.sin, np.zeros(1))
    with pytest.raises(hotk.DtypeError):
        hotk.second_derivative(lambda x: x * 1.0, 3)
