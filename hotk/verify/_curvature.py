"""Products with Gauss-Newton and Fisher matrices, as J^T (H (J v)) of plain JAX."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk.curvature import EmpiricalFisher, Fisher, GaussNewton, SampledFisher

from ._case import Arrays, Case


CURVATURES = (GaussNewton, Fisher, SampledFisher, EmpiricalFisher)


def curvature_product(case: Case, x: Arrays, v: Arrays) -> Arrays:
    """Multiply with the matrix of a function whose Hessian is a curvature."""
    inside: Any = case.inside
    model = lambda x: case.tree(x, inside.model)
    z, pull = jax.vjp(model, x)
    try:
        along = jax.jvp(model, (x,), (v,))[1]
    except TypeError:  # a `custom_vjp`: the transpose of the transpose
        zero = jax.tree.map(jnp.zeros_like, z)
        along = jax.vjp(lambda u: pull(u)[0], zero)[1](v)[0]
    return pull(_times(inside, z, along))[0]


def _times(inside: Any, z: PyTree, u: PyTree) -> PyTree:
    """Multiply with the curvature of the loss at an output."""
    loss = inside.loss
    if isinstance(inside, Fisher) and not loss.natural:
        return loss.fisher_product(z, u)
    if isinstance(inside, GaussNewton | Fisher):
        return jax.jvp(jax.grad(loss), (z,), (u,))[1]
    slope = jax.grad(lambda z, y: jnp.sum(_with_targets(loss, y).each(z)))
    if isinstance(inside, EmpiricalFisher):
        slopes = [slope(z, loss.targets)]
    else:
        keys = jax.random.split(inside.key, inside.samples)
        slopes = [slope(z, loss.sample(key, z)) for key in keys]
    axes = tuple(range(1, jnp.ndim(z)))
    parts = [g * jnp.sum(g * u, axis=axes, keepdims=True) for g in slopes]
    factor = jnp.asarray(loss.factor(z) / len(slopes), parts[0].dtype)
    return factor * sum(parts[1:], start=parts[0])


def _with_targets(loss: Any, targets: PyTree) -> Any:
    return dataclasses.replace(loss, targets=targets)
