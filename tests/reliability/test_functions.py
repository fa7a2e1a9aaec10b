"""Every kind of function: its own rules are respected, its wrong outputs refused."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from tests.helpers import close
from tests.reliability.public_calls import SECOND_ORDER


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])

MODES = {
    "forward over reverse": hotk.FORWARD_OVER_REVERSE,
    "reverse over reverse": hotk.REVERSE_OVER_REVERSE,
    "reverse over forward": hotk.REVERSE_OVER_FORWARD,
    "forward over forward": hotk.FORWARD_OVER_FORWARD,
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


# ---- rules of the user, false on purpose: only so is it seen that they are used


@jax.custom_jvp
def square(x):
    return x * x


square.defjvp(lambda p, t: (square(p[0]), 3.0 * p[0] * t[0]))  # instead of 2 x


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (5.0 * x**2 * g,))  # instead of 3 x^2


@each_mode
def test_a_forward_rule_is_respected(mode):
    f = lambda x: jnp.sum(square(x))
    assert close(hotk.gradient(f, X), 3 * X)
    assert close(hotk.hvp(f, X, V, mode=mode), 3 * V)
    assert close(hotk.hvp(f, X, V), 3 * V)


@each_mode
def test_a_reverse_rule_is_respected(mode):
    f = lambda x: jnp.sum(cube(x))
    assert close(hotk.gradient(f, X), 5 * X**2)
    assert close(hotk.hvp(f, X, V, mode=mode), 10 * X * V)
    assert close(hotk.hvp(f, X, V), 10 * X * V)


def test_a_rule_that_calls_its_own_function():
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))
    f = lambda x: jnp.sum(sine(x))
    assert close(hotk.gradient(f, X), jnp.cos(X))
    assert close(hotk.hvp(f, X, V), -jnp.sin(X) * V)
    assert close(hotk.hessian(f, X), -jnp.diag(jnp.sin(X)))


def test_a_rule_over_a_captured_array_sees_the_array_of_the_call():
    def make(a):
        @jax.custom_vjp
        def wave(x):
            return jnp.sin(a * x)

        wave.defvjp(
            lambda x: (jnp.sin(a * x), x), lambda x, g: (g * a * jnp.cos(a * x),)
        )
        return lambda x: jnp.sum(wave(x))

    for a in (1.0, 2.0, 3.0):
        f = make(jnp.full(3, a))
        assert close(hotk.hvp(f, X, V), -(a**2) * jnp.sin(a * X) * V)


# ---- what JAX has of its own


@each_mode
def test_checkpoint_changes_nothing(mode):
    f = lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.sin(x) ** 2)(x))
    assert close(hotk.hvp(f, X, V, mode=mode), 2 * jnp.cos(2 * X) * V)


@each_mode
def test_stop_gradient_stops(mode):
    f = lambda z: jnp.sum(z**2) + lax.stop_gradient(z[0]) * z[1]
    assert close(hotk.hvp(f, X, V, mode=mode), 2 * V)
    for block_size in (None, 1, 2, 3, 4):
        assert close(hotk.hessian(f, X, block_size=block_size), 2 * jnp.eye(3))


def newton(x):
    """Return the square root of x by a loop whose length depends on x."""
    step = lambda y: 0.5 * (y + x / y)
    return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-14 * x, step, x)


def loops(x):
    return sum(newton(x[i]) for i in range(3))


@pytest.mark.parametrize("mode", [hotk.Auto(), hotk.FORWARD_OVER_FORWARD], ids=str)
def test_a_while_loop_is_differentiated_forward(mode):
    f = lambda x: lax.while_loop(
        lambda c: c[0] < x.size, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, jnp.sum(x**2))
    )[1]
    z = jnp.array([0.3, 0.4])
    expected = jax.jacfwd(jax.jacfwd(f))(z)
    assert close(hotk.hvp(f, z, V[:2], mode=mode), expected @ V[:2])
    assert close(hotk.hessian(f, z, mode=mode), expected)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "mode", [m for m in MODES.values() if m != hotk.FORWARD_OVER_FORWARD], ids=str
)
def test_a_while_loop_in_reverse_is_refused_and_the_function_named(mode):
    with pytest.raises(hotk.ModeError, match="loops"):
        hotk.hvp(loops, X, V, mode=mode)


def looped(x):
    return lax.fori_loop(0, jnp.argmax(x), lambda i, t: jnp.sin(t), x)


@pytest.mark.exhaustive
def test_a_loop_and_a_reverse_rule_in_one_function():
    """JAX has no nesting for it."""

    def slope(x):
        inner = lambda x: jnp.sin(jnp.sin(x))
        assert int(jnp.argmax(X)) == 2
        return 5 * inner(x) ** 2 * jnp.cos(jnp.sin(x)) * jnp.cos(x)

    expected = jax.jvp(slope, (X,), (V,))[1]
    assert close(hotk.hvp(lambda x: jnp.sum(cube(looped(x))), X, V), expected)


def no_way(x):
    return jnp.sum(jax.pure_callback(np.sin, x, x))


def test_where_no_mode_exists_the_error_names_the_function_and_the_line():
    with pytest.raises(hotk.ModeError, match="no_way") as error:
        hotk.hvp(no_way, X, V)
    line = no_way.__code__.co_firstlineno
    assert re.search(rf"test_functions\.py.*\b({line}|{line + 1})\b", str(error.value))


# ---- effects


@each_mode
def test_a_debug_print_prints_at_every_call(mode, capfd):
    def f(x):
        jax.debug.print("at {}", x[0])
        return jnp.sum(x**3)

    for _ in range(3):
        assert close(hotk.hvp(f, X, V, mode=mode), 6 * X * V)
        jax.effects_barrier()
        assert "at 1.0" in capfd.readouterr().out


def test_a_debug_callback_runs_at_every_call():
    seen = []

    def f(x):
        jax.debug.callback(lambda y: seen.append(float(y)), x[0])
        return jnp.sum(x**3)

    for _ in range(3):
        before = len(seen)
        hotk.hvp(f, X, V)
        jax.effects_barrier()
        assert len(seen) > before
    assert set(seen) == {1.0}


def test_a_function_that_appends_to_a_captured_list_does_so_at_every_call():
    seen = []

    def f(x):
        seen.append(x.shape)
        return jnp.sum(x**3) * len(seen)

    for _ in range(3):
        before = len(seen)
        out = hotk.gradient(f, X)
        assert len(seen) == before + 1
        assert close(out, 3 * X**2 * len(seen))


def test_a_function_that_counts_in_a_cell_does_so_at_every_call():
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return jnp.sum(x**3) * calls

    for k in range(1, 4):
        assert close(hotk.gradient(f, X), 3 * X**2 * k)
        assert calls == k


def test_a_function_that_writes_an_attribute_does_so_at_every_call():
    class Meter:
        count = 0

    meter = Meter()

    def f(x):
        meter.count += 1
        return jnp.sum(x**3) * meter.count

    for k in range(1, 4):
        assert close(hotk.gradient(f, X), 3 * X**2 * k)
        assert meter.count == k


def test_a_builtin_counter_counts_traces_and_not_calls():
    tick = itertools.count().__next__

    def f(x):
        tick()
        return jnp.sum(x**3)

    for _ in range(3):
        hotk.gradient(f, X)
    assert tick() == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x**3, lambda x: x**4),  # a parameter of the program
        (lambda x: x * 2.5, lambda x: x * 3.5),  # a literal
        (lambda x: jnp.cumsum(x), lambda x: lax.cumsum(x, reverse=True)),
        (lambda x: x[0], lambda x: x[1]),
        (lambda x: jnp.sin(x), lambda x: jnp.cos(x)),
        (lambda x: x * x + x, lambda x: x + x * x * x),
    ],
)
def test_opaque_functions_of_other_programs_are_told_apart(one, other):
    def opaque(body):
        items = iter([body] * 100)  # may be anything next time
        return lambda x: jnp.sum(next(items)(x)) ** 2

    for body in (one, other, one):
        expected = jax.hessian(lambda x, b=body: jnp.sum(b(x)) ** 2)(X) @ V
        assert close(hotk.hvp(opaque(body), X, V), expected)


# ---- random keys


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_captured_random_key_is_the_one_of_the_call(make):
    tick = itertools.count().__next__

    def loss(key):
        def f(x):
            tick()
            return jnp.sum(x**3 * jax.random.normal(key, (3,)))

        return f

    for seed in range(3):
        noise = jax.random.normal(make(seed), (3,))
        assert close(hotk.hvp(loss(make(seed)), X, V), 6 * X * V * noise)
    assert tick() == 1


def test_a_random_key_in_the_arguments():
    f = lambda x, key: jnp.sum(x**3 * jax.random.normal(key, (3,)))
    for seed in range(3):
        key = jax.random.key(seed)
        out = hotk.hvp(f, X, V, key)
        assert close(out, 6 * X * V * jax.random.normal(key, (3,)))


def test_a_key_made_inside_the_function():
    f = lambda x: jnp.sum(x**3 * jax.random.normal(jax.random.key(7), (3,)))
    noise = jax.random.normal(jax.random.key(7), (3,))
    assert close(hotk.hvp(f, X, V), 6 * X * V * noise)


# ---- wrong outputs

OUTPUTS = {
    "vector": (lambda x: x**2, "f64[3]"),
    "shape (1,)": (lambda x: jnp.sum(x**2, keepdims=True), "f64[1]"),
    "integer": (lambda x: jnp.argmax(x), "i64[]"),
    "bool": (lambda x: jnp.all(x > 0), "bool[]"),
    "complex": (lambda x: lax.complex(jnp.sum(x), x[0]), "c128[]"),
    "tuple": (lambda x: (jnp.sum(x), jnp.sum(x**2)), "f64[], f64[]"),
    "dict": (lambda x: {"loss": jnp.sum(x)}, "f64[]"),
    "None": (lambda x: None, "None"),
    "string": (lambda x: "loss", "str"),
}
REAL_SCALAR = ["gradient", "value_and_gradient", *SECOND_ORDER]
REAL_SCALAR = [n for n in REAL_SCALAR if "hessian" not in n or "diagonal" in n]


# These take it as one number: `second/test_single_values.py`.
SINGLE = ["hvp", "value_gradient_and_hvp", "quadratic_form"]
WRONG = [
    (name, output)
    for name in REAL_SCALAR
    for output in OUTPUTS
    if not (name in SINGLE and output == "shape (1,)")
    if not ("hvp" in name and output in ("vector", "tuple", "dict"))
]


@pytest.mark.parametrize(("name", "output"), WRONG)
def test_a_wrong_output_is_refused_and_the_function_named(name, output, as_user):
    body, came = OUTPUTS[output]

    def my_own_loss(x):
        return body(x)

    operator = getattr(hotk, name)
    at = (X, V) if name in ("hvp", "value_gradient_and_hvp", "quadratic_form") else (X,)
    with pytest.raises(hotk.OutputError) as error:
        operator(my_own_loss, *at)
    assert isinstance(error.value, TypeError)
    first, expected, got, *fix = str(error.value).splitlines()
    assert first.startswith(f"`{name}(f, x")
    assert "my_own_loss" in str(error.value)
    assert expected.startswith("  expected: ")
    assert got.startswith("  got:      ")
    assert came in got
    assert len(fix) == 1


FIXES = {
    "vector": "jnp.sum",
    "shape (1,)": r"\[0\]|squeeze|reshape",
    "integer": "float",
    "bool": "float",
    "complex": "real",
    "tuple": "has_aux=True",
    "None": "[Rr]eturn",
}


@pytest.mark.parametrize("output", FIXES)
def test_each_wrong_output_has_its_own_way_out(output, as_user):
    with pytest.raises(hotk.OutputError) as error:
        hotk.gradient(OUTPUTS[output][0], X)
    assert re.search(FIXES[output], str(error.value).splitlines()[-1])


def test_the_message_of_a_vector_is_as_written_here(as_user):
    def residuals(x):
        return x**2

    with pytest.raises(hotk.OutputError) as error:
        hotk.quadratic_form(residuals, X, V)
    line = residuals.__code__.co_firstlineno
    problem, expected, got, fix = str(error.value).splitlines()
    assert re.fullmatch(
        r"`quadratic_form\(f, x, v\)`: `.*residuals` \(test_functions\.py:"
        + str(line)
        + r"\) "
        "must return one real number.",
        problem,
    )
    assert expected.startswith("  expected: a floating-point scalar")
    assert got == "  got:      f64[3]"
    assert fix == "Reduce it with `jnp.sum` or `jnp.mean`."


def test_an_error_of_the_function_itself_comes_through_as_it_is():
    def f(x):
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        hotk.hvp(f, X, V)


def test_a_function_of_the_wrong_number_of_arguments():
    with pytest.raises(TypeError):
        hotk.hvp(lambda x, a, b: jnp.sum(x), X, V, 1.0)
    with pytest.raises(TypeError):
        hotk.hvp(lambda: 1.0, X, V)


def test_something_that_is_not_a_function_is_refused(as_user):
    for f in (3.0, None, "loss", jnp.ones(3)):
        with pytest.raises(TypeError):
            hotk.hvp(f, X, V)


def test_nothing_differentiable_in_the_output_is_an_answer_where_jax_has_one():
    constant = lambda x: jnp.asarray(3.0)
    assert close(hotk.gradient(constant, X), jnp.zeros(3))
    assert close(hotk.hvp(constant, X, V), jnp.zeros(3))
    assert close(hotk.hessian(constant, X), jnp.zeros((3, 3)))


def test_a_python_float_as_output_is_a_real_scalar():
    np.testing.assert_array_equal(hotk.hvp(lambda x: 3.0, X, V), np.zeros(3))
