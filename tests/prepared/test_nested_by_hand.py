"""Derivatives nested by hand above the third order are told of, and what to use."""

import math
import warnings

import jax
import jax.numpy as jnp
import mpmath
import pytest

import hotk
from tests.helpers import close
from tests.higher.test_series import known, layers


X = jnp.array([0.3, -0.7])


def wave(x):
    for _ in range(8):
        x = jnp.sin(x) + jnp.tanh(x) / 2
    return x


def f(x):
    return jnp.sum(wave(x)) * x[0]


def curvature(t):
    return hotk.second_derivative(chain(0), t)


def told(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            result = call()
    return [w for w in found if w.category is hotk.NestedDerivativesWarning], result


def chain(count, g=wave):
    for _ in range(count):
        g = lambda x, g=g: hotk.derivative(g, x)
    return g


def test_four_derivatives_are_told_of_once_and_are_right():
    hotk.clear_cache()
    found, result = told(lambda: chain(4)(0.3))
    close(result, taylor_known(4))
    assert len(found) == 1
    text = str(found[0].message)
    assert "order 4" in text
    assert "hotk.derivatives(f, x, v, order=4)" in text
    assert "equations already" in text
    assert found[0].filename == __file__


def taylor_known(order):
    exact = lambda x: layers(x, mpmath.sin, mpmath.tanh, 8)
    return known(exact, 0.3, order)[order] * math.factorial(order)


def test_a_short_program_is_not_told_of():
    hotk.clear_cache()
    found, result = told(lambda: chain(4, lambda x: jnp.sin(2 * x))(0.3))
    close(result, 16 * math.sin(0.6))
    assert not found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "call",
    [
        lambda: hotk.hessian(lambda x: hotk.hvp(f, x, X) @ X, X),
        lambda: jax.jit(lambda x: hotk.hvp(lambda x: hotk.hvp(f, x, X) @ X, x, X))(X),
    ],
)
def test_two_by_two_are_four(call):
    hotk.clear_cache()
    found, _ = told(call)
    assert len(found) == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "call",
    [
        lambda: chain(3)(0.3),
        lambda: hotk.derivative(lambda t: hotk.hessian(f, t * X)[0, 0], 0.3),
        lambda: hotk.hessian(lambda x: hotk.laplacian(f, x), X),
        lambda: hotk.laplacian(lambda x: hotk.quadratic_form(f, x, X), X),
        lambda: hotk.second_derivative(curvature, 0.3),
        lambda: hotk.biharmonic(f, X),
        lambda: [chain(2)(0.3), chain(2)(0.4)],
    ],
)
def test_up_to_three_and_taylor_mode_are_not(call):
    hotk.clear_cache()
    found, _ = told(call)
    assert not found
