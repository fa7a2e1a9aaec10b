"""Functions at the top of a module, as `pickle` finds them, and operators of them."""

import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hotk


SCALE = jnp.array([1.0, 2.0, 3.0])
OFFSET = np.array([0.5, 0.25, -1.0])
POWER = float(os.environ.get("TEST_POWER", "4"))
X = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(1.5)}
KEY = jax.random.key(2)


def inner(x):
    return jnp.sum(SCALE * x["a"] ** POWER)


def plain(x, c=2.0):
    return inner(x) * c * x["b"] ** 2


def of_numpy(x):
    return jnp.sum((x["a"] - OFFSET) ** 4) * x["b"]


jitted = jax.jit(plain)
short = lambda x: jnp.sum(SCALE * jnp.cosh(x["a"])) * x["b"]


@jax.checkpoint
def decorated(x):
    return plain(x)


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


sine.defjvp(lambda p, t: (sine(p[0]), jnp.cos(p[0]) * t[0]))


def with_rule(x):
    return jnp.sum(sine(SCALE * x["a"])) * x["b"] ** 2


def with_parts(x, kind, count):
    return plain(x) * (2.0 if kind == "two" else 1.0) * count


def with_key(x):
    return plain(x) * jax.random.uniform(x["key"])


def branching(x):
    return plain(x) if SCALE[0] > 0 else inner(x)


class Module(eqx.Module):
    scale: jax.Array
    power: float = 3.0

    def __call__(self, x):
        return jnp.sum(self.scale * x["a"] ** self.power) * x["b"] ** 2


class Plain:
    def __init__(self):
        self.scale = jnp.array([1.0, 2.0, 3.0])

    def loss(self, x):
        return jnp.sum(self.scale * x["a"] ** 4) * x["b"] ** 2


def model(x):
    return SCALE * x["a"] * x["b"]


def likelihood():
    return hotk.curvature.SquaredError(jnp.array([1.0, 2.0, 3.0]))


def hessian(f, *args, **named):
    return lambda: hotk.HessianOperator(f, X, *args, **named)


OPERATORS = {
    "function": hessian(plain),
    "argument": hessian(plain, 3.0),
    "NumPy": hessian(of_numpy),
    "jitted": hessian(jitted),
    "lambda with a name": hessian(short),
    "decorated": hessian(decorated),
    "rule": hessian(with_rule),
    "parts": hessian(with_parts, "two", 3),
    "key": lambda: hotk.HessianOperator(with_key, X | {"key": KEY}),
    "where": hessian(plain, where={"a": True, "b": False}),
    "module": hessian(Module(jnp.array([1.0, 2.0, 3.0]))),
    "method": hessian(Plain().loss),
    "partial": hessian(functools.partial(plain, c=jnp.array(3.0))),
    "GGN": lambda: hotk.GGNOperator(model, likelihood(), X),
    "Fisher": lambda: hotk.FisherOperator(model, likelihood(), X),
    "sampled": lambda: hotk.SampledFisherOperator(model, likelihood(), X, key=KEY),
    "empirical": lambda: hotk.EmpiricalFisherOperator(model, likelihood(), X),
    "sum": lambda: 2.0 * hessian(plain)() + hotk.Identity(),
    "linearized": lambda: hessian(plain)().linearize("store"),
}
