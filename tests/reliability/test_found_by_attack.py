"""What attacks on the captured state have found: each a number that was wrong."""

import collections
import contextvars
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import hotk
from tests.helpers import close


X = jnp.array([1.0, 2.0, 3.0])


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "operator", [hotk.gradient, hotk.value_and_gradient, hotk.jacobian]
)
def test_a_reverse_rule_that_raises_is_not_replaced_by_the_body(operator):
    @jax.custom_vjp
    def cubed(x):
        return jnp.sum(x**3)

    def backward(x, u):
        raise NotImplementedError("no such rule")

    cubed.defvjp(lambda x: (cubed(x), x), backward)
    with pytest.raises((NotImplementedError, hotk.ModeError), match="no such rule"):
        operator(cubed, X)


class Node:
    def __init__(self, a):
        self.a = a


def test_a_rule_that_reads_by_a_weak_reference_is_followed():
    node = Node(jnp.array([2.0, 3.0, 4.0]))
    parent = weakref.ref(node)

    def f(x):
        @jax.custom_vjp
        def cubed(x):
            return x**3

        cubed.defvjp(lambda x: (x**3, x), lambda x, u: (3.0 * parent().a * x**2 * u,))
        return jnp.sum(cubed(x))

    expected = 3.0 * node.a * X**2
    for _ in range(3):
        assert close(hotk.gradient(f, X), expected)
        assert close(hotk.gradient.prepare(f, X)(X), expected)
    assert close(hotk.hvp(f, X, X), 6.0 * node.a * X * X)


def test_a_weak_reference_in_a_closure_refers_to_something():
    node = Node(2.0 * jnp.ones(3))
    parent = weakref.ref(node)
    f = lambda x: jnp.sum(parent().a * x**2)
    assert close(hotk.Closure.of(f)(X), jnp.asarray(28.0))


def weighted(items):
    """Return a function that the order of the items matters to."""
    return lambda x: sum((i + 1) * jnp.sum(v * x**2) for i, v in enumerate(items))


def mappings():
    core, nnx = pytest.importorskip("flax.core"), pytest.importorskip("flax.nnx")
    return {"frozen": core.FrozenDict, "state": nnx.State}


@pytest.mark.library
@pytest.mark.parametrize("kind", ["frozen", "state"])
def test_the_order_of_a_mapping_of_flax_counts(kind):
    make = mappings()[kind]
    one, two = jnp.ones(3), 2.0 * jnp.ones(3)
    for names in ("ba", "ab", "ba", "ab"):
        values = {"a": one, "b": two}
        mapping = make({n: values[n] for n in names})
        first, second = (values[n] for n in names)
        expected = 2.0 * (first + 2.0 * second) * X
        f = lambda x, mapping=mapping: weighted(mapping.values())(x)
        assert close(hotk.gradient(f, X), expected)
        f = lambda x, mapping: weighted(mapping.values())(x)
        assert close(hotk.gradient(f, X, mapping), expected)


@pytest.mark.library
def test_an_attribute_that_a_distribution_was_given_counts():
    distributions = pytest.importorskip("numpyro.distributions")
    d = distributions.Normal(jnp.zeros(3), jnp.ones(3))
    f = lambda x: getattr(d, "weight", 1.0) * jnp.sum(d.log_prob(x))
    for weight in (None, None, 5.0, 2.0):
        if weight is not None:
            d.weight = weight
        assert close(hotk.gradient(f, X), -(weight or 1.0) * X)


class Forgetful(NamedTuple):
    a: Any
    b: Any


jax.tree_util.register_pytree_node(
    Forgetful, lambda p: ((p.a,), None), lambda _, c: Forgetful(c[0], 3.0)
)


def test_a_named_tuple_whose_tree_forgets_a_field_is_whole():
    p = Forgetful(2.0 * jnp.ones(3), 5.0)
    assert close(hotk.gradient(lambda x: p.b * jnp.sum(p.a * x**2), X), 20.0 * X)


SCALE = 1.0


@pytest.mark.parametrize("wrap", [eqx.filter_vmap, eqx.filter_checkpoint])
def test_a_wrapped_function_in_an_argument_reads_what_is_global(wrap, monkeypatch):
    argument = jax.tree_util.Partial(wrap(lambda x: SCALE * x**2))
    for scale in (1.0, 1.0, 1.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        f = lambda x, m: jnp.sum(m(x))
        assert close(hotk.gradient(f, X, argument), 2.0 * scale * X)


class Operations:
    op = float.__add__


def test_a_method_of_c_in_a_class_counts(monkeypatch):
    f = lambda x: Operations.op(2.0, 3.0) * jnp.sum(x**2)
    for operation, value in ((float.__add__, 5.0),) * 3 + ((float.__mul__, 6.0),):
        monkeypatch.setattr(Operations, "op", operation)
        assert close(hotk.gradient(f, X), 2.0 * value * X)


def by_class(a):
    class Local:
        held = a

    return lambda: Local.held


def by_context(a):
    variable = contextvars.ContextVar("variable")
    variable.set(a)
    return variable.get


@pytest.mark.parametrize("read_by", [by_class, by_context])
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_rule_reads_a_tracer_by_what_was_made_in_the_call(read_by):
    table = [jnp.array([2.0, 3.0, 4.0])]

    def f(x):
        read = read_by(table[0])

        @jax.custom_jvp
        def cubed(x):
            return x**3

        @cubed.defjvp
        def _(primals, tangents):
            return primals[0] ** 3, 3.0 * read() * primals[0] ** 2 * tangents[0]

        return jnp.sum(cubed(x))

    outer = lambda z: hotk.quadratic_form(f, z, jnp.ones(3))
    assert close(jax.grad(outer)(X), 6.0 * table[0])
    assert close(hotk.gradient(f, X), 3.0 * table[0] * X**2)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


def test_slots_that_change_places_are_read_by_their_names():
    thing = Slotted(2.0, 3.0)
    f = lambda x: thing.a * jnp.sum(x**2)
    a, b = Slotted.a, Slotted.b
    try:
        for swap in (False, False, False, True):
            Slotted.a, Slotted.b = (b, a) if swap else (a, b)
            assert close(hotk.gradient(f, X), 2.0 * (3.0 if swap else 2.0) * X)
    finally:
        Slotted.a, Slotted.b = a, b


def test_a_default_dict_as_an_argument_keeps_its_order():
    f = lambda x, d: weighted(d.values())(x)
    for names in ("ab", "ab", "ab", "ba"):
        values = {"a": jnp.ones(3), "b": 2.0 * jnp.ones(3)}
        d = collections.defaultdict(list, {n: values[n] for n in names})
        first, second = (values[n] for n in names)
        assert close(hotk.gradient(f, X, d), 2.0 * (first + 2.0 * second) * X)


def test_a_filter_that_is_an_object_of_the_user_in_a_chain():
    """(3 u + c)^2 with c = 6 held is smallest at u = -2.

    The loop holds the chain without its arrays, which are not arrays of the objective.
    """

    class Line(eqx.Module):
        u: jax.Array
        c: jax.Array

        def __call__(self, x):
            return self.u * x + self.c

    hotk.clear_cache()
    transform = optax.chain(hotk.optim.newton_cg(where=Line(u=True, c=False)))
    start = Line(jnp.asarray(0.0), jnp.asarray(6.0))
    f = lambda line, x: jnp.sum(line(x) ** 2)
    x = jnp.full(2, 3.0)
    found = hotk.optim.minimize(f, start, transform, args=(x,), max_steps=3)
    close(jnp.stack([found.x.u, found.x.c]), jnp.array([-2.0, 6.0]))
