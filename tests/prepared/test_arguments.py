"""What is given by name, left out, swapped, of the wrong kind; shapes for arrays."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

X, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, -2.0])


def cubes(x, c=1.0):
    return c * jnp.sum(x**3)


def test_the_direction_may_be_given_by_name():
    close(hotk.hvp(cubes, X, v=V), 6 * X * V)
    close(hotk.hvp(cubes, x=X, v=V), 6 * X * V)
    close(hotk.hvp(cubes, X, 2.0, v=V), 12 * X * V)
    close(hotk.vjp(lambda x: x**2, X, u=V), 2 * X * V)
    close(hotk.hvp.prepare(cubes, X, v=V)(X, V), 6 * X * V)


MISTAKES = {
    "as a transformation": (lambda: hotk.hessian(cubes)(X), "`x` is missing"),
    "no direction": (lambda: hotk.hvp(cubes, X), "`v` is missing"),
    "no function": (lambda: hotk.hvp(X, V), "`v` is missing"),
    "swapped": (lambda: hotk.hvp(X, cubes, V), "must be the function"),
    "none": (lambda: hotk.gradient(None, X), "must be the function"),
    "none, prepared": (lambda: hotk.gradient.prepare(None, X), "must be the function"),
    "argnums in words": (lambda: hotk.gradient(cubes, X, argnums="x"), "positions"),
    "argnums of truth": (lambda: hotk.gradient(cubes, X, argnums=True), "positions"),
    "no argnums": (lambda: hotk.gradient(cubes, X, argnums=()), "positions"),
    "a keyword of f": (lambda: hotk.gradient(cubes, X, c=2.0), r"kwargs=\{'c'"),
    "kwargs in a list": (lambda: hotk.gradient(cubes, X, kwargs=["c"]), "a dict"),
    "of prepare": (lambda: hotk.gradient(cubes, X, on_mismatch="cast"), ".prepare"),
    "half a block": (lambda: hotk.hessian(cubes, X, block_size=1.5), "integer"),
    "a block of text": (lambda: hotk.hessian(cubes, X, block_size="a"), "integer"),
    "a block of arrays": (
        lambda: hotk.hessian(cubes, X, block_size=jnp.array(2)),
        "integer",
    ),
    "blocks for a product": (
        lambda: hotk.hvp(cubes, X, V, block_size=2),
        "does not work in blocks",
    ),
    "a budget in words": (lambda: hotk.set_memory_budget("1GB"), "must be an integer"),
    "half a byte": (lambda: hotk.set_memory_budget(0.5), "must be an integer"),
}


@pytest.mark.parametrize(("call", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_type_error_with_a_way_out(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_a_class_of_modes_is_no_mode():
    with pytest.raises(hotk.ModeError, match=r"hotk\.Forward\(\)"):
        hotk.Nested(hotk.Forward, hotk.Reverse)


def test_one_direction_is_no_batch():
    with pytest.raises(hotk.StructureError, match="Leave out `batched=True`"):
        hotk.hvp(cubes, X, V, batched=True)


def test_shapes_are_enough_to_prepare():
    shape = jax.ShapeDtypeStruct(X.shape, jnp.float64)
    product = hotk.hvp.prepare(cubes, shape, shape)
    close(product(X, V), 6 * X * V)
    tree = {"a": shape, "b": jax.ShapeDtypeStruct((), jnp.float64)}
    slope = hotk.gradient.prepare(lambda t: t["b"] * cubes(t["a"]), tree)
    close(slope({"a": jnp.array(X), "b": np.array(2.0)})["a"], 6 * X**2)


POINT_IN_PYTHON = {
    "a branch": lambda x: cubes(x) if x[0] > 0 else jnp.sum(x),
    "a float": lambda x: float(x[0]) * jnp.sum(x),
    "NumPy": lambda x: jnp.sum(np.sin(x)),
    "an item": lambda x: x[0].item() * jnp.sum(x),
    "a range": lambda x: sum(x[0] for _ in range(int(x[0]))),
}


@pytest.mark.parametrize("f", POINT_IN_PYTHON.values(), ids=POINT_IN_PYTHON)
def test_python_may_not_ask_for_the_point(f):
    for call in (
        lambda: hotk.gradient(f, X),
        lambda: hotk.hvp(f, X, V),
        lambda: hotk.hessian(f, X),
        lambda: hotk.hvp.prepare(f, X, V),
    ):
        with pytest.raises(
            hotk.ModeError, match=r"needs the value of the point in test"
        ):
            call()


def test_a_prepared_is_its_own_copy_and_is_not_pickled():
    prepared = hotk.gradient.prepare(cubes, X)
    assert copy.copy(prepared) is prepared
    assert copy.deepcopy({"a": prepared})["a"] is prepared
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(prepared)


def test_the_leaf_that_a_direction_lacks_is_named():
    x = {f"layer{i}": jnp.ones(2) for i in range(50)}
    v = {name: leaf for name, leaf in x.items() if name != "layer7"}
    f = lambda x: sum(jnp.sum(leaf**2) for leaf in x.values())
    with pytest.raises(hotk.StructureError, match=r"v\['layer7'\]") as error:
        hotk.hvp(f, x, v)
    assert len(str(error.value)) < 250


def test_an_integer_in_the_direction_stays_what_it_was_prepared_as():
    f = lambda x: x["n"] * cubes(x["a"])
    x = {"a": jnp.array(X), "n": 3}
    product = hotk.hvp.prepare(f, x, {"a": V, "n": 3})
    close(product(x, {"a": V, "n": 3})["a"], 18 * X * V)


def test_a_jitted_function_with_its_own_arrays_at_several_shapes():
    """Its program is one with lifted constants, and fits one signature alone."""
    scale = jnp.asarray(3.0)

    @jax.jit
    def mean_square(x):
        return scale * jnp.mean(x**2)

    f = lambda x: mean_square(x)
    for n in (3, 4, 3, 5):
        x = jnp.arange(1.0, n + 1)
        close(hotk.gradient(f, x), 6 * x / n)
        close(hotk.hessian(f, x), 6 * np.eye(n) / n)
    x = jnp.ones(4, jnp.float32)
    assert hotk.gradient(f, x).dtype == jnp.float32


@pytest.mark.parametrize("x", [2.0, np.float64(2.0)])
def test_a_number_as_the_direction_of_a_prepared_operator_under_jit(x):
    prepared = hotk.hvp.prepare(lambda x: x**3, x, 1.0)
    close(prepared(x, 1.0), 12.0)
    close(jax.jit(prepared)(x, 1.0), 12.0)


TABLE = np.arange(6.0).reshape(3, 2)
ORDER = jnp.array([0.3, 0.1, 0.2])


def picked(y, table):
    return table[jnp.argsort(y)][:, 0] * y**3


# The rows of the table in the order of `y` are 1, 2, 0; their first column is 2, 4, 0.
TOLD = np.array([2.0, 4.0, 0.0])
BY_A_TRACED_INDEX = {
    "gradient": lambda f: hotk.gradient(f, ORDER, TABLE),
    "in a dict": lambda f: hotk.gradient(
        lambda y, d: f(y, d["a"]), ORDER, {"a": TABLE}
    ),
    "argnums": lambda f: hotk.gradient(lambda a, y: f(y, a), TABLE, ORDER, argnums=1),
    "captured": lambda f: hotk.gradient(lambda y: f(y, TABLE), ORDER),
    "jit": lambda f: jax.jit(lambda y: hotk.gradient(f, y, TABLE))(ORDER),
    "prepared": lambda f: hotk.gradient.prepare(f, ORDER, TABLE)(ORDER, TABLE),
}


@pytest.mark.parametrize("name", BY_A_TRACED_INDEX)
def test_an_array_of_numpy_is_indexed_by_a_traced_array(name):
    f = lambda y, table: jnp.sum(picked(y, table))
    for _ in range(2):
        got = BY_A_TRACED_INDEX[name](f)
        close(got, np.asarray(3 * TOLD * ORDER**2, got.dtype), rtol=1e-6)


def test_other_operators_index_an_array_of_numpy_by_a_traced_array():
    f = lambda y, table: jnp.sum(picked(y, table))
    curvature = 6 * TOLD * np.asarray(ORDER)
    close(hotk.hvp(f, ORDER, ORDER, TABLE), jnp.asarray(curvature) * ORDER, rtol=1e-6)
    jacobian = hotk.jacobian(picked, ORDER, TABLE)
    close(jacobian, jnp.diag(jnp.asarray(3 * TOLD) * ORDER**2), rtol=1e-6)
    hessian = hotk.sparse_hessian(f, ORDER, TABLE).todense()
    close(hessian, jnp.diag(jnp.asarray(curvature)), rtol=1e-6)


@pytest.mark.parametrize("kind", [jnp.asarray, np.array])
def test_a_prepared_operator_takes_functions_that_capture_arrays(kind):
    """The gradient of sum((a x)^2 + b x) is 2 a^2 x + b, also with a bound b."""
    x, a = jnp.arange(3.0), kind([1.0, 2.0, 3.0])
    make = lambda b: lambda x, act: jnp.sum(act(x) ** 2 + b * x)
    expected = 2 * np.asarray(a) ** 2 * np.arange(3.0)
    for act in (lambda w: a * w, functools.partial(jnp.multiply, a)):
        prepared = hotk.gradient.prepare(make(a), x, act)
        np.testing.assert_allclose(prepared(x, act), expected + np.asarray(a))
        inside = jax.jit(lambda x, p=prepared, act=act: p(x, act))(x)
        np.testing.assert_allclose(inside, expected + np.asarray(a))
        bound = prepared.bind(make(kind([5.0, 6.0, 7.0])))
        np.testing.assert_allclose(bound(x, act), expected + np.array([5.0, 6.0, 7.0]))
    other = (lambda b: lambda w: b * w)(2 * a)
    with pytest.raises(hotk.PreparationError, match=r"args\[0\]"):
        prepared(x, other)
