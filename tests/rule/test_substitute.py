"""Kernels without derivatives get those of a reference."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import hotk
from hotk.rule import substitute
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)
X = np.array([0.3, 0.7])


def kernel(x):
    def body(a, out):
        out[...] = jnp.sin(a[...])

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=shape, interpret=True)(x)


def loss(x):
    return jnp.sum(kernel(x) ** 2)


@pytest.mark.thinned(1)
@each_nesting
def test_a_kernel_of_pallas(mode):
    smooth = substitute({kernel: jnp.sin})(loss)
    close(smooth(jnp.asarray(X)), np.sum(np.sin(X) ** 2))
    close(hotk.hessian(smooth, X, mode=mode), np.diag(2 * np.cos(2 * X)))


def test_the_value_is_that_of_the_kernel_and_only_derivatives_of_the_reference():
    fast = jax.jit(lambda x: x**2 + 100)
    f = substitute({fast: jnp.sin})(lambda x: 2 * fast(x))
    close(f(3.0), 218.0)
    close(hotk.derivative(f, 3.0), 2 * np.cos(3.0))


def test_what_the_function_captures_is_seen_as_it_is_now():
    scale = [2.0]
    f = substitute({kernel: jnp.sin})(lambda x: jnp.sum(scale[0] * kernel(x)))
    close(hotk.gradient(f, X), 2 * np.cos(X))
    scale[0] = 3.0
    close(hotk.gradient(f, X), 3 * np.cos(X))


def test_a_fresh_function_over_new_arrays_is_not_traced_again():
    tick = itertools.count().__next__

    def make(a):
        def f(x):
            tick()
            return jnp.sum(a * kernel(x))

        return substitute({kernel: jnp.sin})(f)

    for i in range(3):
        got = hotk.gradient(make(jnp.asarray([1.0, float(i)])), X)
        close(got, np.array([1.0, i]) * np.cos(X))
    assert tick() == 1


def test_a_kernel_that_is_not_there_is_an_error(as_user):
    f = substitute({kernel: jnp.sin})(lambda x: jnp.sum(jnp.cos(x)))
    with pytest.raises(hotk.StructureError, match="kernel"):
        hotk.gradient(f, X)


step = jax.jit(lambda x, digits=2: jnp.floor(x * 10.0**digits) / 10.0**digits)


def test_options_of_a_kernel_are_passed_on():
    kernel = lambda x, *, power: jax.pure_callback(lambda x: x**power, x, x)
    reference = lambda x, *, power: x**power
    loss = lambda x: jnp.sum(kernel(x, power=3))
    found = substitute({kernel: reference})(loss)
    close(hotk.gradient(found, np.array([1.0, 2.0])), np.array([3.0, 12.0]))
    close(hotk.hessian(found, np.array([1.0, 2.0])), np.diag([6.0, 12.0]))


def test_a_kernel_that_cannot_be_replaced_is_told_of():
    class Loss:
        def __call__(self, x):
            return jnp.sum(step(x) ** 2)

    loss = Loss()
    for f in (loss, lambda x: loss(x)):
        smooth = substitute({step: lambda x: x})(f)
        with pytest.raises(hotk.StructureError, match="method"):
            hotk.gradient(smooth, jnp.array([0.3, 0.8]))
