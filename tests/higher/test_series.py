"""Taylor coefficients against mpmath, and against nested derivatives of JAX."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.scipy.special import gammaln

import hotk
from hotk._core import equations as program_equations
from tests.functions import POINT, SCALAR, VECTOR
from tests.helpers import close


# ---- exact series to order ten


def layers(x, sine, tanh, count=30):
    for _ in range(count):
        x = sine(x) + tanh(x) / 2
    return x


EXACT = {
    "sin": (jnp.sin, mpmath.sin, 0.7),
    "exp": (jnp.exp, mpmath.exp, 0.7),
    "tan": (jnp.tan, mpmath.tan, 0.7),
    "tanh": (jnp.tanh, mpmath.tanh, 0.7),
    "sigmoid": (jax.nn.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x)), 0.7),
    "lgamma": (gammaln, mpmath.loggamma, 2.3),
    "Runge": (lambda x: 1 / (1 + 25 * x**2), lambda x: 1 / (1 + 25 * x**2), 0.3),
    "log": (jnp.log, mpmath.log, 0.7),
    "log1p": (jnp.log1p, lambda x: mpmath.log(1 + x), 0.7),
    "expm1": (jnp.expm1, lambda x: mpmath.exp(x) - 1, 0.7),
    "sqrt": (jnp.sqrt, mpmath.sqrt, 0.7),
    "rsqrt": (jax.lax.rsqrt, lambda x: 1 / mpmath.sqrt(x), 0.7),
    "power -3": (lambda x: x**-3, lambda x: x**-3, 0.7),
    "cosh": (jnp.cosh, mpmath.cosh, 0.7),
    "arctan": (jnp.arctan, mpmath.atan, 0.7),
    "whole power at zero": (lambda x: (1 + x) * x**7, lambda x: (1 + x) * x**7, 0.0),
}


def known(f, x, order):
    with mpmath.workdps(60):
        return [float(c) for c in mpmath.taylor(f, mpmath.mpf(x), order)]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", EXACT)
def test_coefficients_to_order_ten(name):
    f, exact, x = EXACT[name]
    found = np.array(hotk.taylor(f, x, 1.0, order=10))
    expected = np.array(known(exact, x, 10))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def scanned(x):
    layer = lambda x, _: (jnp.sin(x) + jnp.tanh(x) / 2, None)
    return jax.lax.scan(layer, x, None, length=30)[0]


def unrolled(x):
    return layers(x, jnp.sin, jnp.tanh)


@pytest.mark.parametrize("f", [scanned, pytest.param(unrolled, marks=pytest.mark.slow)])
def test_thirty_layers_to_order_ten(f):
    exact = known(lambda x: layers(x, mpmath.sin, mpmath.tanh), 0.3, 10)
    found = hotk.taylor(f, 0.3, 1.0, order=10)
    np.testing.assert_allclose(np.array(found), exact, rtol=1e-12)


def test_derivatives_are_coefficients_times_factorials():
    found = hotk.derivatives(jnp.exp, 0.5, 2.0, order=6)
    close(found, [math.exp(0.5) * 2.0**k for k in range(7)])
    assert len(hotk.derivatives(jnp.exp, 0.5, 2.0, order=0)) == 1


# ---- every function, against nested derivatives

DIRECTION = np.array([0.7, -1.3, 0.45, 1.1, -0.6, 0.9])
# What JAX computes in single precision whatever comes in.
SINGLE_PRECISION = {"attention": 1e-4, "single precision": 1e-6}
# JAX has no forward derivative of these; the same function without the rule.
SAME = {"custom vjp": jnp.sin, "custom vjp calling itself": jnp.sin}
# Without a second derivative in JAX.
NONE = {
    *("gammainc in a", "betainc in a", "sqrtm", "schur", "eigvals", "eig"),
    *("hessenberg", "svd with all vectors", "host callback", "next after"),
}
# Minutes for compilers.
SLOW = {"random gamma", "random beta", "zeta", "gmres", "expm", "lstsq"}


def nested(f, x, v, order):
    """Return the derivatives 0 to `order` along v by as many forward derivatives."""
    found = [f]
    for _ in range(order):
        last = found[-1]
        found.append(lambda x, g=last: jax.jvp(g, (x,), (v,))[1])
    return jax.jit(lambda x: [g(x) for g in found])(x)


def compare(name, f, x, v, order):
    got = hotk.derivatives(f, x, v, order=order)
    expected = nested(SAME.get(name, f), jnp.asarray(x), jnp.asarray(v), order)
    tolerance = SINGLE_PRECISION.get(name, 1e-9)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        size = max(1.0, np.max(np.abs(b), initial=0.0))
        close(a, np.asarray(b), rtol=0, atol=tolerance * size)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", VECTOR)
def test_functions_of_arrays(name):
    compare(name, VECTOR[name], POINT, DIRECTION, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTOR)
def test_functions_of_arrays_to_order_six(name):
    compare(name, VECTOR[name], POINT, DIRECTION, 6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in SCALAR
        if name not in NONE
    ],
)
def test_functions_of_one_number(name):
    f, x = SCALAR[name]
    compare(name, f, x, 0.7, 3)


@pytest.mark.parametrize("name", ["gammainc in a", "sqrtm", "host callback"])
def test_what_has_no_derivative_is_refused(name):
    f, x = SCALAR[name]
    with pytest.raises(hotk.ModeError):
        hotk.derivatives(f, x, 1.0, order=2)


# ---- operations that hold some of their outputs or operands


EDGES = {
    "rounded": lambda x: jnp.sum(x.astype(int).astype(float) * x**2),
    "outside, filled with NaN": lambda x: (
        x.at[10].get(mode="fill", fill_value=0.0) + jnp.sum(x[jnp.array([1, 3])] ** 3)
    ),
    "outside, clipped": lambda x: x.at[10].get(mode="clip") ** 3,
    "split": lambda x: jnp.prod(jnp.split(x, 3)[1] ** 2),
    "the largest and where": lambda x: jnp.max(x) * jnp.argmax(x).astype(float) * x[0],
    "single, then double": lambda x: jnp.sum(x.astype(jnp.float32).astype(float) ** 3),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", EDGES)
def test_what_does_not_move_with_what_does(name):
    x = POINT * 3
    tolerance = {"single, then double": 1e-5}
    got = hotk.derivatives(EDGES[name], x, DIRECTION, order=4)
    expected = nested(EDGES[name], jnp.asarray(x), jnp.asarray(DIRECTION), 4)
    rtol = tolerance.get(name, 1e-10)
    close(got, list(map(np.asarray, expected)), rtol=rtol, atol=1e-9)


# ---- loops, branches, rules


@pytest.mark.exhaustive
def test_a_carry_that_begins_to_move_inside():
    def f(x):
        step = lambda c, a: ((c[1] * x, c[0] + a), c[0])
        return jax.lax.scan(step, (1.0, 2.0), jnp.arange(3.0))

    g = lambda x: (lambda c, ys: c[0] * c[1] + jnp.sum(ys**2))(*f(x))
    compare("", g, 0.8, 1.0, 5)


def test_a_branch_that_moves_and_one_that_does_not():
    f = lambda x, s: jax.lax.cond(s, lambda x: x**3, lambda x: jnp.ones_like(x), x)
    for s, expected in ((True, [8.0, 12.0, 12.0, 6.0]), (False, [1.0, 0.0, 0.0, 0.0])):
        close(hotk.derivatives(f, 2.0, 1.0, jnp.asarray(s), order=3), expected)


def test_a_while_loop_whose_length_depends_on_the_point():
    def root(x):
        step = lambda y: (y + x / y) / 2
        return jax.lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-15 * x, step, x)

    found = hotk.derivatives(root, 2.0, 1.0, order=4)
    expected = [c * math.factorial(k) for k, c in enumerate(known(mpmath.sqrt, 2, 4))]
    close(found, expected, rtol=1e-9)


@pytest.mark.exhaustive
def test_checkpoints_custom_roots_and_third_order_through_solvers():
    f = jax.checkpoint(lambda x: jnp.sin(x) ** 2)
    compare("", lambda x: f(f(x)), 0.4, 1.0, 5)
    solution = hotk.rule.root(lambda y, a: y**3 - a, lambda y, a: jnp.cbrt(a))
    found = hotk.taylor(lambda a: solution(1.0, a), 8.0, 1.0, order=5)
    close(found, known(lambda a: a ** (mpmath.mpf(1) / 3), 8, 5))


def test_a_rule_for_series_is_used_and_counted():
    count = itertools.count()
    tick = count.__next__
    f = hotk.rule.custom(jnp.exp)
    f.def_jvp(lambda p, t, *, y: y * t[0])

    @f.def_taylor
    def _(primals, series, *, y):
        tick()
        c = [y]
        for k in range(1, len(series[0]) + 1):
            parts = [j * series[0][j - 1] * c[k - j] for j in range(1, k + 1)]
            c.append(sum(parts[1:], parts[0]) / k)
        return c[1:]

    g = lambda x: f(jnp.sin(x))
    compare("", g, 0.3, 1.0, 5)
    assert next(count) > 0
    compare("", lambda x: jnp.sum(jax.vmap(f)(x)), POINT, DIRECTION, 3)
    before = next(count)
    hotk.gradient(g, 0.3)
    assert next(count) == before + 1


def test_a_wrong_rule_for_series_is_told_of():
    f = hotk.rule.custom(jnp.exp)
    f.def_taylor(lambda primals, series: series[0][:1])
    with pytest.raises(hotk.StructureError, match="list with the 3 coefficients"):
        hotk.derivatives(f, 0.0, 1.0, order=3)


# ---- as every other operator


def test_trees_auxiliary_outputs_and_dtypes():
    def f(p, c):
        y = {"a": c * p["w"] ** 2 * p["n"], "b": jnp.sum(p["h"] ** 3)}
        return y, p["n"]

    p = {"w": np.ones(2), "n": 3, "h": np.full(2, 2.0, np.float32)}
    v = {"w": np.array([1.0, 2.0]), "n": None, "h": np.ones(2, np.float32)}
    found, aux = hotk.derivatives(f, p, v, 2.0, order=3, has_aux=True)
    assert aux == 3
    close(found[2]["a"], np.array([12.0, 48.0]))
    close(found[3]["b"], np.float32(12.0))
    assert found[3]["b"].dtype == jnp.float32


def test_a_batch_of_directions():
    f = lambda x: jnp.sum(jnp.sin(x) ** 3)
    directions = np.stack([DIRECTION, 2 * DIRECTION, np.eye(6)[0]])
    found = hotk.derivatives(f, POINT, directions, order=4, batched=True)
    for i, v in enumerate(directions):
        one = nested(f, jnp.asarray(POINT), jnp.asarray(v), 4)
        close([d[i] for d in found], list(map(np.asarray, one)), rtol=1e-11)


def test_complex_numbers_along_a_real_parameter():
    f = lambda z: jnp.exp(z) * jnp.conj(z) + jnp.conj(z) ** 2
    compare("", f, np.asarray(0.3 + 0.4j), np.asarray(1.0 - 2.0j), 4)


def test_it_composes_with_the_transformations_of_jax():
    f = lambda x, c: jnp.sum(jnp.tanh(c * x) ** 2)
    third = lambda x, c: hotk.derivatives(f, x, jnp.ones(6), c, order=3)[3]
    expected = lambda x, c: nested(lambda x: f(x, c), x, jnp.ones(6), 3)[3]
    x = jnp.asarray(POINT)
    close(jax.jit(third)(x, 0.7), expected(x, 0.7), rtol=1e-10)
    xs = jnp.stack([x, 2 * x])
    mapped = jax.vmap(lambda x: third(x, 0.7))(xs)
    close(mapped, jax.vmap(lambda x: expected(x, 0.7))(xs), rtol=1e-10)
    close(jax.grad(third)(x, 0.7), jax.grad(expected)(x, 0.7), rtol=1e-9)
    inner = lambda x: hotk.derivatives(lambda y: x * jnp.sin(y * x), x, 1.0, order=2)[2]
    known = lambda x: -(x**3) * jnp.sin(x * x)
    close(hotk.derivatives(inner, 0.6, 1.0, order=2)[2], jax.grad(jax.grad(known))(0.6))


def test_a_prepared_one_is_traced_once_and_a_fresh_closure_is_not():
    count = itertools.count()
    tick = count.__next__

    def make(scale):
        return lambda x: (tick(), jnp.sum(jnp.sin(scale * x)))[1]

    hotk.clear_cache()
    for scale in (1.0, 2.0, 3.0):
        f = make(jnp.asarray(scale))
        found = hotk.derivatives(f, POINT, DIRECTION, order=3)[3]
        wave = -np.cos(scale * POINT) * (scale * DIRECTION) ** 3
        close(found, np.sum(wave), rtol=1e-10)
    assert hotk.cache_info().compiles == 1
    prepared = hotk.derivatives.prepare(make(2.0), POINT, DIRECTION, order=3)
    assert prepared.info.mode == "taylor"
    close(prepared(POINT, DIRECTION)[0], np.sum(np.sin(2 * POINT)))
    assert next(count) == 2  # for the direct calls, and for the prepared one


@pytest.mark.parametrize("order", [-1, 2.0, None, "3", True])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises((TypeError, ValueError), match="order"):
        hotk.derivatives(jnp.sin, 0.0, 1.0, order=order)


def test_orders_beyond_the_memory_or_the_numbers_are_refused():
    for dtype, highest in ((jnp.float32, 33), (jnp.float64, 170), (jnp.float16, 7)):
        with pytest.raises(hotk.TooLargeError, match=f"at most {highest}"):
            hotk.derivatives(jnp.exp, dtype(0.5), dtype(1), order=highest + 1)
    found = hotk.derivatives(jnp.exp, jnp.float32(0.0), jnp.float32(1.0), order=33)
    close(found[33], np.float32(1.0), rtol=1e-4)
    with pytest.raises(hotk.TooLargeError):
        hotk.derivatives(jnp.exp, 0.5, 1.0, order=10**9)
    with pytest.raises(hotk.TooLargeError, match="a lower order"):
        hotk.taylor(jnp.exp, np.ones(10**6), np.ones(10**6), order=10**7)


def test_bad_input_is_refused_as_everywhere():
    with pytest.raises(hotk.DtypeError):
        hotk.derivatives(jnp.sin, 1, 1, order=2)
    with pytest.raises(hotk.StructureError):
        hotk.derivatives(jnp.sin, POINT, np.ones(3), order=2)
    with pytest.raises(hotk.OutputError):
        hotk.derivatives(jnp.argmax, POINT, DIRECTION, order=2)
    with pytest.raises(TypeError, match="has one order"):
        hotk.hvp(lambda x: x**2, 1.0, 1.0, order=2)
    with pytest.raises(hotk.ModeError):
        hotk.derivatives(jnp.sin, 1.0, 1.0, order=2, mode=hotk.Forward())


# ---- what it costs


def equations(f, x, v, order):
    return hotk.derivatives.prepare(f, x, v, order=order).info.equations


@pytest.mark.exhaustive
def test_the_program_grows_at_most_quadratically_with_the_order():
    f = lambda x: jnp.exp(jnp.tanh(x)) * jnp.sin(x) / (1 + x**2)
    four, eight, sixteen = (equations(f, 0.4, 1.0, k) for k in (4, 8, 16))
    assert eight < 4 * four
    assert sixteen < 4 * eight


def test_a_network_to_order_six_is_a_small_program():
    sizes = (16, 128, 128, 128, 128, 1)
    weights = [np.ones((a, b)) / a for a, b in itertools.pairwise(sizes)]

    def network(x):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return jnp.sum(x @ weights[-1])

    x = np.ones((8, 16))
    assert equations(network, x, x, 6) <= 600
    deep = functools.reduce(
        lambda g, _: lambda x: jax.jvp(g, (x,), (x,))[1], range(6), network
    )
    by_nesting = sum(1 for _ in program_equations(jax.make_jaxpr(deep)(x).jaxpr))
    assert by_nesting > 4 * equations(network, x, x, 6)


# ---- what does not move does not meet an infinite slope

STILL = {
    "held": lambda x: jnp.sum(x**2 + jnp.sqrt(jnp.abs(jax.lax.stop_gradient(x)))),
    "floor": lambda x: jnp.sum(x**2 * (-1.0) ** jnp.floor(x)),
    "sign": lambda x: jnp.sum(x**2 + jnp.sqrt(jnp.sign(x) ** 2)),
    "round": lambda x: jnp.sum(x**2 + jnp.log(1 + jnp.abs(jnp.round(x)))),
    "held in a loop": lambda x: jax.lax.fori_loop(
        0,
        2,
        lambda _, c: c + jnp.sum(x**2 + jnp.sqrt(jax.lax.stop_gradient(x[0]))),
        0.0,
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", STILL)
def test_zero_slopes_do_not_make_infinite_ones_nan(name):
    f, x, v = STILL[name], jnp.array([0.0, 1.0, -2.0]), jnp.array([1.0, 0.5, 2.0])
    hessian = np.asarray(jax.hessian(f)(x))
    assert np.isfinite(hessian).all()
    close(hotk.laplacian(f, x), np.trace(hessian))
    close(hotk.hessian_diagonal(f, x), np.diag(hessian).copy())
    close(hotk.quadratic_form(f, x, v), v @ hessian @ v)
    close(hotk.derivatives(f, x, v, order=1)[1], np.asarray(jax.grad(f)(x)) @ v)


# ---- loops that were mapped, with a test for each


def growing(a):
    grow = lambda c: (c[0] * 1.5 + a**2, c[1] + a * jnp.arange(2.0), c[2] + 1)
    start = (a, jnp.zeros(2), 0)
    last = jax.lax.while_loop(lambda c: c[0] < 2, grow, start)
    return last[0] + jnp.sum(last[1]) ** 2 * last[2]


def counted(a):
    times = jnp.floor(3 * jax.lax.stop_gradient(a)).astype(int)
    return jax.lax.fori_loop(0, times, lambda i, c: c * a + i, a)


@pytest.mark.exhaustive
@pytest.mark.parametrize("one", [growing, counted])
def test_mapped_loops(one):
    f = lambda x: jnp.sum(jax.vmap(one)(x) ** 2)
    x, v = jnp.array([0.5, 0.9, 1.7]), jnp.array([1.0, -0.5, 0.3])
    expected = nested(f, x, v, 3)
    close(hotk.derivatives(f, x, v, order=3), jax.tree.map(np.asarray, expected))
    hessian = np.asarray(jax.jacfwd(jax.jacfwd(f))(x))
    close(hotk.laplacian(f, x), np.trace(hessian))
    twice = jax.jacfwd(jax.jacfwd(lambda x: jnp.trace(jax.jacfwd(jax.jacfwd(f))(x))))
    close(hotk.biharmonic(f, x), np.trace(np.asarray(twice(x))), rtol=1e-8)


@pytest.mark.exhaustive
def test_solvers_that_tell_more_than_the_solution():
    def f(x):
        matrix = jnp.outer(x, x) + 4 * jnp.eye(3)
        solve = lambda mv, b: (jnp.linalg.inv(matrix) @ b, jnp.asarray(3))
        solution, _ = jax.lax.custom_linear_solve(
            lambda u: matrix @ u, x**2, solve, symmetric=True, has_aux=True
        )
        return solution

    plain = lambda x: jnp.linalg.solve(jnp.outer(x, x) + 4 * jnp.eye(3), x**2)
    x, v = jnp.array([0.3, 1.0, -2.0]), jnp.array([1.0, 0.5, 2.0])
    expected = nested(plain, x, v, 3)
    close(hotk.derivatives(f, x, v, order=3), jax.tree.map(np.asarray, expected))
    hessian = np.asarray(jax.jacfwd(jax.jacfwd(plain))(x))
    close(hotk.laplacian(f, x), np.trace(hessian, axis1=1, axis2=2))
