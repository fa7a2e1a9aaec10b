"""`argnums=` and `kwargs=`: which arguments of a function, and by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


A = jnp.array([0.4, -1.2])
B = {"w": jnp.array([[0.3, 0.7], [1.1, -0.4]]), "s": jnp.array(0.6)}
C = jnp.array(1.5)
TANGENTS = (
    jnp.array([1.0, 0.5]),
    {"w": jnp.array([[0.2, -1.0], [0.4, 0.1]]), "s": jnp.array(-0.3)},
    jnp.array(2.0),
)


def f(a, b, c, *, power=2.0, shift=None):
    z = jnp.tanh(b["w"] @ a) * c
    z = z if shift is None else z + shift
    return jnp.sum(z**3) + b["s"] ** power * jnp.sum(a**2) * c**2


def chosen(argnums, values):
    if isinstance(argnums, int):
        return values[argnums]
    return tuple(values[i] for i in argnums)


def along(argnums, g):
    """Return the derivative of `g` along the tangents of some arguments, by JAX."""
    args = [A, B, C]
    positions = (argnums,) if isinstance(argnums, int) else argnums

    def of_some(*some):
        full = list(args)
        for i, value in zip(positions, some, strict=True):
            full[i] = value
        return g(*full)

    return jax.jvp(
        of_some,
        tuple(args[i] for i in positions),
        tuple(TANGENTS[i] for i in positions),
    )[1]


def same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


ARGNUMS = [0, 1, 2, -1, (0,), (1, 2), (2, 0), (0, 1, 2), (-1, 0), [0, 1]]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("argnums", ARGNUMS, ids=str)
def test_it_is_that_of_jax(argnums):
    of_jax = tuple(argnums) if isinstance(argnums, list) else argnums
    v = chosen(of_jax, TANGENTS)
    gradient = jax.grad(f, of_jax)(A, B, C)
    same(hotk.gradient(f, A, B, C, argnums=argnums), gradient)
    same(hotk.hessian(f, A, B, C, argnums=argnums), jax.hessian(f, of_jax)(A, B, C))
    product = along(of_jax, jax.grad(f, of_jax))
    same(hotk.hvp(f, A, v, B, C, argnums=argnums), product)
    same(hotk.hvp(f, A, B, C, v=v, argnums=argnums, kwargs={}), product)
    slope = along(of_jax, f)
    same(hotk.jvp(f, A, v, B, C, argnums=argnums), slope)
    value, both = hotk.value_and_gradient(f, A, B, C, argnums=argnums)
    same((value, both), (f(A, B, C), gradient))
    dot = sum(
        jnp.vdot(a, b)
        for a, b in zip(jax.tree.leaves(v), jax.tree.leaves(product), strict=True)
    )
    same(hotk.quadratic_form(f, A, v, B, C, argnums=argnums), dot)


@pytest.mark.parametrize("argnums", [1, (2, 0)], ids=str)
def test_a_prepared_is_called_with_the_arguments_as_they_stood(argnums):
    v = chosen(argnums, TANGENTS)
    prepared = hotk.hvp.prepare(f, A, v, B, C, argnums=argnums)
    other = jax.tree.map(lambda a: 2.0 * a, (A, B, C))
    before = hotk.cache_info()
    got = prepared(other[0], v, *other[1:])
    after = hotk.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)
    same(got, hotk.hvp(f, other[0], v, *other[1:], argnums=argnums))
    assert prepared.info.mode == "forward over reverse"
    with pytest.raises(TypeError, match="takes 3 arguments"):
        prepared(A, v, B)
    with pytest.raises(hotk.PreparationError):
        prepared(A, v, B, C, kwargs={"power": 3.0})


def test_a_prepared_nests():
    prepared = hotk.gradient.prepare(f, A, B, C, argnums=1)
    got = jax.jit(jax.grad(lambda c: prepared(A, B, c)["s"]))(C)
    close(got, jax.grad(lambda c: jax.grad(f, 1)(A, B, c)["s"])(C))


def test_a_prepared_takes_another_function_of_the_same_code():
    def scaled(k):
        return lambda a, c: k * jnp.sum(a**2) * c**3

    prepared = hotk.gradient.prepare(scaled(jnp.array(1.0)), A, C, argnums=1)
    bound = prepared.bind(scaled(jnp.array(5.0)))
    close(bound(A, C), 15.0 * jnp.sum(A**2) * C**2)


def test_keyword_arguments():
    for power in (2.0, 3.0, 4.0):
        named = {"power": power, "shift": A}
        expected = jax.grad(f)(A, B, C, **named)
        same(hotk.gradient(f, A, B, C, kwargs=named), expected)
        expected = jax.grad(f, 1)(A, B, C, **named)
        same(hotk.gradient(f, A, B, C, argnums=1, kwargs=named), expected)
    before = hotk.cache_info().traces
    hotk.gradient(f, A, B, C, kwargs={"power": 5.0, "shift": 2.0 * A})
    assert hotk.cache_info().traces == before
    prepared = hotk.gradient.prepare(f, A, B, C, kwargs={"power": 2.0})
    same(prepared(A, B, C, kwargs={"power": 3.0}), jax.grad(f)(A, B, C, power=3.0))


def test_a_filter_is_of_what_is_differentiated():
    marks = {"w": True, "s": False}
    got = hotk.gradient(f, A, B, C, argnums=1, where=marks)
    assert got["s"] is None
    close(got["w"], jax.grad(f, 1)(A, B, C)["w"])


def test_fresh_functions_are_not_traced_again():
    def fresh(k):
        return lambda a, b: jnp.sum(k * a**2) * b**3

    hotk.gradient(fresh(1.5 * A), A, C, argnums=1)
    hotk.gradient(fresh(2.0 * A), A, C, argnums=(0, 1))
    before = hotk.cache_info()
    for factor in (3.0, 4.0):
        got = hotk.gradient(fresh(factor * A), A, 2.0 * C, argnums=1)
        close(got, factor * jnp.sum(A**3) * 3 * (2.0 * C) ** 2)
        hotk.gradient(fresh(factor * A), A, C, argnums=(0, 1))
    after = hotk.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)


@pytest.mark.parametrize("argnums", [3, -4, (0, 0), (0, 3)], ids=str)
def test_positions_that_are_none(argnums):
    with pytest.raises(ValueError, match="from 0 to 2"):
        hotk.gradient(f, A, B, C, argnums=argnums)


def test_messages_name_the_function():
    def many(a, b):
        return a * b

    with pytest.raises(hotk.OutputError, match="many`"):
        hotk.gradient(many, A, A, argnums=1)


MIXED = {
    "an array and a tree": (A, B, lambda a, b: f(a, b, C)),
    "a tree and an array": (B, A, lambda b, a: f(a, b, C)),
    "a number and an array": (C, A, lambda c, a: f(a, B, c)),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("x", "y", "g"), MIXED.values(), ids=MIXED)
def test_mixed_second_derivatives(x, y, g):
    expected = jax.jacfwd(jax.grad(g, 0), 1)(x, y)
    same(hotk.cross_hessian(g, x, y), expected)
    same(hotk.cross_hessian(g, x, y, mode=hotk.Forward()), expected)
    same(hotk.cross_hessian(g, x, y, mode=hotk.Reverse()), expected)
    prepared = hotk.cross_hessian.prepare(g, x, y)
    same(prepared(x, y), expected)
    v = jax.tree.map(lambda a: jnp.cos(a) + 0.5, y)
    product = jax.jvp(functools.partial(jax.grad(g, 0), x), (y,), (v,))[1]
    same(hotk.cross_hvp(g, x, v, y), product)
    same(hotk.cross_hvp.prepare(g, x, v, y)(x, v, y), product)


def test_mixed_products_with_several_directions():
    many = jnp.stack([A, 2.0 * A, -A])
    g = lambda b, a: f(a, b, C)
    got = hotk.cross_hvp(g, B, many, A, batched=True)
    one = hotk.cross_hvp(g, B, 2.0 * A, A)
    same(jax.tree.map(lambda a: a[1], got), one)


def test_mixed_second_derivatives_of_a_pendulum():
    """By hand: none of the pendulum itself, `2 q` of what is added."""
    mass, length, gravity = 2.0, 0.7, 9.81

    def lagrangian(q, speed):
        height = -length * jnp.cos(q)
        return mass * (length * speed) ** 2 / 2 - mass * gravity * height

    assert float(hotk.cross_hessian(lagrangian, 0.3, 1.1)) == 0.0
    rotating = lambda q, speed: lagrangian(q, speed) + q**2 * speed
    close(hotk.cross_hessian(rotating, 0.3, 1.1), 0.6)


INTEGERS = [np.int64(1), np.int32(-1), jnp.array(1), (np.int64(0), 1), range(2)]


@pytest.mark.parametrize("argnums", INTEGERS, ids=repr)
def test_whole_numbers_of_any_kind_are_positions(argnums):
    """As for `jax.grad`."""
    g = lambda a, c: jnp.sum(a**2) * c**3
    same(hotk.gradient(g, A, C, argnums=argnums), jax.grad(g, argnums)(A, C))
    prepared = hotk.gradient.prepare(g, A, C, argnums=argnums)
    same(prepared(A, C), jax.grad(g, argnums)(A, C))


def test_the_first_argument_is_the_same_program_as_without():
    g = lambda a, c: jnp.sum(a**4) * c
    hotk.gradient(g, A, C)
    before = hotk.cache_info()
    for argnums in (0, -2, np.int64(0)):
        same(hotk.gradient(g, A, C, argnums=argnums), jax.grad(g)(A, C))
    after = hotk.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)


def test_keywords_are_names():
    with pytest.raises(TypeError, match="a dict whose keys are names"):
        hotk.gradient(f, A, B, C, kwargs={1: 2.0})


def test_messages_of_cross_derivatives_name_their_own_arguments(as_user):
    g = lambda x, y: jnp.sum(x**2) * jnp.sum(y**2)
    with pytest.raises(hotk.DtypeError) as error:
        hotk.cross_hessian(g, A, 3)
    assert str(error.value).startswith("`cross_hessian(f, x, y)`: `y` has no leaf")
    with pytest.raises(hotk.DtypeError, match=r"^`cross_hessian.*: `x` has no leaf"):
        hotk.cross_hessian(g, 3, A)
    with pytest.raises(hotk.StructureError) as error:
        hotk.cross_hvp(g, A, jnp.ones(5), A)
    shape = "`cross_hvp(f, x, v, y)`: `v` must have the shape of `y`."
    assert str(error.value).startswith(shape)
    with pytest.raises(hotk.StructureError, match=r"^`cross_hvp\(f, x, v, y\)`"):
        hotk.cross_hvp.prepare(g, A, jnp.ones(5), A)
    with pytest.raises(hotk.OutputError, match=r"^`cross_hessian\(f, x, y\)`"):
        hotk.cross_hessian(lambda x, y: x * y, A, A)
