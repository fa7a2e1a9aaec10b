"""Derivative rules of a user's own, as they are written for JAX, and JAX's idioms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from tests.helpers import close


X = np.array([0.31, 0.47, 0.62, 0.78])
V = np.array([0.7, -0.4, 1.1, 0.3])


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


@sine.defjvp
def _sine_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return sine(x), jnp.cos(x) * t


@jax.custom_jvp
def product(a, b):
    return a * b


product.defjvps(lambda t, y, a, b: b * t, lambda t, y, a, b: a * t)


@jax.custom_jvp
def first_only(a, b):
    return a**2 + 0.0 * b


first_only.defjvps(lambda t, y, a, b: 2.0 * a * t, None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def applied(f, x, n):
    return f(x) ** n


@applied.defjvp
def _applied_jvp(f, n, primals, tangents):
    (x,), (t,) = primals, tangents
    y, slope = jax.jvp(f, (x,), (t,))
    return y**n, n * y ** (n - 1) * slope


@jax.custom_jvp
def symbolic(a, b):
    return a * jnp.sin(b)


def _symbolic_jvp(primals, tangents):
    (a, b), (ta, tb) = primals, tangents
    found = jnp.zeros_like(a)
    if type(ta) is not jax.custom_derivatives.SymbolicZero:
        found = found + ta * jnp.sin(b)
    if type(tb) is not jax.custom_derivatives.SymbolicZero:
        found = found + a * jnp.cos(b) * tb
    return symbolic(a, b), found


symbolic.defjvp(_symbolic_jvp, symbolic_zeros=True)


@jax.custom_vjp
def cosine(x):
    return jnp.cos(x)


cosine.defvjp(lambda x: (cosine(x), x), lambda x, u: (-jnp.sin(x) * u,))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def powered(n, tree):
    return {"y": tree["a"] ** n * tree["b"]}


def _powered_backward(n, tree, u):
    a, b = tree["a"], tree["b"]
    return ({"a": n * a ** (n - 1) * b * u["y"], "b": a**n * u["y"]},)


powered.defvjp(lambda n, tree: (powered(n, tree), tree), _powered_backward)


@jax.custom_vjp
def times(a, steps):
    return a * steps


times.defvjp(lambda a, n: (times(a, n), n), lambda n, u: (u * n, None))


@jax.custom_vjp
def keyword(a, scale=2.0):
    return scale * a**2


keyword.defvjp(
    lambda a, scale: (keyword(a, scale), (a, scale)),
    lambda kept, u: (2.0 * kept[1] * kept[0] * u, jnp.sum(kept[0] ** 2 * u)),
)


def closing_over(scale):
    @jax.custom_jvp
    def inner(x):
        return scale * x**2

    inner.defjvp(lambda p, t: (inner(*p), 2.0 * scale * p[0] * t[0]))
    return inner


# Each with the same function without a rule.
RULES = {
    "custom_jvp": (sine, jnp.sin),
    "defjvps": (lambda x: product(x, x[::-1]), lambda x: x * x[::-1]),
    "None among defjvps": (lambda x: first_only(x, 2.0), lambda x: x**2),
    "nondiff_argnums": (lambda x: applied(jnp.sin, x, 3), lambda x: jnp.sin(x) ** 3),
    "symbolic zeros": (lambda x: symbolic(x, X), lambda x: x * np.sin(X)),
    "custom_vjp": (cosine, jnp.cos),
    "trees": (
        lambda x: powered(3, {"a": x, "b": x[::-1]})["y"],
        lambda x: x**3 * x[::-1],
    ),
    "None for an argument": (lambda x: times(x * x, 3), lambda x: 3 * x**2),
    "keyword": (lambda x: keyword(x, scale=3.0), lambda x: 3.0 * x**2),
    "default": (keyword, lambda x: 2.0 * x**2),
    "closure": (closing_over(4.0), lambda x: 4.0 * x**2),
    "closure over an array": (closing_over(jnp.asarray(4.0)), lambda x: 4.0 * x**2),
    "in vmap": (jax.vmap(lambda a: sine(a) * cosine(a)), lambda x: jnp.sin(2 * x) / 2),
    "in jit": (jax.jit(lambda x: cosine(sine(x))), lambda x: jnp.cos(jnp.sin(x))),
    "in scan": (
        lambda x: lax.scan(lambda c, a: (cosine(c) * sine(a), None), x[0], x)[0],
        lambda x: lax.scan(lambda c, a: (jnp.cos(c) * jnp.sin(a), None), x[0], x)[0],
    ),
    "in checkpoint": (
        jax.checkpoint(lambda x: sine(x) ** 2),
        lambda x: jnp.sin(x) ** 2,
    ),
    "differentiated inside": (
        lambda x: jax.grad(lambda a: jnp.sum(sine(a)))(x),
        jnp.cos,
    ),
    "reverse inside": (
        lambda x: jax.grad(lambda a: jnp.sum(cosine(a)))(x) * x,
        lambda x: -jnp.sin(x) * x,
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("ruled", "bare"), RULES.values(), ids=RULES)
def test_a_function_with_rules_is_differentiated_as_one_without(ruled, bare):
    f = lambda x: jnp.dot(jnp.arange(1.0, 5.0), jnp.ravel(ruled(x)) * jnp.ones(4))
    g = lambda x: jnp.dot(jnp.arange(1.0, 5.0), jnp.ravel(bare(x)) * jnp.ones(4))
    x, v = jnp.asarray(X), jnp.asarray(V)
    first, second = jax.jit(lambda: jax.jvp(jax.grad(g), (x,), (v,)))()
    _, got, along = hotk.value_gradient_and_hvp(f, x, v)
    close(got, first)
    close(along, second)
    close(hotk.quadratic_form(f, x, v), jnp.dot(v, second))
    close(hotk.jvp(f, x, v), jnp.dot(v, first))


def test_structures_of_what_goes_in_and_comes_out():
    x = {"a": jnp.asarray(2.0), "b": (jnp.asarray([1.0, 3.0]), None)}
    f = lambda x: {"y": x["a"] * x["b"][0], "z": [x["a"] ** 2]}
    u = {"y": jnp.ones(2), "z": [jnp.asarray(1.0)]}
    y, pull = jax.vjp(f, x)
    close(hotk.value_and_vjp(f, x, u), (y, pull(u)[0]))
    close(hotk.jvp(f, x, x), jax.jvp(f, (x,), (x,))[1])
    close(hotk.jacobian(f, x), jax.jacobian(f)(x))


def test_auxiliary_results_and_arguments_by_lambda():
    f = lambda a, b, n: (jnp.sum(a**n * b), {"n": n, "b": b})
    a, b = jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0])
    got, aux = hotk.gradient(f, a, b, 3, has_aux=True)
    want, _ = jax.grad(f, has_aux=True)(a, b, 3)
    close(got, want)
    close(aux["b"], b)
    by_second, _ = jax.grad(f, argnums=1, has_aux=True)(a, b, 3)
    close(hotk.gradient(lambda b: f(a, b, 3)[0], b), by_second)
    both = jax.grad(lambda p: f(*p, 3)[0])((a, b))
    close(hotk.gradient(lambda p: f(*p, 3)[0], (a, b)), both)
