"""Functions of `jax.custom_vjp` get the forward rule that they lack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.ode import odeint

import hotk
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)
X, V = np.array([0.3, 0.7, 1.2]), np.array([1.0, -1.0, 0.5])


@jax.custom_vjp
def scaled_sine(x, c):
    return jnp.sin(x) * c


def forward(x, c):
    return scaled_sine(x, c), (x, c)  # calls itself: JAX cannot push a tangent through


def backward(kept, u):
    x, c = kept
    return jnp.cos(x) * c * u, jnp.sum(jnp.sin(x) * u)


scaled_sine.defvjp(forward, backward)


def in_a_scan(x):
    step = lambda y, _: (scaled_sine(y, 2.0) + x, None)
    return jax.lax.scan(step, x, None, length=3)[0].sum()


def unrolled(x):
    y = x
    for _ in range(3):
        y = 2 * jnp.sin(y) + x
    return y.sum()


FUNCTIONS = {
    "bare": (
        lambda x: jnp.sum(scaled_sine(x, 2.0) ** 2),
        lambda x: jnp.sum(4 * jnp.sin(x) ** 2),
    ),
    "scan": (in_a_scan, unrolled),
    "jit": (jax.jit(in_a_scan), unrolled),
    "checkpoint": (jax.checkpoint(in_a_scan), unrolled),
    "vmap": (
        lambda x: jax.vmap(lambda z: scaled_sine(z, 2.0) ** 2)(x).sum(),
        lambda x: jnp.sum(4 * jnp.sin(x) ** 2),
    ),
    "cond": (
        lambda x: jax.lax.cond(x[0] > 0, in_a_scan, lambda x: x.sum(), x),
        unrolled,
    ),
}


@pytest.mark.thinned(4, "mode")
@each_nesting
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_nesting(name, mode):
    f, plain = FUNCTIONS[name]
    expected = jax.hessian(plain)(jnp.asarray(X)) @ V
    close(hotk.hvp(f, jnp.asarray(X), V, mode=mode), np.asarray(expected))


def test_the_rule_counts_and_not_the_body():
    """The rule of a step function is that of the identity; the body's would be 0."""
    step = jax.custom_vjp(lambda x: jnp.round(x))
    step.defvjp(lambda x: (step(x), None), lambda _, u: (u,))
    f = lambda x: step(x) ** 2
    close(hotk.derivative(f, 1.3), 2.0)
    for mode in NESTINGS:
        close(hotk.second_derivative(f, 1.3, mode=mode), 2.0)


@jax.custom_vjp
def same(x):
    return x


same.defvjp(lambda x: (x, None), lambda _, u: (u,))


@jax.custom_vjp
def stepped(x):
    """Round; the rule is that of the identity, through what JAX cannot transpose."""
    return jnp.round(x)


stepped.defvjp(lambda x: (stepped(x), None), lambda _, u: (same(u),))


def test_a_rule_that_cannot_be_transposed_counts_as_long_as_a_mode_has_it():
    f = lambda x: stepped(x) ** 2
    prepared = hotk.hvp.prepare(f, 1.3, 1.0)
    close(prepared(1.3, 1.0), 2.0)
    assert prepared.info.mode == "reverse over reverse"
    # pushed forward it has no other derivative than that of its body, and it is said
    pushed = hotk.jvp.prepare(f, 1.3, 1.0)
    close(pushed(1.3, 1.0), 0.0)
    assert "the derivative of its body" in pushed.info.why
    assert "the derivative of its body" in pushed.info.rules[0]


def test_a_loop_and_a_reverse_rule_together():
    """JAX has no nesting for it: a loop wants forward mode, the rule reverse mode."""

    def f(x):
        step = lambda s: (scaled_sine(s[0], 2.0) + x, s[1] + 1)
        return jax.lax.while_loop(lambda s: s[1] < 3, step, (x, 0))[0].sum()

    product = hotk.hvp.prepare(f, X, V)
    expected = jax.hessian(unrolled)(jnp.asarray(X)) @ V
    close(product(X, V), np.asarray(expected))
    assert product.info.mode == "forward over forward"
    assert "custom_vjp at" in product.info.why
    assert "test_custom_vjp.py" in product.info.why


def halved(x):
    step = lambda t: (t[0] / 2, t[1] / 2)
    return jax.lax.while_loop(lambda t: t[0] > 1.0, step, (x, jnp.ones_like(x)))[1]


@jax.custom_vjp
def scaled_cube(x):
    return (halved(x) * x) ** 3


# It calls itself, and its reverse rule cannot be transposed.
scaled_cube.defvjp(
    lambda x: (scaled_cube(x), x),
    lambda x, u: (jnp.clip(3 * halved(x) ** 3 * x**2 * u, -100.0, 100.0),),
)


def opaque_cube(x):
    return scaled_cube(x) + 0.0 * len(globals())


@pytest.mark.parametrize("f", [scaled_cube, opaque_cube])
@pytest.mark.parametrize("operator", [hotk.jvp, hotk.hvp])
def test_a_mode_that_failed_inside_leaves_nothing_in_the_outer_program(f, operator):
    """Of an opaque function inside of an operator, whose modes are tried in turn."""
    inner = lambda x: hotk.hvp(f, x, 1.0)  # 6 x / 4**3 at 3
    result = operator(lambda x: inner(x) ** 2, jnp.array(3.0), jnp.array(1.0))
    expected = {hotk.jvp: 2 * 3.0 * (6 / 64) ** 2, hotk.hvp: 2 * (6 / 64) ** 2}
    assert close(result, expected[operator])


@pytest.mark.library
@pytest.mark.exhaustive
def test_an_optimizer_through_a_rule_that_holds_a_tracer():
    """The adjoint of diffrax captures the times, in a loop of an optimizer traced."""
    diffrax = pytest.importorskip("diffrax")

    def loss(k):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, k: -k * y),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            1.0,
            args=k,
            adjoint=diffrax.BacksolveAdjoint(),
        )
        return jnp.sum((solution.ys - jnp.exp(-0.5)) ** 2)

    transform = hotk.optim.newton_cg(1.0)
    found = hotk.optim.minimize(loss, jnp.array(0.4), transform, tol=1e-6)
    assert found.converged
    assert close(found.x, 0.5, rtol=1e-4)


def test_auto_says_what_it_derived():
    product = hotk.hvp.prepare(in_a_scan, X, V)
    assert product.info.mode == "forward over reverse"
    assert "is the transpose of its reverse rule" in product.info.why


@pytest.mark.exhaustive
def test_an_ode_solver_to_second_order():
    """y' = -k y from y(0) = k^2: y(1) = k^2 exp(-k)."""

    def f(k):
        rate = lambda y, t: -k * y
        end = odeint(rate, k**2, jnp.array([0.0, 1.0]), rtol=1e-11, atol=1e-11)[-1]
        return jnp.sum(end)

    x = np.array([0.5, 1.5])
    expected = np.diag((2 - 4 * x + x**2) * np.exp(-x))
    close(hotk.hessian(f, x), expected, rtol=1e-8, atol=1e-8)
