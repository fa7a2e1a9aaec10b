"""Weights of the outputs pulled back to the inputs."""

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
U = np.array([2.0, -0.75])
T = np.array([0.1, 4.0])


def waves(x):
    return jnp.stack([jnp.sin(x[0] * x[1]), jnp.exp(x[2]) * x[0]])


JACOBIAN = np.array(
    [
        [X[1] * np.cos(X[0] * X[1]), X[0] * np.cos(X[0] * X[1]), 0.0],
        [np.exp(X[2]), 0.0, X[0] * np.exp(X[2])],
    ]
)


@pytest.mark.thinned(9)
@knowing("vjp")
def test_known_by_hand(make):
    case = make()
    got = hotk.value_and_vjp(case.f, *case.inputs("vjp"))
    close(got, (case.value, case.vjp))


@knowing("vjp", SCENARIOS)
def test_known_by_hand_in_reverse_mode(make):
    case = make()
    got = hotk.vjp(case.f, *case.inputs("vjp"), mode=hotk.Reverse())
    close(got, case.vjp)


def test_forward_mode_is_right_or_refused():
    try:
        got = hotk.vjp(waves, X, U, mode=hotk.Forward())
    except hotk.ModeError:
        return
    close(got, U @ JACOBIAN)


def test_is_the_transpose_of_jvp():
    pushed, pulled = hotk.jvp(waves, X, V), hotk.vjp(waves, X, U)
    np.testing.assert_allclose(U @ pushed, pulled @ V, rtol=1e-13)
    close(pulled, U @ JACOBIAN)


def test_is_linear_in_the_weights():
    got = hotk.vjp(waves, X, 3 * U - 0.5 * T)
    close(got, 3 * hotk.vjp(waves, X, U) - 0.5 * hotk.vjp(waves, X, T))


def test_of_a_constant_is_exactly_zero():
    got = hotk.vjp(lambda x: jnp.array([7.0, 8.0]), X, U)
    assert got.tolist() == [0.0, 0.0, 0.0]


def test_trees_go_in_and_out():
    def f(x):
        return {"sum": x["a"] + x["b"][0], "none": None, "all": (x["a"] * x["b"][1],)}

    x = {"a": jnp.array(2.0), "b": [jnp.array(3.0), jnp.array([4.0, 5.0])]}
    u = {"sum": jnp.array(10.0), "none": None, "all": (jnp.array([1.0, -2.0]),)}
    expected = {
        "a": np.array(10.0 + 4.0 - 10.0),
        "b": [np.array(10.0), np.array([2.0, -4.0])],
    }
    close(hotk.vjp(f, x, u), expected)


def test_python_numbers_are_numbers():
    close(hotk.vjp(lambda x: x**3, 2.0, 0.5), np.array(6.0))


def test_of_an_empty_tree_is_an_empty_tree():
    assert hotk.vjp(lambda x: jnp.array(3.0), (), jnp.array(1.0)) == ()


@each_dtype
def test_keeps_the_dtype(dtype):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    u = jnp.array([1.0, -1.0, 2.0], dtype)
    got = hotk.vjp(lambda x: x**3, x, u)
    close(got, np.array([3.0, -12.0, 1.5]).astype(x.dtype))


def test_a_dtype_changed_inside_comes_back():
    x, u = jnp.array([1.0, 2.0], jnp.bfloat16), jnp.array([1.0, -1.0])
    got = hotk.vjp(lambda x: x.astype(jnp.float64) ** 2, x, u)
    close(got, np.array([2.0, -4.0]).astype(jnp.bfloat16))


def test_complex_weights_are_not_conjugated():
    z, u = np.array([1 + 2j, -0.5j]), np.array([1j, 2 - 1j])
    close(hotk.vjp(jnp.exp, z, u), np.exp(z) * u)
    got = hotk.vjp(lambda z: z.real**2 + z.imag**2, z, np.array([1.0, 3.0]))
    close(got, 2 * z.conj() * [1, 3])


def test_jit_changes_nothing():
    got = jax.jit(lambda x, u: hotk.vjp(waves, x, u))(X, U)
    close(got, U @ JACOBIAN)


def test_vmap_is_a_loop():
    xs, us = np.stack([X, 2 * X, V]), np.stack([U, T, -U])
    got = jax.vmap(lambda x, u: hotk.vjp(waves, x, u))(xs, us)
    loop = [reference.vjp(waves, x, u) for x, u in zip(xs, us, strict=True)]
    close(got, jnp.stack(loop))


def test_differentiating_it_gives_the_second_derivative():
    def pulled(x):
        return jnp.sum(hotk.vjp(lambda x: x**4, x, V))

    close(jax.grad(pulled)(X), 12 * X**2 * V)
    close(jax.jvp(pulled, (X,), (X,))[1], np.sum(12 * X**3 * V))


def test_aux_travels_beside():
    def f(x, c):
        return c * x**2, {"count": jnp.array(3), "x": x}

    aux = {"count": np.array(3), "x": X}
    close(hotk.vjp(f, X, V, 2.0, has_aux=True), (4 * X * V, aux))
    got = hotk.value_and_vjp(f, X, V, 2.0, has_aux=True)
    close(got, ((2 * X**2, aux), 4 * X * V))


def test_a_batch_of_weights_is_a_loop():
    us = np.stack([U, T, -U, 0 * U])
    close(hotk.vjp(waves, X, us, batched=True), us @ JACOBIAN)
    got = hotk.value_and_vjp(waves, X, us, batched=True)
    close(got, (waves(X), us @ JACOBIAN))


@pytest.mark.thinned(3)
@knowing("vjp")
def test_weights_and_their_opposite(make):
    case = make()
    both = jnp.stack([case.u, -case.u])
    got = hotk.vjp(case.f, case.x, both, *case.args, batched=True)
    close(got, jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), case.vjp))


@pytest.mark.usefixtures("as_user")
def test_weights_that_do_not_match_are_refused():
    x = jnp.array(X)
    with pytest.raises(hotk.StructureError):
        hotk.vjp(waves, x, jnp.array(V))
    with pytest.raises(hotk.StructureError):
        hotk.vjp(waves, x, (jnp.array(U),))
    with pytest.raises(hotk.DtypeError):
        hotk.vjp(waves, x, jnp.array(U, jnp.float32))
