"""`Solution`: what an iterative solver found, and why it stopped."""

from typing import Any, final

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from hotk._core import AbstractReport


class Reason(eqx.Enumeration):
    """Why an iteration stopped."""

    converged = "the residual is below the tolerance"
    most_steps = "the largest number of steps was reached"
    negative_curvature = "a direction without positive curvature was met"
    boundary = "the boundary of the trust region was reached"
    not_finite = "a number that is not finite was met"
    stagnated = "rounding: the residual computed anew is above the tolerance"
    preconditioner = "the preconditioner is not positive definite"
    least_squares = "the system is singular: a least-squares solution was found"


class Method(eqx.Enumeration):
    """Which solver a solution comes from."""

    cg = "conjugate gradients"
    minres = "minimal residuals"
    steihaug = "truncated conjugate gradients"


@final
class Solution(AbstractReport):
    """What an iterative solver found for `A x = b`, and why it stopped.

    It is a pytree of arrays, so that it can be returned from `jit`, `vmap` and `scan`.

    Attributes:
        x: The solution: a vector of the space.
        iterations: How many products with the operator it took, without the last one,
            which gives the residual.
        residual: The norm of `b - A x`, computed anew at the end.
        relative: The same over the norm of `b`.
        curvature: The smallest `p' A p / p' p` along all directions of the iteration:
            an upper bound of the smallest eigenvalue. Infinity if there was none.
        direction: The direction of that curvature if it is not positive, else zero.
        model: The quadratic `x' A x / 2 - b' x` at the solution: what a step changes by
            it.
        reason: Why the iteration stopped, a member of `hotk.linop.Reason`.
        method: Which solver it was, a member of `hotk.linop.Method`.
    """

    x: Any
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    relative: Float[Array, "*batch"]
    curvature: Float[Array, "*batch"]
    direction: Any
    model: Float[Array, "*batch"]
    reason: Any
    method: Any

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether the residual is below the tolerance."""
        return self.reason == Reason.converged

    @property
    def definite(self) -> Bool[Array, "*batch"]:
        """Whether all curvature that was seen is positive.

        That a matrix is positive definite is not proved by it; that one is not, is.
        """
        return self.curvature > 0

    def _rows(self) -> list[tuple[str, ...]]:
        if self.iterations.ndim:
            return [
                ("systems", str(self.iterations.size)),
                ("converged", str(int(self.converged.sum()))),
                ("positive definite", f"not refuted for {int(self.definite.sum())}"),
                ("most iterations", str(int(self.iterations.max()))),
                ("largest relative residual", f"{float(self.relative.max()):.3g}"),
            ]
        return [
            ("method", self._say(Method, self.method)),
            ("stopped", self._say(Reason, self.reason)),
            ("iterations", str(self.iterations)),
            ("residual", f"{float(self.residual):.3g}"),
            ("relative residual", f"{float(self.relative):.3g}"),
            ("smallest curvature met", f"{float(self.curvature):.3g}"),
            ("positive definite", "not refuted" if bool(self.definite) else "no"),
            ("model", f"{float(self.model):.6g}"),
        ]

    @staticmethod
    def _say(enumeration: Any, item: Any) -> str:
        return enumeration[item]
