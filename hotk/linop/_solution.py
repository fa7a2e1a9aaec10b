"""`Solution`: what an iterative solver found, and why it stopped."""

from typing import Generic, final

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hotk._core import AbstractReport, Enumeration, V


class Reason(Enumeration):
    """Why an iterative solver stopped: a member is an array, and its `str` the text.

    Compare with `solution.reason == hotk.linop.Reason.converged`, which works inside of
    `jit` as well.
    """

    converged = "the residual is below the tolerance"
    most_steps = "the largest number of steps was reached"
    negative_curvature = "a direction without positive curvature was met"
    boundary = "the boundary of the trust region was reached"
    not_finite = "a number that is not finite was met"
    stagnated = "rounding: the residual computed anew is above the tolerance"
    preconditioner = "the preconditioner is not positive definite"
    least_squares = "the system is singular: a least-squares solution was found"


def is_known_as(reason: Reason, member: Reason) -> bool:
    """Whether a reason that is not a tracer is a certain member, without a program.

    `==` between the two compiles one, in the first call of a process.
    """
    one, other = (np.asarray(jax.tree.leaves(each)[0]) for each in (reason, member))
    return bool(one == other)


class Method(Enumeration):
    """How a result was computed; see `Reason` for how to compare."""

    cg = "conjugate gradients"
    minres = "minimal residuals"
    steihaug = "truncated conjugate gradients"
    lanczos = "Lanczos iteration"
    direct = "LAPACK, from the matrix"
    sparse = "factors of the sparse matrix"


@final
class Solution(AbstractReport, Generic[V]):
    """The result of an iterative solver for `A x = b`, and why it stopped.

    It is a pytree of arrays, so it can be returned from `jit`, `vmap` and `scan`.

    Attributes:
        x: The solution: a vector of the space.
        iterations: The number of products with the operator, without the last one,
            which gives the residual.
        residual: The norm of `b - A x`, computed anew at the end.
        relative: The residual over the norm of `b`.
        curvature: The smallest Rayleigh quotient `p' A p / p' p` over the directions of
            the iteration: an upper bound of the smallest eigenvalue. Infinity if there
            was no direction.
        direction: The direction of that curvature if it is not positive, else zero.
        model: The quadratic `x' A x / 2 - b' x` at the solution: the predicted change
            of the function, if `A` is its Hessian and `-b` its gradient.
        reason: Why the iteration stopped, a member of `hotk.linop.Reason`.
        method: The solver, a member of `hotk.linop.Method`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, 2.0]))
        >>> solution = H.solve(jnp.array([12.0, 48.0]))
        >>> str(solution.reason), bool(solution.definite)
        ('the residual is below the tolerance', True)
    """

    x: V
    iterations: Int[Array, "*batch"]
    residual: Float[Array, "*batch"]
    relative: Float[Array, "*batch"]
    curvature: Float[Array, "*batch"]
    direction: V
    model: Float[Array, "*batch"]
    reason: Reason
    method: Method

    @property
    def converged(self) -> Bool[Array, "*batch"]:
        """Whether the residual is below the tolerance."""
        return self.reason == Reason.converged

    @property
    def definite(self) -> Bool[Array, "*batch"]:
        """Whether all curvature that the iteration met is positive.

        If it is false, the operator is not positive definite. If it is true, that is
        no proof that it is: the iteration does not meet every direction.
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
            ("method", str(self.method)),
            ("stopped", str(self.reason)),
            ("iterations", str(self.iterations)),
            ("residual", f"{float(self.residual):.3g}"),
            ("relative residual", f"{float(self.relative):.3g}"),
            ("smallest curvature met", f"{float(self.curvature):.3g}"),
            ("positive definite", "not refuted" if bool(self.definite) else "no"),
            ("model", f"{float(self.model):.6g}"),
        ]
