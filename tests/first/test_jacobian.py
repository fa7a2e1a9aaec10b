"""All derivatives of all outputs."""

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


def waves(x):
    return jnp.stack([jnp.sin(x[0] * x[1]), jnp.exp(x[2]) * x[0]])


JACOBIAN = np.array(
    [
        [X[1] * np.cos(X[0] * X[1]), X[0] * np.cos(X[0] * X[1]), 0.0],
        [np.exp(X[2]), 0.0, X[0] * np.exp(X[2])],
    ]
)


@pytest.mark.thinned(6)
@knowing("jacobian")
def test_known_by_hand(make):
    case = make()
    got = hotk.value_and_jacobian(case.f, case.x, *case.args)
    close(got, (case.value, case.jacobian))


@pytest.mark.thinned(9, "mode")
@each_mode
@knowing("jacobian", SCENARIOS)
def test_known_by_hand_in_each_mode(make, mode):
    case = make()
    got = hotk.jacobian(case.f, case.x, mode=getattr(hotk, mode)())
    close(got, case.jacobian)


def test_its_products_are_jvp_and_vjp():
    v, u = np.array([1.0, 0.5, -2.0]), np.array([2.0, -0.75])
    jacobian = hotk.jacobian(waves, X)
    close(jacobian, JACOBIAN)
    close(hotk.jvp(waves, X, v), jacobian @ v)
    close(hotk.vjp(waves, X, u), u @ jacobian)


@each_mode
def test_has_the_structure_of_jax(mode):
    def f(x):
        a, [b] = x["a"], x["b"]
        return {"matrix": jnp.outer(a, a), "numbers": (b**2, jnp.sum(a) * b[0])}

    x = {"a": jnp.array([1.0, 2.0]), "b": [jnp.array([3.0, -1.0, 0.5])]}
    got = hotk.jacobian(f, x, mode=getattr(hotk, mode)())
    close(got, jax.jit(jax.jacobian(f))(x))


@each_mode
def test_other_leaves_are_none(mode):
    x = {"a": jnp.array([1.0, 2.0]), "n": jnp.arange(2), "none": None, "word": "up"}
    f = lambda x: x["a"] * x["n"].astype(float)
    got = hotk.jacobian(f, x, mode=getattr(hotk, mode)())
    close(got, {"a": np.diag([0.0, 1.0]), "n": None, "none": None, "word": None})


@each_mode
def test_of_nothing_and_for_nothing(mode):
    mode = getattr(hotk, mode)()
    assert hotk.jacobian(lambda x: jnp.ones(2), {}, mode=mode) == {}
    assert hotk.jacobian(lambda x: {}, X, mode=mode) == {}
    close(hotk.jacobian(lambda x: x[:0], X, mode=mode), np.zeros((0, 3)))
    nothing = np.zeros(0)
    close(hotk.jacobian(lambda x: jnp.ones(2), nothing, mode=mode), np.zeros((2, 0)))


@each_mode
def test_of_a_linear_function_is_its_matrix_exactly(mode):
    matrix = np.array([[1.0, 2.0, -3.0], [0.5, 0.0, 7.0]])
    got = hotk.jacobian(lambda x: matrix @ x, X, mode=getattr(hotk, mode)())
    assert (got == matrix).all()


@each_mode
@each_dtype
def test_keeps_the_dtype(dtype, mode):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    got = hotk.jacobian(lambda x: x**3, x, mode=getattr(hotk, mode)())
    close(got, np.diag([3.0, 12.0, 0.75]).astype(x.dtype))


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.jacobian(waves, x))(X), JACOBIAN)


def test_vmap_is_a_loop():
    xs = np.stack([X, 2 * X, -X])
    got = jax.vmap(lambda x: hotk.jacobian(waves, x))(xs)
    close(got, jnp.stack([reference.jacobian(waves, x) for x in xs]))


@pytest.mark.thinned(2)
@each_mode
def test_differentiating_it_gives_the_second_derivatives(mode):
    jacobian = lambda x: hotk.jacobian(waves, x, mode=getattr(hotk, mode)())
    expected = jax.jit(jax.hessian(waves))(X)
    close(jax.jacfwd(jacobian)(X), expected)
    close(jax.jacrev(jacobian)(X), expected)


def test_aux_travels_beside():
    def f(x, c):
        return c * x**2, {"count": jnp.array(3), "x": x}

    aux = {"count": np.array(3), "x": X}
    close(hotk.jacobian(f, X, 2.0, has_aux=True), (np.diag(4 * X), aux))
    got = hotk.value_and_jacobian(f, X, 2.0, has_aux=True)
    close(got, ((2 * X**2, aux), np.diag(4 * X)))


@pytest.mark.usefixtures("as_user")
def test_integers_alone_are_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.jacobian(lambda x: x * 1.0, jnp.arange(3))
