"""Trials by conjugate gradients: in a region, or with a damping."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from hotk._core import Gradient, Scalar, Tangent
from hotk.linop import AbstractOperator, Identity, Reason, cg, space, steihaug

from ._globalized import Trial
from ._preconditioner import KeptPreconditioner
from ._scaling import Rescaled


def truncated(
    near: Rescaled,
    M: AbstractOperator | None,
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
        near.hessian,
        near.gradient,
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
        slope = space.inner(near.gradient, step)
        model = slope + found.curvature * space.inner(step, step) / 2
    return Trial(
        near.step(step),
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


def damped(
    near: Rescaled,
    known: KeptPreconditioner,
    limits: Mapping[str, Any],
    damping: Scalar,
) -> Trial:
    """Propose the step with a damping.

    Args:
        near: The model.
        known: The preconditioner.
        limits: The relative residual and the most products, by name.
        damping: What is added to the diagonal.
    """
    found = cg(
        near.hessian + damping * Identity(),
        near.gradient,
        preconditioner=known.inverse(damping),
        verify=False,
        **limits,
    )
    s = space.times(-1, space.widened(found.x))
    # of the undamped model
    model = found.model - damping * space.inner(s, s) / 2
    convex = found.reason != Reason.negative_curvature
    return Trial(
        near.step(space.choose(convex, s, space.zeros(s))),
        jnp.where(convex, model, 0),
        jnp.zeros((), bool),
        found.iterations,
        found.curvature - damping,
        damping,
    )
