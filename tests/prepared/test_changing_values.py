"""A captured value that changes from call to call is told of, once."""

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.helpers import recorded


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.0, 2.0])


@pytest.fixture(autouse=True)
def empty():
    hotk.clear_cache()


def test_the_third_value_of_a_cell_is_told_of_and_no_later_one():
    make, counts = lambda beta: lambda x: beta * jnp.sum(x**2), []
    for i in range(5):
        with recorded(hotk.ChangingValueWarning) as found:
            hotk.gradient(make(0.25 * i), X)
        counts.append(len(found))
        if i == 2:
            text = str(found[0].message)
    assert counts == [0, 0, 1, 0, 0]
    assert "cell `beta`: 0.0 -> 0.25 -> 0.5." in text
    assert "further argument" in text
    assert found == []


def test_it_points_to_the_line_of_the_call():
    make = lambda beta: lambda x: beta * jnp.sum(x**2)
    with recorded(hotk.ChangingValueWarning) as found:
        for i in range(3):
            hotk.gradient(make(i), X)
    assert found[0].filename == __file__


def test_a_minimum_names_the_call_of_the_user():
    with recorded(hotk.ChangingValueWarning) as found:
        for i in range(4):
            hotk.optim.minimize(lambda x, i=i: jnp.sum((x - i) ** 4), X, max_steps=1)
    assert [str(w.message)[:30] for w in found] == ["`minimize(f, x0, transform)`: "]


def test_several_places_are_told_of_one_by_one():
    make = lambda a, b: lambda x: a * jnp.sum(x**2) + b
    with recorded(hotk.ChangingValueWarning) as found:
        for i in range(4):
            hotk.gradient(make(i, 1.0), X)
        for i in range(4):
            hotk.gradient(make(7, 1.0 + i), X)
    assert ["cell `a`" in str(w.message) for w in found] == [True, False]


def test_values_that_come_again_are_not_new():
    make = lambda a: lambda x: a * jnp.sum(x**2)
    with recorded(hotk.ChangingValueWarning) as found:
        for _ in range(5):
            for a in (1.0, 2.0):
                hotk.gradient(make(a), X)
                hotk.hvp(make(a), X, X)
                hotk.value_and_gradient(make(a), X)
                hotk.quadratic_form(make(a), X, X)
    assert not found


def test_a_list_that_grows_is_told_of():
    history = []
    f = lambda x: len(history) * jnp.sum(x**2)
    with recorded(hotk.ChangingValueWarning) as found:
        for i in range(4):
            history.append(0.0)
            hotk.gradient(f, X)
            del i
    assert "`history`: 1 entries -> 2 entries -> 3 entries" in str(found[0].message)


def test_other_functions_shapes_and_structures_are_not_told_of():
    wrap = lambda g: lambda x: jnp.sum(g(x) ** 2)
    with recorded(hotk.ChangingValueWarning) as found:
        for g in (jnp.sin, jnp.cos, jnp.tan, lambda x: x, lambda x: 2 * x, abs):
            hotk.gradient(wrap(g), X)
        for n in (1, 2, 3):
            hotk.gradient(wrap(jnp.sin), jnp.ones(n))
            hotk.gradient(lambda x: jnp.sum(x[0]), [jnp.ones(2)] * n)
    assert not found


def test_prepared_operators_are_not_told_of():
    make = lambda a: lambda x: a * jnp.sum(x**2)
    with recorded(hotk.ChangingValueWarning) as found:
        for a in (1.0, 2.0, 3.0, 4.0):
            hotk.gradient.prepare(make(a), X)
    assert not found


def test_a_number_inside_of_what_cannot_be_opened_is_its_own():
    mesh, whole = jax.make_mesh((1,), ("i",)), jax.sharding.PartitionSpec()

    def make(c):
        cubed = lambda x: c * x**3
        there = jax.shard_map(cubed, mesh=mesh, in_specs=whole, out_specs=whole)
        return lambda x: jnp.sum(there(x))

    for c in (0.5, 1.5, 2.5, 1.5):
        assert jnp.allclose(hotk.hvp(make(c), X, X), 6 * c * X**2)


def test_a_reason_is_found_in_the_time_of_a_short_trace():
    import time

    from hotk._capture import StaticArrays
    from hotk._prepared import _call, _reasons

    parts = {f"part{i}": float(i) for i in range(150)}
    make = lambda last: lambda x: jnp.sum(x) * len(parts) + last
    for i in range(6):
        hotk.gradient(make(0.5 * i), X)
    best = 1.0
    for i in range(20):
        call = _call.Call(
            hotk.gradient._default_options,
            make(9.5 + i),
            X,
            (),
            static_arrays=StaticArrays.NONE,
        )
        start = time.perf_counter()
        assert f"cell `last`: {8.5 + i if i else 2.5} -> {9.5 + i}" == (
            _reasons.what_is_new(call)
        )
        best = min(best, time.perf_counter() - start)
    assert best < 5e-4  # 0.02 ms on an idle machine
