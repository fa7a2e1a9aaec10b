"""Laplacians of functions with derivative rules, against those without a rule."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import hotk
from tests.helpers import close


WEIGHTS = jnp.asarray(np.linspace(-1, 1, 16).reshape(4, 4))
POINT = jnp.asarray(np.linspace(0.2, 1.4, 12).reshape(3, 4))


def with_rule(f, rule):
    """Return f with a derivative rule: from a point and a direction."""
    ruled = jax.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), rule(*primals, *tangents)))
    return ruled


def layer(x):
    return jnp.tanh(x @ WEIGHTS) @ WEIGHTS


def slope(x, t):
    return (1 - jnp.tanh(x @ WEIGHTS) ** 2) * (t @ WEIGHTS)


def in_a_loop(x, t):
    step = lambda c, row: (c, row @ WEIGHTS)
    return jax.lax.scan(step, 0.0, slope(x, t))[1]


def solution(x):  # of (x x' + 1) y = x
    return jnp.linalg.solve(x @ x.T + jnp.eye(3), x)


def solved(x, t):
    moved = (t @ x.T + x @ t.T) @ solution(x)
    return jnp.linalg.solve(x @ x.T + jnp.eye(3), t - moved)


def in_a_rule(x, t):
    return with_rule(jnp.cos, lambda x, t: -jnp.sin(x) * t)(x) * t


# All of these have the derivative of their function, each written in its own way.
RULES = {
    "a layer": (layer, lambda x, t: slope(x, t) @ WEIGHTS),
    "weights on the left": (
        lambda x: WEIGHTS[:3, :3] @ x,
        lambda x, t: WEIGHTS[:3, :3] @ t,
    ),
    "a quotient": (jnp.log, lambda x, t: t / x),
    "a quotient of what is held": (lambda x: x / 3, lambda x, t: t / 3),
    "by cases": (jnp.exp, lambda x, t: jnp.where(x > 0.7, t, t * 1.0) * jnp.exp(x)),
    "with a zero": (jax.nn.relu, lambda x, t: jnp.where(x > 0, t, jnp.zeros_like(t))),
    "moved and back": (jnp.sin, lambda x, t: (t + x) * jnp.cos(x) - x * jnp.cos(x)),
    "parts": (jnp.sin, lambda x, t: jnp.concatenate([t[:1], t[1:]]) * jnp.cos(x)),
    "sorted": (jnp.sin, lambda x, t: jnp.take(t, jnp.array([0, 1, 2]), 0) * jnp.cos(x)),
    "zero": (jnp.sign, lambda x, t: jnp.zeros_like(t)),
    "zero times": (jnp.sign, lambda x, t: 0 * t),
    "a loop": (layer, in_a_loop),
    "a solution": (solution, solved),
    "a rule in a rule": (jnp.sin, in_a_rule),
    # linear, but not seen to be
    "unless zero": (jnp.exp, lambda x, t: jnp.where(t == 0, 0.0, t * jnp.exp(x))),
    "a square": (jnp.exp, lambda x, t: jnp.exp(x) * (t * t) / (t + 1e-300)),
    "rounded": (jnp.exp, lambda x, t: jnp.exp(x) * t + 0 * jnp.round(t)),
    "cast": (jnp.exp, lambda x, t: jnp.exp(x) * t + t.astype(int).astype(float) * 0),
    "a branch": (
        jnp.exp,
        lambda x, t: jax.lax.cond(t[0, 0] > 0, jnp.add, jnp.add, 0 * t, t * jnp.exp(x)),
    ),
}


def outer(g):
    return lambda x: jnp.sum(jnp.sin(g(x * x)) ** 2)


def trace(f):
    """Return the Laplacian by nested forward derivatives."""

    def laplacian(x):
        hessian = jax.jacfwd(jax.jacfwd(f))(x)
        return jnp.trace(hessian.reshape(x.size, x.size))

    return laplacian


def plane(f):
    """Return f on a plane through the point, where all entries move."""
    return lambda x: f(POINT + x[0] * jnp.cos(POINT) + x[1] * POINT**2)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", RULES)
def test_rules_of_jax(name):
    f, rule = RULES[name]
    ruled = outer(with_rule(f, rule))
    expected = jax.jit(trace(outer(f)))(POINT)
    close(hotk.laplacian(ruled, POINT), np.asarray(expected), rtol=1e-10)
    x = jnp.array([0.1, -0.2])
    expected = jax.jit(trace(trace(plane(outer(f)))))(x)
    close(hotk.biharmonic(plane(ruled), x), np.asarray(expected), rtol=1e-9)


@pytest.mark.exhaustive
def test_rules_of_our_own():
    f, rule = RULES["a solution"]
    ruled = hotk.rule.custom(f)
    ruled.def_jvp(lambda primals, tangents: rule(*primals, *tangents))
    expected = jax.jit(trace(outer(f)))(POINT)
    close(hotk.laplacian(outer(ruled), POINT), np.asarray(expected), rtol=1e-10)


@pytest.mark.exhaustive
def test_several_inputs_and_outputs():
    f = lambda a, b: (jnp.sin(a) * b, jnp.floor(a), jnp.sum(b))
    ruled = jax.custom_jvp(f)

    @ruled.defjvp
    def _(primals, tangents):
        (a, b), (s, t) = primals, tangents
        made = ruled(a, b)
        none = jnp.zeros_like(a)
        return made, (jnp.cos(a) * s * b + jnp.sin(a) * t, none, jnp.sum(t))

    def scalar(g):
        def h(x):
            a, b, c = g(x**2, jnp.exp(x[::-1]))
            return jnp.sum(a * b) + c**2 + jnp.sum(g(x, jnp.ones(4))[0])

        return h

    x = jnp.asarray(np.linspace(1.1, 2.4, 4))
    close(hotk.laplacian(scalar(ruled), x), np.asarray(trace(scalar(f))(x)))


# ---- determinants, whose rule is known by where JAX defines them


@pytest.mark.exhaustive
def test_a_determinant_takes_one_inverse_and_no_solution_per_direction():
    matrix = lambda x: jnp.tanh(x) + 2 * jnp.eye(4)
    f = lambda x: jnp.linalg.slogdet(matrix(x))[1]
    x = jnp.asarray(np.linspace(-1, 1, 16).reshape(4, 4))
    close(hotk.laplacian(f, x), np.asarray(trace(f)(x)))
    program = str(jax.make_jaxpr(lambda x: hotk.laplacian(f, x))(x))
    assert "f64[4,64]" not in program  # the right sides of all directions
    assert "f64[16,4,4] = triangular_solve" not in program


@pytest.mark.exhaustive
def test_stacks_of_matrices_and_complex_ones():
    x = jnp.asarray(np.linspace(-1, 1, 18).reshape(2, 3, 3))
    stack = lambda x: jnp.sum(
        jnp.linalg.slogdet(jnp.sin(x) + 2 * jnp.eye(3)[None])[1] ** 2
    )
    close(hotk.laplacian(stack, x), np.asarray(trace(stack)(x)))
    turned = lambda x: (
        jnp.exp(1j * x[0].astype(complex)) + 2 * jnp.eye(3, dtype=complex)
    )
    complex_ = lambda x: jnp.sum(jnp.real(jnp.linalg.slogdet(turned(x))[0]))
    close(hotk.laplacian(complex_, x), np.asarray(trace(complex_)(x)))


def test_the_series_of_the_logarithm_of_a_determinant():
    a, b = np.array([[4.0, 1, 0], [1, 3, 1], [2, 0, 5]]), np.eye(3) - 2
    exact = lambda t: mpmath.log(mpmath.det(mpmath.matrix(a) + t * mpmath.matrix(b)))
    with mpmath.workdps(60):
        expected = [float(c) for c in mpmath.taylor(exact, 0, 8)]
    f = lambda x: jnp.linalg.slogdet(x)[1]
    found = hotk.taylor(f, a, b, order=8)
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-12)
    bent = lambda t: jnp.linalg.slogdet(a + t**2 * b + t**3 * a)[1]
    exact = lambda t: mpmath.log(
        mpmath.det((1 + t**3) * mpmath.matrix(a) + t**2 * mpmath.matrix(b))
    )
    with mpmath.workdps(60):
        expected = [float(c) for c in mpmath.taylor(exact, mpmath.mpf(0.2), 8)]
    found = hotk.taylor(bent, 0.2, 1.0, order=8)
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-11)
