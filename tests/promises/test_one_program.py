"""Promise 2, for functions that differ in arrays and numbers: one program for all.

A loop over batches, a window that moves, a temperature that falls: each makes a new
function, and they are compiled once. What must not be shared stands here as well.
"""

import contextlib
import functools
import gc
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.ode import odeint

import hotk
from tests.helpers import close


X = jnp.array([0.5, -1.0, 2.0])
V = jnp.array([1.0, 0.25, -0.5])
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)))
BATCHES = [(ROWS[i : i + 4], ROWS[i : i + 4, 0]) for i in range(0, 40, 4)]


def loss(w, rows, y):
    return jnp.mean(jnp.logaddexp(0.0, -y * (rows @ w)))


def by_jax(f):
    return jax.jvp(jax.jacfwd(f), (X,), (V,))[1]  # forward, as there are loops


def a_loop_index():
    return lambda i: lambda w: loss(w, *BATCHES[i])


def a_window():
    return lambda i: lambda w: loss(w, ROWS[4 * i : 4 * i + 4], ROWS[i : i + 4, 1])


def a_window_of_numpy():
    rows = np.asarray(ROWS)
    return lambda i: lambda w: loss(w, rows[4 * i : 4 * i + 4], rows[i : i + 4, 1])


def a_temperature():
    def make(i):
        beta = 0.1 * i
        return lambda w: beta * loss(w, *BATCHES[0]) + (1 - beta) * jnp.sum(w**4)

    return make


def an_integer():
    return lambda i: lambda w: jnp.sum(w**3) * i + jnp.sum(jnp.cos(w * (i + 2)))


def a_number_in_a_scan():
    def make(i):
        def step(c, row):
            return jnp.tanh(c * (0.3 + i) + row @ X), None

        return lambda w: jnp.sum(jax.lax.scan(step, w, BATCHES[0][0])[0])

    return make


def a_number_in_a_loop():
    def make(i):
        def run(w):
            step = lambda c: (c[0] + 1, c[1] + jnp.sin(w) * (0.3 + i))
            return jnp.sum(jax.lax.while_loop(lambda c: c[0] < 3, step, (0, w))[1] ** 2)

        return run

    return make


def a_number_in_a_branch():
    def make(i):
        def run(w):
            yes = lambda w: jnp.sum(w**3) * (0.5 + i)
            return jax.lax.cond(w[0] > 0, yes, lambda w: jnp.sum(w**2) * (i - 2.5), w)

        return run

    return make


def a_number_in_a_checkpoint():
    return lambda i: jax.checkpoint(lambda w: jnp.sum(jnp.exp(w * (0.1 + i))))


def a_number_in_a_jitted_function():
    return lambda i: lambda w: jax.jit(lambda u: jnp.sum(u**3) * (1.5 + i))(w * 2.0)


def a_number_in_a_map():
    return lambda i: lambda w: jnp.sum(jax.vmap(lambda u: u**3 * (0.5 + i))(w))


def a_threshold():
    return lambda i: lambda w: jnp.sum(jnp.where(w > 0.1 * i, w**3, w**2 * i))


def a_network_of_relu_and_softplus():
    return lambda i: (
        lambda w: jnp.sum(
            jax.nn.relu(w * (0.5 + i)) ** 3 + jax.nn.softplus(w - 0.2 * i)
        )
    )


SAME = [
    a_loop_index,
    a_window,
    a_window_of_numpy,
    a_temperature,
    an_integer,
    a_number_in_a_scan,
    a_number_in_a_loop,
    a_number_in_a_branch,
    a_number_in_a_checkpoint,
    a_number_in_a_jitted_function,
    a_number_in_a_map,
    a_threshold,
    a_network_of_relu_and_softplus,
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("maker", SAME, ids=lambda m: m.__name__)
def test_functions_that_differ_in_arrays_and_numbers_compile_twice_at_most(maker):
    make = maker()
    hotk.clear_cache()
    for i in (0, 1, 2, 3, 7, 4, 2, 0):
        if i == 3:
            before = hotk.cache_info()
        assert close(hotk.hvp(make(i), X, V), by_jax(make(i))), i
    info = hotk.cache_info()
    assert info.compiles - before.compiles <= (maker is a_temperature)
    assert info.traces - before.traces <= 3  # 3, 7 and 4; the others are known


@pytest.mark.exhaustive
def test_all_operators_of_such_functions_share_one_trace():
    make = a_temperature()
    for i in range(4):
        hotk.gradient(make(i), X)
    hotk.clear_cache()
    for i in range(4):
        f = make(i)
        assert close(hotk.gradient(f, X), jax.grad(f)(X))
        assert close(hotk.hvp(f, X, V), by_jax(f))
        assert close(hotk.hessian(f, X), jax.hessian(f)(X))
        assert close(hotk.laplacian(f, X), jnp.trace(jax.hessian(f)(X)))
    assert hotk.cache_info().traces == 4


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (1.0, jnp.inf), (jnp.nan, 2.0)])
def test_numbers_are_told_apart_bit_by_bit(numbers):
    for c in (*numbers, *numbers):
        f = lambda x, c=c: jnp.sum(jnp.copysign(x**2, c) * jnp.where(x < c, 1.0, 2.0))
        want, got = jax.grad(f)(X), hotk.gradient(f, X)
        assert np.array_equal(want, got, equal_nan=True), (c, want, got)


def test_a_number_that_decides_what_is_computed_makes_another_program():
    for n in (1, 2, 3, 2):
        f = lambda x, n=n: jnp.sum(x**n) + sum(jnp.sum(x) ** k for k in range(n))
        assert close(hotk.hvp(f, X, V), by_jax(f))


def test_arrays_in_another_order_are_not_mixed_up():
    a, b = ROWS[0], ROWS[1]
    for first, second in ((a, b), (b, a), (a, a)):
        f = lambda x, p=first, q=second: jnp.sum(p * x**3) + jnp.sum(jnp.sin(q * x))
        g = lambda x, p=first, q=second: jnp.sum(q * x**3) + jnp.sum(jnp.sin(p * x))
        assert close(hotk.hvp(f, X, V), by_jax(f))
        assert close(hotk.hvp(g, X, V), by_jax(g))


def test_unused_arrays_are_left_out():
    def make(used, count):
        held = [jnp.ones(k + 1) for k in range(count)]
        return lambda x: jnp.sum(used * x**3) if held else 0.0

    hotk.clear_cache()
    for count in (1, 5, 3):
        for used in (ROWS[0], ROWS[1]):
            f = make(used, count)
            assert close(hotk.hvp(f, X, V), 6 * used * X * V)
    assert hotk.cache_info().compiles == 1


def with_rule(factor):
    """Return x**3 with a rule that multiplies its derivative: the bodies are equal."""

    @jax.custom_jvp
    def cube(x):
        return jnp.sum(x**3)

    @cube.defjvp
    def tangent(primals, tangents):
        (x,), (t,) = primals, tangents
        return cube(x), factor * jnp.sum(3 * x**2 * t)

    return cube


def with_reverse_rule(factor):
    @jax.custom_vjp
    def cube(x):
        return jnp.sum(x**3)

    cube.defvjp(lambda x: (jnp.sum(x**3), x), lambda x, u: (factor * 3 * x**2 * u,))
    return cube


@pytest.mark.parametrize("make", [with_rule, with_reverse_rule])
def test_equal_bodies_with_other_rules_are_other_functions(make):
    for factor in (1.0, 2.0, 5.0, 1.0):
        assert close(hotk.gradient(make(factor), X), factor * 3 * X**2)
        ruled = make(factor)
        f = lambda x, g=ruled, i=factor: g(x) * i
        assert close(hotk.gradient(f, X), factor**2 * 3 * X**2)


# ---- numbers beside derivative rules of users and libraries


@jax.custom_jvp
def rounded(x):
    return jnp.round(2 * x) + x**3


rounded.defjvp(lambda xs, ts: (rounded(*xs), ts[0] * (2 + 3 * xs[0] ** 2)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def applied(f, x, c):
    return c * f(x)


@applied.defjvp
def applied_tangent(f, c, xs, ts):
    return applied(f, *xs, c), 2 * c * jnp.cos(xs[0]) * ts[0]


@jax.custom_vjp
def product(x, y):
    return x * y


product.defvjp(lambda x, y: (x * y, (x, y)), lambda r, u: (2 * u * r[1], u * r[0]))


def a_straight_through_rule():
    return lambda c: lambda x: c * jnp.sum(rounded(c * x) ** 2)


def a_rule_with_static_arguments():
    return lambda c: lambda x: jnp.sum(applied(lambda y: c * jnp.sin(y), c * x, 2.0))


def a_number_given_to_a_rule():
    return lambda c: lambda x: jnp.sum(applied(jnp.sin, x**2, c))


def a_reverse_rule():
    return lambda c: lambda x: c * jnp.sum(product(x, c * x**2))


def a_rule_that_captures_the_number():
    def make(c):
        @jax.custom_jvp
        def g(x):
            return jnp.sum(x**3)

        g.defjvp(lambda xs, ts: (g(*xs), jnp.vdot(c * xs[0] ** 2, ts[0])))
        return g

    return make


def a_rule_in_a_loop():
    def make(c):
        step = lambda x, _: (rounded(c * x) / (1 + x**2), None)
        return lambda x: jnp.sum(jax.lax.scan(step, x, length=3)[0] ** 2)

    return make


def a_rule_in_an_opaque_function():
    lock = threading.Lock()

    def make(c):
        def f(x):
            with lock:
                return c * jnp.sum(rounded(c * x) ** 2)

        return f

    return make


def a_rule_beside_a_branch_on_an_array():
    sign = jnp.asarray(1.0)
    return lambda c: lambda x: jnp.sum(rounded(c * x)) if sign > 0 else 0.0


def a_solver_of_lineax():
    lx = pytest.importorskip("lineax")
    A = ROWS[:3] @ ROWS[:3].T + 3 * jnp.eye(3)

    def make(c):
        def f(x):
            operator = lx.MatrixLinearOperator(A + c * jnp.outer(x, x))
            return c * jnp.sum(lx.linear_solve(operator, x).value)

        return f

    return make


def an_initial_value_problem():
    times = jnp.linspace(0.0, 1.0, 3)
    return lambda c: lambda x: jnp.sum(odeint(lambda y, t: -c * y, x, times) ** 2)


RULED = [
    a_straight_through_rule,
    a_rule_with_static_arguments,
    a_number_given_to_a_rule,
    a_reverse_rule,
    a_rule_that_captures_the_number,
    a_rule_in_a_loop,
    a_rule_in_an_opaque_function,
    a_rule_beside_a_branch_on_an_array,
    a_solver_of_lineax,
    pytest.param(an_initial_value_problem, marks=pytest.mark.slow),
]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("maker", RULED, ids=lambda m: m.__name__)
def test_a_number_beside_a_derivative_rule_compiles_twice_at_most(maker):
    make = maker()
    hotk.clear_cache()
    warnings.simplefilter("ignore")
    for c in (0.7, 0.9, 1.1, -0.3, 0.0, -0.0, 0.7):
        f = make(c)
        assert close(hotk.gradient(f, X), jax.grad(f)(X)), c
    assert hotk.cache_info().compiles <= 2
    if maker is an_initial_value_problem:
        return
    for c in (0.7, 0.9, 1.1, -0.3):
        f = make(c)
        by_jax = jax.jacrev(jax.grad(f))(X) @ V
        assert close(hotk.hvp(f, X, V), by_jax, rtol=1e-4), c
    assert hotk.cache_info().compiles <= 4


@pytest.mark.exhaustive
def test_a_number_in_a_sparse_derivative_compiles_twice_at_most():
    i, j = np.array([0, 1, 2, 0]), np.array([1, 2, 2, 2])
    hotk.clear_cache()
    for c in (0.7, 0.9, 1.1, -0.3, 0.7):
        f = lambda x, c=c: c * jnp.sum(x[i] ** 2 * x[j] ** 3)
        assert close(hotk.sparse_hessian(f, X).todense(), jax.hessian(f)(X)), c
    assert hotk.cache_info().compiles <= 2
    for k in (0, 1, 2):  # other indices of the same structure are other functions
        f = lambda x, k=k: jnp.sum(x[i] ** 2 * x[(j + k) % 3] ** 3)
        assert close(hotk.sparse_hessian(f, X).todense(), jax.hessian(f)(X)), k


def test_an_operator_beside_a_derivative_rule_has_its_own_derivatives():
    make = a_straight_through_rule()
    for c in (0.7, 0.9, 1.1):
        f = make(c)
        total = lambda x, f=f: jnp.sum(hotk.gradient(f, x) ** 2)
        hotk.gradient(f, X)  # its program is that of another number
        want = jax.grad(lambda x, f=f: jnp.sum(jax.grad(f)(x) ** 2))(X)
        assert close(jax.grad(total)(X), want)
        assert close(jax.jit(jax.grad(total))(X), want)


def test_a_rule_that_changes_what_it_read_is_read_again():
    factor = [2.0]

    @jax.custom_jvp
    def g(x):
        return jnp.sum(x**3)

    g.defjvp(lambda xs, ts: (g(*xs), factor[0] * jnp.vdot(xs[0] ** 2, ts[0])))
    for value in (2.0, 5.0, 2.0, 7.0):
        factor[0] = value
        for c in (1.0, 3.0, 4.0):
            f = lambda x, c=c: c * g(x)
            assert close(hotk.gradient(f, X), c * value * X**2)


@pytest.mark.exhaustive
def test_the_program_beside_a_rule_keeps_no_array_of_it():
    def call(c):
        w = jnp.full(3, c)

        @jax.custom_jvp
        def g(x):
            return jnp.sum(x**3)

        g.defjvp(lambda xs, ts: (g(*xs), jnp.vdot(w * xs[0] ** 2, ts[0])))
        assert close(hotk.gradient(lambda x: c * g(x), X), c * c * X**2)
        return weakref.ref(w)

    references = [call(c) for c in (1.0, 2.0, 3.0)]
    gc.collect()
    assert [r() for r in references] == [None] * 3


def test_the_value_of_an_inner_constant_is_its_own():
    for scale in (1.0, 2.0, 3.0):
        weights = jnp.full(3, scale)
        inner = jax.jit(lambda u, w=weights: jnp.sum(w * u**3))
        f = lambda x, g=inner: g(2.0 * x)
        assert close(hotk.hvp(f, X, V), 48 * scale * X * V)


@contextlib.contextmanager
def as_users_do():
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        yield


# ---- NumPy arrays that NumPy moves, compares or counts with


def labels(seed, dtype=np.int64):
    return np.random.default_rng(seed).integers(0, 3, size=4).astype(dtype)


def data(seed, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(4, 3)).astype(dtype)


MOVED = {
    "a column": lambda x, y, A: jnp.sum(x * y[:, None]),
    "picked by labels": lambda x, y, A: jnp.sum(
        jnp.outer(jnp.arange(4.0), x)[np.arange(4), y] ** 2
    ),
    "a slice": lambda x, y, A: jnp.sum((A[:2] @ x) ** 2),
    "an entry": lambda x, y, A: jnp.sum(x**2) * A[1, 2],
    "transposed and flat": lambda x, y, A: jnp.sum(A.T.reshape(3, 4)[::-1].T @ x) ** 2,
    "a mask of labels": lambda x, y, A: jnp.sum(
        jnp.where((y == 1)[:, None], A, x) ** 2
    ),
    "signs from labels": lambda x, y, A: jnp.sum(
        jnp.logaddexp(0.0, (1 - 2 * y) * (A @ x))
    ),
    "labels as floats": lambda x, y, A: jnp.sum((A @ x - y.astype(float)) ** 2),
    "checked for nothing": lambda x, y, A: (A > 0.5, jnp.sum((A @ x) ** 2))[1],
    "transposed in a scan": lambda x, y, A: jnp.sum(
        jax.lax.scan(lambda c, _: (jnp.sin(A.T @ (A @ c)), None), x, None, 2)[0]
    ),
    "a mask inside of a jitted function": lambda x, y, A: jax.jit(
        lambda x: jnp.sum(jnp.where((y == 1)[:, None], A, x) ** 2)
    )(x),
    "valid ones": lambda x, y, A: jnp.sum(
        jnp.where((A == A) & (np.inf != A), A * x, 0)
    ),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("x64", [True, False])
def test_numpy_may_move_compare_and_count(name, x64):
    f = MOVED[name]
    with jax.enable_x64(x64), as_users_do():
        x = jnp.array([0.5, -1.0, 2.0])

        def make(seed):
            y, A = labels(seed), data(seed)
            return lambda x: f(x, y, A)

        hotk.clear_cache()
        for seed in range(5):
            got, want = hotk.gradient(make(seed), x), jax.grad(make(seed))(x)
            assert close(got, want, rtol=1e-5 if not x64 else 1e-12)
        info = hotk.cache_info()
    assert (info.traces, info.compiles) == (1, 1), info


def test_integers_of_32_bits_become_the_nearest_floats():
    """NumPy and JAX round those alike that a float has no room for."""
    large = np.array([2**30 + 65, -(2**24) - 1, 3, 2**31 - 1], np.int32)
    with jax.enable_x64(False), as_users_do():
        x = jnp.array([0.5, -1.0, 2.0, 1.5])

        def make(y):
            return lambda x: jnp.sum(y * x**2)

        hotk.clear_cache()
        for y in (labels(0, np.int32), large, large[::-1]):
            assert close(hotk.gradient(make(y), x), 2 * y.astype(np.float32) * x)
        info = hotk.cache_info()
    assert (info.traces, info.compiles) == (1, 1), info


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([1.0, 2.0, 3.0]), np.array([1e300, 2.0, 3.0])),
        (np.array([1.0, 2.0, 3.0]), np.array([1.0 + 1e-12, 2.0, 3.0])),
        (np.array([1, 2, 3]), np.array([2**30, 2, 3])),
        (np.array([1, 2, 3]), np.array([2**40, 2, 3])),
    ],
    ids=["infinite in float32", "equal in float32", "large", "beyond int32"],
)
def test_what_numpy_counts_differently_is_seen(first, second):
    """NumPy sees all digits of its arrays, JAX with 32 bits does not."""
    functions = (
        lambda x, A: jnp.sum(jnp.where(A > 1.0, x, 2 * x)),
        lambda x, A: jnp.sum(jnp.where(np.inf != A, x, 2 * x)),
        lambda x, A: jnp.sum(x * (A * 4 - 3)),
        lambda x, A: jnp.sum(x * (A - 1.0) * 1e6),
        lambda x, A: jnp.sum(x) * (A[0] - 1.0) * 1e6,
    )
    with jax.enable_x64(False), as_users_do():
        warnings.simplefilter("ignore")  # NumPy's, of numbers that become infinite
        x = jnp.array([0.5, -1.0, 2.0])
        for f in functions:
            for A in (first, second, first):
                g = lambda x, A=A, f=f: f(x, A)
                assert close(hotk.gradient(g, x), jax.grad(g)(x), rtol=1e-6), (f, A)


@pytest.mark.parametrize("x64", [False, True])
def test_numbers_below_the_normal_range_are_not_zero_for_numpy(x64):
    """XLA takes them for zero."""
    A = np.array([0.0, 1e-40, 1.0], np.float32)
    functions = (
        lambda x: jnp.sum(jnp.where(A > 0, x, 2 * x)),
        lambda x: jnp.sum(x**2 * (A != 0)),
    )
    with jax.enable_x64(x64), as_users_do():
        x = jnp.array([0.5, -1.0, 2.0])
        assert hotk.gradient(functions[0], x).tolist() == [2.0, 1.0, 1.0]
        assert hotk.gradient(functions[1], x).tolist() == [0.0, -2.0, 4.0]


def test_a_large_numpy_array_that_numpy_computes_with_is_traced_once_a_content():
    def make(seed):
        A = np.random.default_rng(seed).normal(size=300)
        return lambda x: jnp.sum(x**2) * jnp.sum(jnp.asarray(np.sin(A)))

    hotk.clear_cache()
    for seed in (0, 1, 1, 0, 2, 0):
        f = make(seed)
        assert close(hotk.gradient(f, X), jax.grad(f)(X))
    info = hotk.cache_info()
    assert info.compiles == 1
    # Two attempts at the first, then once for each content.
    assert info.traces <= 5


def test_a_number_in_a_program_that_a_primitive_keeps_is_told_apart():
    x = jnp.array([1.0, 2.0, 3.0])

    def solved(c):
        solve = lambda x: jax.lax.custom_linear_solve(
            lambda v: c * v, x, lambda _, b: b / c, symmetric=True
        )
        return lambda x: jnp.sum(solve(x) ** 2)

    for c in (0.5, 2.0, 4.0, 8.0):
        assert close(hotk.gradient(solved(c), x), 2.0 * x / c**2)
