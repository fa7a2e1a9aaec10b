"""Arrays that a class reaches: constants known by identity, or by content."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


X = jnp.array([1.0, 2.0, 3.0])

w = jnp.full(3, 2.0)
b = np.full(3, 2.0)


class Model:
    def loss(self, x):
        return self.inner(x)

    def inner(self, x):
        return jnp.sum(w * x**3)


class Net(eqx.Module):
    scale: jax.Array

    def __call__(self, x):
        return jnp.sum(w * self.scale * x**3)


class Data:
    def loss(self, x):
        return self.inner(x)

    def inner(self, x):
        return jnp.sum(b * x**3)


class Unrelated:
    def __init__(self):
        self.scale = 2.0
        self.mean = w.mean()

    def loss(self, x):
        return jnp.sum(self.scale * x**3)


@pytest.fixture(autouse=True)
def fresh():
    hotk.clear_cache()


MADE = {
    "a bound method": lambda: Model().loss,
    "a module of equinox": lambda: Net(jnp.ones(3)),
    "NumPy": lambda: Data().loss,
    "an `__init__` that is not run": lambda: Unrelated().loss,
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_method_that_reads_a_global_array_is_traced_once(make):
    for _ in range(3):
        assert close(hotk.gradient(make(), X), 6 * X**2)
    info = hotk.cache_info()
    assert (info.traces, info.compiles) == (1, 1)
    assert hotk.explain(make()).opaque is None


@pytest.mark.parametrize("wide", [True, False])
def test_no_program_shares_the_memory_of_a_numpy_array(wide, default_settings):
    with jax.enable_x64(wide):
        x = jnp.array([1.0, 2.0, 3.0])
        f = Data().loss
        product = hotk.hvp.prepare(f, x, x)
        try:
            assert close(hotk.gradient(f, x), 6 * x**2)
            b[:] = 5.0
            assert close(hotk.gradient(f, x), 15 * x**2)
            assert close(hotk.hvp(f, x, x), 30 * x**2)
            # it holds what was there when it was prepared, also where JAX traces anew
            assert close(product(x, x), 12 * x**2)
            assert close(jax.jit(product)(x, x), 12 * x**2)
            assert close(jax.vmap(product)(x[None], x[None])[0], 12 * x**2)
            # and what plain JAX makes of the array is not held back either
            assert close(jax.jit(lambda x: b * x)(x), 5 * x)
        finally:
            b[:] = 2.0
        misses = hotk.cache_info().misses
        assert close(hotk.gradient(f, x), 6 * x**2)
        assert hotk.cache_info().misses == misses


@pytest.mark.parametrize("shape", [3, ()])
@pytest.mark.parametrize("wide", [True, False])
def test_a_prepared_opaque_function_keeps_its_numpy_array(
    wide, shape, default_settings
):
    with jax.enable_x64(wide):
        x = jnp.array([1.0, 2.0, 3.0])
        a, kept = np.full(shape, 2.0), []

        def f(x):
            kept.append(0)
            return jnp.sum(a * x**3)

        product = hotk.hvp.prepare(f, x, x)
        a[...] = 5.0
        assert close(product(x, x), 12 * x**2)
        assert close(jax.jit(product)(x, x), 12 * x**2)
        assert close(hotk.hvp(f, x, x), 30 * x**2)


def test_another_function_of_a_program_does_not_see_a_number_of_numpy_change():
    def cubic(scale, calls):
        def f(x):
            calls.append(0)
            return jnp.sum(scale * x**3)

        return f

    scale = np.array(2.0)
    assert close(hotk.gradient(cubic(scale, []), X), 6 * X**2)
    scale[()] = 5.0
    # The program is the same, and is derived anew for another operator.
    assert close(hotk.hvp(cubic(np.array(2.0), []), X, X), 12 * X**2)


def test_a_large_numpy_array_of_a_class_is_not_read_at_each_call():
    class Large:
        table = np.ones((1024, 1024))

        def loss(self, x):
            return jnp.sum(self.table[0, :3] * x**3)

    assert "more than 4 MiB" in str(hotk.explain(Large().loss).opaque)
    assert close(hotk.gradient(Large().loss, X), 3 * X**2)


def test_an_array_of_a_class_is_explained_as_what_it_is():
    rows = {row[0]: row[2] for row in hotk.explain(Net(jnp.ones(3))).rows}
    assert [how for where, how in rows.items() if "`w`" in where] == [
        "static by identity"
    ]


def test_the_reason_of_a_new_trace_names_the_array():
    global w
    before = w
    hotk.gradient(Net(jnp.ones(3)), X)
    try:
        w = jnp.full(3, 3.0)
        assert close(hotk.gradient(Net(jnp.ones(3)), X), 9 * X**2)
    finally:
        w = before
    assert "`w`" in hotk.cache_info().reasons[-1]


def test_keys_do_not_keep_an_array_of_a_class_alive():
    class Held:
        scale = jnp.full(3, 2.0)

        def loss(self, x):
            return jnp.sum(self.scale * x**3)

    reference = weakref.ref(Held.scale)
    hotk.gradient(Held().loss, X)
    hotk.gradient(Held().loss, X)
    del Held.scale
    hotk.clear_cache()
    gc.collect()
    assert reference() is None


def test_a_new_array_at_the_old_address_is_another_one():
    from hotk._capture import SameThing

    first = jnp.ones(3)
    one, same = SameThing(first), SameThing(first)
    other = SameThing(jnp.ones(3))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    del first
    gc.collect()
    assert one != same
    assert one == one


rate = 1.0


class Changing:
    def loss(self, x):
        return self.inner(x)

    def inner(self, x):
        return jnp.sum(rate * x**3)


def test_what_a_held_function_does_after_its_class_changed_is_not_taken_for_before():
    global rate
    loss = Changing().loss
    try:
        operator = hotk.HessianOperator(loss, X)
        closure = hotk.Closure.of(loss)
        rate = 2.0
        operator @ X, hotk.gradient(closure, X)
        rate = 1.0
        assert close(hotk.HessianOperator(loss, X) @ X, 6 * X**2)
        assert close(hotk.gradient(hotk.Closure.of(loss), X), 3 * X**2)
    finally:
        rate = 1.0
