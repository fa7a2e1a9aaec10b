r"""A loss of a model with the curvature of the model left out: its Hessian is the GGN.

Replace a model by its linearization *at the point where it is evaluated*: value and
gradient stay what they are, and the second derivative is that of the loss alone,
$J^T \nabla^2 L\, J$. So every operator of second order, applied to such a function, is
one for the generalized Gauss-Newton matrix.
"""

import functools
from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import PyTree

from hotk._core import (
    ClosedJaxpr,
    Cotangent,
    Function,
    Leaf,
    Point,
    Scalar,
    Tangent,
    trace_once,
)
from hotk._primitive import (
    held,
    with_forward_rule,
)

from ._cox import CoxLoss
from ._losses import AbstractLoss, SquaredError
from ._outputs import as_outputs
from ._sample_rows import roots_of, roots_of_squares, with_rows


@final
class GaussNewton(eqx.Module):
    r"""The function `loss(model(x, *args))` whose Hessian is the Gauss-Newton matrix.

    Value and gradient are those of the composition. Its Hessian is $J^T H_L J$, with
    the Jacobian $J$ of the model and the Hessian $H_L$ of the loss at the model's
    output: the second derivatives of the model are left out.

    Attributes:
        model: Function `model(x, *args)` that returns a tree of floating arrays.
        loss: Function of that tree that returns one real number. The losses of
            `hotk.curvature` have their Hessians in closed form.

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

    model: Function
    loss: Callable[[PyTree], Scalar]

    def __call__(self, x: Point, *args: PyTree) -> Scalar:
        """Return the value of the loss.

        Args:
            x: The point.
            *args: Further arguments of the model.
        """
        z = linearized(self.model, x, args)
        if isinstance(self.loss, (AbstractLoss, CoxLoss)):
            loss = self.loss
            value = with_curvature(loss(z), z, loss.gradient, loss.hessian_product)
            if not (isinstance(loss, AbstractLoss) and loss.convex):
                return value
            squares = isinstance(loss, SquaredError)
            roots = lambda z: (
                roots_of_squares(loss.slope(z, loss.targets), loss.factor(z))
                if squares
                else roots_of(z, loss.gradient(z), lambda u: loss.hessian_product(z, u))
            )
            return with_rows(value, self.model, x, args, roots, squares=squares)
        return self.loss(z)


def linearized(model: Function, x: Point, args: tuple[PyTree, ...]) -> PyTree:
    """Evaluate a model so that its second derivative is zero.

    With $x_0$ the point, held fixed for two derivatives, it is $f(x_0) + J(x_0) (x -
    x_0)$: the step is zero, and its derivative is not. From the third derivative on it
    is a function of $x_0$ as well, so products with the matrix have derivatives.
    """
    differentiated, rest = eqx.partition(x, eqx.is_inexact_array)
    fixed = held(differentiated)
    step = jax.tree.map(jnp.subtract, differentiated, fixed)
    at = lambda p: model(eqx.combine(p, rest), *args)
    closed, shapes = trace_once(at, fixed, kept=False)  # the model itself runs once
    z, tangent = _value_and_tangent(closed, shapes, fixed, step)
    z = jax.tree.map(_with_tangent, z, tangent)
    return as_outputs(z, jax.tree.leaves(differentiated), closed.consts)


def _value_and_tangent(
    closed: ClosedJaxpr, shapes: PyTree, x: Point, v: Tangent
) -> tuple[PyTree, Tangent]:
    """Return the value and the derivative along `v`, linear in `v` in any mode."""
    tree = jax.tree.structure(shapes)
    of_leaves = with_forward_rule(closed, jax.tree.leaves(x))
    run = lambda x: tree.unflatten(of_leaves(*jax.tree.leaves(x)))
    return jax.jvp(run, (x,), (v,))


@jax.custom_jvp
def _with_tangent(value: PyTree, tangent: PyTree) -> PyTree:
    """Return `value`, with the derivative of the sum of both.

    The tangent is zero in value. Added to the value it would cost a forward pass of the
    model in each evaluation; so XLA drops it where nothing is differentiated.
    """
    del tangent
    return value


@functools.partial(_with_tangent.defjvp, symbolic_zeros=True)
def _(primals: tuple[PyTree, PyTree], tangents: tuple[PyTree, PyTree]) -> tuple:
    # by itself again, so that the next derivative has this rule as well
    return _with_tangent(*primals), jax.tree.map(_sum, *tangents)


def _sum(a: Leaf | SymbolicZero, b: Leaf | SymbolicZero) -> Leaf | SymbolicZero:
    if isinstance(a, SymbolicZero):
        return b
    return a if isinstance(b, SymbolicZero) else a + b


def with_curvature(
    value: Scalar,
    z: PyTree,
    gradient: Callable[[PyTree], Cotangent],
    product: Callable[[PyTree, Tangent], Cotangent],
) -> Scalar:
    """Return a value with the given gradient and second derivative by `z`.

    Args:
        value: The value.
        z: What it depends on: a tree of arrays.
        gradient: From `z` to the gradient.
        product: From `z` and a direction to the product with a symmetric matrix.
    """
    fixed = held(z)
    step = jax.tree.map(jnp.subtract, z, fixed)
    # gradient(z0) + B (z - z0): the value of the gradient, with the derivative B
    moving = jax.tree.map(jnp.add, gradient(fixed), product(fixed, step))
    return _with_gradient(value, moving, z)


@jax.custom_jvp
def _with_gradient(value: Scalar, gradient: Cotangent, z: PyTree) -> Scalar:
    del gradient, z
    return value


@_with_gradient.defjvp
def _(
    primals: tuple[Scalar, Cotangent, PyTree], tangents: tuple[PyTree, PyTree, PyTree]
) -> tuple[Scalar, Scalar]:
    _, gradient, _ = primals
    value = _with_gradient(*primals)
    parts = jax.tree.map(lambda a, b: jnp.sum(a * b), gradient, tangents[2])
    total = sum(jax.tree.leaves(parts), start=jnp.zeros_like(value))
    return value, total.astype(value.dtype)
