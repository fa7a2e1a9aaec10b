"""Trials of trust regions by truncated conjugate gradients."""

from collections.abc import Mapping

import jax.numpy as jnp

from hotk._core import Gradient, Scalar, Tangent
from hotk.linop import AbstractOperator, Reason, space, steihaug

from ._globalized import Trial


def truncated(
    hessian: AbstractOperator,
    M: AbstractOperator | None,
    gradient: Gradient,
    size: Scalar,
    limits: Mapping[str, Scalar],
    largest: Scalar,
    radius: Scalar,
) -> Trial:
    """Propose the step by conjugate gradients, without a radius their first one.

    In a region as large as the first step the others would add nothing to it. So its
    product is the one that the radius would have cost, and the Hessian stands in the
    program once. `size` is the norm of the gradient.
    """
    first = radius <= 0
    # finite in units of the gradient: a step to this boundary is scaled below
    huge = jnp.finfo(size.dtype).max ** 0.9
    widest = jnp.minimum(largest, huge * jnp.minimum(size, 1))
    steps = jnp.where(first, 1, limits["max_steps"])
    found = steihaug(
        hessian,
        gradient,
        jnp.where(first, widest, radius),
        preconditioner=M,
        tol=limits["tol"],
        max_steps=steps,
        verify=False,
    )
    bounded = found.reason == Reason.boundary
    bounded |= (found.reason == Reason.negative_curvature) | first
    # Without positive curvature there is no such step: one of length one is tried.
    bent = first & ~(found.curvature > 0)
    length = jnp.minimum(largest, 1)
    share = jnp.where(bent, length / jnp.where(widest > 0, widest, 1), 1)
    step = space.times(share, space.widened(found.x))
    if M is None:  # along -g, by numbers: a vector less is kept
        model = length * (length * found.curvature / 2 - size)
    else:
        slope = space.inner(gradient, step)
        model = slope + found.curvature * space.inner(step, step) / 2
    return Trial(
        step,
        jnp.where(bent, model, found.model),
        bounded,
        found.iterations,
        found.curvature,
        jnp.zeros_like(found.model),
        jnp.where((found.reason == Reason.converged) & ~first, 0, jnp.inf),
    )


def length_along(M: AbstractOperator, gradient: Gradient, step: Tangent) -> Scalar:
    r"""Return the length of a step along -M g in the norm of the inverse of M.

    It is $\sqrt{s^T M^{-1} s} = |g^T s| / \sqrt{g^T M g}$, without that inverse.
    """
    product = M.mv(space.narrowed(gradient, M.like))
    size = jnp.sqrt(jnp.maximum(space.inner(gradient, product), 0))
    return jnp.abs(space.inner(gradient, step)) / jnp.where(size > 0, size, 1)
