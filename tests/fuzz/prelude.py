"""The names a random program may use; a printed program starts by importing them."""

import functools as functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax as lax


class Affine(eqx.Module):
    """A module with two arrays and one static number."""

    weight: jax.Array
    bias: jax.Array
    power: int = eqx.field(static=True)

    def __call__(self, t):
        return jnp.tanh(self.weight @ t + self.bias) ** self.power


class Spring(eqx.Module):
    """A module whose bound method is captured."""

    stiffness: jax.Array

    def force(self, t):
        return jnp.sin(self.stiffness * t)


def scaled(a):
    """Return a function that captures an array."""
    return lambda t: t * a


def nested(a, k):
    """Return a function that captures a function that captures an array."""
    inner = scaled(a)
    return lambda t: jnp.sin(k * inner(t)) + inner(t)


def weighted(t, a, power=2):
    """Be partially applied."""
    return a * jnp.tanh(t) ** power


@jax.custom_jvp
def wave(t):
    """A sine that brings its own forward rule."""
    return jnp.sin(t)


@wave.defjvp
def _wave_jvp(primals, tangents):
    [t], [dt] = primals, tangents
    return wave(t), jnp.cos(t) * dt


@jax.custom_vjp
def bump(t):
    """A Gaussian bump that brings its own reverse rule."""
    return t * jnp.exp(-t * t)


bump.defvjp(
    lambda t: (t * jnp.exp(-t * t), t),
    lambda t, g: (g * (1 - 2 * t * t) * jnp.exp(-t * t),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def root_of_square(shift, t):
    """A smooth absolute value with an argument that is not differentiated."""
    return jnp.sqrt(shift + t * t)


root_of_square.defvjp(
    lambda shift, t: (jnp.sqrt(shift + t * t), t),
    lambda shift, t, g: (g * t / jnp.sqrt(shift + t * t),),
)


def forward_ruled(a):
    """Return a function with a forward rule; both capture an array."""

    @jax.custom_jvp
    def damped(t):
        return jnp.sin(a * t)

    damped.defjvp(lambda p, d: (damped(p[0]), a * jnp.cos(a * p[0]) * d[0]))
    return damped


def reverse_ruled(a):
    """Return a function with a reverse rule; both capture an array."""

    @jax.custom_vjp
    def damped(t):
        return jnp.cos(a * t)

    damped.defvjp(
        lambda t: (jnp.cos(a * t), t),
        lambda t, g: (-g * a * jnp.sin(a * t),),
    )
    return damped


@jax.jit
def jitted(t):
    """A jitted function of a module."""
    return jnp.arctan(t) * t


class raw:
    """The operators that programs nest, by raw JAX."""

    @staticmethod
    def gradient(f, x, *args):
        return jax.grad(f)(x, *args)

    @staticmethod
    def jvp(f, x, v, *args):
        return jax.jvp(lambda x: f(x, *args), (x,), (v,))[1]

    @staticmethod
    def hvp(f, x, v, *args):
        return raw.jvp(jax.grad(lambda x: f(x, *args)), x, v)


def shifted(start, a):
    """Return a NumPy array that is a view with another stride."""
    return np.repeat(np.asarray(a), 2)[start::2]
