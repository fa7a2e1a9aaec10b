"""Every kind of point and direction: right, or refused with the leaf's name."""

import dataclasses
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close
from tests.reliability.public_calls import CALLS, OF_ONE_NUMBER, SECOND_ORDER


FLOATS = ["float16", "bfloat16", "float32", "float64"]

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
each_second = pytest.mark.parametrize("call", SECOND_ORDER.values(), ids=SECOND_ORDER)


def cubic(x):
    return sum(jnp.sum(leaf**3) for leaf in jax.tree.leaves(x))


def test_the_cube_of_nothing_is_a_real_scalar():
    # `sum` of an empty tree would be an integer; the tests of empty trees use `total`
    assert total({}).dtype == jnp.float64


def total(x):
    return sum((jnp.sum(leaf**3) for leaf in jax.tree.leaves(x)), jnp.zeros(()))


# ---- dtypes


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_floating_dtype_is_kept(dtype):
    x, v = jnp.array([1.0, 2.0], dtype), jnp.array([1.0, 0.5], dtype)
    assert close(hotk.gradient(cubic, x), 3 * x * x)
    assert close(hotk.hvp(cubic, x, v), 6 * x * v)
    assert close(hotk.quadratic_form(cubic, x, v), jnp.sum(6 * x * v * v))
    assert close(hotk.hessian(cubic, x), jnp.diag(6 * x))
    assert close(hotk.hessian_diagonal(cubic, x), 6 * x)
    assert close(hotk.jvp(cubic, x, v), jnp.sum(3 * x * x * v))
    assert close(hotk.derivative(jnp.sin, x[0]), jnp.cos(x[0]))
    assert close(hotk.second_derivative(jnp.sin, x[0]), -jnp.sin(x[0]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_floating_numpy_dtype_is_kept(dtype):
    x, v = (
        np.array([1.0, 2.0], jnp.dtype(dtype)),
        np.array([1.0, 0.5], jnp.dtype(dtype)),
    )
    assert close(hotk.hvp(cubic, x, v), jnp.array([6.0, 6.0], dtype))


def test_dtypes_of_a_tree_are_kept_leaf_by_leaf():
    x = {name: jnp.array([1.0, 2.0], name) for name in FLOATS}
    f = lambda x: sum(jnp.sum(x[k] ** 3).astype(jnp.float64) for k in FLOATS)
    out = hotk.hvp(f, x, x)
    assert close(out, {name: jnp.array([6.0, 24.0], name) for name in FLOATS})
    diagonal = hotk.hessian_diagonal(f, x)
    assert close(diagonal, {name: jnp.array([6.0, 12.0], name) for name in FLOATS})


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_parameters_follow_the_convention_of_jax_grad(dtype):
    z = jnp.array([1 + 2j, 3 - 1j], dtype)
    v = jnp.array([1j, 1.0 + 0j], dtype)
    norm = lambda z: jnp.sum(jnp.real(z * jnp.conj(z)))
    cube = lambda z: jnp.sum(jnp.real(z**3))
    assert close(hotk.gradient(norm, z), 2 * jnp.conj(z))
    assert close(hotk.hvp(norm, z, v), 2 * jnp.conj(v))
    assert close(hotk.gradient(cube, z), 3 * z * z)
    assert close(hotk.hvp(cube, z, v), 6 * z * v)


MODES = {
    "forward over reverse": hotk.FORWARD_OVER_REVERSE,
    "reverse over reverse": hotk.REVERSE_OVER_REVERSE,
    "reverse over forward": hotk.REVERSE_OVER_FORWARD,
    "forward over forward": hotk.FORWARD_OVER_FORWARD,
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_complex_parameters_in_all_modes(mode):
    z = {"a": jnp.array([1 + 2j, 3 - 1j]), "b": jnp.array([2.0])}
    v = {"a": jnp.array([1j, 1.0 + 0j]), "b": jnp.array([1.0])}

    def f(z):
        return jnp.sum(jnp.real(z["a"] ** 3)) + jnp.sum(z["b"] ** 3)

    assert close(
        hotk.hvp(f, z, v, mode=mode), jax.tree.map(lambda z, v: 6 * z * v, z, v)
    )
    for first in (hotk.Forward(), hotk.Reverse()):
        gradient = hotk.gradient(f, z, mode=first)
        assert close(gradient, jax.tree.map(lambda z: 3 * z * z, z))


def test_a_real_direction_at_a_complex_point_is_cast_from_numpy_only():
    z = jnp.array([1 + 2j, 3 - 1j])
    norm = lambda z: jnp.sum(jnp.real(z * jnp.conj(z)))
    assert close(hotk.hvp(norm, z, np.ones(2)), jnp.full(2, 2 + 0j))
    with pytest.raises(hotk.DtypeError):
        hotk.hvp(norm, z, jnp.ones(2))


def test_a_complex_direction_at_a_real_point_is_refused():
    for v in (np.array([1j, 1j]), jnp.array([1j, 1j])):
        with pytest.raises(hotk.DtypeError, match=r"c128\[2\]"):
            hotk.hvp(cubic, jnp.ones(2), v)


def test_the_dense_hessian_of_complex_parameters_is_refused_and_names_hvp():
    norm = lambda z: jnp.sum(jnp.real(z * jnp.conj(z)))
    for call in (hotk.hessian, hotk.value_gradient_and_hessian):
        with pytest.raises(hotk.DtypeError, match="hvp"):
            call(norm, jnp.array([1j, 1j]))


INTEGERS = {
    "array": jnp.arange(3),
    "numpy": np.arange(3),
    "bool": jnp.array([True, False]),
    "uint8": jnp.arange(3, dtype=jnp.uint8),
    "python": 3,
    "python bool": True,
    "tree": {"a": jnp.arange(3), "b": 2},
    "float0": np.zeros(2, jax.dtypes.float0),
}


OF_X = {name: call for name, call in CALLS.items() if name not in OF_ONE_NUMBER}


@pytest.mark.parametrize("x", INTEGERS.values(), ids=INTEGERS)
@pytest.mark.parametrize("call", OF_X.values(), ids=OF_X)
def test_an_integer_point_is_a_type_error_of_hotk(call, x, as_user):
    with pytest.raises(hotk.DtypeError) as error:
        call(lambda x: jnp.sum(jnp.ones(3)), x, x)
    assert isinstance(error.value, TypeError)


@pytest.mark.parametrize("x", [3, True, jnp.asarray(3), np.int64(3)], ids=repr)
def test_a_derivative_by_an_integer_is_a_type_error_of_hotk(x, as_user):
    for call in (hotk.derivative, hotk.second_derivative, hotk.value_and_derivative):
        with pytest.raises(hotk.DtypeError):
            call(lambda t: t * 1.0, x)


def test_the_error_of_an_integer_point_says_what_to_do(as_user):
    with pytest.raises(hotk.DtypeError) as error:
        hotk.hvp(cubic, jnp.arange(3), jnp.arange(3))
    text = str(error.value)
    assert text.startswith("`hvp(f, x, v)`: ")
    assert "  expected: " in text
    assert "  got:      " in text
    assert "i64[3]" in text
    assert "float" in text.splitlines()[-1]


# ---- empty things and leaves that are not differentiated


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_an_array_without_entries(shape):
    x = jnp.zeros(shape)
    assert close(hotk.gradient(cubic, x), x)
    assert close(hotk.hvp(cubic, x, x), x)
    assert close(hotk.hessian_diagonal(cubic, x), x)
    assert close(hotk.hessian(cubic, x), jnp.zeros((*shape, *shape)))
    assert close(hotk.quadratic_form(cubic, x, x), jnp.zeros(()))


@pytest.mark.parametrize("x", [{}, (), [], {"a": ()}, None], ids=str)
def test_a_tree_without_leaves(x):
    assert hotk.gradient(total, x) == x
    assert hotk.hvp(total, x, x) == x
    assert hotk.hessian_diagonal(total, x) == x
    assert hotk.hessian(total, x) == x  # where jax.hessian raises
    assert close(hotk.quadratic_form(total, x, x), jnp.zeros(()))


def test_an_empty_leaf_beside_a_full_one():
    x = {"a": jnp.zeros(0), "b": jnp.array([1.0, 2.0]), "c": ()}
    assert close(hotk.hvp(cubic, x, x), jax.tree.map(lambda a: 6 * a * a, x))


def test_none_leaves_stay_none():
    x = {"w": jnp.array([1.0, 2.0]), "b": None}
    assert close(hotk.hvp(cubic, x, x), {"w": 6 * x["w"] ** 2, "b": None})
    assert close(hotk.gradient(cubic, x), {"w": 3 * x["w"] ** 2, "b": None})


MIXED = {"w": 1.0, "n": 3, "a": jnp.ones(2)}
DIRECTIONS = {
    "None": {"w": 1.0, "n": None, "a": jnp.ones(2)},
    "float0": {"w": 1.0, "n": np.zeros((), jax.dtypes.float0), "a": jnp.ones(2)},
    "the point itself": MIXED,
    "zero": {"w": 1.0, "n": 0, "a": jnp.ones(2)},
    "numpy": {"w": np.float64(1.0), "n": None, "a": np.ones(2)},
    "integers": {"w": 1, "n": 0, "a": np.ones(2, int)},
}


def mixed(q):
    return q["w"] ** 2 * jnp.sum(q["a"]) * q["n"]


@pytest.mark.parametrize("v", DIRECTIONS.values(), ids=DIRECTIONS)
def test_a_tree_with_a_float_an_integer_and_an_array(v):
    # d2/dw2 = 2 n sum(a) = 12, d2/dw da = 2 w n = 6
    out = hotk.hvp(mixed, MIXED, v)
    assert out["n"] is None
    np.testing.assert_allclose(out["w"], 12 + 6 * 2)
    np.testing.assert_allclose(out["a"], [6.0, 6.0])


def test_the_other_operators_at_a_mixed_tree():
    gradient = hotk.gradient(mixed, MIXED)
    assert gradient["n"] is None
    np.testing.assert_allclose(gradient["w"], 12.0)
    np.testing.assert_allclose(gradient["a"], [3.0, 3.0])
    np.testing.assert_allclose(hotk.quadratic_form(mixed, MIXED, MIXED), 24 + 12)
    diagonal = hotk.hessian_diagonal(mixed, MIXED)
    assert diagonal["n"] is None
    np.testing.assert_allclose(diagonal["w"], 12.0)
    np.testing.assert_allclose(diagonal["a"], [0.0, 0.0])
    hessian = hotk.hessian(mixed, MIXED)
    np.testing.assert_allclose(hessian["w"]["w"], 12.0)
    np.testing.assert_allclose(hessian["w"]["a"], [6.0, 6.0])
    np.testing.assert_allclose(hessian["a"]["w"], [6.0, 6.0])
    np.testing.assert_allclose(hessian["a"]["a"], np.zeros((2, 2)))


def test_an_integer_array_beside_a_float_passes_through():
    x = {"w": jnp.array([1.0, 2.0]), "i": jnp.array([1, 0])}
    f = lambda x: jnp.sum(x["w"][x["i"]] ** 3 * jnp.array([1.0, 10.0]))
    v = {"w": jnp.array([1.0, 1.0]), "i": None}
    assert close(hotk.hvp(f, x, v), {"w": jnp.array([60.0, 12.0]), "i": None})


def test_a_random_key_beside_a_float_passes_through():
    key = jax.random.key(3)
    f = lambda x: jnp.sum(x["w"] ** 3 * jax.random.normal(x["key"], (2,)))
    x = {"w": jnp.array([1.0, 2.0]), "key": key}
    out = hotk.hvp(f, x, {"w": jnp.ones(2), "key": None})
    assert close(out, {"w": 6 * x["w"] * jax.random.normal(key, (2,)), "key": None})


def test_strings_and_functions_in_the_point_pass_through():
    x = {"w": jnp.array([1.0, 2.0]), "name": "sine", "act": jnp.sin}
    f = lambda x: jnp.sum(x["act"](x["w"])) if x["name"] == "sine" else jnp.sum(x["w"])
    out = hotk.hvp(f, x, {"w": jnp.ones(2), "name": None, "act": None})
    assert close(out, {"w": -jnp.sin(x["w"]), "name": None, "act": None})


# ---- kinds of nodes


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    w: Any
    power: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, w):
        self.w = w

    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


class Module(eqx.Module):
    w: Any
    power: int = eqx.field(static=True)


NODES = {
    "NamedTuple": lambda w: Pair(w, [w]),
    "dataclass": lambda w: Registered(w, 3),
    "class": lambda w: Node(w),
    "module": lambda w: Module(w, 3),
    "nested": lambda w: {"a": [Pair(Node(w), (w,))], "b": Module(w, 3)},
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("make", NODES.values(), ids=NODES)
def test_a_registered_node_is_kept(make):
    w, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5])
    assert close(hotk.hvp(cubic, make(w), make(v)), make(6 * w * v))
    assert close(hotk.gradient(cubic, make(w)), make(3 * w * w))
    assert close(hotk.hessian_diagonal(cubic, make(w)), make(6 * w))
    dense = hotk.hessian(cubic, make(w))
    assert close(dense, jax.hessian(cubic)(make(w)))


@pytest.mark.exhaustive
def test_a_network_with_its_activation_as_a_leaf():
    network = eqx.nn.MLP(2, "scalar", 4, 2, jax.nn.relu, key=jax.random.key(0))
    other = eqx.nn.MLP(2, "scalar", 4, 2, jax.nn.relu, key=jax.random.key(1))
    data = jax.random.normal(jax.random.key(2), (5, 2))
    loss = lambda network: jnp.mean(jax.vmap(network)(data) ** 2)

    arrays, rest = eqx.partition(network, eqx.is_inexact_array)
    filtered = eqx.filter(other, eqx.is_inexact_array)
    of_arrays = lambda arrays: loss(eqx.combine(arrays, rest))
    _, expected = jax.jvp(jax.grad(of_arrays), (arrays,), (filtered,))

    for v in (other, filtered):
        out = hotk.hvp(loss, network, v)
        for got, want in zip(
            jax.tree.leaves(out), jax.tree.leaves(expected), strict=True
        ):
            assert close(got, want)
        assert type(out) is eqx.nn.MLP
        assert out.activation is None or callable(out.activation)


# ---- numbers and NumPy


def test_a_point_without_dimensions():
    x = jnp.asarray(2.0)
    assert close(hotk.hvp(cubic, x, jnp.asarray(0.5)), jnp.asarray(6.0))
    assert close(hotk.hessian(cubic, x), jnp.asarray(12.0))
    assert close(hotk.hessian_diagonal(cubic, x), jnp.asarray(12.0))


@pytest.mark.parametrize("number", [float, np.float64, np.array])
def test_python_and_numpy_numbers(number):
    x, v = number(2.0), number(0.5)
    np.testing.assert_allclose(hotk.gradient(cubic, x), 12.0)
    np.testing.assert_allclose(hotk.hvp(cubic, x, v), 6.0)
    np.testing.assert_allclose(hotk.hessian(cubic, x), 12.0)
    np.testing.assert_allclose(hotk.second_derivative(jnp.sin, x), -np.sin(2.0))


def test_a_numpy_float32_number_keeps_its_dtype():
    out = hotk.hvp(cubic, np.float32(2.0), np.float32(0.5))
    assert close(out, jnp.float32(6.0))


BASE = np.arange(1.0, 25.0).reshape(4, 6)
VIEWS = {
    "strided": BASE[::2, 1::2],
    "reversed": BASE[::-1, ::-1],
    "transposed": BASE.T,
    "fortran": np.asfortranarray(BASE),
    "broadcast": np.broadcast_to(np.arange(1.0, 4.0), (2, 3)),
    "memory map of nothing": np.frombuffer(BASE.tobytes()),
}


@pytest.mark.parametrize("x", VIEWS.values(), ids=VIEWS)
def test_numpy_views(x):
    v = np.ones_like(x)
    assert close(hotk.hvp(cubic, x, v), jnp.asarray(6 * x))
    weight = x
    product = hotk.hvp(lambda q: jnp.sum(weight * q**3), np.ones(x.shape), v)
    assert close(product, jnp.asarray(6 * x))


def test_a_read_only_array():
    x = np.array([1.0, 2.0])
    x.flags.writeable = False
    assert close(hotk.hvp(cubic, x, x), jnp.asarray(6 * x * x))
    assert close(hotk.hvp(lambda q: jnp.sum(x * q**3), x, x), jnp.asarray(6 * x**3))


def test_numpy_arguments_may_be_overwritten_as_soon_as_the_call_returns():
    n = 2**18
    for _ in range(10):
        x, v, a = np.full(n, 2.0), np.ones(n), np.ones(n)
        out = hotk.hvp(lambda q, a: jnp.sum(a * q**3), x, v, a)
        x[:], v[:], a[:] = -1.0, -1.0, -1.0
        assert float(jnp.min(out)) == float(jnp.max(out)) == 12.0


# ---- buffers


@each_call
def test_inputs_are_never_donated(call):
    x, v, weight = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5]), jnp.ones(2)
    for _ in range(2):
        call(lambda x: jnp.sum(weight * x**3), x, v)
    assert not x.is_deleted()
    assert not v.is_deleted()
    assert not weight.is_deleted()


@pytest.mark.parametrize("which", ["x", "v", "captured"])
def test_a_deleted_buffer_raises_and_the_next_call_is_right(which):
    arrays = {name: jnp.array([1.0, 2.0]) for name in ("x", "v", "captured")}
    weight = arrays["captured"]
    f = lambda x: jnp.sum(weight * x**3)
    assert close(hotk.hvp(f, arrays["x"], arrays["v"]), jnp.array([6.0, 48.0]))
    arrays[which].delete()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        hotk.hvp(f, arrays["x"], arrays["v"])
    x, v, weight = (jnp.array([1.0, 2.0]) for _ in range(3))
    assert close(hotk.hvp(f, x, v), jnp.array([6.0, 48.0]))


def test_a_donated_buffer_raises_and_the_next_call_is_right():
    step = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    x = jnp.array([0.0, 1.0])
    hotk.hvp(cubic, x, x)
    y = step(x)
    if x.is_deleted():
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            hotk.hvp(cubic, x, x)
    assert close(hotk.hvp(cubic, y, y), jnp.array([6.0, 24.0]))


# ---- NaN and infinity


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_where_they_are(bad):
    x, v = jnp.array([bad, 2.0, 3.0]), jnp.array([1.0, 1.0, 0.5])
    out = hotk.hvp(cubic, x, v)
    assert not np.isfinite(out[0])
    assert close(out[1:], jnp.array([12.0, 9.0]))
    out = hotk.hvp(cubic, v, x)
    assert not np.isfinite(out[0])
    assert close(out[1:], jnp.array([12.0, 9.0]))
    assert close(hotk.hvp(cubic, v, v), 6 * v * v)  # and no later call sees them


def test_nan_in_one_direction_of_a_batch_stays_there():
    x = jnp.array([1.0, 2.0])
    batch = jnp.array([[jnp.nan, 1.0], [1.0, 1.0]])
    out = hotk.hvp(cubic, x, batch, batched=True)
    assert np.isnan(out[0, 0])
    assert close(out[1], 6 * x)


# ---- directions that do not match

POINT = {"a": jnp.ones(3), "w": jnp.ones((3, 4))}


def changed(**leaves):
    return POINT | leaves


WRONG_STRUCTURE = {
    "a leaf less": {"w": jnp.ones((3, 4))},
    "a leaf more": changed(c=jnp.ones(2)),
    "another key": {"a": jnp.ones(3), "u": jnp.ones((3, 4))},
    "a tuple": (jnp.ones(3), jnp.ones((3, 4))),
    "an array": jnp.ones(15),
    "None": None,
    "None at a leaf": changed(w=None),
}
WRONG_SHAPE = {
    "transposed": changed(w=jnp.ones((4, 3))),
    "broadcastable": changed(w=jnp.ones((1, 4))),
    "fewer dimensions": changed(w=jnp.ones(4)),
    "more dimensions": changed(w=jnp.ones((1, 3, 4))),
    "a number": changed(w=1.0),
    "numpy": changed(w=np.ones((3, 1))),
}
WRONG_DTYPE = {
    "float32": changed(w=jnp.ones((3, 4), jnp.float32)),
    "integer": changed(w=jnp.ones((3, 4), int)),
    "bool": changed(w=jnp.ones((3, 4), bool)),
    "complex": changed(w=jnp.ones((3, 4), complex)),
}

DIRECTED = {
    "hvp": hotk.hvp,
    "value_gradient_and_hvp": hotk.value_gradient_and_hvp,
    "quadratic_form": hotk.quadratic_form,
    "jvp": hotk.jvp,
    "value_and_jvp": hotk.value_and_jvp,
    "hvp.prepare": hotk.hvp.prepare,
}
each_directed = pytest.mark.parametrize("call", DIRECTED.values(), ids=DIRECTED)


@each_directed
@pytest.mark.parametrize("v", WRONG_STRUCTURE.values(), ids=WRONG_STRUCTURE)
def test_a_direction_of_another_structure_is_refused(call, v, as_user):
    with pytest.raises(hotk.StructureError) as error:
        call(cubic, POINT, v)
    assert isinstance(error.value, ValueError)


@each_directed
@pytest.mark.parametrize("v", WRONG_SHAPE.values(), ids=WRONG_SHAPE)
def test_a_direction_of_another_shape_is_refused_and_its_leaf_named(call, v, as_user):
    with pytest.raises(hotk.StructureError, match=r"v\['w'\]") as error:
        call(cubic, POINT, v)
    assert "[3,4]" in str(error.value)


@each_directed
@pytest.mark.parametrize("v", WRONG_DTYPE.values(), ids=WRONG_DTYPE)
def test_a_direction_of_another_dtype_is_refused_and_its_leaf_named(call, v, as_user):
    with pytest.raises(hotk.DtypeError, match=r"v\['w'\]") as error:
        call(cubic, POINT, v)
    assert "f64[3,4]" in str(error.value)
    assert isinstance(error.value, TypeError)


def test_the_message_of_a_shape_has_both_values_and_one_way_out(as_user):
    with pytest.raises(hotk.StructureError) as error:
        hotk.hvp(cubic, POINT, changed(w=jnp.ones((4, 3))))
    assert str(error.value) == (
        "`hvp(f, x, v)`: `v['w']` must have the shape of `x['w']`.\n"
        "  expected: f64[3,4]\n"
        "  got:      f64[4,3]\n"
        "Reshape it; hotk never broadcasts."
    )


@pytest.mark.parametrize(
    "v", [np.ones(3, int), np.ones(3, np.float32), np.ones(3, bool)]
)
def test_a_numpy_direction_is_converted(v):
    x = jnp.array([1.0, 2.0, 3.0])
    assert close(hotk.hvp(cubic, x, v), 6 * x)


def test_a_batch_without_its_axis_is_refused(as_user):
    with pytest.raises(hotk.StructureError):
        hotk.hvp(cubic, jnp.ones(3), jnp.ones(3), batched=True)
    with pytest.raises(hotk.StructureError):
        hotk.hvp(
            cubic,
            POINT,
            {"a": jnp.ones((2, 3)), "w": jnp.ones((5, 3, 4))},
            batched=True,
        )


def test_a_wrong_cotangent_is_refused(as_user):
    f = lambda x: {"y": x**2}
    with pytest.raises(hotk.StructureError):
        hotk.vjp(f, jnp.ones(3), {"y": jnp.ones(4)})
    with pytest.raises(hotk.StructureError):
        hotk.vjp(f, jnp.ones(3), jnp.ones(3))
    with pytest.raises(hotk.DtypeError):
        hotk.vjp(f, jnp.ones(3), {"y": jnp.ones(3, jnp.float32)})


@pytest.mark.parametrize("x", [jnp.ones(3), jnp.ones(1), {"t": jnp.ones(2)}], ids=str)
@pytest.mark.parametrize("call", [hotk.derivative, hotk.second_derivative])
def test_a_derivative_wants_one_number(call, x, as_user):
    with pytest.raises(hotk.StructureError):
        call(cubic, x)


# ---- sizes


@pytest.mark.parametrize(
    "call", [hotk.hessian, hotk.value_gradient_and_hessian, hotk.hessian.prepare]
)
@pytest.mark.parametrize("n", [10**6, 10**7])
def test_a_hessian_that_cannot_fit_is_refused_at_once(call, n):
    x = jnp.zeros(n)
    start = time.monotonic()
    with pytest.raises(hotk.TooLargeError) as error:
        call(cubic, x)
    assert time.monotonic() - start < 1.0
    text = str(error.value)
    assert str(8 * n * n) in text.replace(",", "")
    assert "hvp" in text
    assert "hessian_diagonal" in text
    assert isinstance(error.value, MemoryError)


def test_products_with_the_hessian_that_cannot_fit_work():
    x = jnp.full(10**6, 2.0)
    out = hotk.hvp(cubic, x, x)
    assert float(out[0]) == float(out[-1]) == 24.0
    assert float(hotk.hessian_diagonal(cubic, x[:1000])[-1]) == 12.0


@pytest.mark.exhaustive
@each_second
def test_a_tree_of_many_leaves(call):
    x = {str(i): jnp.array([1.0, 2.0]) for i in range(20)}
    call(cubic, x, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: hotk.hvp(f, x, x),
        hotk.gradient.prepare,
        hotk.HessianOperator,
        hotk.optim.minimize,
    ],
)
def test_a_list_where_the_function_takes_an_array_is_named(call):
    with pytest.raises((TypeError, AttributeError)) as raised:
        call(lambda x: (x**2).sum(), [1.0, 2.0])
    assert any("list of 2 numbers" in note for note in raised.value.__notes__)
    with pytest.raises(AttributeError) as raised:
        call(lambda x: x[0].nothing, [1.0, 2.0, jnp.ones(2)])
    assert not any("list of" in n for n in getattr(raised.value, "__notes__", []))
