"""Derivative rules that a function makes at each call, and that hold what it captured.

A rule of these says three times what the body's derivative is divided by two, so a
derivative of the body is another number. Values and derivatives are by hand:
`a * x**2`, its gradient `3 * a * x`, and `3 * a * v` along `v`.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


X = jnp.array([0.4, -1.2, 0.9])
V = jnp.array([1.0, -0.5, 0.25])


class Record(NamedTuple):
    a: Any
    factor: Any


class Module(eqx.Module):
    a: Any
    factor: Any = eqx.field(static=True)


class Slotted:
    __slots__ = ("a", "factor")

    def __init__(self, a, factor):
        self.a, self.factor = a, factor


def in_a_tree(a, factor):
    """Return what holds both, and has nothing that the other one has."""
    return SimpleNamespace(a={"all": [a]}, factor=[factor])


class Lazy:
    """Holds a function that has captured the array."""

    def __init__(self, a, factor):
        self.get, self.factor = lambda: a, factor

    @property
    def a(self):
        return self.get()


HOLDERS = {
    "function": Lazy,
    "namespace": lambda a, factor: SimpleNamespace(a=a, factor=factor),
    "slots": Slotted,
    "named tuple": Record,
    "module": Module,
    "nested": in_a_tree,
}


def read(held):
    a = held.a["all"][0] if isinstance(held.a, dict) else held.a
    return a, held.factor[0] if isinstance(held.factor, list) else held.factor


def only_the_factor(held):
    return held.factor[0] if isinstance(held.factor, list) else held.factor


def all_by_jvp(held, x):
    @jax.custom_jvp
    def scaled(x):
        return read(held)[0] * x**2

    @scaled.defjvp
    def _(primals, tangents):
        a, factor = read(held)
        return scaled(*primals), factor * a * primals[0] * tangents[0]

    return scaled(x)


def all_by_vjp(held, x):
    @jax.custom_vjp
    def scaled(x):
        return read(held)[0] * x**2

    def backward(x, u):
        a, factor = read(held)
        return (factor * a * x * u,)

    scaled.defvjp(lambda x: (scaled(x), x), backward)
    return scaled(x)


def factor_by_jvp(held, x):
    @jax.custom_jvp
    def squared(a, x):
        return a * x**2

    @squared.defjvp
    def _(primals, tangents):
        (a, x), (a_dot, x_dot) = primals, tangents
        return a * x**2, only_the_factor(held) * a * x * x_dot + a_dot * x**2

    return squared(read(held)[0], x)


def factor_by_vjp(held, x):
    @jax.custom_vjp
    def squared(a, x):
        return a * x**2

    def backward(kept, u):
        a, x = kept
        return x**2 * u, only_the_factor(held) * a * x * u

    squared.defvjp(lambda a, x: (a * x**2, (a, x)), backward)
    return squared(read(held)[0], x)


def by_default(rule, held, x):
    """The holder is the default of a function that makes the rule."""

    def inner(x, held=held):
        return rule(held, x)

    return inner(x)


RULES = {
    "all by jvp": all_by_jvp,
    "all by vjp": all_by_vjp,
    "factor by jvp": factor_by_jvp,
    "factor by vjp": factor_by_vjp,
}
WAYS = {
    "cell": lambda rule, held: lambda x: jnp.sum(rule(held, x)),
    "partial": lambda rule, held: functools.partial(
        lambda held, x: jnp.sum(rule(held, x)), held
    ),
    "default": lambda rule, held: (
        lambda x, held=held: jnp.sum(by_default(rule, held, x))
    ),
}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_the_rule_is_followed(holder, rule, way):
    for number in (1.0, 2.0, 3.0):
        a = number * jnp.array([1.0, 2.0, 3.0])
        f = way(rule, holder(a, 3.0))
        assert close(hotk.gradient(f, X), 3.0 * a * X)
        assert close(hotk.hvp(f, X, V), 3.0 * a * V)
        assert close(hotk.jvp(f, X, V), jnp.sum(3.0 * a * X * V))
        held = hotk.gradient.prepare(f, X)
        assert close(jax.jvp(held, (X,), (V,))[1], 3.0 * a * V)
        along = jax.grad(lambda x, f=f: jnp.vdot(hotk.gradient(f, x), V))
        assert close(along(X), 3.0 * a * V)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_the_rule_follows_what_it_reads(holder, rule, way):
    for factor in (3.0, 5.0, 3.0):
        a = factor * jnp.array([1.0, 2.0, 3.0])
        assert close(hotk.gradient(way(rule, holder(a, factor)), X), factor * a * X)


class Solver:
    """Holds data and options; its rule reads the options alone."""

    def __init__(self, a):
        self.a = a
        self.options = {"factor": 3.0, "history": []}

    def loss(self, x):
        options = self.options

        @jax.custom_jvp
        def squared(a, x):
            return a * x**2

        @squared.defjvp
        def _(primals, tangents):
            (a, x), (a_dot, x_dot) = primals, tangents
            return a * x**2, options["factor"] * a * x * x_dot + a_dot * x**2

        return jnp.sum(squared(self.a, x))


def test_a_rule_that_reads_what_holds_no_array_is_on_the_fast_path():
    for number in (1.0, 2.0, 3.0):
        assert close(hotk.hvp(Solver(number * X).loss, X, V), 3.0 * number * X * V)
    before = hotk.cache_info()
    assert close(hotk.hvp(Solver(4.0 * X).loss, X, V), 12.0 * X * V)
    assert hotk.cache_info().traces == before.traces


def twice(held, x):
    """The rule of a rule: it is run when a prepared gradient is differentiated."""

    @jax.custom_jvp
    def slope(a, x):
        return 3.0 * a * x

    @slope.defjvp
    def _(primals, tangents):
        return slope(*primals), 7.0 * read(held)[0] * tangents[1]

    @jax.custom_jvp
    def squared(a, x):
        return a * x**2

    @squared.defjvp
    def _(primals, tangents):
        return squared(*primals), slope(*primals) * tangents[1]

    return squared(read(held)[0], x)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_rule_of_a_rule_is_followed_by_outer_derivatives(holder, way):
    a = jnp.array([1.0, 2.0, 3.0])
    f = way(twice, holder(a, 3.0))
    gradient = hotk.gradient.prepare(f, X)
    for _ in range(2):
        assert close(gradient(X), 3.0 * a * X)
        assert close(jax.jvp(gradient, (X,), (V,))[1], 7.0 * a * V)
        along = jax.jvp(lambda x: hotk.gradient(f, x), (X,), (V,))[1]
        assert close(along, 7.0 * a * V)
        assert close(hotk.hvp(f, X, V), 7.0 * a * V)


TABLE = SimpleNamespace(a=None)


def by_global(x):
    @jax.custom_jvp
    def slope(a, x):
        return 3.0 * a * x

    @slope.defjvp
    def _(primals, tangents):
        return slope(*primals), 7.0 * TABLE.a * tangents[1]

    return jnp.sum(slope(TABLE.a, x))


def test_a_rule_may_read_what_is_global(monkeypatch):
    for a in (jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0])):
        monkeypatch.setattr(TABLE, "a", a)
        value = hotk.value_and_jvp.prepare(by_global, X, V)
        assert close(value(X, V), (jnp.sum(3.0 * a * X), jnp.sum(7.0 * a * V)))
        assert close(hotk.gradient(by_global, X), 7.0 * a)


LEAKED = []


def fails_in_a_library(x, u):
    return (jnp.dot(u, jnp.ones(7)) * x,)


def has_a_wrong_shape(x, u):
    return (jnp.sum(3.0 * x * u),)


def has_a_wrong_structure(x, u):
    return 3.0 * x * u


def uses_a_leaked_tracer(x, u):
    return (3.0 * LEAKED[0] * x * u,)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("operator", [hotk.gradient, hotk.jvp, hotk.hvp])
@pytest.mark.parametrize(
    "rule",
    [
        fails_in_a_library,
        has_a_wrong_shape,
        has_a_wrong_structure,
        uses_a_leaked_tracer,
    ],
)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_the_body_does_not_stand_in_for_a_rule_that_fails(rule, operator):
    """JAX raises without hotk: a number would be another function's derivative."""

    @jax.custom_vjp
    def squared(x):
        return x**2

    squared.defvjp(lambda x: (x**2, x), rule)
    f = lambda x: jnp.sum(squared(x))
    LEAKED.clear()
    jax.jit(LEAKED.append)(X)
    with pytest.raises((TypeError, ValueError)):
        jax.grad(f)(X)
    with pytest.raises((hotk.ModeError, jax.errors.UnexpectedTracerError)):
        operator(f, X, *(() if operator is hotk.gradient else (V,)))
    assert not hotk.can_differentiate(f, X).modes


def test_the_body_stands_in_for_a_rule_that_cannot_be_transposed():
    """`jnp.maximum` is not linear, so JAX cannot transpose it; reverse mode runs it."""

    @jax.custom_vjp
    def squared(x):
        return x**2

    squared.defvjp(lambda x: (x**2, x), lambda x, u: (3.0 * jnp.maximum(u, -1.0) * x,))
    f = lambda x: jnp.sum(squared(x))
    assert close(hotk.gradient(f, X), 3.0 * X)
    assert close(hotk.jvp(f, X, V), 2.0 * jnp.vdot(X, V))
    assert "the derivative of its body" in hotk.jvp.prepare(f, X, V).info.why


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_rule_reads_a_cache_that_the_body_has_filled(again):
    cache = {}

    def weights():
        if "w" not in cache:
            cache["w"] = jnp.linspace(0.5, 1.5, 3)
        return cache["w"]

    @jax.custom_vjp
    def cubic(x):
        return jnp.sum(weights() * x**3)

    cubic.defvjp(lambda x: (cubic(x), x), lambda x, u: (u * 3 * weights() * x**2,))
    expected = 3 * np.array([0.5, 1.0, 1.5]) * np.asarray(X) ** 2
    for _ in range(again):
        assert close(hotk.gradient(lambda x: cubic(x), X), expected)
        assert close(hotk.hvp(lambda x: cubic(x), X, V), 2 * expected * V / X)


@pytest.mark.parametrize("made", ["in the call", "before"])
def test_a_rule_of_custom_vmap_may_read_an_array(made):
    held = {"a": jnp.full(3, 2.0)}

    def make():
        @jax.custom_batching.custom_vmap
        def scaled(x):
            return held["a"] * x

        @scaled.def_vmap
        def _(size, mapped, x):
            return held["a"] * x, mapped[0]

        return scaled

    before = make()

    def f(x):
        return (before if made == "before" else make())(x) ** 3

    points, v = jnp.stack([X, 2.0 * X]), jnp.ones(3)
    for _ in range(2):
        result = jax.vmap(lambda x: hotk.jvp(f, x, v))(points)
        assert close(result, 24.0 * points**2)
    held["a"] = jnp.full(3, 1.0)
    assert close(jax.vmap(lambda x: hotk.jvp(f, x, v))(points), 3.0 * points**2)
