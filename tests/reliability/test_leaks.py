"""hotk keeps nothing alive that the caller dropped, and no tracer at all."""

import functools
import gc
import threading
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import hotk
from tests.reliability.public_calls import CALLS, OF_ONE_NUMBER


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])
MEBIBYTE = 2**20

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def cubic(x):
    return jnp.sum(x**3)


@pytest.fixture(scope="module", autouse=True)
def only_what_is_new():
    """Let the collector look at what is made here: all else takes most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def alive(kind):
    """Return the live objects of a type, by identity."""
    gc.collect()
    # `type`, not `isinstance`: a lazy proxy would be woken by the question
    return {id(o): o for o in gc.get_objects() if issubclass(type(o), kind)}


def resident_bytes():
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.thinned(8)
@each_call
def test_no_tracer_is_alive_after_a_call(call):
    before = alive(jax.core.Tracer)
    call(cubic, X, V)
    assert not alive(jax.core.Tracer).keys() - before.keys()


@each_call
def test_no_tracer_waits_for_the_collector(call):
    """A function that captures itself dies late, and so does its copy."""
    captured = jnp.full(3, 2.0)

    def power(x, k=3):
        return jnp.sum(captured * x) if k == 0 else power(x * x, k - 1)

    before = alive(jax.core.Tracer)
    gc.disable()
    try:
        call(power, X / 4, V)
        found = {
            id(o) for o in gc.get_objects() if issubclass(type(o), jax.core.Tracer)
        }
    finally:
        gc.enable()
    assert not found - before.keys()


class Cubed:
    """A function whose rule, made in the call, reaches the array beside its number."""

    def __init__(self):
        self.array, self.factor = jnp.full(3, 2.0), 3.0

    def backward(self, x, u):
        return (self.factor * u * x**2,)

    def __call__(self, x):
        @jax.custom_vjp
        def cubed(x):
            return jnp.sum(x**3)

        cubed.defvjp(lambda x: (jnp.sum(x**3), x), self.backward)
        return cubed(self.array * x)


def test_no_tracer_is_alive_after_a_call_with_a_rule_that_reached_one():
    model = Cubed()
    before = alive(jax.core.Tracer)
    result = hotk.gradient(lambda x: model(x), X)
    assert jnp.allclose(result, 24.0 * X**2)
    assert not alive(jax.core.Tracer).keys() - before.keys()


@each_call
def test_no_tracer_is_alive_after_a_call_inside_a_jit(call):
    before = alive(jax.core.Tracer)
    jax.jit(lambda x: call(cubic, x, V))(X)
    assert not alive(jax.core.Tracer).keys() - before.keys()


# JAX itself keeps the tracers of a jit that failed after it met a captured array, as
# the calls with one number do: `jax.jit(lambda t: fails(X * t))(2.0)` leaves nine.
OF_X = {name: call for name, call in CALLS.items() if name not in OF_ONE_NUMBER}


@pytest.mark.parametrize("call", OF_X.values(), ids=OF_X)
def test_no_tracer_is_alive_after_a_failed_call(call):
    def fails(x):
        cubic(x)
        raise ValueError("not today")

    before = alive(jax.core.Tracer)
    with pytest.raises(ValueError, match="not today"):
        call(fails, X, V)
    assert not alive(jax.core.Tracer).keys() - before.keys()


@each_call
def test_the_leak_checker_finds_nothing(call, no_leaks):
    call(lambda x: jnp.sum(jnp.sin(x) * V), X, V)


@pytest.mark.thinned(14)
@each_call
@pytest.mark.parametrize("outer", ["jit", "vmap", "grad", "jvp", "scan"])
def test_the_leak_checker_finds_nothing_inside(call, outer, no_leaks):
    def inner(x):
        # the function captures the outer tracer, the worst case
        out = call(lambda q: jnp.sum(q**3 * jnp.sin(x)), x, V)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(out))

    match outer:
        case "jit":
            jax.jit(inner)(X)
        case "vmap":
            jax.vmap(inner)(jnp.stack([X, V]))
        case "grad":
            jax.grad(inner)(X)
        case "jvp":
            jax.jvp(inner, (X,), (V,))
        case "scan":
            jax.lax.scan(lambda c, x: (c + inner(x), None), 0.0, jnp.stack([X, V]))


def test_a_captured_tracer_does_not_outlive_its_transformation():
    seen = []

    @jax.jit
    def outer(a):
        seen.append(weakref.ref(a))
        return hotk.hvp(lambda x: jnp.sum(x**3 * a), X, V)

    outer(2.0)
    gc.collect()
    assert seen[0]() is None


@pytest.mark.thinned(19)
@each_call
@pytest.mark.parametrize("make", [jnp.ones, np.ones], ids=["jax", "numpy"])
def test_a_captured_array_dies_with_its_last_reference(call, make):
    captured = make(3)
    dead = weakref.ref(captured)
    call(lambda x: jnp.sum(x**3 * captured), X, V)
    del captured
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(13)
@each_call
def test_an_array_captured_by_a_nested_function_dies(call):
    captured = jnp.full(3, 2.0)
    dead = weakref.ref(captured)
    inner = lambda t: t * captured
    call(lambda x: jnp.sum(inner(x) ** 3), X, V)
    del captured, inner
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(15)
@each_call
@pytest.mark.parametrize("kind", ["default", "keyword", "partial", "list", "args"])
def test_an_array_reached_in_another_way_dies(call, kind):
    captured = jnp.full(3, 2.0)
    dead = weakref.ref(captured)

    def weighted(x, a=None):
        return jnp.sum(x**3 * a)

    match kind:
        case "default":
            f = lambda x, a=captured: weighted(x, a)
        case "keyword":
            f = lambda x, *, a=captured: weighted(x, a)
        case "partial":
            f = functools.partial(weighted, a=captured)
        case "list":
            f = (lambda items: lambda x: weighted(x, items[0]))([captured])
        case "args":
            hotk.hvp(weighted, X, V, captured)
            f = cubic
    call(f, X, V)
    del captured, f
    gc.collect()
    assert dead() is None


class Model(eqx.Module):
    weight: jax.Array

    def loss(self, x):
        return jnp.sum(x**3 * self.weight)


class Plain:
    """An object without a tree: hotk may not look into it."""

    def __init__(self, weight):
        self.weight = weight

    def loss(self, x):
        return jnp.sum(x**3 * self.weight)

    def __call__(self, x):
        return self.loss(x)


@pytest.mark.thinned(16)
@each_call
@pytest.mark.parametrize("make", [Model, Plain])
def test_a_bound_object_and_its_array_die(call, make):
    weight = jnp.full(3, 2.0)
    model = make(weight)
    dead_array, dead_object = weakref.ref(weight), weakref.ref(model)
    call(model.loss, X, V)
    del weight, model
    gc.collect()
    assert dead_array() is None
    assert dead_object() is None


def test_a_callable_object_dies():
    plain = Plain(jnp.full(3, 2.0))
    dead = weakref.ref(plain)
    hotk.hvp(plain, X, V)
    del plain
    gc.collect()
    assert dead() is None


@each_call
def test_a_captured_jitted_function_dies(call):
    square = jax.jit(lambda x: x * x)
    dead = weakref.ref(square)
    call(lambda x: jnp.sum(square(x)), X, V)
    del square
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(8)
@each_call
def test_a_jitted_function_that_is_known_by_itself_dies(call):
    lock = threading.Lock()

    @jax.jit
    def square(x):
        with lock:
            return x * x

    dead = weakref.ref(square)
    call(lambda x: jnp.sum(square(x)), X, V)
    del square
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(8)
@each_call
def test_a_captured_class_dies(call):
    class Local:
        power = 3

    dead = weakref.ref(Local)
    call(lambda x: jnp.sum(x ** vars(Local)["power"]), X, V)
    del Local
    gc.collect()
    assert dead() is None


@each_call
def test_a_class_made_on_the_way_dies(call):
    class Local:
        power = 3

        def loss(self, x):
            return jnp.sum(x**self.power)

    dead = weakref.ref(Local)
    call(Local().loss, X, V)
    del Local
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(11)
@each_call
def test_the_function_itself_dies(call):
    weight = 2.0
    f = lambda x: weight * jnp.sum(x**3)
    dead = weakref.ref(f)
    call(f, X, V)
    del f
    gc.collect()
    assert dead() is None


@pytest.mark.thinned(13)
@each_call
def test_a_function_that_captures_itself_dies(call):
    captured = jnp.full(3, 2.0)

    def power(x, k=3):
        return jnp.sum(captured * x) if k == 0 else power(x * x, k - 1)

    dead, dead_array = weakref.ref(power), weakref.ref(captured)
    call(power, X / 4, V)
    del power, captured
    gc.collect()
    assert dead() is None
    assert dead_array() is None


@pytest.mark.thinned(10)
@each_call
def test_inputs_and_results_die(call):
    x, v = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    out = call(cubic, x, v)
    references = [weakref.ref(a) for a in (x, v, *jax.tree.leaves(out))]
    del x, v, out
    gc.collect()
    assert [r() for r in references] == [None] * len(references)


def test_a_numpy_input_dies():
    x, v = np.array([1.0, 2.0]), np.array([0.5, 1.0])
    references = [weakref.ref(x), weakref.ref(v)]
    hotk.hvp(cubic, x, v)
    del x, v
    gc.collect()
    assert [r() for r in references] == [None, None]


def test_a_prepared_dies_and_lets_go_of_what_it_held():
    captured = jnp.full(3, 2.0)
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**3 * captured), X, V)
    prepared(X, V)
    dead = weakref.ref(captured)
    del captured
    gc.collect()
    assert dead() is not None  # it holds the function as it was
    del prepared
    gc.collect()
    assert dead() is None


def test_an_error_lets_go_of_the_captured_array():
    captured = jnp.full(3, 2.0)
    dead = weakref.ref(captured)

    def fails(x):
        raise ValueError(f"not today: {captured.shape}")

    with pytest.raises(ValueError, match="not today"):
        hotk.hvp(fails, X, V)
    del captured, fails
    gc.collect()
    assert dead() is None


def grown_by_fresh_closures(count, make, entries):
    def one(i):
        captured = make(i)
        return hotk.hvp(lambda x: jnp.sum(x**3) * jnp.sum(captured), X, V)

    for i in range(20):
        one(i)
    before, held = resident_bytes(), hotk.cache_info().entries
    for i in range(count):
        one(i)
    assert hotk.cache_info().entries - held <= entries
    return (resident_bytes() - before) / MEBIBYTE


def new_jax_array(i):
    return jnp.asarray(np.full(2**16, float(i)))  # half a mebibyte


def new_numpy_array(i):
    return np.full(2**16, float(i))


@pytest.mark.parametrize("make", [new_jax_array, new_numpy_array])
def test_1000_fresh_closures_over_large_arrays_do_not_grow_memory(make):
    assert grown_by_fresh_closures(1000, make, entries=0) < 20


@pytest.mark.slow
@pytest.mark.parametrize("make", [new_jax_array, new_numpy_array])
def test_10000_fresh_closures_over_large_arrays_do_not_grow_memory(make):
    assert grown_by_fresh_closures(10_000, make, entries=0) < 20


def test_1000_opaque_functions_do_not_grow_memory():
    def one(i):
        return hotk.hvp(Plain(new_numpy_array(i)[:3]), X, V)

    for i in range(20):
        one(i)
    before = resident_bytes()
    for i in range(1000):
        one(i)
    assert (resident_bytes() - before) / MEBIBYTE < 20
