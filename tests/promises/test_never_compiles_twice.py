"""Promise 2: equal code and equal captured structure share one compiled operator."""

import concurrent.futures
import functools
import itertools
import math
import threading
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.counting import compiles, traces
from tests.helpers import close
from tests.promises.telling import X, cubic, direction, notebook, run_cell


pytestmark = pytest.mark.usefixtures("as_user")

V = direction(X)
DATA = [jnp.array([1.0, 2.0, 3.0]) * k for k in (1.0, 2.0, 3.0)]
TRUTH = [6.0 * b * X * V for b in DATA]


@pytest.fixture
def hotk():
    """Start each test with nothing compiled."""
    import hotk

    hotk.clear_cache()
    return hotk


@pytest.fixture
def tick():
    """Count the traces: a builtin is static by identity."""
    return itertools.count().__next__


# ----- The fourteen forms of a callable


def loss(p, b):
    return jnp.sum(b * p**3)


class Model:
    def __init__(self, b, tick):
        self.b, self.tick = b, tick

    def loss(self, p):
        self.tick()
        return loss(p, self.b)

    def __call__(self, p):
        self.tick()
        return loss(p, self.b)


class Module(eqx.Module):
    b: jax.Array
    tick: Any = eqx.field(static=True)

    def __call__(self, p):
        self.tick()
        return loss(p, self.b)

    def loss(self, p):
        return self(p)


def ticking(p, b, tick):
    tick()
    return loss(p, b)


def a_lambda_over_the_same_data(tick):
    b = DATA[0]
    return lambda _: lambda p: ticking(p, b, tick)


def a_lambda_over_new_data(tick):
    return lambda b: lambda p: ticking(p, b, tick)


def a_nested_function(tick):
    def make(b):
        def f(p):
            tick()
            return loss(p, b)

        return f

    return make


def a_partial(tick):
    return lambda b: functools.partial(ticking, b=b, tick=tick)


def the_same_bound_method(tick):
    model = Model(None, tick)

    def make(b):
        model.b = b
        return model.loss

    return make


def the_bound_method_of_a_new_object(tick):
    return lambda b: Model(b, tick).loss


def the_same_callable_object(tick):
    model = Model(None, tick)

    def make(b):
        model.b = b
        return model

    return make


def a_new_callable_object(tick):
    return lambda b: Model(b, tick)


def a_jitted_lambda(tick):
    return lambda b: jax.jit(lambda p: ticking(p, b, tick))


def a_lambda_around_a_vmapped_lambda(tick):
    def make(b):
        def f(p):
            tick()
            return jnp.sum(jax.vmap(lambda q, c: c * q**3)(p, b))

        return f

    return make


def a_partial_of_jax_over_a_lambda(tick):
    return lambda b: jax.tree_util.Partial(lambda c, p: ticking(p, c, tick), b)


def a_partial_of_jax_over_a_function(tick):
    return lambda b: jax.tree_util.Partial(ticking, b=b, tick=tick)


def a_lambda_over_a_float(tick):
    number = 2.0
    return lambda b: lambda p: 0.5 * number * ticking(p, b, tick)


def a_module(tick):
    return lambda b: Module(b, tick)


FORMS = [
    a_lambda_over_the_same_data,
    a_lambda_over_new_data,
    a_nested_function,
    a_partial,
    the_same_bound_method,
    the_bound_method_of_a_new_object,
    the_same_callable_object,
    a_new_callable_object,
    a_jitted_lambda,
    a_lambda_around_a_vmapped_lambda,
    a_partial_of_jax_over_a_lambda,
    a_partial_of_jax_over_a_function,
    a_lambda_over_a_float,
    a_module,
]


# More of the same: whatever else carries data to a function.


def a_method_of_a_module(tick):
    return lambda b: Module(b, tick).loss


def a_default_argument(tick):
    def make(b):
        def f(p, b=b, *, tick=tick):
            return ticking(p, b, tick)

        return f

    return make


def a_list_and_a_dict(tick):
    def make(b):
        box = [{"b": (b, "label", 3)}]
        return lambda p: ticking(p, box[0]["b"][0], tick)

    return make


def a_checkpointed_lambda(tick):
    return lambda b: jax.checkpoint(lambda p: ticking(p, b, tick))


def a_decorated_function(tick):
    def decorate(g):
        @functools.wraps(g)
        def wrapper(*args):
            return g(*args)

        return wrapper

    return lambda b: decorate(lambda p: ticking(p, b, tick))


def a_module_inside_a_lambda(tick):
    def make(b):
        module = Module(b, tick)
        return lambda p: module(p)

    return make


def a_function_of_a_function(tick):
    def make(b):
        def scale(q):
            return b * q

        return lambda p: ticking(p, scale(1.0), tick)

    return make


def a_global_of_a_notebook(tick):
    cell = notebook("", loss=loss, tick=tick)

    def make(b):
        cell["b"] = b
        run_cell("f = lambda p: (tick(), loss(p, b))[1]", cell)
        return cell["f"]

    return make


def a_global_of_a_notebook_two_calls_down(tick):
    cell = notebook(
        """
        def inner(p): return loss(p, b)
        def f(p):
            tick()
            return inner(p)
        """,
        loss=loss,
        tick=tick,
    )

    def make(b):
        cell["b"] = b
        return cell["f"]

    return make


def a_cell_of_a_notebook_that_is_run_again(tick):
    cell = notebook("", loss=loss, tick=tick)

    def make(b):
        run_cell("def f(p):\n    tick()\n    return loss(p, b)", cell)
        cell["b"] = b
        return cell["f"]

    return make


def an_attribute_of_a_function(tick):
    def f(p):
        return ticking(p, f.b, tick)

    def make(b):
        f.b = b
        return f

    return make


def a_buffer_that_is_overwritten(tick):
    a = np.empty(3)

    def f(p):
        return ticking(p, a, tick)

    def make(b):
        a[:] = b
        return f

    return make


MORE_FORMS = [
    a_method_of_a_module,
    a_default_argument,
    a_list_and_a_dict,
    a_checkpointed_lambda,
    a_decorated_function,
    a_module_inside_a_lambda,
    a_function_of_a_function,
    a_global_of_a_notebook,
    a_global_of_a_notebook_two_calls_down,
    a_cell_of_a_notebook_that_is_run_again,
    an_attribute_of_a_function,
    a_buffer_that_is_overwritten,
]

# A jitted callable is known by its identity; an object or a function that holds
# itself may be opaque. These are traced again, and compiled once all the same.
MAY_BE_TRACED_AGAIN = [
    a_jitted_lambda,
    the_same_bound_method,
    the_bound_method_of_a_new_object,
    the_same_callable_object,
    a_new_callable_object,
    an_attribute_of_a_function,
]
WALKED = [form for form in FORMS + MORE_FORMS if form not in MAY_BE_TRACED_AGAIN]


def named(forms):
    """Parametrize by forms, with their names for ids."""
    return pytest.mark.parametrize("form", forms, ids=lambda form: form.__name__)


def test_there_are_fourteen_forms():
    assert len(FORMS) == 14


@named(FORMS + MORE_FORMS)
def test_three_fresh_callables_compile_once(form, hotk, tick):
    make = form(tick)
    got = []
    with compiles() as count:
        for b in DATA:
            f = make(b)
            got.append(hotk.hvp(f, X, V))
    assert count() == 1
    data = DATA[:1] * 3 if form is a_lambda_over_the_same_data else DATA
    for result, b in zip(got, data, strict=True):
        close(result, 6.0 * b * X * V)


@named(WALKED)
def test_three_fresh_callables_are_traced_once(form, hotk, tick):
    make = form(tick)
    for b in DATA:
        hotk.hvp(make(b), X, V)
    # a NumPy array costs one more trace at first: is its program that of a JAX array?
    assert tick() == (2 if form.__name__ == "a_buffer_that_is_overwritten" else 1)


@named(FORMS + MORE_FORMS)
def test_the_gradient_of_three_fresh_callables_compiles_once(form, hotk, tick):
    make = form(tick)
    with compiles() as count:
        for b in DATA:
            hotk.gradient(make(b), X)
    assert count() == 1


@named(WALKED)
def test_nothing_is_traced_on_the_hot_path(form, hotk, tick):
    make = form(tick)
    hotk.hvp(make(DATA[0]), X, V)
    callables = []
    with jax.no_tracing(True), traces() as count:
        for b in DATA:
            f = make(b)
            callables.append(hotk.hvp(f, X, V))
    assert count() == 0
    if form is not a_lambda_over_the_same_data:
        for got, truth in zip(callables, TRUTH, strict=True):
            close(got, truth)


def test_nothing_is_traced_for_new_points_directions_and_constants(hotk, tick):
    def f(x, c, table):
        tick()
        return c * jnp.sum(table["a"] * x**3)

    steps = [
        (k * X, k * V, k, {"a": b}) for k, b in zip((1.0, 2.0, 3.0), DATA, strict=True)
    ]
    hotk.hvp(f, X, V, 0.5, {"a": DATA[0]})
    with jax.no_tracing(True), compiles() as count:
        got = [hotk.hvp(f, x, v, c, table) for x, v, c, table in steps]
    assert (count(), tick()) == (0, 1)
    for result, (x, v, c, table) in zip(got, steps, strict=True):
        close(result, 6.0 * c * table["a"] * x * v)


def test_nothing_is_traced_for_numpy_arrays_and_python_numbers(hotk, tick):
    def f(x, a):
        tick()
        return x["n"] * jnp.sum(a * x["w"] ** 3)

    def point(k):
        return {"w": np.asarray(k * X), "n": float(k)}

    hotk.gradient(f, point(1.0), np.ones(3))
    with jax.no_tracing(True), compiles() as count:
        got = [hotk.gradient(f, point(k), np.full(3, k)) for k in (2.0, 3.0)]
    assert (count(), tick()) == (0, 2)  # NumPy arrays cost one more trace at first
    for result, k in zip(got, (2.0, 3.0), strict=True):
        assert close(result["w"], 3.0 * k**4 * X**2)
        close(result["n"], k**4 * jnp.sum(X**3))


# ----- Python numbers


@pytest.mark.parametrize(
    "numbers",
    [(2.0, 3.0, -0.0, math.nan, math.inf), (2, 3, -1), (True, False), (2 + 1j, 3 - 2j)],
    ids=["float", "int", "bool", "complex"],
)
def test_a_number_among_the_constants_may_change(numbers, hotk, tick):
    def f(x, c):
        tick()
        return jnp.sum(x**3) * jnp.real(jnp.asarray(c, complex))

    hotk.gradient(f, X, numbers[0])
    with compiles() as count:
        for c in numbers:
            hotk.gradient(f, X, c)
    assert (count(), tick()) == (0, 1)


def test_a_captured_number_is_traced_once_for_each_value(hotk, tick):
    def make(c):
        return lambda x: (tick(), cubic(1.0 * c, x))[1]

    values = (2.0, 3.0, -0.0, 0.0, math.nan, 1, True, 1.0)
    for c in values * 3:
        close(hotk.gradient(make(c), X), 3.0 * c * X**2)
    assert tick() == len(values)


def test_equal_programs_of_other_labels_share_one_compilation(hotk, tick):
    def make(label):
        return lambda x: (tick(), label, jnp.sum(x**3))[2]

    with compiles() as count:
        for label in ("a", "b", ("c", 1), 2.0, "a", "b"):
            hotk.hvp(make(label), X, V)
    assert count() == 1
    assert tick() == 4


def test_equal_programs_of_other_code_share_one_compilation(hotk):
    with compiles() as count:
        hotk.hvp(lambda x: jnp.sum(x**3), X, V)
        hotk.hvp(lambda y: jnp.sum(y**3), X, V)

        def named(z):
            cube = z**3
            return jnp.sum(cube)

        hotk.hvp(named, X, V)
    assert count() == 1


def test_equal_programs_of_other_arrays_share_one_compilation(hotk):
    """Other code, other names, other data: the arrays are no part of the program."""
    a, b = DATA[:2]
    with compiles() as count:
        first = hotk.hvp(lambda x: jnp.sum(a * x**3), X, V)
        second = hotk.hvp(lambda y: jnp.sum(b * y**3), X, V)
    assert count() == 1
    close(first, TRUTH[0])
    close(second, TRUTH[1])


def test_a_cell_moved_down_the_page_is_not_compiled_again(hotk):
    source = "def f(x): return jnp.sum(x**3)"
    with compiles() as count:
        for blank in ("", "\n", "\n\n\n", "# a comment\n"):
            hotk.hvp(notebook(blank + source)["f"], X, V)
    assert count() == 1


# ----- Opaque callables


class Opaque:
    """Nothing can be known about it: slots, and a trace that counts."""

    __slots__ = ("b", "log")

    def __call__(self, x):
        self.log.append(None)
        return loss(x, self.b)


def test_an_opaque_callable_is_compiled_once_in_a_hundred_calls(hotk):
    opaque = Opaque()
    opaque.b, opaque.log = DATA[0], []
    with compiles() as first:
        hotk.hvp(opaque, X, V)
    got = []
    with compiles() as count:
        for i in range(100):
            opaque.b = DATA[i % 3]
            got.append(hotk.hvp(opaque, X, V))
    assert (first(), count()) == (1, 0)
    assert len(opaque.log) == 101
    for i, result in enumerate(got):
        close(result, TRUTH[i % 3])


def test_an_opaque_callable_over_numpy_is_compiled_once(hotk):
    opaque = Opaque()
    opaque.b, opaque.log = np.ones(3), []
    got = []
    with compiles() as count:
        for i in range(5):
            opaque.b[:] = 1.0 + i
            got.append(hotk.hvp(opaque, X, V))
    assert count() == 1
    for i, result in enumerate(got):
        close(result, 6.0 * (1.0 + i) * X * V)


def test_a_function_that_writes_is_compiled_once(hotk):
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return jnp.sum(x**3)

    with compiles() as count:
        for _ in range(5):
            hotk.hvp(f, X, V)
    assert (count(), calls) == (1, 5)


def test_fresh_jitted_functions_are_compiled_once(hotk):
    with compiles() as count:
        got = [hotk.hvp(jax.jit(lambda x, b=b: loss(x, b)), X, V) for b in DATA]
    assert count() == 1
    for result, truth in zip(got, TRUTH, strict=True):
        close(result, truth)


# ----- Signatures


def test_a_new_shape_is_compiled_once_more(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x**3)

    points = [jnp.ones(n) for n in (3, 4, 3, 4, 3)]
    with compiles() as count:
        for x in points:
            hotk.hvp(f, x, x)
    assert (count(), tick()) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [jnp.ones(3, jnp.float32), {"a": jnp.ones(3)}, [jnp.ones(3)], (jnp.ones(3),)],
    ids=["dtype", "dict", "list", "tuple"],
)
def test_a_new_point_is_compiled_once_more(other, hotk, tick):
    def f(x):
        tick()
        return sum(jnp.sum(leaf**3) for leaf in jax.tree.leaves(x))

    with compiles() as count:
        for x in (X, other, X, other):
            hotk.hvp(f, x, x)
    assert (count(), tick()) == (2, 2)


def test_a_new_shape_of_captured_data_is_compiled_once_more(hotk, tick):
    def make(b):
        return lambda x: (tick(), jnp.sum(b) * jnp.sum(x**3))[1]

    batches = [jnp.ones(n) for n in (4, 5, 4, 5)]
    with compiles() as count:
        for b in batches:
            hotk.hvp(make(b), X, V)
    assert (count(), tick()) == (2, 2)


def test_the_order_of_a_dict_of_constants_does_not_compile(hotk):
    def f(x, table):
        return jnp.sum(table["a"] * table["b"] * x**3)

    a, b = DATA[:2]
    with compiles() as count:
        first = hotk.hvp(f, X, V, {"a": a, "b": b})
        second = hotk.hvp(f, X, V, {"b": b, "a": a})
    assert count() == 1
    close(first, second)


def test_the_order_of_a_dict_at_the_point_does_not_compile(hotk):
    def f(x):
        return jnp.sum(x["a"] * x["b"] ** 2)

    a, b = DATA[:2]
    with compiles() as count:
        first = hotk.gradient(f, {"a": a, "b": b})
        second = hotk.gradient(f, {"b": b, "a": a})
    assert count() == 1
    close(first, second)


def test_a_fresh_function_among_the_constants_costs_nothing(hotk, tick):
    def f(x, g, h):
        tick()
        return jnp.sum(h(g(x)))

    def steps(b):
        return (lambda y: b * y), functools.partial(lambda p, y: y**p, 3)

    hotk.hvp(f, X, V, *steps(DATA[0]))
    with compiles() as count:
        got = [hotk.hvp(f, X, V, *steps(b)) for b in DATA]
    assert (count(), tick()) == (0, 1)
    for result, b in zip(got, DATA, strict=True):
        close(result, 6.0 * b**3 * X * V)


def test_a_fresh_function_at_the_point_costs_nothing(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x["act"](x["w"]) ** 3)

    def point(b):
        return {"w": X, "act": lambda y: b * y}

    hotk.gradient(f, point(DATA[0]))
    with compiles() as count:
        got = [hotk.gradient(f, point(b)) for b in DATA]
    assert (count(), tick()) == (0, 1)
    for result, b in zip(got, DATA, strict=True):
        close(result["w"], 3.0 * b**3 * X**2)


def test_a_fresh_module_at_the_point_costs_nothing(hotk, tick):
    def f(module):
        return module(X)

    modules = [Module(b, tick) for b in DATA]
    hotk.gradient(f, modules[0])
    with jax.no_tracing(True), compiles() as count:
        got = [hotk.gradient(f, module) for module in modules]
    assert (count(), tick()) == (0, 1)
    for result in got:
        close(result.b, X**3)


def test_settings_that_come_back_are_remembered(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(jnp.outer(x, x) @ x)

    x = np.asarray(X)
    with compiles() as count:
        for _ in range(3):
            hotk.gradient(f, x)
            with jax.enable_x64(False):
                hotk.gradient(f, x)
            with jax.default_matmul_precision("highest"):
                hotk.gradient(f, x)
    assert (count(), tick()) == (3, 3)


# ----- Values asked for while tracing


def test_an_array_asked_for_its_value_is_found_out_once(hotk, tick):
    def make(c, b):
        return lambda x: (tick(), cubic(b if c > 0 else 2.0 * b, x))[1]

    positive, negative, other = jnp.array(1.0), jnp.array(-1.0), jnp.array(1.0)
    hotk.hvp(make(positive, DATA[0]), X, V)
    hotk.hvp(make(negative, DATA[0]), X, V)
    before = tick()
    with jax.no_tracing(True), compiles() as count:
        got = [
            hotk.hvp(make(c, b), X, V)
            for c, b in zip((positive, negative, other), DATA, strict=True)
        ]
    assert (count(), tick() - before - 1) == (0, 0)
    for result, truth, factor in zip(got, TRUTH, (1.0, 2.0, 1.0), strict=True):
        close(result, factor * truth)


def test_a_constant_asked_for_its_value_is_found_out_once(hotk, tick):
    def f(x, n, c):
        tick()
        for _ in range(n):
            x = jnp.sin(x)
        return c * jnp.sum(x)

    for n in (1, 2, 1, 2):
        hotk.hvp(f, X, V, n, 1.0)
    before = tick()
    with jax.no_tracing(True), compiles() as count:
        for n, c in ((1, 2.0), (2, 3.0), (1, 4.0)):
            hotk.hvp(f, X, V, n, c)
    assert (count(), tick() - before - 1) == (0, 0)


def test_what_numpy_computes_is_found_out_once(hotk, tick):
    def make(a, b):
        return lambda x: (tick(), cubic(b * np.sin(a), x))[1]

    a = np.array([1.0, 2.0, 3.0])
    hotk.hvp(make(a, DATA[0]), X, V)
    before = tick()
    with jax.no_tracing(True), compiles() as count:
        got = [hotk.hvp(make(a.copy(), b), X, V) for b in DATA]
    assert (count(), tick() - before - 1) == (0, 0)
    for result, truth in zip(got, TRUTH, strict=True):
        close(result, np.sin(a) * truth)


# ----- First and second order share one trace of the function


def test_all_orders_at_one_signature_trace_the_function_once(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(DATA[0] * x**3)

    hotk.gradient(f, X)
    hotk.value_and_gradient(f, X)
    hotk.hvp(f, X, V)
    hotk.value_gradient_and_hvp(f, X, V)
    hotk.quadratic_form(f, X, V)
    hotk.hessian(f, X)
    hotk.value_gradient_and_hessian(f, X)
    hotk.hessian_diagonal(f, X)
    prepared = hotk.hvp.prepare(f, X, V)
    third = jax.jvp(lambda x: prepared(x, V), (X,), (V,))[1]
    close(third, 6.0 * DATA[0] * V**2)
    assert tick() == 1


def test_the_order_of_the_operators_does_not_matter(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(DATA[0] * x**3)

    hotk.hessian(f, X)
    hotk.quadratic_form(f, X, V)
    hotk.hvp(f, X, V)
    hotk.gradient(f, X)
    assert tick() == 1


def test_each_operator_compiles_once(hotk):
    def f(x):
        return jnp.sum(DATA[0] * x**3)

    operators = [
        lambda: hotk.gradient(f, X),
        lambda: hotk.value_and_gradient(f, X),
        lambda: hotk.hvp(f, X, V),
        lambda: hotk.quadratic_form(f, X, V),
        lambda: hotk.hessian(f, X),
        lambda: hotk.jvp(f, X, V),
        lambda: hotk.hessian_diagonal(f, X),
    ]
    for call in operators:
        with compiles() as count:
            for _ in range(3):
                call()
        assert count() == 1


def test_modes_and_options_are_compiled_once_each(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(DATA[0] * x**3)

    modes = [hotk.FORWARD_OVER_REVERSE, hotk.REVERSE_OVER_REVERSE]
    vs = jnp.stack([V, 2.0 * V])
    with compiles() as count:
        for _ in range(3):
            for mode in modes:
                hotk.hvp(f, X, V, mode=mode)
            hotk.hvp(f, X, vs, batched=True)
    assert (count(), tick()) == (3, 1)


def test_preparing_twice_compiles_once(hotk, tick):
    def make(b):
        return lambda x: (tick(), loss(x, b))[1]

    with compiles() as count:
        prepared = [hotk.hvp.prepare(make(b), X, V) for b in DATA]
        got = [p(X, V) for p in prepared]
    assert (count(), tick()) == (1, 1)
    for result, truth in zip(got, TRUTH, strict=True):
        close(result, truth)


def test_prepared_and_direct_calls_share_one_program(hotk, tick):
    def make(b):
        return lambda x: (tick(), loss(x, b))[1]

    with compiles() as count:
        prepared = hotk.hvp.prepare(make(DATA[0]), X, V)
        direct = hotk.hvp(make(DATA[1]), X, V)
        again = prepared(X, V)
    assert (count(), tick()) == (1, 1)
    close(direct, TRUTH[1])
    close(again, TRUTH[0])


# ----- Inside other transformations


def test_two_outer_jits_trace_the_function_once(hotk, tick):
    def make(b):
        return lambda x: (tick(), loss(x, b))[1]

    @jax.jit
    def first(b, x):
        return hotk.hvp(make(b), x, V)

    @jax.jit
    def second(b, x):
        return jnp.sin(hotk.hvp(make(b), x, V))

    with compiles() as count:
        first(DATA[0], X)
        second(DATA[1], X)
    assert (count(), tick()) == (2, 1)


def test_eager_jit_grad_and_vmap_trace_the_function_once(hotk, tick):
    def make(b):
        return lambda x: (tick(), loss(x, b))[1]

    def run(b, x):
        return hotk.hvp(make(b), x, V)

    run(DATA[0], X)
    jax.jit(run)(DATA[0], X)
    jax.grad(lambda b: jnp.sum(run(b, X)))(DATA[0])
    jax.vmap(run, (0, None))(jnp.stack(DATA), X)
    jax.lax.scan(lambda x, b: (x, run(b, x)), X, jnp.stack(DATA))
    assert tick() == 1


# ----- Threads, caches, errors


def test_threads_that_race_for_the_first_call_compile_once(hotk):
    barrier = threading.Barrier(8)

    def work(i):
        b = DATA[i % 3]
        barrier.wait()
        return hotk.hvp(lambda x: jnp.sum(jnp.tanh(b * x) * x**3), X, V)

    with concurrent.futures.ThreadPoolExecutor(8) as pool, compiles() as count:
        got = list(pool.map(work, range(8)))
    assert count() == 1
    for i, result in enumerate(got):
        b = DATA[i % 3]
        f = lambda x, b=b: jnp.sum(jnp.tanh(b * x) * x**3)
        close(result, jax.jvp(jax.grad(f), (X,), (V,))[1])


def test_a_failed_call_costs_no_compilation_later(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x**3)

    hotk.hvp(f, X, V)
    for v in (V[:2], V.astype(jnp.float32), {"a": V}):
        with pytest.raises(hotk.HotkError):
            hotk.hvp(f, X, v)
    with compiles() as count:
        hotk.hvp(f, X, V)
    assert (count(), tick()) == (0, 1)


def test_a_failed_trace_costs_one_trace_only(hotk, tick):
    broken = [True]

    def f(x):
        tick()
        if broken[0]:
            raise ValueError("not yet")
        return jnp.sum(x**3)

    with pytest.raises(ValueError, match="not yet"):
        hotk.hvp(f, X, V)
    broken[0] = False
    with compiles() as count:
        for _ in range(3):
            hotk.hvp(f, X, V)
    assert (count(), tick()) == (1, 2)


def test_the_cache_counts_what_happened(hotk, tick):
    def make(b):
        return lambda x: (tick(), loss(x, b))[1]

    for b in DATA:
        hotk.hvp(make(b), X, V)
    info = hotk.cache_info()
    assert (info.misses, info.hits) == (1, 2)
    assert (info.traces, info.compiles) == (1, 1)


def test_a_cleared_cache_is_filled_again(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x**3)

    for round_ in range(1, 4):
        with compiles() as count:
            close(hotk.hvp(f, X, V), 6.0 * X * V)
            close(hotk.hvp(f, X, V), 6.0 * X * V)
        assert count() == 1
        assert tick() == 2 * round_ - 1  # every look at the counter is a tick as well
        hotk.clear_cache()


def test_a_training_loop_compiles_once(hotk, tick):
    """What users write: a fresh closure over a fresh batch at every step."""
    model = eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(0))
    batches = [jax.random.normal(jax.random.key(i), (5, 3)) for i in range(6)]

    def step(model, batch):
        def objective(model):
            tick()
            return jnp.mean(jax.vmap(model)(batch) ** 2)

        return hotk.gradient(objective, model)

    step(model, batches[0])
    with jax.no_tracing(True), compiles() as count:
        for batch in batches:
            step(model, batch)
    assert (count(), tick()) == (0, 1)


def test_a_namespace_of_settings_that_changes_costs_nothing(hotk, tick):
    """Objects whose attributes are arrays: a trace perhaps, a compilation never."""
    settings = types.SimpleNamespace(b=DATA[0], label="a")

    def f(x):
        tick()
        return loss(x, settings.b)

    got = []
    with compiles() as count:
        for settings.b in DATA:
            got.append(hotk.hvp(f, X, V))
    assert count() == 1
    for result, truth in zip(got, TRUTH, strict=True):
        close(result, truth)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.array], ids=str)
def test_a_number_of_numpy_among_the_arguments_may_change(hotk, tick, kind):
    def f(x, c):
        tick()
        return jnp.sum(c * x**2)

    for c in (2.0, 3.0, 5.0):
        made = hotk.gradient(f, np.ones(3, kind(c).dtype), kind(c))
        np.testing.assert_allclose(made, 2 * c, rtol=1e-6)
    assert hotk.cache_info().compiles == 1


@pytest.mark.counts  # the function is another one outside of a trace
def test_a_number_of_numpy_is_traced_whatever_came_first(hotk):
    """As under `jax.jit`: a branch on its value that it escapes is not taken."""

    def f(x, c):
        return jnp.sum(x**2) * (1.0 if np.isscalar(c) and c > 1 else c)

    x = jnp.ones(2)
    for order in ((1.0, 5.0), (5.0, 1.0)):
        hotk.clear_cache()
        for c in order:
            made = hotk.hvp(f, x, x, np.float64(c))
            np.testing.assert_allclose(made, jax.jit(lambda c: 2 * c * x)(c))
