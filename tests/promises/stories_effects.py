"""Stories of functions that write: each call must leave what an uncached one leaves."""

import array
import collections
import functools
import io
import itertools
import operator
import queue
import random
import threading
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.promises.telling import X, cubic, notebook, story


effects = story(effects=True, changes=False)


@effects
def a_call_appends_to_a_captured_list():
    calls: list[float] = []

    def f(x):
        calls.append(1.0)
        return cubic(float(len(calls)), x)

    yield f
    yield f


@effects
def a_call_grows_a_list_in_other_ways():
    calls = [1.0]
    append, extend = calls.append, list.extend

    def by_bound_builtin(x):
        append(1.0)
        return cubic(float(len(calls)), x)

    def by_unbound_builtin(x):
        extend(calls, [1.0])
        return cubic(float(len(calls)), x)

    def by_slice(x):
        calls[len(calls) :] = [1.0]
        return cubic(float(len(calls)), x)

    def by_deletion(x):
        del calls[0]
        return cubic(float(len(calls)), x)

    def by_a_method_that_returns(x):
        calls.pop()
        return cubic(float(len(calls)), x)

    def by_augmenting_an_item(x):
        calls[0] += 1.0
        return cubic(calls[0], x)

    def by_insert(x):
        calls.insert(0, 5.0)
        return cubic(sum(calls), x)

    for f in (
        by_bound_builtin,
        by_unbound_builtin,
        by_slice,
        by_deletion,
        by_a_method_that_returns,
        by_augmenting_an_item,
        by_insert,
    ):
        yield f
        yield f


@effects
def a_call_writes_into_a_captured_dict():
    table = {"n": 0.0}

    def f(x):
        table["n"] += 1.0
        return cubic(table["n"], x)

    def g(x):
        table.update(n=table["n"] + 1.0)
        return cubic(table.setdefault("m", table["n"]), x)

    def h(x):
        operator.setitem(table, "n", table["n"] + 1.0)
        return cubic(table["n"], x)

    yield from (f, f, g, g, h, h)


@effects
def a_call_writes_into_a_list_inside_a_list():
    nest = [[[0.0]], {"a": [0.0]}]

    def f(x):
        nest[0][0][0] += 1.0
        nest[1]["a"].append(1.0)
        return cubic(nest[0][0][0] + sum(nest[1]["a"]), x)

    yield f
    yield f


@effects
def a_call_binds_a_captured_name():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return cubic(float(calls), x)

    yield f
    yield f


@effects
def a_call_binds_a_global():
    cell = notebook(
        """
        calls = 0
        def f(x):
            global calls
            calls += 1
            return calls * jnp.sum(x**3)
        def g(x):
            globals()["calls"] += 1
            return calls * jnp.sum(x**3)
        def helper():
            global calls
            calls += 1
        def h(x):
            helper()
            return calls * jnp.sum(x**3)
        """
    )
    for name in "fgh":
        yield cell[name]
        yield cell[name]


@effects
def a_call_sets_an_attribute():
    class Model:
        calls = 0

        def loss(self, x):
            self.calls += 1
            return cubic(float(self.calls), x)

        def record(self):
            self.calls += 1

        def indirect(self, x):
            self.record()
            return cubic(float(self.calls), x)

    model = Model()

    def by_setattr(x):
        setattr(model, "calls", model.calls + 1)  # noqa: B010
        return cubic(float(model.calls), x)

    def by_dict(x):
        model.__dict__["calls"] = model.calls + 1
        return cubic(float(model.calls), x)

    def on_the_class(x):
        Model.total = getattr(Model, "total", 0) + 1
        return cubic(float(Model.total), x)

    for f in (model.loss, model.indirect, by_setattr, by_dict, on_the_class):
        yield f
        yield f


@effects
def a_call_sets_its_own_attribute():
    def f(x):
        f.calls += 1
        return cubic(float(f.calls), x)

    f.calls = 0
    yield f
    yield f


@effects
def a_call_mutates_its_own_default():
    def f(x, calls=[]):  # noqa: B006
        calls.append(1.0)
        return cubic(float(len(calls)), x)

    yield f
    yield f


@effects
def a_call_writes_into_a_captured_numpy_array():
    a = np.ones(3)

    def by_item(x):
        a[0] += 1.0
        return cubic(a, x)

    def by_slice(x):
        a[:] = a + 1.0
        return cubic(a, x)

    def by_augmenting_an_alias(x):
        b = a
        b += 1.0
        return cubic(a, x)

    def by_output_argument(x):
        np.add(a, 1.0, out=a)
        return cubic(a, x)

    def by_fill(x):
        a.fill(a[0] + 1.0)
        return cubic(a, x)

    def by_copyto(x):
        np.copyto(a, a + 1.0)
        return cubic(a, x)

    def by_a_view(x):
        a[1:][0] += 1.0
        return cubic(a, x)

    def by_flat(x):
        a.flat[2] = a[2] + 1.0
        return cubic(a, x)

    def by_put(x):
        np.put(a, [0], [a[0] + 1.0])
        return cubic(a, x)

    for f in (
        by_item,
        by_slice,
        by_augmenting_an_alias,
        by_output_argument,
        by_fill,
        by_copyto,
        by_a_view,
        by_flat,
        by_put,
    ):
        yield f
        yield f


@effects
def a_call_sorts_a_captured_numpy_array():
    a = np.array([3.0, 1.0, 2.0])

    def f(x):
        a.sort()
        return cubic(a, x)

    yield f
    a[:] = [6.0, 5.0, 4.0]
    yield f


@effects
def a_call_sorts_or_reverses_a_captured_list():
    values = [3.0, 1.0, 2.0]

    def f(x):
        values.sort()
        return cubic(values[0] + 2.0 * values[1], x)

    def g(x):
        values.reverse()
        return cubic(values[0] + 2.0 * values[1], x)

    yield from (f, g, g, f)


@effects
def a_write_to_an_array_is_seen_through_its_view():
    a = np.ones(4)
    view = a[::2]

    def f(x):
        a[0] += 1.0
        return cubic(view[0], x)

    yield f
    yield f


@effects
def a_call_writes_into_a_constant_argument():
    table, a = {"n": 0.0}, np.zeros(3)

    def f(x, table):
        table["n"] += 1.0
        return cubic(table["n"], x)

    def g(x, a):
        a[0] += 1.0
        return cubic(a, x)

    def h(x, a):
        a += 1.0
        return cubic(a, x)

    yield f, X, table
    yield f, X, table
    yield g, X, a
    yield g, X, a
    yield h, X, a
    yield h, X, a


@effects
def a_generator_is_advanced():
    numbers = (float(n) for n in itertools.count(1))

    def f(x):
        return cubic(next(numbers), x)

    yield f
    yield f


@effects
def an_iterator_is_advanced():
    numbers, cycle = iter(range(1, 100)), itertools.cycle([1.0, 2.0, 3.0])

    def f(x):
        return cubic(float(next(numbers)), x)

    def g(x):
        return cubic(next(cycle), x)

    yield from (f, f, g, g)


@effects
def a_counter_is_advanced():
    count = itertools.count(1)

    def f(x):
        return cubic(float(next(count)), x)

    yield f
    yield f


@effects
def a_generator_is_sent_to():
    def averaging():
        total = 1.0
        while True:
            total += yield total

    running = averaging()
    next(running)

    def f(x):
        return cubic(running.send(2.0), x)

    yield f
    yield f


@effects
def a_random_generator_is_drawn_from():
    numpy_rng, python_rng = np.random.default_rng(0), random.Random(0)
    legacy = np.random.RandomState(0)

    def f(x):
        return cubic(numpy_rng.normal(size=3), x)

    def g(x):
        return cubic(python_rng.random(), x)

    def h(x):
        return cubic(legacy.normal(), x)

    yield from (f, f, g, g, h, h)


@effects
def the_bound_method_of_a_random_generator_is_captured():
    draw, uniform = np.random.default_rng(0).normal, random.Random(0).uniform
    raw, bits = random.Random(0).random, random.Random(0).getrandbits

    def f(x):
        return cubic(draw(), x)

    def g(x):
        return cubic(uniform(0.0, 1.0), x)

    def h(x):
        return cubic(raw() + bits(8), x)

    yield from (f, f, g, g, h, h)


@effects
def bound_methods_that_take_away_are_captured():
    pop_list = [float(i) for i in range(1, 20)].pop
    pop_left = collections.deque(float(i) for i in range(1, 20)).popleft
    pop_set = {float(i) for i in range(1, 20)}.pop
    pop_item = {i: float(i) for i in range(1, 20)}.popitem
    read = io.StringIO("123456789" * 5).read
    get = queue.SimpleQueue()
    for i in range(1, 20):
        get.put(float(i))

    def make(take):
        return lambda x: cubic(take(), x)

    for take in (
        pop_list,
        pop_left,
        pop_set,
        lambda: pop_item()[1],
        lambda: float(read(1)),
        get.get,
    ):
        yield make(take)
        yield make(take)


@effects
def a_queue_is_turned():
    turning = collections.deque([1.0, 2.0, 3.0])

    def f(x):
        turning.rotate(1)
        return cubic(turning[0], x)

    yield f
    yield f


@effects
def a_default_dict_fills_itself():
    numbers = itertools.count(1)
    table = collections.defaultdict(lambda: float(next(numbers)))

    def f(x):
        return cubic(table["a"] + table[len(table)], x)

    yield f
    yield f


@effects
def a_set_collects():
    seen: set[int] = set()

    def f(x):
        seen.add(len(seen))
        return cubic(float(len(seen)), x)

    yield f
    yield f


@effects
def a_lock_is_held_meanwhile():
    lock, state = threading.Lock(), types.SimpleNamespace(calls=0)

    def f(x):
        with lock:
            state.calls += 1
            return cubic(float(state.calls), x)

    yield f
    yield f


@effects
def a_method_of_a_logger_of_the_user_records():
    class Recorder:
        def __init__(self):
            self.names = []

        def __call__(self, name):
            self.names.append(name)
            return len(self.names)

    recorder = Recorder()

    def f(x):
        return cubic(float(recorder("f")), x)

    yield f
    yield f


@effects
def an_object_counts_how_often_it_is_read():
    class Counting:
        reads = 0

        @property
        def scale(self):
            self.reads += 1
            return float(self.reads)

    counting = Counting()

    def f(x):
        return cubic(counting.scale, x)

    yield f
    yield f


@effects
def a_call_raises_after_it_wrote():
    calls: list[int] = []

    def f(x):
        calls.append(1)
        if len(calls) % 3 == 0:
            raise ValueError("every third time")
        return cubic(float(len(calls)), x)

    yield f
    yield f


@effects
def a_function_defines_itself_again():
    cell = notebook(
        """
        def f(x):
            global g
            scale = g(x)
            def g(x, scale=scale): return scale + 1.0
            return scale * jnp.sum(x**3)
        def g(x): return 1.0
        """
    )
    yield cell["f"]
    yield cell["f"]


@effects
def a_recorded_value_is_handed_back():
    class Schedule:
        def __init__(self):
            self.value = 1.0

        def step(self):
            self.value, last = 0.5 * self.value, self.value
            return last

    schedule = Schedule()
    yield lambda x: cubic(schedule.step(), x)
    yield lambda x: cubic(schedule.step(), x)


@effects
def a_method_writes_into_buffers_of_its_module():
    cell = notebook(
        """
        w = np.ones(3)
        flags = np.array([True, False, True])
        words = np.array(["a", "b", "c"])
        days = np.array(["2020-01-02", "2020-01-03"], "M8[D]")
        whole = np.array(1.0)
        tree = {"w": (np.ones(3), [np.ones(3)])}
        octets, doubles = bytearray(b"abc"), array.array("d", [1.0, 2.0])
        class Model:
            def w(self, x):
                w[:] = w * 2
                return w
            def part(self, x):
                np.add(w[1:], 1, out=w[1:])
                return w
            def flags(self, x):
                flags[:] = ~flags
                return flags
            def words(self, x):
                words[:] = np.roll(words, 1)
                return float(ord(words[0]))
            def days(self, x):
                days[:] = days + np.timedelta64(1, "D")
                return float((days[0] - np.datetime64("2020-01-01")).astype(int))
            def whole(self, x):
                whole[()] += 1
                return whole
            def tree(self, x):
                tree["w"][0][:] = tree["w"][0] * 2
                tree["w"][1][0].fill(tree["w"][0][0])
                return tree["w"][0] * tree["w"][1][0]
            def octets(self, x):
                octets[0] += 1
                return float(octets[0])
            def doubles(self, x):
                doubles[0] += 1
                return doubles[0]
            def outer(self, name, x):
                return jnp.sum(getattr(self, name)(x) * x**3)
        names = "w", "part", "flags", "words", "days", "whole", "tree", "octets"
        functions = [(functools.partial(Model().outer, n),) for n in names]
        functions.append((functools.partial(Model().outer, "doubles"),))
        """,
        array=array,
        functools=functools,
    )
    for inner in cell["functions"]:
        f = lambda x, inner=inner: inner[0](x)
        yield f
        yield f


@effects
def a_call_writes_into_an_array_of_text_or_dates():
    words = np.array(["a", "b", "c"])
    days = np.array(["2020-01-02", "2020-01-03"], "M8[D]")

    def f(x):
        words[:] = np.roll(words, 1)
        return cubic(float(ord(words[0])), x)

    def g(x):
        days[:] = days + np.timedelta64(1, "D")
        first = (days[0] - np.datetime64("2020-01-01")).astype(int)
        return cubic(float(first), x)

    yield from (f, f, g, g)


@effects
def a_call_writes_into_what_a_class_holds():
    class Model:
        scale = np.ones(3)
        parts = ([np.ones(3)], {"n": 1.0})
        counted = (collections.Counter(),)

    class Net(eqx.Module):
        parts: tuple = eqx.field(static=True)
        numbers: list = eqx.field(static=True)

    net = Net(({"w": [1.0]},), [1.0, [2.0]])

    def f(x):
        Model.scale[:] = Model.scale * 2
        return cubic(Model.scale, x)

    def g(x):
        Model.parts[0][0][0] += 1.0
        Model.parts[1]["n"] += 1.0
        return cubic(Model.parts[0][0] * Model.parts[1]["n"], x)

    def h(x):
        Model.counted[0]["a"] += 1
        return cubic(float(Model.counted[0]["a"]), x)

    def k(x):
        net.parts[0]["w"][0] += 1.0
        return cubic(net.parts[0]["w"][0], x)

    def m(x):
        net.numbers[0] += 1.0
        net.numbers[1][0] += 1.0
        return cubic(net.numbers[0] * net.numbers[1][0], x)

    yield from (f, f, g, g, h, h, k, k, m, m)


def _grid():
    """Make a function that keeps each grid that it has made."""
    made = {}

    def grid(n):
        if n not in made:
            made[n] = jnp.linspace(0.5, 1.5, n)
        return made[n]

    return grid


@effects
def a_cache_is_filled_inside_a_transformation_of_jax():
    transformations = (
        jax.checkpoint,
        jax.jit,
        lambda g: jax.checkpoint(g, policy=jax.checkpoint_policies.dots_saveable),
        lambda g: lambda x: jax.checkpoint(g)(x),
        lambda g: lambda x: jnp.sum(jax.vmap(g)(jnp.stack([x, 2 * x]))),
        lambda g: lambda x: lax.scan(lambda c, y: (c + g(y), None), 0.0, x[None])[0],
        lambda g: lambda x: lax.cond(x[0] > 0, g, g, x),
        lambda g: lambda x: lax.fori_loop(0, 2, lambda i, c: c + g(x), 0.0),
        lambda g: lambda x: jnp.sum(jax.grad(g)(x)),
        eqx.filter_jit,
        eqx.filter_checkpoint,
    )
    for transformation in transformations:
        grid = _grid()
        f = transformation(lambda x, grid=grid: jnp.sum(grid(3) * x**3))
        yield from (f, f, f)


@effects
def a_cache_is_filled_in_a_function_with_a_rule():
    grid = _grid()

    @jax.custom_jvp
    def f(x):
        return jnp.sum(grid(3) * x**3)

    @f.defjvp
    def _pushed(primals, tangents):
        (x,), (v,) = primals, tangents
        return f(x), jnp.sum(3 * grid(3) * x**2 * v)

    yield from (f, f)
