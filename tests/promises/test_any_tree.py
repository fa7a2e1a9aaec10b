"""Promise 6: `x` is any tree; what has no derivative passes through, dtypes stay."""

import dataclasses
import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


class Layer(eqx.Module):
    """A module with every kind of leaf."""

    weight: jax.Array
    bias: jax.Array | None
    steps: jax.Array  # integers
    gate: jax.Array  # booleans
    key: jax.Array
    act: Any  # a function as a leaf
    scale: jax.Array  # of no axes
    rate: float  # numbers of Python are configuration in a module
    depth: int
    name: str = eqx.field(static=True)

    def __call__(self, t):
        if type(self.rate) is not float or type(self.depth) is not int:
            raise TypeError("configuration is traced")  # pytest rewrites `assert`
        t = self.act(self.weight @ t)
        if self.bias is not None:
            t = t + self.bias
        return jnp.where(self.gate, t * self.scale, t)[self.steps] * self.depth


def layer():
    return Layer(
        weight=jnp.array([[0.5, -0.25], [1.0, 0.75]]),
        bias=None,
        steps=jnp.array([1, 0]),
        gate=jnp.array([True, False]),
        key=jax.random.key(0),
        act=jnp.sin,
        scale=jnp.array(2.0),
        rate=0.5,
        depth=3,
        name="first",
    )


def loss(model):
    return jnp.sum(model(jnp.array([1.0, 2.0])) ** 2)


def by_hand(model):
    """Compute value, gradient and Hessian of `loss` in (weight, scale), by sympy's way.

    With a = W t: loss = 9 ((s sin a_0)^2 + sin(a_1)^2), t = (1, 2), a_0 gated.
    """
    t = np.array([1.0, 2.0])
    a = np.asarray(model.weight) @ t
    s = model.scale
    factor = 9 * np.array([s * s, 1.0])
    value = np.sum(factor * np.sin(a) ** 2)
    of_weight = (factor * np.sin(2 * a))[:, None] * t
    of_scale = 18 * s * np.sin(a[0]) ** 2
    return value, of_weight, of_scale


def product_by_hand(model, weight, scale):
    t = np.array([1.0, 2.0])
    a, da = np.asarray(model.weight) @ t, np.asarray(weight) @ t
    s = model.scale
    factor = 9 * np.array([s * s, 1.0])
    inner = factor * 2 * np.cos(2 * a) * da
    inner[0] += 18 * s * scale * np.sin(2 * a[0])
    of_scale = 18 * scale * np.sin(a[0]) ** 2 + 18 * s * np.sin(2 * a[0]) * da[0]
    return inner[:, None] * t, of_scale


def only(model, weight, scale):
    """Return a tree like the module with its differentiated leaves alone."""
    names = ("weight", "scale", "steps", "gate", "key", "act", "rate", "depth")
    none = (weight, jnp.asarray(scale), *6 * [None])
    where = lambda m: [getattr(m, name) for name in names]
    return eqx.tree_at(where, model, none, is_leaf=lambda leaf: leaf is None)


def test_a_gradient_has_the_structure_of_the_module():
    model = layer()
    value, gradient = hotk.value_and_gradient(loss, model)
    expected, of_weight, of_scale = by_hand(model)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert type(gradient) is Layer
    assert gradient.name == "first"
    np.testing.assert_allclose(gradient.weight, of_weight, rtol=1e-12)
    np.testing.assert_allclose(gradient.scale, of_scale, rtol=1e-12)
    for name in ("bias", "steps", "gate", "key", "act", "rate", "depth"):
        assert getattr(gradient, name) is None


MODES = {
    "auto": hotk.Auto(),
    "forward over reverse": hotk.FORWARD_OVER_REVERSE,
    "reverse over reverse": hotk.REVERSE_OVER_REVERSE,
    "reverse over forward": hotk.REVERSE_OVER_FORWARD,
    "forward over forward": hotk.FORWARD_OVER_FORWARD,
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@each_mode
@pytest.mark.parametrize("filtered", [True, False])
def test_a_product_takes_a_full_or_a_filtered_module(mode, filtered):
    model = layer()
    weight = jnp.array([[1.0, 0.5], [-0.5, 0.25]])
    if filtered:
        v = only(model, weight, 0.5)
    else:
        v = dataclasses.replace(model, weight=weight, scale=jnp.array(0.5))
    out = hotk.hvp(loss, model, v, mode=mode)
    of_weight, of_scale = product_by_hand(model, weight, 0.5)
    assert type(out) is Layer
    np.testing.assert_allclose(out.weight, of_weight, rtol=1e-12)
    np.testing.assert_allclose(out.scale, of_scale, rtol=1e-12)
    for name in ("bias", "steps", "gate", "key", "act", "rate", "depth"):
        assert getattr(out, name) is None


def test_a_prepared_takes_another_module_of_the_same_kind():
    model, other = layer(), dataclasses.replace(layer(), scale=jnp.array(1.5))
    other = dataclasses.replace(other, steps=jnp.array([0, 1]))
    weight = jnp.array([[1.0, 0.5], [-0.5, 0.25]])
    prepared = hotk.hvp.prepare(loss, model, only(model, weight, 0.5))
    for m in (model, other):
        out = prepared(m, only(m, weight, 0.5))
        of_weight, of_scale = product_by_hand(m, weight, 0.5)
        np.testing.assert_allclose(out.weight, of_weight, rtol=1e-12)
        np.testing.assert_allclose(out.scale, of_scale, rtol=1e-12)


def test_a_static_field_that_changes_is_seen():
    loss = lambda m: jnp.sum(m.weight**3) * (2.0 if m.name == "second" else 1.0)
    model = layer()
    for name, factor in (("first", 1.0), ("second", 2.0), ("first", 1.0)):
        named = dataclasses.replace(model, name=name)
        gradient = hotk.gradient(loss, named)
        assert close(gradient.weight, factor * 3 * model.weight**2)


def test_a_leaf_that_is_a_function_may_change():
    model = layer()
    for act, derivative in ((jnp.sin, jnp.cos), (jnp.cos, lambda a: -jnp.sin(a))):
        f = lambda m: jnp.sum(m.act(m.weight))
        gradient = hotk.gradient(f, dataclasses.replace(model, act=act))
        assert close(gradient.weight, derivative(model.weight))


def test_an_integer_leaf_that_changes_is_seen():
    f = lambda x: jnp.sum(x["w"] ** x["n"]) if x["n"] < 5 else jnp.sum(x["w"])
    w = jnp.array([1.0, 2.0])
    for n in (2, 3, 4, 2):
        gradient = hotk.gradient(f, {"w": w, "n": n})
        assert gradient["n"] is None
        assert close(gradient["w"], n * w ** (n - 1))
    assert close(hotk.gradient(f, {"w": w, "n": 7})["w"], jnp.ones(2))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "b"),
        (Color.RED, Color.BLUE),
        (True, False),
        (jnp.sin, jnp.cos),
        (np.float32, np.float64),
        (None, "b"),
        (b"a", b"b"),
    ],
)
def test_a_leaf_without_numbers_passes_through_and_its_change_is_seen(one, other):
    f = lambda x: jnp.sum(x["w"] ** 3) * (2.0 if x["tag"] == one else 1.0)
    w = jnp.array([1.0, 2.0])
    for tag, factor in ((one, 2.0), (other, 1.0), (one, 2.0)):
        gradient = hotk.gradient(f, {"w": w, "tag": tag})
        assert gradient["tag"] is None
        assert close(gradient["w"], factor * 3 * w**2)


def test_dtypes_are_kept_leaf_by_leaf():
    x = {
        "half": jnp.array([1.0, 2.0], jnp.bfloat16),
        "single": jnp.array([1.0, 2.0], jnp.float32),
        "double": jnp.array([1.0, 2.0], jnp.float64),
        "complex": jnp.array([1.0 + 1j, 2.0], jnp.complex64),
        "count": jnp.array([1, 2]),
    }

    def f(x):
        real = sum(
            jnp.sum(x[name] ** 3).astype(jnp.float64)
            for name in ("half", "single", "double")
        )
        return real + jnp.sum(jnp.real(x["complex"] ** 3)).astype(jnp.float64)

    v = jax.tree.map(lambda leaf: jnp.ones_like(leaf), x)
    for out, power in ((hotk.gradient(f, x), 2), (hotk.hvp(f, x, v), 1)):
        assert out["count"] is None
        for name in ("half", "single", "double", "complex"):
            assert close(out[name], (3 if power == 2 else 6) * x[name] ** power)


def test_a_dense_hessian_over_a_tree_is_a_tree_of_trees():
    x = {"a": jnp.array([1.0, 2.0]), "n": 4, "b": [jnp.array([[3.0]])]}
    f = lambda x: jnp.sum(x["a"] ** 2) * jnp.sum(x["b"][0] ** 2) * x["n"]
    out = hotk.hessian(f, x)
    a, b = np.array([1.0, 2.0]), 3.0
    assert close(out["a"]["a"], jnp.asarray(2 * b * b * 4 * np.eye(2)))
    assert close(out["a"]["b"][0], jnp.asarray(16 * b * a).reshape(2, 1, 1))
    assert close(out["b"][0]["a"], jnp.asarray(16 * b * a).reshape(1, 1, 2))
    assert close(out["b"][0]["b"][0], jnp.full((1, 1, 1, 1), 2 * 5.0 * 4))
    assert out["n"] is None or jax.tree.leaves(out["n"]) == []


def test_the_other_forms_of_a_tree_of_two_arrays_are_as_by_hand():
    x = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([3.0])}
    f = lambda x: jnp.sum(x["a"] ** 3) * jnp.sum(x["b"] ** 2)
    gradient = {"a": 27 * x["a"] ** 2, "b": 54 * jnp.ones(1)}
    for mode in (hotk.Forward(), hotk.Reverse()):
        assert close(hotk.gradient(f, x, mode=mode), gradient)
        assert close(hotk.jacobian(f, x, mode=mode), gradient)
    diagonal = {"a": 54 * x["a"], "b": 18 * jnp.ones(1)}
    for block_size in (None, 1, 2, 3):
        assert close(hotk.hessian_diagonal(f, x, block_size=block_size), diagonal)
    v = {"a": jnp.array([1.0, -1.0]), "b": jnp.array([0.5])}
    of_a = 54 * x["a"] * v["a"] + 9 * x["a"] ** 2
    of_b = jnp.sum(18 * x["a"] ** 2 * v["a"]) + 9.0
    for mode in [*MODES.values()][1:]:
        product = hotk.hvp(f, x, v, mode=mode)
        assert close(product, {"a": of_a, "b": of_b.reshape(1)})


def test_the_order_in_which_a_dict_was_filled_does_not_matter():
    f = lambda x: jnp.sum(x["a"] ** 2 * x["b"] ** 3)
    a, b = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
    one, two = {"a": a, "b": b}, {"b": b, "a": a}
    expected = {"a": 2 * b**3 + 6 * a * b**2 * a, "b": 0 * a}
    expected["b"] = 6 * a * b**2 * a + 6 * a**2 * b * b
    expected["a"] = 2 * b**3 * a + 6 * a * b**2 * b
    assert close(hotk.hvp(f, one, one), expected)
    assert close(hotk.hvp(f, two, one), expected)
    assert close(hotk.hvp(f, one, two), expected)


def test_shared_leaves_are_differentiated_apart():
    w = jnp.array([1.0, 2.0])
    f = lambda x: jnp.sum(x[0] * x[1] ** 2)
    out = hotk.gradient(f, (w, w))
    assert close(out, (w**2, 2 * w * w))


def test_a_tree_of_any_depth():
    x = jnp.array([1.0, 2.0])
    for _ in range(50):
        x = {"deeper": [x]}
    f = lambda x: jnp.sum(jax.tree.leaves(x)[0] ** 3)
    [out] = jax.tree.leaves(hotk.hvp(f, x, x))
    assert close(out, jnp.array([6.0, 24.0]))


def test_a_closed_over_module_and_a_module_as_point_are_the_same_class():
    frozen = layer()
    f = lambda m: jnp.sum((m.weight - frozen.weight) ** 2 * frozen.scale)
    model = dataclasses.replace(layer(), weight=jnp.ones((2, 2)))
    gradient = hotk.gradient(f, model)
    assert close(gradient.weight, 4 * (jnp.ones((2, 2)) - frozen.weight))
