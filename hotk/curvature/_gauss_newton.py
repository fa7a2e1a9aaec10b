r"""A loss of a model with the curvature of the model left out: its Hessian is the GGN.

One idea carries the floor. Replace a model by its linearization *at the point where it
is evaluated*: value and gradient stay what they are, and the second derivative is that
of the loss alone, $J^T \nabla^2 L\, J$. So every operator of second order, applied to
such a function, is one for the generalized Gauss-Newton matrix.
"""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp

from hotk._core import equations, jaxpr_as_fun, trace_once

from ._losses import AbstractLoss


@final
class GaussNewton(eqx.Module):
    r"""The function `loss(model(x, *args))` whose Hessian is the Gauss-Newton matrix.

    Value and gradient are those of the composition. Its Hessian is $J^T H_L J$, with
    the Jacobian $J$ of the model and the Hessian $H_L$ of the loss at the model's
    output: the second derivatives of the model are left out.

    Attributes:
        model: Function `model(x, *args)` that returns a tree of floating arrays.
        loss: Function of that tree that returns one real number. One of those in
            `hotk.curvature` brings its Hessian in closed form.

    Example:
        >>> f = hotk.curvature.GaussNewton(jnp.sin, lambda z: jnp.sum(z**2) / 2)
        >>> x = jnp.array([0.0, 1.0])
        >>> jnp.allclose(hotk.hessian(f, x), jnp.diag(jnp.cos(x) ** 2)).item()
        True
        >>> jnp.allclose(hotk.gradient(f, x), jnp.sin(x) * jnp.cos(x)).item()
        True

    References:
        Schraudolph (2002). Fast curvature matrix-vector products for second-order
            gradient descent. Neural Computation 14(7), 1723-1738. Section 3.
    """

    model: Callable[..., Any]
    loss: Callable[[Any], Any]

    def __call__(self, x: Any, *args: Any) -> Any:
        """Return the value of the loss."""
        z = linearized(self.model, x, args)
        if isinstance(self.loss, AbstractLoss):
            loss = self.loss
            return with_curvature(loss(z), z, loss.gradient, loss.hessian_product)
        return self.loss(z)


def linearized(model: Callable[..., Any], x: Any, args: Any) -> Any:
    """Evaluate a model so that its second derivative is zero."""
    moving, rest = eqx.partition(x, eqx.is_inexact_array)
    fixed = jax.lax.stop_gradient(moving)
    step = jax.tree.map(jnp.subtract, moving, fixed)
    at = lambda p: model(eqx.combine(p, rest), *args)
    z, slope = _slope(at, fixed, step)
    return jax.tree.map(_with_tangent, z, slope)


def _slope(at: Callable[[Any], Any], x: Any, v: Any) -> tuple[Any, Any]:
    """Return the value and the derivative along `v`, linear in `v` in any mode."""
    closed, shapes = trace_once(at, x, kept=False)  # the model itself runs once
    tree = jax.tree.structure(shapes)
    run = lambda x: tree.unflatten(jaxpr_as_fun(closed)(*jax.tree.leaves(x)))
    names = [e.primitive.name for e in equations(closed.jaxpr)]
    if not any(name.startswith("custom_vjp") for name in names):
        return jax.jvp(run, (x,), (v,))
    # there is no forward rule: what is pulled back is linear, so turn that around
    z, pull = jax.vjp(run, x)
    return z, jax.linear_transpose(lambda u: pull(u)[0], z)(v)[0]


@jax.custom_jvp
def _with_tangent(value: Any, slope: Any) -> Any:
    """Return `value`, with the derivative of `slope`, which is not computed itself."""
    del slope
    return value


@_with_tangent.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _with_tangent(*primals), tangents[1]  # called again: for the next order


def with_curvature(
    value: Any,
    z: Any,
    gradient: Callable[[Any], Any],
    product: Callable[[Any, Any], Any],
) -> Any:
    """Return `value`, with a gradient and a second derivative by `z` that are given.

    Args:
        value: The value.
        z: What it depends on: a tree of arrays.
        gradient: From `z` to the gradient.
        product: From `z` and a direction to the product with a symmetric matrix.
    """
    fixed = jax.lax.stop_gradient(z)
    step = jax.tree.map(jnp.subtract, z, fixed)
    first = jax.lax.stop_gradient(gradient(fixed))
    slope = jax.tree.map(jnp.add, first, product(fixed, step))
    return _with_gradient(jax.lax.stop_gradient(value), slope, z)


@jax.custom_jvp
def _with_gradient(value: Any, slope: Any, z: Any) -> Any:
    del slope, z
    return value


@_with_gradient.defjvp
def _(primals: Any, tangents: Any) -> Any:
    _, slope, _ = primals
    value = _with_gradient(*primals)
    parts = jax.tree.map(lambda a, b: jnp.sum(a * b), slope, tangents[2])
    total = sum(jax.tree.leaves(parts), start=jnp.zeros_like(value))
    return value, total.astype(value.dtype)
