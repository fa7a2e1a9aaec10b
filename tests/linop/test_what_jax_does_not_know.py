"""Compiled solvers see what `jax.jit` does not: classes, and the default generator."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])

# What an operator gives, and the same of its matrix, which is diagonal here.
CALLS = {
    "solve": (lambda H: H.solve(V).x, lambda d: V / d),
    "matrix": (lambda H: H.matrix(), np.diag),
    "linearize": (lambda H: H.linearize().matrix(), np.diag),
    "diagonal": (
        lambda H: hotk.estimate.diagonal(H, jax.random.key(0, impl="rbg")).value,
        np.asarray,
    ),
    "loop": (
        lambda H: hotk.linop.loop(H, lambda loop, H, v: H @ v, H, V),
        lambda d: V * d,
    ),
}
pytestmark = pytest.mark.usefixtures("compiled_fast")
each_call = pytest.mark.parametrize(("call", "truth"), CALLS.values(), ids=CALLS)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def drawn(x):
    return jax.random.uniform(jax.random.key(0), x.shape, x.dtype) + 1


@pytest.mark.thinned(2)
@each_call
def test_the_default_generator(call, truth):
    def f(x):
        return jnp.sum(drawn(x) * x**3) / 6

    for generator in ("threefry2x32", "rbg", "threefry2x32"):
        with jax.default_prng_impl(generator):
            close(call(hotk.HessianOperator(f, X)), truth(np.asarray(drawn(X) * X)))


class Number:
    scale = 2.0

    def __call__(self, x):
        return self.scale * jnp.sum(x**3) / 6


class Array:
    scale = np.full(3, 2.0)

    def __call__(self, x):
        return jnp.sum(type(self).scale * x**3) / 6


@contextlib.contextmanager
def scaled(model, scale):
    before = model.scale
    model.scale = scale * np.ones(3) if model is Array else scale
    try:
        yield
    finally:
        model.scale = before


@pytest.mark.thinned(2)
@pytest.mark.parametrize("model", [Number, Array])
@each_call
def test_a_class_that_changed_before_the_first_trace(call, truth, model):
    early = hotk.HessianOperator(model(), X)
    with scaled(model, 4.0):
        close(call(early), truth(np.asarray(4 * X)))
    close(call(early), truth(np.asarray(2 * X)))
    close(call(hotk.HessianOperator(model(), X)), truth(np.asarray(2 * X)))
    with scaled(model, 3.0):
        close(call(hotk.HessianOperator(model(), X)), truth(np.asarray(3 * X)))


@pytest.mark.parametrize("model", [Number, Array])
def test_a_class_seen_again_compiles_nothing(model):
    def both():
        for scale in (2.0, 4.0):
            with scaled(model, scale):
                hotk.HessianOperator(model(), X).solve(V)

    both()
    with compiles() as count:
        both()
    assert count() == 0


class Opened(Number):
    pass


@pytest.mark.parametrize("call", [lambda H: H @ V, lambda H: H.matrix()])
def test_a_class_that_no_walk_follows_any_more_is_named(call):
    H = hotk.HessianOperator(Opened(), X)
    numbers = iter((4.0, 5.0))
    Opened.scale = property(lambda self: next(numbers))
    try:
        with pytest.raises(hotk.PreparationError, match=r"Opened.*(\n.*)*iterator"):
            call(H)
    finally:
        del Opened.scale


def test_shapes_alone_are_asked_for_under_each_setting():
    def f(x):
        return jnp.sum(drawn(x) * x**3) / 6

    sizes = []
    for generator in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(generator):
            sizes.append(hotk.HessianOperator(f, X).linearize("store").bytes)
    assert sizes[0] == sizes[1]
