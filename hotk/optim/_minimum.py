"""`Minimum`: what a minimization found, and `Stop`: why it stopped."""

import functools
from math import inf
from typing import Generic, TypeVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import (
    AbstractReport,
    Enumeration,
    Gradient,
    from_host,
    in_trace,
    is_known,
    leaf_name,
)


X = TypeVar("X")
# How many leaves of the point are shown.
_LEAVES = 6


class Stop(Enumeration):
    """Why a minimization stopped."""

    converged = "the gradient is below the tolerance"
    most_steps = "the largest number of steps was reached"
    not_finite = "a number that is not finite was met: `x` is the point before it"
    orthogonal = "no step along the residuals' Jacobian makes them smaller"
    small_step = "the step is below the tolerance"
    small_change = "step and value changed by less than the tolerance"
    rounding = "the whole step of Newton's method promises less than f is rounded by"
    stuck = "no step changed the point any more"
    asked = "the callback asked for it"
    underflow = "the residuals are so small that their squares are zero: scale them"


_CONVERGED = (
    Stop.converged,
    Stop.orthogonal,
    Stop.small_step,
    Stop.small_change,
    Stop.rounding,
)


def has_converged(reason: Stop) -> Bool[Array, ""]:
    """Whether a reason to stop is a minimum, as far as was asked."""
    same = [reason == r for r in _CONVERGED]
    if in_trace() or not all(map(is_known, same)):
        return functools.reduce(jnp.logical_or, same)
    return from_host(np.any(same, axis=0))


@final
class Minimum(AbstractReport, Generic[X]):
    """What `minimize` found.

    Attributes:
        x: The point, with the structure and dtypes of the start.
        value: f there.
        gradient_norm: The Euclidean norm of the gradient there; with bounds without
            the entries that are held at one.
        steps: How many updates were made.
        reason: Why it stopped, a member of `hotk.optim.Stop`.
        history: f at the start and after each step: `steps + 1` numbers; within a
            transformation `max_steps + 1`, NaN behind the last.
        smallest_curvature: The smallest of the fields `curvature` in the states of the
            transformation along the way; infinity if it has none.
        state: The last state of the transformation.
        multipliers: With bounds the gradient where one is active, zero elsewhere: not
            negative at a lower bound and not positive at an upper one, once converged.
            A tree like `x`, `None` where that does not move; `None` without bounds.
        active: Which bound that is, as SciPy's `active_mask`: -1 at the lower one, 1 at
            the upper one, 0 within.
    """

    x: X
    value: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    steps: Int[Array, ""]
    reason: Stop
    history: Float[Array, " k"]
    smallest_curvature: Float[Array, ""]
    state: PyTree
    # `None` without bounds, which a tree may be as well.
    multipliers: Gradient = None
    active: PyTree[Int[Array, "..."]] = None

    @property
    def converged(self) -> Bool[Array, ""]:
        """Whether the gradient is below the tolerance, or the step as it was asked."""
        return has_converged(self.reason)

    def _rows(self) -> list[tuple[str, ...]]:
        if self.steps.ndim:
            return [
                ("runs", str(self.steps.size)),
                ("converged", str(int(self.converged.sum()))),
                ("most steps", str(int(self.steps.max()))),
                ("largest gradient norm", f"{float(self.gradient_norm.max()):.3g}"),
            ]
        curvature = float(self.smallest_curvature)
        return [
            ("stopped", str(self.reason)),
            ("steps", str(int(self.steps))),
            *_points(self.x),
            ("value", f"{float(self.value):.6g}"),
            ("gradient norm", f"{float(self.gradient_norm):.3g}"),
            ("smallest curvature met", f"{curvature:.3g}" if curvature < inf else "-"),
        ]


def _points(x: PyTree) -> list[tuple[str, str]]:
    """Return a row for each leaf that moves, of the first ones if there are many."""
    leaves = jax.tree_util.tree_flatten_with_path(x)[0]
    moving = [(path, leaf) for path, leaf in leaves if eqx.is_inexact_array(leaf)]
    rows = [(leaf_name("x", path), _numbers(leaf)) for path, leaf in moving[:_LEAVES]]
    left = len(moving) - _LEAVES
    return rows + ([("x ...", f"{left} leaves more")] if left > 0 else [])


def _numbers(leaf: Array) -> str:
    """Write the numbers of an array in one line, the first and last ones of many."""
    short = lambda number: f"{float(number):.6g}"
    text = np.array2string(
        np.asarray(leaf),
        threshold=6,
        edgeitems=3,
        separator=", ",
        formatter={"all": short},
    )
    return " ".join(text.split())
