"""Whether a curvature that is given may be that of the potential."""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    CurvatureMismatchWarning,
    Function,
    Tracer,
    Vector,
    message,
)
from hotk._first import value_and_gradient
from hotk._prepared import user_level
from hotk.linop import space

from ._forms import Precision
from ._parameters import vector_of


# A Gauss-Newton matrix and the Hessian, or Kronecker factors and their matrix, differ
# by small factors along random directions; means and sums of N examples by N.
_MOST = 10.0
_DIRECTIONS = 3


def warn_of_mismatch(
    precision: Precision,
    potential: Function,
    parameters: Vector,
    rest: PyTree,
    args: tuple[PyTree, ...],
    gradient: Vector,
    *,
    priors: list[Array] | None,
    where: Any,
) -> None:
    r"""Warn if a curvature is far from that of the potential along random directions.

    The second derivative of the potential along a direction is a difference of two
    gradients, whose program is compiled already: it is compared by orders of magnitude.
    Inside of a transformation nothing is compared.

    Args:
        precision: The curvature, and what potential and curvature are multiplied with.
        potential: The potential.
        parameters: The parameters at the mode.
        rest: What of the mode is no parameter.
        args: Further arguments of the potential.
        gradient: The gradient at the mode.
        priors: For each leaf the precision that is added to the curvature, and not to
            the potential.
        where: Which leaves are parameters.
    """
    curvature, scale = precision.curvature, precision.scale
    given = (curvature, parameters, args, gradient, scale, priors)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(given)):
        return
    rounding = max(
        float(jnp.max(jnp.abs(a), initial=0)) * float(jnp.finfo(a.dtype).eps)
        for a in jax.tree.leaves(parameters)
    )
    of_potential = of_curvature = of_prior = 0.0
    for key in jax.random.split(jax.random.key(0), _DIRECTIONS):
        drawn = space.random(key, parameters, signs=True)
        v = space.narrowed(drawn, parameters)
        along = float(scale) * float(space.inner(v, curvature @ v))
        pairs = zip(priors or [], jax.tree.leaves(v), strict=False)
        added = sum(float(t) * float(space.inner(a, a)) for t, a in pairs)
        total = along + added
        if not 0 < total < math.inf:
            return
        # A hundredth of a standard error, and more than rounding.
        step = max(0.01 / math.sqrt(total), 100 * rounding)
        step_along = lambda a, b, t=step: a + jnp.asarray(t, a.dtype) * b
        moved = jax.tree.map(step_along, parameters, v)
        point = eqx.combine(moved, rest)
        _, slope = value_and_gradient(potential, point, *args, where=where)
        change = space.inner(space.minus(vector_of(slope, parameters), gradient), v)
        of_potential += float(scale) * float(change) / step
        of_curvature += along
        of_prior += added
    if not math.isfinite(of_potential):
        return
    ratio = _ratio(of_potential, of_curvature, of_prior)
    if 1 / _MOST <= ratio <= _MOST:
        return
    added = f", of which {of_prior:.3g} are the prior" if of_prior else ""
    total = of_curvature + of_prior
    amount = f"{ratio:.2g} of" if ratio < 1 else f"{ratio:.3g} times"
    fix = (
        "If one is a mean over N examples and the other a sum, make both the same: "
        '`reduction="sum"` for the loss, or `scale=N` for two means.'
    )
    if of_prior:
        fix += " The potential has the prior, with the same precision, as well."
    warnings.warn(
        message(
            precision.call,
            f"along random directions the curvature is {amount} that of the potential.",
            expected=f"{of_potential:.3g}, by differences of its gradient",
            got=f"{total:.3g}, by `curvature`{added}",
            fix=fix,
        ),
        CurvatureMismatchWarning,
        stacklevel=user_level(),
    )


def _ratio(of_potential: float, of_curvature: float, of_prior: float) -> float:
    """Return by how much two curvatures differ, without the prior if that shows it."""
    of_data = of_potential - of_prior
    if of_data > 0.1 * of_prior and of_data > 0:
        # If the data hardly count on both sides, nothing depends on them.
        if max(of_data, of_curvature) > 0.1 * of_prior:
            return of_curvature / of_data
        return 1.0
    if of_potential <= 0:
        return math.inf if of_curvature + of_prior > 0 else 1.0
    return (of_curvature + of_prior) / of_potential
