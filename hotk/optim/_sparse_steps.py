"""Steps by factors of a sparse Hessian: computed on the host, within a trace."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from hotk._core import Gradient, Scalar, called_on_host
from hotk.linop import AbstractOperator, space
from hotk.sparse import Shifted, SparseMatrix

from ._globalized import Trial
from ._linear_solver import LinearSolver, sparse_system
from ._local import AtPoint
from ._secular import Cubic, Region, minimizer
from ._subproblem import EigenModel, Metric, along_variables, eigenmodel


Results: TypeAlias = tuple[tuple[np.ndarray, ...], int]
"""Vectors and numbers; then how many factorizations there were."""


def exactly(
    local: AtPoint,
    hessian: AbstractOperator,
    gradient: Gradient,
    scale: Float[Array, " n"],
    adapts: Scalar,
    linear_solver: str,
    *,
    sparse: type[Region | Cubic],
    dense: Callable[[EigenModel], Callable[[Any], Trial]],
) -> tuple[Metric, LinearSolver, Callable[[Any], Trial]]:
    """Return how an exact subproblem is measured and solved.

    Args:
        local: The objective at the point.
        hessian: Its Hessian.
        gradient: Its gradient.
        scale: The scale of the metric before.
        adapts: Whether it follows the curvature.
        linear_solver: What the optimizer was told.
        sparse: The subproblem, for a sparse Hessian.
        dense: From the eigenvectors to a function as that returned.

    Returns:
        The metric, the solver, and a function from a radius or a weight to the
        minimizer of the model.
    """
    matrix = sparse_system(local, linear_solver)
    if matrix is None:
        found = eigenmodel(hessian, gradient, scale, adapts, local.x)
        return found.metric, LinearSolver.dense, dense(found)
    diagonal = space.flattened(matrix.diagonal())
    metric = Metric.of(hessian, diagonal, gradient, scale, adapts, local.x)
    return metric, LinearSolver.sparse, _proposal(matrix, metric, sparse)


def in_units(matrix: SparseMatrix, unit: Float[Array, " n"]) -> SparseMatrix:
    r"""Return $D^{-1} H D^{-1}$ for the diagonal matrix D."""
    values = matrix.values / unit[matrix.rows] / unit[matrix.cols]
    return SparseMatrix(values, matrix.pattern)


def newton_step(
    matrix: SparseMatrix, g: Float[Array, " n"], damping: Scalar, least: Scalar
) -> tuple[Array, Array, Array]:
    r"""Solve $(H + \tau I) p = g$ for the first $\tau$ that makes it definite.

    Returns:
        The step, $\tau$, and how many factorizations it took.
    """

    def compute(shifted: Shifted, g: np.ndarray, tau: float, least: float) -> Results:
        diagonal = shifted.diagonal
        beta = least * float(abs(diagonal).max(initial=0.0)) or least
        lowest = float(diagonal.min(initial=0.0))
        factors, attempts = shifted.definite(tau), 1
        while factors is None and attempts < 100:
            tau = max(2 * tau, beta, beta - lowest)
            factors, attempts = shifted.definite(tau), attempts + 1
        p = np.full_like(g, np.nan) if factors is None else factors.solve(g)
        return (p, np.asarray(tau)), attempts

    p, tau, count = _on_host(compute, 1, matrix, g, damping, least)
    # What is not finite is not damped, as by the dense solver.
    return p, jnp.where(jnp.isfinite(tau), tau, damping.astype(tau.dtype)), count


def _proposal(
    matrix: SparseMatrix, metric: Metric, where: type[Region | Cubic]
) -> Callable[[Any], Trial]:
    """Return a function from a radius, or a weight, to the minimizer of the model."""
    scaled = in_units(matrix, metric.unit)

    def compute(shifted: Shifted, g: np.ndarray, control: float) -> Results:
        kind = where(control)
        s, shift, lowest, along, count = minimizer(shifted, g, kind)
        slope = g + shifted.matrix @ s
        model = float((g + slope) @ s / 2)
        size = float(np.linalg.norm(s))
        cubic = isinstance(kind, Cubic)
        model += control * size**3 / 3 if cubic else 0.0
        bounded = 0.0 if cubic else float(size >= 0.99 * control)
        numbers = (s, slope, along, model, bounded, lowest, shift)
        return tuple(map(np.asarray, numbers)), count

    def propose(control: Scalar) -> Trial:
        s, slope, along, model, bounded, lowest, shift, count = _on_host(
            compute, 4, scaled, metric.gradient, control, vectors=3
        )
        lowest = metric.curvature(lowest, along)
        rest = along_variables(slope, space.flattened(scaled.diagonal()))
        return Trial(metric.step(s), model, bounded > 0, count, lowest, shift, rest)

    return propose


def damped_proposal(
    matrix: SparseMatrix, gradient: Gradient, unit: Float[Array, " n"]
) -> Callable[[Any], Trial]:
    r"""Return a function from a damping to the step with it, zero if it is too small.

    The step is $-(G + \lambda D^2)^{-1} g$, where D has the entries of `unit`.
    """
    like = space.widened(gradient)
    scaled, flat = in_units(matrix, unit), space.flattened(like) / unit

    def compute(shifted: Shifted, g: np.ndarray, damping: float) -> Results:
        factors = shifted.definite(damping)
        s = np.zeros_like(g) if factors is None else -factors.solve(g)
        form, square = float(s @ (shifted.matrix @ s)), float(s @ s)
        # Of a matrix without factors it is known that some curvature is as low.
        curvature = form / square if square > 0 else -damping
        numbers = (s, float(g @ s) + form / 2, curvature)
        return tuple(map(np.asarray, numbers)), 1

    def propose(damping: Scalar) -> Trial:
        s, model, curvature, count = _on_host(compute, 2, scaled, flat, damping)
        bounded = jnp.zeros((), bool)
        step = space.unflattened(s / unit, like)
        return Trial(step, model, bounded, count, curvature, damping)

    return propose


def _on_host(
    compute: Callable[..., Results],
    floats: int,
    matrix: SparseMatrix,
    g: Float[Array, " n"],
    *numbers: Scalar,
    vectors: int = 1,
) -> tuple[Array, ...]:
    """Compute vectors, some floating numbers and a count, on the host.

    Where what goes in is not finite, or the vector is zero, nothing is factorized: what
    comes out is NaN, or zero.
    """
    dtype = np.dtype(g.dtype)

    def host(
        values: npt.ArrayLike, g: npt.ArrayLike, *numbers: npt.ArrayLike
    ) -> tuple[np.ndarray, ...]:
        v, right = np.asarray(values, np.float64), np.asarray(g, np.float64)
        given = [float(np.asarray(number)) for number in numbers]
        finite = all(np.isfinite(a).all() for a in (v, right, given))
        if finite and right.any():
            results, count = compute(Shifted(matrix.pattern, v), right, *given)
        else:
            none = 0.0 if finite else np.nan
            vector = np.full(right.shape, none)
            results = (*[vector] * vectors, *[np.asarray(none)] * floats)
            count = 1
        return *(a.astype(dtype) for a in results), np.asarray(count, np.int32)

    types = (
        *[jax.ShapeDtypeStruct(g.shape, dtype)] * vectors,
        *[jax.ShapeDtypeStruct((), dtype)] * floats,
        jax.ShapeDtypeStruct((), np.dtype("int32")),
    )
    arguments = (matrix.values, g, *[jnp.asarray(n, dtype) for n in numbers])
    return called_on_host(host, types, *arguments)
