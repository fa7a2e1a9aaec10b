"""The gradient of a real number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import SCENARIOS, each_dtype, knowing
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0])

each_mode = pytest.mark.parametrize("mode", ["Auto", "Forward", "Reverse"])


def wave(x):
    return jnp.sin(x[0] * x[1]) + jnp.exp(x[2]) * x[0]


C = np.cos(X[0] * X[1])
GRADIENT = np.array([X[1] * C + np.exp(X[2]), X[0] * C, X[0] * np.exp(X[2])])


@pytest.mark.thinned(8)
@knowing("gradient")
def test_known_by_hand(make):
    case = make()
    got = hotk.value_and_gradient(case.f, case.x, *case.args)
    close(got, (case.value, case.gradient))


@pytest.mark.thinned(9)
@each_mode
@knowing("gradient", SCENARIOS)
def test_known_by_hand_in_each_mode(make, mode):
    case = make()
    got = hotk.gradient(case.f, case.x, mode=getattr(hotk, mode)())
    close(got, case.gradient)


def test_its_product_with_a_direction_is_the_jvp():
    v = np.array([1.0, 0.5, -2.0])
    np.testing.assert_allclose(
        hotk.gradient(wave, X) @ v, hotk.jvp(wave, X, v), rtol=1e-13
    )
    close(hotk.gradient(wave, X), GRADIENT)


def test_euler_for_a_homogeneous_function():
    f = lambda x: x[0] * x[1] * x[2] ** 2 - x[0] ** 4
    np.testing.assert_allclose(hotk.gradient(f, X) @ X, 4 * f(X), rtol=1e-13)


@each_mode
def test_of_a_constant_is_exactly_zero(mode):
    mode = getattr(hotk, mode)()
    got = hotk.gradient(lambda x: jnp.array(7.0), X, mode=mode)
    assert got.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("empty", [{}, (), [], None, {"a": ()}], ids=str)
def test_of_an_empty_tree_is_that_tree(empty):
    assert hotk.gradient(lambda x: jnp.array(3.0), empty) == empty


def test_values_of_numpy_and_python_are_points():
    x = {"list": [1.5, np.float64(2.0)], "array": np.array([3.0])}
    f = lambda x: x["list"][0] * x["list"][1] * x["array"][0]
    expected = {"list": [6.0, 4.5], "array": np.array([3.0])}
    close(hotk.gradient(f, x), expected)


@each_mode
@each_dtype
def test_keeps_the_dtype(dtype, mode):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    got = hotk.gradient(lambda x: jnp.sum(x**3), x, mode=getattr(hotk, mode)())
    close(got, np.array([3.0, 12.0, 0.75]).astype(x.dtype))


@each_mode
def test_keeps_each_dtype_of_a_tree(mode):
    x = {
        name: jnp.array([1.0, -2.0], name)
        for name in ["bfloat16", "float16", "float32", "float64"]
    }

    def f(x):
        return sum(jnp.sum(leaf.astype(float) ** 2) for leaf in x.values())

    got = hotk.gradient(f, x, mode=getattr(hotk, mode)())
    close(got, {name: np.array([2.0, -4.0]).astype(name) for name in x})


@each_mode
def test_is_jax_grad_for_complex_parameters(mode):
    z = np.array([1 + 2j, -0.5 + 1j])
    f = lambda z: (z[0] ** 2 * z[1]).real
    got = hotk.gradient(f, z, mode=getattr(hotk, mode)())
    close(got, np.array([2 * z[0] * z[1], z[0] ** 2]))


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.gradient(wave, x))(X), GRADIENT)


def test_vmap_is_a_loop():
    xs = np.stack([X, 2 * X, -X])
    got = jax.vmap(lambda x: hotk.gradient(wave, x))(xs)
    close(got, jnp.stack([reference.gradient(wave, x) for x in xs]))


def test_differentiating_it_gives_the_hessian():
    slope = lambda x: jnp.sum(hotk.gradient(lambda x: jnp.sum(x**4), x) * X)
    close(jax.grad(slope)(X), 12 * X**3)
    close(jax.jvp(slope, (X,), (X,))[1], np.sum(12 * X**4))


def test_aux_travels_beside():
    def f(x, c):
        return c * jnp.sum(x**2), {"count": jnp.array(3), "x": x}

    aux = {"count": np.array(3), "x": X}
    close(hotk.gradient(f, X, 2.0, has_aux=True), (4 * X, aux))
    got = hotk.value_and_gradient(f, X, 2.0, has_aux=True)
    close(got, ((2 * np.sum(X**2), aux), 4 * X))


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x,
        lambda x: jnp.sum(x)[None],
        lambda x: jnp.sum(x) > 0,
        lambda x: jnp.sum(x).astype(int),
        lambda x: jax.lax.complex(x[0], x[1]),
        lambda x: (jnp.sum(x), x),
        lambda x: None,
    ],
    ids=["vector", "(1,)", "bool", "int", "complex", "pair", "None"],
)
def test_anything_but_one_real_number_is_refused(f):
    with pytest.raises(hotk.OutputError):
        hotk.gradient(f, X)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    "x", [3, True, jnp.arange(3), {"n": jnp.arange(3), "m": 2}], ids=str
)
def test_integers_alone_are_refused(x):
    with pytest.raises(hotk.DtypeError):
        hotk.gradient(lambda x: jnp.array(1.0), x)
