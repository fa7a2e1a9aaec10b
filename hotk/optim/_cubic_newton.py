"""`cubic_newton`: steps of a model with a cubic term whose weight adapts."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike

from hotk._core import Gradient, Scalar, Where, cond

from ._extra_args import restricted
from ._globalized import (
    GlobalizedState,
    Trial,
    globalized_step,
    initial_state,
)
from ._linear_solver import (
    DenseOrSparse,
    LinearSolver,
    check_choice,
    first_solver,
)
from ._local import AtPoint, Numbers
from ._scaling import Scaling, check_scaling, first_scale
from ._secular import Cubic
from ._sparse_steps import exactly
from ._step import of_steps, transformation
from ._subproblem import EigenModel, with_cubic
from ._transformation import Chained, Transformation, chained, scale_by_rate


@of_steps
def scale_by_cubic_newton(
    *,
    weight: ArrayLike | None = None,
    accept: ArrayLike = 0.1,
    max_rejections: ArrayLike = 40,
    linear_solver: DenseOrSparse = "auto",
    scaling: Scaling = "hessian",
) -> Transformation[GlobalizedState]:
    r"""Minimize a quadratic model plus a cubic term whose weight adapts.

    The step s minimizes $g^T s + s^T H s / 2 + \sigma \|D s\|^3 / 3$ exactly, with the
    largest $\sqrt{|H_{ii}|}$ so far in the diagonal matrix D, so that no step depends
    on the units of variables: in the eigenvectors of $D^{-1} H D^{-1}$ for a small n
    [1] (Algorithm 2.1), and by factors of $D^{-1} H D^{-1} + \lambda I$ where H is
    sparse. It is taken if the decrease of f is more than `accept` of the model's. The
    weight $\sigma$ is divided by 3 where the ratio is above 0.9, and doubled where the
    step is rejected; an update tries larger weights by itself until a step is taken.

    Args:
        weight: The first $\sigma$; if left out, the one with which a step along -g is
            regularized by a tenth of the curvature along it, which costs one product.
        accept: The least ratio for a step.
        max_rejections: After so many trials the step is zero.
        linear_solver: `"dense"`, `"sparse"`, or `"auto"`, as for `scale_by_newton`.
        scaling: D: `"hessian"`, as above; `None`, for the identity; or typical sizes of
            the variables, whose inverse is D, as for `scale_by_trust_region`.

    Returns:
        A transformation from the gradient to -s, as `scale_by_trust_region`; `control`
        in its state is the weight.

    Raises:
        ValueError: If there is no such solver or scaling, or a size is not positive.
        TypeError: If `value_fn` or `params` is missing in an update.

    Example:
        >>> f = lambda x: jnp.sum(x**4 - x**2)
        >>> transform = hotk.optim.scale_by_cubic_newton()
        >>> x = jnp.array([0.1, -0.2])
        >>> p, _ = transform.update(
        ...     jax.grad(f)(x), transform.init(x), x, value_fn=f
        ... )
        >>> bool(f(x - p) < f(x))
        True

    References:
        [1] Cartis, Gould and Toint (2011). Adaptive cubic regularisation methods for
            unconstrained optimization. Part I. Math. Program. 127, 245-295.
    """
    check_choice("cubic_newton", linear_solver, ("auto", "dense", "sparse"))
    adapts = check_scaling("cubic_newton", scaling, "hessian")
    return transformation(
        "cubic_newton",
        lambda params, numbers: initial_state(
            params,
            numbers["weight"],
            first_solver(linear_solver, LinearSolver.dense),
        )._replace(scale=first_scale("cubic_newton", scaling, params)),
        _cubic,
        {
            "weight": 0.0 if weight is None else weight,
            "accept": accept,
            "max_rejections": max_rejections,
            **adapts,
        },
        linear_solver=linear_solver,
    )


def _cubic(
    local: AtPoint,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    *,
    linear_solver: DenseOrSparse,
) -> tuple[Any, GlobalizedState]:
    near = local.linearized()
    scale = state.scale
    assert scale is not None
    metric, solver, propose = exactly(
        local,
        near.hessian,
        gradient,
        scale,
        numbers["adapts"],
        linear_solver,
        sparse=Cubic,
        dense=_with_cubic,
    )

    def adapt(weight: Scalar, ratio: Scalar, trial: Trial) -> Scalar:
        del trial
        least = jnp.finfo(weight.dtype).tiny
        lighter = jnp.where(ratio > 0.9, jnp.maximum(weight / 3, least), weight)
        return jnp.where(ratio > numbers["accept"], lighter, 2 * weight)

    def begin() -> Scalar:
        weight = metric.first_weight(local.x, numbers["adapts"])
        return weight.astype(state.control.dtype)

    goes_on = (state.control > 0) & ~metric.is_another(scale, local.x)
    step, after = globalized_step(
        local,
        near,
        gradient,
        cond(goes_on, lambda: state.control, begin),
        propose,
        adapt,
        accept=numbers["accept"],
        max_rejections=numbers["max_rejections"],
        solver=solver,
    )
    return step, after._replace(scale=metric.scale.astype(scale.dtype))


def _with_cubic(found: EigenModel) -> Callable[[Scalar], Trial]:
    products, lowest = jnp.asarray(len(found.values)), found.lowest()

    def propose(weight: Scalar) -> Trial:
        weight = weight.astype(found.values.dtype)
        s, shift = with_cubic(found, weight)
        size = jnp.linalg.norm(s)
        # in this order nothing overflows before the whole does
        model = found.model(s) + (weight * size) * size * size / 3
        bounded = jnp.zeros((), bool)
        rest = found.rest(s)
        return Trial(found.step(s), model, bounded, products, lowest, shift, rest)

    return propose


@of_steps
def cubic_newton(
    learning_rate: optax.ScalarOrSchedule = 1.0,
    *,
    weight: ArrayLike | None = None,
    accept: ArrayLike = 0.1,
    max_rejections: ArrayLike = 40,
    linear_solver: DenseOrSparse = "auto",
    scaling: Scaling = "hessian",
    where: Where = None,
) -> Chained[GlobalizedState]:
    """Minimize with adaptive cubic regularization: `scale_by_cubic_newton`, turned.

    Args:
        learning_rate: A factor of the step, or a schedule.
        weight: The first weight of the cubic term; measured if left out.
        accept: The least ratio for a step.
        max_rejections: After so many trials the step is zero.
        linear_solver: `"auto"`, `"dense"` or `"sparse"`.
        scaling: `"hessian"`, `None`, or typical sizes of the variables.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: jnp.sum(x**4 - x**2)
        >>> found = hotk.optim.minimize(f, jnp.ones(2), hotk.optim.cubic_newton())
        >>> print(f"{found.x[0]:.4f}, {found.x[1]:.4f}")
        0.7071, 0.7071
    """
    inner = scale_by_cubic_newton(
        weight=weight,
        accept=accept,
        max_rejections=max_rejections,
        linear_solver=linear_solver,
        scaling=scaling,
    )
    return restricted(chained(inner, scale_by_rate(learning_rate)), where)
