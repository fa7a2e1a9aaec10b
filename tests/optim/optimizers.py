"""Every optimizer of `hotk.optim`, in the one table that the tests of all of them use.

A new optimizer is one row: `test_every_optimizer_is_in_the_table` asks for it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

import hotk


# f(p) = sum(a p^2) / 2 - b p, so that the gradient is a p - b, the Hessian a.
A = {"w": jnp.array([1.0, 4.0]), "b": jnp.array(9.0, float)}
B = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(3.0, float)}
START = {"w": jnp.array([2.0, 1.0]), "b": jnp.array(-1.0, float)}


def quadratic(p, shift=0.0):
    parts = jax.tree.map(lambda a, b, p: jnp.sum(a * p**2 / 2 - b * p), A, B, p)
    return sum(jax.tree.leaves(parts)) + shift


def slope(p):
    return jax.tree.map(lambda a, b, p: a * p - b, A, B, p)


# ----- Steps from `START`, by hand


def newton(rate):
    return jax.tree.map(lambda a, g: -rate * g / a, A, slope(START))


def adahessian(rate):  # the first moments, corrected, are gradient and diagonal
    return jax.tree.map(lambda a, g: -rate * g / (a + 1e-8), A, slope(START))


def sophia(rate):
    def entry(a, g):
        return -rate * jnp.clip((1 - 0.965) * g / (0.01 * (1 - 0.99) * a), -1, 1)

    return jax.tree.map(entry, A, slope(START))


class Optimizer(NamedTuple):
    """How an optimizer is tested.

    Attributes:
        make: Makes it with as many defaults as it has.
        exact: Makes it from a learning rate, so that its step is known.
        step: From the learning rate to the step that `exact` makes of `quadratic`.
        objectives: What it is for: any objective, which then no step increases; convex
            ones, with a matrix that is positive semi-definite; noisy ones, by batches.
    """

    make: Callable[[], Any]
    exact: Callable[..., Any]
    step: Callable[[float], Any]
    objectives: Literal["any", "convex", "noisy"]


OPTIMIZERS = {
    "newton": Optimizer(hotk.optim.newton, hotk.optim.newton, newton, "any"),
    "newton_cg": Optimizer(
        hotk.optim.newton_cg,
        partial(hotk.optim.newton_cg, max_tol=1e-9),
        newton,
        "any",
    ),
    "trust_region": Optimizer(
        hotk.optim.trust_region,
        partial(hotk.optim.trust_region, radius=100.0, max_tol=1e-9),
        newton,
        "any",
    ),
    "trust_region, exact": Optimizer(
        partial(hotk.optim.trust_region, subproblem="exact"),
        partial(hotk.optim.trust_region, radius=100.0, subproblem="exact"),
        newton,
        "any",
    ),
    "cubic_newton": Optimizer(
        hotk.optim.cubic_newton,
        partial(hotk.optim.cubic_newton, weight=1e-9),
        newton,
        "any",
    ),
    "levenberg_marquardt": Optimizer(
        hotk.optim.levenberg_marquardt,
        partial(hotk.optim.levenberg_marquardt, damping=1e-12, max_tol=1e-9),
        newton,
        "convex",
    ),
    "newton, sparse": Optimizer(
        partial(hotk.optim.newton, linear_solver="sparse"),
        partial(hotk.optim.newton, linear_solver="sparse"),
        newton,
        "any",
    ),
    "trust_region, sparse": Optimizer(
        partial(hotk.optim.trust_region, subproblem="exact", linear_solver="sparse"),
        partial(
            hotk.optim.trust_region,
            radius=100.0,
            subproblem="exact",
            linear_solver="sparse",
        ),
        newton,
        "any",
    ),
    "cubic_newton, sparse": Optimizer(
        partial(hotk.optim.cubic_newton, linear_solver="sparse"),
        partial(hotk.optim.cubic_newton, weight=1e-12, linear_solver="sparse"),
        newton,
        "any",
    ),
    "levenberg_marquardt, sparse": Optimizer(
        partial(hotk.optim.levenberg_marquardt, linear_solver="sparse"),
        partial(hotk.optim.levenberg_marquardt, damping=1e-12, linear_solver="sparse"),
        newton,
        "convex",
    ),
    "natural_gradient": Optimizer(
        partial(hotk.optim.natural_gradient, 1.0),
        partial(hotk.optim.natural_gradient, damping=0.0, tol=1e-12),
        newton,
        "convex",
    ),
    "adahessian": Optimizer(
        partial(hotk.optim.adahessian, 0.1), hotk.optim.adahessian, adahessian, "noisy"
    ),
    "sophia": Optimizer(
        partial(hotk.optim.sophia, 0.02), hotk.optim.sophia, sophia, "noisy"
    ),
}


def of(*objectives):
    """Return what makes the optimizers for these objectives, by name."""
    return {
        name: row.make
        for name, row in OPTIMIZERS.items()
        if row.objectives in objectives
    }
