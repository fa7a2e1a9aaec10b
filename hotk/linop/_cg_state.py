"""What conjugate gradients carry from one step to the next."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

from hotk._core import Scalar, Vector

from ._solution import Reason


class CGSystem(NamedTuple):
    """What an iteration is given, over the unit of the right-hand side.

    Attributes:
        b: The right-hand side.
        target: The square of the norm that the residual is to be below: each root would
            be one more kernel to compile.
        growth: How much the square of the norm of a residual may grow.
        max_steps: The largest number of steps.
        radius: The radius of the trust region, `None` without one.
    """

    b: Vector
    target: Scalar
    growth: Scalar
    max_steps: Int[Array, ""]
    radius: Scalar | None


class CGState(NamedTuple):
    """The state of the iteration, over the unit of the right-hand side.

    Attributes:
        x: The solution so far.
        r: The residual.
        p: What is multiplied next: the direction of the next step.
        rz: The inner product of the residual with the preconditioned one.
        norms: The inner products x'x, x'p and p'p in the norm of the preconditioner's
            inverse, by recurrences: the preconditioner itself is not inverted.
        limit: The square of the largest norm that a residual may have.
        steps: The number of products.
        largest: The largest Rayleigh quotient met.
        curvature: The smallest one.
        direction: Its direction if it is not positive, else zero.
        phase: What the next product is for.
        reason: Why it stopped.
    """

    x: Vector
    r: Vector
    p: Vector
    rz: Scalar
    norms: tuple[Scalar, Scalar, Scalar]
    limit: Scalar
    steps: Int[Array, ""]
    largest: Scalar
    curvature: Float[Array, ""]
    direction: Vector
    phase: Int[Array, ""]
    reason: Reason
