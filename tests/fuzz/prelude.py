"""The names a random program may use; a printed program starts by importing them."""

import collections
import dataclasses
import functools as functools
import re as re
import types as types
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax as optax
from jax import (
    checkpoint as checkpoint,
    grad as grad,
    jit as jit,
    lax as lax,
    value_and_grad as value_and_grad,
    vmap as vmap,
)
from jax.lax import (
    associative_scan as associative_scan,
    cond as cond,
    fori_loop as fori_loop,
    scan as scan,
)


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


TABLE = jnp.linspace(0.5, 1.5, 3)


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen class with numbers and a name, as options are kept."""

    scale: float
    kind: str = "sin"

    def __call__(self, t):
        return self.scale * getattr(jnp, self.kind)(t)


class Row(NamedTuple):
    """A named tuple of an array and a number."""

    weight: jax.Array
    shift: float


class Weighted:
    """An object whose class reads an array of the module."""

    def __init__(self, power):
        self.power = power
        self.history = []

    def __call__(self, t):
        return jnp.sum(TABLE).astype(t.dtype) * t**self.power


def counted(a):
    """Return what the standard library holds: a dict with a default."""
    made = collections.defaultdict(float)
    made["s"] = a
    return made


def decay(rate):
    """Return a schedule of optax, a closure of that library."""
    return optax.exponential_decay(rate, 5, 0.9)


# ----- What fills a cache when it is called first


class Lazy:
    """An object that fills an attribute when it needs it."""

    def __init__(self, a):
        self.a = a
        self.grid = None

    def __call__(self, t):
        if self.grid is None:
            self.grid = jnp.sin(jnp.linspace(0.0, 1.0, t.size)) + self.a
        return t * self.grid


class Property:
    """An object with an attribute that Python computes once."""

    def __init__(self, a):
        self.a = a

    @functools.cached_property
    def grid(self):
        return jnp.cos(self.a) + 1.0

    def __call__(self, t):
        return jnp.tanh(t * self.grid)


def memoized(a):
    """Return a function with a table by `functools.lru_cache`."""

    @functools.lru_cache
    def grid(n):
        return jnp.linspace(0.1, 1.0, n) + a

    return lambda t: t * grid(t.size)


def tabulated(a):
    """Return a function that keeps what it computed in a dict."""
    table = {}

    def at(t):
        if t.size not in table:
            table[t.size] = jnp.linspace(0.1, 1.0, t.size) * a
        return jnp.sin(t) * table[t.size]

    return at


def class_cached(a):
    """Return an object that fills a table of its class."""

    class Basis:
        table: dict = {}  # noqa: RUF012 (shared on purpose)

        def __call__(self, t):
            if t.size not in Basis.table:
                Basis.table[t.size] = jnp.linspace(0.2, 1.0, t.size) * a
            return t * Basis.table[t.size]

    return Basis()


def module_cached(a):
    """Return a module of equinox with a table beside its class."""
    table = {}

    class Basis(eqx.Module):
        scale: jax.Array

        def __call__(self, t):
            if t.size not in table:
                table[t.size] = jnp.linspace(0.2, 1.0, t.size)
            return t * table[t.size] * self.scale

    return Basis(a)
