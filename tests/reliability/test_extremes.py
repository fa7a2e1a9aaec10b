"""Derivatives of maxima of arrays that XLA computes anew where they are read.

`jax.jit(jax.grad(f))` is wrong for nearly all of these on CPUs, and so are derivatives
of second order, without a `nan`: XLA rounds the array otherwise where it looks for its
maximum than where it compares with that. The right values are those of NumPy in 64
bits, from which entry is the largest.
"""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.devices import run_on_eight_devices


def f(x):
    """Sum the squares of the largest number of each row."""
    return jnp.sum(jnp.max(jnp.outer(x, x) - 0.3 * x[None], 1) ** 2)


def model(x):
    return jnp.max(jnp.outer(x, x) - 0.3 * x[None], 1)


def low(x):
    return -jnp.min(0.3 * x[None] - jnp.outer(x, x), 1)


def rows_of(x):
    """Return the largest numbers, their Jacobian, and which entries they depend on."""
    x = np.asarray(x, float)
    j = np.argmax(np.outer(x, x) - 0.3 * x, 1)
    y = x * x[j] - 0.3 * x[j]
    jacobian = np.zeros((x.size, x.size))
    for i in range(x.size):
        jacobian[i, i] += x[j[i]]
        jacobian[i, j[i]] += x[i] - 0.3
    return y, jacobian, j


def hessian_of(x):
    y, jacobian, j = rows_of(x)
    H = 2 * jacobian.T @ jacobian
    for i in range(y.size):
        H[i, j[i]] += 2 * y[i]
        H[j[i], i] += 2 * y[i]
    return H


def third_of(x, v):
    """Return the third derivative along `v`, by differences: each piece is smooth."""
    x, v = np.asarray(x, float), np.asarray(v, float)
    step = 1e-5
    return (hessian_of(x + step * v) - hessian_of(x - step * v)) / (2 * step)


def point(n, dtype):
    return jnp.asarray(np.random.default_rng(n).normal(size=n), dtype)


def near(got, want, dtype):
    tol = 1e-4 if dtype == jnp.float32 else 1e-9
    got, want = np.asarray(got, float), np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol * np.abs(want).max())


TYPES = [(2, jnp.float32), (5, jnp.float32), (5, jnp.float64), (40, jnp.float64)]
F, R = hotk.Forward(), hotk.Reverse()
NESTINGS = {
    "ff": hotk.Nested(F, F),
    "fr": hotk.Nested(F, R),
    "rf": hotk.Nested(R, F),
    "rr": hotk.Nested(R, R),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("n", "dtype"), TYPES)
def test_first_derivatives(n, dtype):
    x = point(n, dtype)
    y, jacobian, _ = rows_of(x)
    gradient = 2 * y @ jacobian
    near(hotk.gradient(f, x), gradient, dtype)
    near(hotk.value_and_gradient(f, x)[1], gradient, dtype)
    near(jax.vmap(lambda x: hotk.gradient(f, x))(jnp.stack([x, x]))[1], gradient, dtype)
    for function in (model, low):
        for mode in (F, R):
            near(hotk.jacobian(function, x, mode=mode), jacobian, dtype)
            sparse = hotk.sparse_jacobian(function, x, mode=mode).todense()
            near(sparse, jacobian, dtype)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mode", NESTINGS)
@pytest.mark.parametrize(("n", "dtype"), TYPES)
def test_second_derivatives(n, dtype, mode):
    x, v = point(n, dtype), point(n + 1, dtype)[:n]
    H = hessian_of(x)
    product = lambda x, v: hotk.hvp(f, x, v, mode=NESTINGS[mode])
    near(product(x, v), H @ np.asarray(v, float), dtype)
    near(jax.jit(product)(x, v), H @ np.asarray(v, float), dtype)
    near(hotk.sparse_hessian(f, x, mode=NESTINGS[mode]).todense(), H, dtype)
    third = third_of(x, np.eye(n)[0])
    wanted = 1e-4 if dtype == jnp.float32 else 1e-6
    for outer in (jax.jacfwd, jax.jacrev):
        found = outer(lambda x: hotk.hessian(f, x, mode=NESTINGS[mode]))(x)[..., 0]
        atol = wanted * max(np.abs(third).max(), 1)
        np.testing.assert_allclose(found, third, rtol=wanted, atol=atol)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("n", "dtype"), TYPES)
def test_derivatives_by_other_means(n, dtype):
    x, v = point(n, dtype), point(n + 1, dtype)[:n]
    H, along = hessian_of(x), np.asarray(v, float)
    _, jacobian, _ = rows_of(x)
    near(hotk.hessian(f, x), H, dtype)
    near(hotk.hessian(lambda x: f(x), x), H, dtype)
    near(hotk.derivatives(f, x, v, order=2)[2], along @ H @ along, dtype)
    near(hotk.laplacian(f, x), np.trace(H), dtype)
    near(hotk.jvp(lambda x: hotk.gradient(f, x), x, v), H @ along, dtype)
    near(jax.jacfwd(lambda x: hotk.gradient(f, x))(x), H, dtype)
    near(jax.jacrev(lambda x: hotk.gradient(f, x))(x), H, dtype)
    product = lambda x, v: jax.jvp(lambda x: hotk.gradient(f, x), (x,), (v,))[1]
    near(jax.jit(product)(x, v), H @ along, dtype)
    squares = hotk.curvature.SquaredError(jnp.zeros(n, dtype))
    G = jacobian.T @ jacobian / n  # half the mean of squares
    near(hotk.ggnvp(model, squares, x, v), G @ along, dtype)
    near(hotk.sparse_ggn(model, squares, x).todense(), G, dtype)
    near(hotk.GGNOperator(model, squares, x).matrix(), G, dtype)


def table(x):
    return jnp.outer(x, x) - 0.3 * x[None]


@jax.custom_jvp
def by_jvp(x):
    """Compute `f`, with the derivative that JAX has for it."""
    return f(x)


by_jvp.defjvp(lambda points, tangents: jax.jvp(f, points, tangents))


@jax.custom_jvp
def by_mask(x):
    """Compute `f`, with the derivative as people write it."""
    return f(x)


@by_mask.defjvp
def _(points, tangents):
    a, slope = jax.jvp(table, points, tangents)
    top = jnp.max(a, 1, keepdims=True)
    slopes = jnp.sum(jnp.where(a == top, slope, 0), 1, keepdims=True)
    return jnp.sum(top**2), 2 * jnp.sum(top * slopes)


@jax.custom_vjp
def by_vjp(x):
    """Compute `f`, with a reverse rule that takes a gradient of JAX."""
    return f(x)


by_vjp.defvjp(lambda x: (f(x), x), lambda x, c: (c * jax.grad(f)(x),))


@jax.custom_vjp
def by_pullback(x):
    """Compute `f`, with what `jax.vjp` returns as residual."""
    return f(x)


by_pullback.defvjp(lambda x: jax.vjp(f, x), lambda pull, c: pull(c))


@jax.custom_jvp
def one_row(a):
    return jnp.max(a)


@one_row.defjvp
def _(points, tangents):
    return jax.jvp(jnp.max, points, tangents)


def in_a_loop(x):
    """Compute `f` row by row; the rule is inside of a loop."""
    row = lambda total, a: (total + one_row(a * x - 0.3 * x) ** 2, None)
    return jax.lax.scan(row, jnp.zeros((), x.dtype), x)[0]


RULED = [by_jvp, by_mask, by_vjp, by_pullback, in_a_loop, jax.jit(by_jvp)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ruled", RULED, ids=lambda f: getattr(f, "__name__", ""))
@pytest.mark.parametrize(("n", "dtype"), TYPES)
def test_inside_of_rules(n, dtype, ruled):
    """Functions with a rule of a user, whose program has the maximum."""
    x, v = point(n, dtype), point(n + 1, dtype)[:n]
    y, jacobian, _ = rows_of(x)
    H = hessian_of(x)
    near(hotk.gradient(ruled, x), 2 * y @ jacobian, dtype)
    near(hotk.jvp(ruled, x, v), 2 * y @ jacobian @ np.asarray(v), dtype)
    near(hotk.hvp(ruled, x, v), H @ np.asarray(v, float), dtype)
    near(hotk.hessian(ruled, x), H, dtype)
    near(hotk.laplacian(ruled, x), np.trace(H), dtype)
    near(jax.jacrev(lambda x: hotk.gradient(ruled, x))(x), H, dtype)
    near(hotk.sparse_hessian(ruled, x).todense(), H, dtype)
    third = third_of(x, np.eye(n)[0])
    found = jax.jacrev(lambda x: hotk.hessian(ruled, x))(x)[..., 0]
    tol = 1e-4 if dtype == jnp.float32 else 1e-6
    np.testing.assert_allclose(found, third, rtol=tol, atol=tol * np.abs(third).max())


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("n", "dtype"), TYPES)
def test_of_a_function_that_takes_derivatives_itself(n, dtype):
    """The program that is differentiated compares an array with its maximum."""
    x, v = point(n, dtype), np.asarray(point(n + 1, dtype)[:n], float)
    part = lambda x: jax.grad(f)(x) @ v.astype(dtype)
    near(hotk.gradient(part, x), hessian_of(x) @ v, dtype)
    near(hotk.jacobian(jax.grad(f), x, mode=R), hessian_of(x), dtype)
    third = third_of(x, v)
    found = hotk.hessian(part, x)
    tol = 1e-4 if dtype == jnp.float32 else 1e-6
    np.testing.assert_allclose(found, third, rtol=tol, atol=tol * np.abs(third).max())


@pytest.mark.parametrize(("dtype", "tol"), [(jnp.bfloat16, 0.1), (jnp.float16, 0.02)])
def test_in_half_precision(dtype, tol):
    x = jnp.asarray([0.9, -1.2, 0.4, 2.0], dtype)
    H, (y, jacobian, _) = hessian_of(x), rows_of(x)
    near = lambda a, b: np.testing.assert_allclose(
        np.asarray(a, float), b, rtol=tol, atol=tol * np.abs(b).max()
    )
    near(hotk.gradient(f, x), 2 * y @ jacobian)
    near(hotk.hvp(f, x, x), H @ np.asarray(x, float))


def test_the_fourth_derivative_along_a_line():
    """Each row is the square of a polynomial of second degree along the line."""
    x, v = point(5, jnp.float64), np.ones(5)
    _, jacobian, j = rows_of(x)
    slope, half = jacobian @ v, v * v[j]
    expected = 24 * np.sum(half**2)
    near(hotk.derivatives(f, x, jnp.ones(5), order=4)[4], expected, jnp.float64)
    third = 12 * np.sum(slope * half)
    near(hotk.derivatives(f, x, jnp.ones(5), order=3)[3], third, jnp.float64)


def test_a_softmax_is_run_as_it_is():
    """Its maximum is held fixed, so its array need not be written."""
    softmax = lambda x: jnp.sum(jax.nn.softmax(x) ** 2) + jax.nn.logsumexp(x)
    program = lambda f: str(jax.make_jaxpr(lambda x: hotk.gradient(f, x))(jnp.ones(3)))
    assert "hotk_written" not in program(softmax)
    assert "hotk_written" in program(jnp.max)


def test_equal_numbers_share_the_derivative():
    """As by `jax.grad`; where the maximum is not a number, all are `nan`."""
    x = jnp.array([2.0, 1.0, 2.0])
    np.testing.assert_array_equal(hotk.gradient(jnp.max, x), [0.5, 0, 0.5])
    np.testing.assert_array_equal(hotk.gradient(jnp.min, x), [0, 1, 0])
    gap = jnp.array([1.0, jnp.nan])
    assert np.isnan(hotk.gradient(jnp.max, gap)).all()
    inf = jnp.array([-jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(hotk.gradient(jnp.max, inf), [0.5, 0.5])


def test_no_numbers_and_whole_numbers():
    largest = lambda x: (
        jnp.sum(jnp.max(x, 0)) + 0.0 * jnp.max(jnp.arange(3)).astype(x.dtype)
    )
    assert hotk.gradient(largest, jnp.ones((2, 0))).shape == (2, 0)


AS_USERS = """
    import jax, jax.numpy as jnp, numpy as np
    from tests.reliability import test_extremes as t

    jax.config.update("jax_enable_x64", True)
    for n, dtype in t.TYPES:
        t.test_first_derivatives(n, dtype)
        t.test_derivatives_by_other_means(n, dtype)
        t.test_of_a_function_that_takes_derivatives_itself(n, dtype)
        for ruled in t.RULED:
            t.test_inside_of_rules(n, dtype, ruled)
        for mode in t.NESTINGS:
            t.test_second_derivatives(n, dtype, mode)
"""


@pytest.mark.exhaustive
def test_the_same_as_users_compile():
    """With the optimizations that the tests do without."""
    env = {**os.environ, "XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    code = textwrap.dedent(AS_USERS)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


OVER_DEVICES = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import NamedSharding, PartitionSpec as P
    from tests.reliability.test_extremes import RULED, f, hessian_of, near

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)))
    want = np.stack([hessian_of(x) for x in X])
    each = lambda x: hotk.hessian(f, x[0])[None]
    over = jax.shard_map(each, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    near(jax.jit(over)(X), want, X.dtype)
    near(over(X), want, X.dtype)
    for ruled in RULED[:4]:  # whose numbers are to vary over the devices as `x` does
        each = lambda x: hotk.hessian(ruled, x[0])[None]
        over = jax.shard_map(each, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        near(jax.jit(over)(X), want, X.dtype)
    x = jax.device_put(jnp.tile(X[0], 8)[:40], NamedSharding(mesh, P("d")))
    x = x + jnp.arange(40) / 50
    near(hotk.hvp(f, x, x), hessian_of(x) @ np.asarray(x), X.dtype)
    print("fine")
"""


@pytest.mark.exhaustive
def test_over_devices():
    run_on_eight_devices(OVER_DEVICES)
