"""Functions that plain JAX differentiates, written as hotk once could not take them."""

import functools
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.5, 2.0])
V = jnp.array([1.0, 0.5, -1.0])


def agree(f, x=X, v=V):
    """Assert that first and second derivatives are those of plain JAX, twice."""
    for _ in range(2):
        assert close(hotk.gradient(f, x), jax.grad(f)(x))
        assert close(hotk.hvp(f, x, v), jax.jvp(jax.grad(f), (x,), (v,))[1])


# ----- Whatever has an answer to every name


class Answers(type):
    def __getattr__(cls, name):
        return 42


class Refuses(type):
    def __getattr__(cls, name):
        raise RuntimeError(name)


def _of_metaclass(meta):
    kind = meta("Made", (), {"scale": 2.0, "loss": lambda self, x: jnp.sum(x**3)})
    made = kind()
    return (
        lambda x: kind.scale * jnp.sum(x**3),
        lambda x: made.scale * jnp.sum(x**3),
        made.loss,
    )


@pytest.mark.parametrize("meta", [Answers, Refuses])
def test_a_metaclass_that_answers_every_name_is_not_asked(meta):
    for f in _of_metaclass(meta):
        agree(f)


def _refuse(name):
    raise RuntimeError(name)


@pytest.mark.parametrize("answer", [lambda name: 42, _refuse])
def test_a_module_that_answers_every_name_is_not_asked(answer):
    module = types.ModuleType("answers")
    module.__getattr__ = answer
    module.scale = 2.0
    names = {"module": module, "jnp": jnp}
    exec("def f(x): return module.scale * jnp.sum(x**3)", names)
    agree(names["f"])
    agree(lambda x: module.scale * jnp.sum(x**3))


def test_an_object_that_answers_every_name_is_not_asked():
    class Slotted:
        __slots__ = ("scale",)

        def __getattr__(self, name):
            return 42

    made = Slotted()
    made.scale = 2.0
    agree(lambda x: made.scale * jnp.sum(x**3))


# ----- Proxies


def test_a_weak_proxy_of_an_array_is_captured():
    array = jnp.array([1.0, 2.0, 3.0])
    proxy = weakref.proxy(array)
    agree(lambda x: jnp.sum(proxy * x**3))


def test_a_weak_proxy_of_a_function_is_differentiated():
    def f(x):
        return jnp.sum(x**3)

    agree(weakref.proxy(f))


# ----- A point of 64 bits where 64 bits are off


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # by JAX's `sum`
def test_a_wide_point_is_differentiated_where_64_bits_are_off(default_settings):
    f = lambda x: jnp.sum(x**3)
    point, along = np.asarray(X), np.asarray(V)
    with jax.enable_x64(True):
        x, v = jnp.array(point, "float64"), jnp.array(along, "float64")
    rows = (
        (hotk.gradient(f, x), 3 * point**2),
        (hotk.hvp(f, x, v), 6 * point * along),
        (hotk.hessian(f, x), np.diag(6 * point)),
        (hotk.hessian_diagonal(f, x), 6 * point),
        (hotk.jacobian(lambda x: x**3, x), np.diag(3 * point**2)),
    )
    for got, expected in rows:
        assert got.dtype == "float64"
        assert np.allclose(got, expected, rtol=1e-6)
    assert np.allclose(hotk.laplacian(f, x), np.sum(6 * point), rtol=1e-6)
    assert hotk.laplacian(f, x).dtype == f(x).dtype


# ----- Rules of JAX


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def noisy(x, key):
    return x * jax.random.normal(key, (3,))


noisy.defvjp(
    lambda x, key: (noisy(x, key), ()),
    lambda key, _, u: (u * jax.random.normal(key, (3,)),),
)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def noisy_forward(x, key):
    return x * jax.random.normal(key, (3,))


@noisy_forward.defjvp
def _(key, primals, tangents):
    return noisy_forward(*primals, key), tangents[0] * jax.random.normal(key, (3,))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", [noisy, noisy_forward])
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_random_key_made_inside_is_given_where_nothing_is_differentiated(rule, make):
    f = lambda x: jnp.sum(rule(x, make(0)) ** 3)
    expected = lambda x: jnp.sum((x * jax.random.normal(make(0), (3,))) ** 3)
    assert close(hotk.gradient(f, X), jax.grad(expected)(X))
    assert close(hotk.gradient.prepare(f, X)(X), jax.grad(expected)(X))
    if rule is noisy_forward:
        product = jax.jvp(jax.grad(expected), (X,), (V,))[1]
        assert close(hotk.hvp(f, X, V), product)


@jax.custom_jvp
def constant(x):
    return jnp.full(3, 2.0)


@constant.defjvp
def _(primals, tangents):
    return jnp.full(3, 2.0), 3.0 * tangents[0]


@pytest.mark.exhaustive
def test_a_rule_with_a_constant_body_is_mapped():
    def f(x):
        points = jnp.stack([x, 2 * x])
        return jnp.sum(jax.vmap(constant)(points) ** 2 * points)

    agree(f)


def _forward(y):
    @jax.custom_jvp
    def rule(x):
        return jnp.sin(x) * y

    rule.defjvp(lambda p, t: (jnp.sin(p[0]) * y, jnp.cos(p[0]) * t[0] * y))
    return rule


@pytest.mark.exhaustive
def test_a_rule_closes_over_what_is_mapped():
    ys = jnp.arange(1.0, 4.0)

    def f(x):
        return jnp.sum(jax.vmap(lambda y: jnp.sum(_forward(y)(x) ** 2))(ys))

    def expected(x):
        return jnp.sum(jnp.outer(ys, jnp.sin(x)) ** 2)

    assert close(hotk.gradient(f, X), jax.grad(expected)(X))
    assert close(hotk.hvp(f, X, V), jax.jvp(jax.grad(expected), (X,), (V,))[1])
    assert close(hotk.hessian(f, X), jax.hessian(expected)(X))


@jax.custom_jvp
def scaled(x, y):
    return x**2 * jnp.sin(y)


def _scaled_jvp(primals, tangents):
    x, y = primals
    zero = jax.custom_derivatives.SymbolicZero
    assert type(tangents[1]) is zero, "a zero was instantiated"
    tangent = 0 * x if type(tangents[0]) is zero else 2 * x * jnp.sin(y) * tangents[0]
    return scaled(x, y), tangent


scaled.defjvp(_scaled_jvp, symbolic_zeros=True)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_zeros_stay_symbolic_in_derivatives_of_any_order(order):
    y = jnp.array([0.3, 0.2, 0.1])
    f = lambda x: jnp.sum(scaled(x, y) ** 2)
    along = lambda t: jnp.sum(((X + t * V) ** 2 * jnp.sin(y)) ** 2)
    for _ in range(order):
        along = jax.grad(along)
    assert close(hotk.derivatives(f, X, V, order=order)[-1], along(0.0))


class Descent:
    """Gradient descent over data, with a rule made at each run, as solvers have it."""

    def __init__(self, data):
        self.data = data
        self.options = {"steps": 3, "scale": 2.0}

    def run(self, x):
        def loop(x):
            step = lambda c, _: (c - 0.1 * (c - self.data * x), None)
            return jax.lax.scan(step, x, length=self.options["steps"])[0]

        @jax.custom_vjp
        def solve(x):
            return loop(x)

        # Not the derivative of the loop, and read off the solver when it is needed.
        scale = lambda: self.options.get("scale", 1.0)
        solve.defvjp(lambda x: (loop(x), None), lambda _, u: (scale() * u,))
        return solve(x)


def test_a_rule_that_reads_the_object_it_is_made_with_is_kept():
    solver = Descent(jnp.array([1.0, 2.0, 3.0]))
    f = lambda x: jnp.sum(solver.run(x) * jnp.arange(1.0, 4.0))
    for _ in range(3):
        assert close(hotk.gradient(f, X), 2.0 * jnp.arange(1.0, 4.0))
    solver.options["scale"] = 5.0
    assert close(hotk.gradient(f, X), 5.0 * jnp.arange(1.0, 4.0))
    assert close(hotk.value_and_gradient(f, X)[1], 5.0 * jnp.arange(1.0, 4.0))
