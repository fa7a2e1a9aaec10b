"""Functions as people write them, and the same formulas in elementary operations.

Only the elementary ones are differentiated for what is expected, by plain JAX: of them
every derivative exists in every mode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Map(NamedTuple):
    """A smooth map of three numbers to three numbers, written in two ways.

    Attributes:
        written: As people write it.
        elementary: The same in sums, products and quotients.
        reverse: Whether JAX has a reverse mode of `written`.
    """

    written: Callable[[Any], Any]
    elementary: Callable[[Any], Any]
    reverse: bool = True


def _grow(x):
    """Grow by a tenth, three times, in a loop whose length JAX does not know."""
    step = lambda state: (state[0] + 1, state[1] * 1.1)
    return lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]


@jax.custom_vjp
def _bend(x):
    return x + x**2 / 8


_bend.defvjp(lambda x: (_bend(x), x), lambda x, g: (g * (1 + x / 4),))


@jax.custom_jvp
def _bend_forward(x):
    return x + x**2 / 8


@_bend_forward.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _bend_forward(x), t * (1 + x / 4)


def _solved(x):
    return jnp.linalg.solve(jnp.diag(2 + x) + jnp.full_like(jnp.diag(x), 0.25), x)


def _solved_by_hand(x):
    """Solve with a diagonal and a matrix of rank one, by Sherman and Morrison."""
    inverse = 1 / (2 + x)
    along = jnp.sum(inverse * x) / 4 / (1 + jnp.sum(inverse) / 4)
    return inverse * x - along * inverse


def _gathered(x):
    return x[jnp.array([2, 0, 1])] + x[jnp.argsort(jnp.array([0.2, 0.1, 0.3]))] / 2


def _gathered_by_hand(x):
    return jnp.stack([x[2] + x[1] / 2, x[0] + x[0] / 2, x[1] + x[2] / 2])


def _scanned(x):
    """Return sums of all squares so far."""
    step = lambda total, a: (total + a**2 / 8, total + a)
    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def _scanned_by_hand(x):
    a, b = x[0] ** 2 / 8, x[1] ** 2 / 8
    return jnp.stack([x[0], x[1] + a, x[2] + a + b])


def _chosen(x):
    return lax.cond(x[0] > -(10.0**9), lambda x: x * (1 + x / 8), lambda x: -x, x)


MAPS = {
    "elementary": Map(lambda x: x, lambda x: x),
    "while_loop": Map(_grow, lambda x: 1.331 * x, reverse=False),
    "custom_vjp": Map(_bend, lambda x: x + x**2 / 8),
    "custom_jvp": Map(_bend_forward, lambda x: x + x**2 / 8),
    "linear solve": Map(_solved, _solved_by_hand),
    "gather": Map(_gathered, _gathered_by_hand),
    "scan": Map(_scanned, _scanned_by_hand),
    "cond": Map(_chosen, lambda x: x + x**2 / 8),
}


def energy(x):
    """Return a number whose Hessian is positive definite near the points below."""
    mixed = x[0] * x[1] ** 2 * x[2] / 8
    return jnp.sum(x**2) + jnp.sum(x**3) / 16 + jnp.sum(x**4) / 32 + mixed


def outputs(x):
    """Return three numbers that each depend on another part of `x`."""
    return jnp.stack(
        [x[0] * x[1] + x[0], x[1] ** 3 / 8 + x[1], x[2] * x[0] ** 2 + x[2]]
    )


POINT = (0.5, -0.25, 0.75)
DIRECTION = (1.0, -2.0, 0.5)
WEIGHTS = (0.75, -0.5, 0.25)


class Subject(NamedTuple):
    """A function and a map at a point, in the units of one user.

    Attributes:
        f: Three numbers to one.
        model: Three numbers to three.
        reverse: Whether JAX has a reverse mode of both.
    """

    f: Callable[[Any], Any]
    model: Callable[[Any], Any]
    reverse: bool


def subject(inner: Callable[[Any], Any], reverse: bool, units: float) -> Subject:
    """Return functions of variables and with values in these units."""
    return Subject(
        lambda x: energy(inner(x / units)) * units,
        lambda x: outputs(inner(x / units)) * units,
        reverse,
    )
