"""The derivative along a direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import SCENARIOS, WITH_ENTRIES, each_dtype, knowing
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0])
V = np.array([1.0, 0.5, -2.0])
W = np.array([-0.7, 3.0, 0.25])


def waves(x):
    return jnp.stack([jnp.sin(x[0] * x[1]), jnp.exp(x[2]) * x[0]])


JACOBIAN = np.array(
    [
        [X[1] * np.cos(X[0] * X[1]), X[0] * np.cos(X[0] * X[1]), 0.0],
        [np.exp(X[2]), 0.0, X[0] * np.exp(X[2])],
    ]
)


@pytest.mark.thinned(11)
@knowing("jvp")
def test_known_by_hand(make):
    case = make()
    got = hotk.value_and_jvp(case.f, *case.inputs("jvp"))
    close(got, (case.value, case.jvp))


@knowing("jvp", SCENARIOS)
def test_known_by_hand_in_forward_mode(make):
    case = make()
    got = hotk.jvp(case.f, *case.inputs("jvp"), mode=hotk.Forward())
    close(got, case.jvp)


def test_reverse_mode_is_right_or_refused():
    try:
        got = hotk.jvp(waves, X, V, mode=hotk.Reverse())
    except hotk.ModeError:
        return
    close(got, JACOBIAN @ V)


def test_is_the_product_with_the_jacobian():
    close(hotk.jvp(waves, X, V), JACOBIAN @ V)
    close(jax.jit(jax.jacobian(waves))(X) @ V, JACOBIAN @ V)


def test_is_linear_in_the_direction():
    got = hotk.jvp(waves, X, 3 * V - 0.5 * W)
    parts = 3 * hotk.jvp(waves, X, V) - 0.5 * hotk.jvp(waves, X, W)
    close(got, parts)


def test_euler_for_a_homogeneous_function():
    def cubic(x):
        return jnp.stack([x[0] * x[1] * x[2], x[0] ** 3 - x[1] * x[2] ** 2])

    close(hotk.jvp(cubic, X, X), 3 * cubic(X))


def test_of_a_constant_is_exactly_zero():
    got = hotk.jvp(lambda x: jnp.array([7.0, 8.0]), X, V)
    assert got.tolist() == [0.0, 0.0]


def test_trees_go_in_and_out():
    def f(x):
        return {"sum": x["a"] + x["b"][0], "none": None, "all": (x["a"] * x["b"][1],)}

    x = {"a": jnp.array(2.0), "b": [jnp.array(3.0), jnp.array([4.0, 5.0])]}
    v = {"a": jnp.array(1.0), "b": [jnp.array(-1.0), jnp.array([0.5, 0.0])]}
    expected = {"sum": 0.0, "none": None, "all": (np.array([5.0, 5.0]),)}
    close(hotk.jvp(f, x, v), expected)


def test_python_numbers_are_numbers():
    close(hotk.jvp(lambda x: x**3, 2.0, 0.5), np.array(6.0))


@each_dtype
def test_keeps_the_dtype(dtype):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    v = jnp.array([1.0, -1.0, 2.0], dtype)
    got = hotk.jvp(lambda x: x**3, x, v)
    close(got, np.array([3.0, -12.0, 1.5]).astype(x.dtype))


def test_complex_along_complex():
    z, v = np.array([1 + 2j, -0.5j]), np.array([1j, 2 - 1j])
    close(hotk.jvp(jnp.exp, z, v), np.exp(z) * v)
    modulus = hotk.jvp(lambda z: z.real**2 + z.imag**2, z, v)
    close(modulus, 2 * (z.conj() * v).real)


def test_jit_changes_nothing():
    got = jax.jit(lambda x, v: hotk.jvp(waves, x, v))(X, V)
    close(got, JACOBIAN @ V)


def test_vmap_is_a_loop():
    xs, vs = np.stack([X, 2 * X, W]), np.stack([V, W, X])
    got = jax.vmap(lambda x, v: hotk.jvp(waves, x, v))(xs, vs)
    loop = [reference.jvp(waves, x, v) for x, v in zip(xs, vs, strict=True)]
    close(got, jnp.stack(loop))


def test_differentiating_it_gives_the_second_derivative():
    def slope(x):
        return jnp.sum(hotk.jvp(lambda x: x**4, x, V))

    close(jax.grad(slope)(X), 12 * X**2 * V)
    close(jax.jvp(slope, (X,), (W,))[1], np.sum(12 * X**2 * V * W))


def test_aux_travels_beside():
    def f(x, c):
        return c * x**2, {"count": jnp.array(3), "x": x}

    aux = {"count": np.array(3), "x": X}
    close(hotk.jvp(f, X, V, 2.0, has_aux=True), (4 * X * V, aux))
    got = hotk.value_and_jvp(f, X, V, 2.0, has_aux=True)
    close(got, ((2 * X**2, aux), 4 * X * V))


def test_a_batch_of_directions_is_a_loop():
    vs = np.stack([V, W, -V, 0 * V])
    close(hotk.jvp(waves, X, vs, batched=True), vs @ JACOBIAN.T)
    got = hotk.value_and_jvp(waves, X, vs, batched=True)
    close(got, (waves(X), vs @ JACOBIAN.T))


@pytest.mark.thinned(7)
@knowing("jvp", WITH_ENTRIES)
def test_a_direction_and_its_opposite(make):
    case = make()
    x, v, *args = case.inputs("jvp")
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), numbers(v))
    got = hotk.jvp(case.f, x, both, *args, batched=True)
    close(got, jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), case.jvp))


def numbers(tree):
    """Put `None` where there is nothing to differentiate."""
    return reference.differentiable_part(None, tree)[1]


@pytest.mark.usefixtures("as_user")
def test_a_direction_that_does_not_match_is_refused():
    x = {"a": jnp.array(X), "b": jnp.array(2.0)}
    f = lambda x: x["a"] * x["b"]
    with pytest.raises(hotk.StructureError):
        hotk.jvp(f, x, {"a": jnp.array(V)})
    with pytest.raises(hotk.StructureError):
        hotk.jvp(f, x, {"a": jnp.array(V[:1]), "b": jnp.array(1.0)})
    with pytest.raises(hotk.DtypeError):
        hotk.jvp(f, x, {"a": jnp.array(V, jnp.float32), "b": jnp.array(1.0)})


@pytest.mark.usefixtures("as_user")
def test_integers_are_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.jvp(lambda n: n * 2.0, jnp.arange(3), jnp.arange(3))
