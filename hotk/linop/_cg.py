"""Conjugate gradients, alone and in a trust region."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import RealNumber, Scalar, Vector, WhileLoop

from . import space
from ._driver import (
    End,
    Limits,
    check_system,
    finished,
    in_working_precision,
    loop,
    nondifferentiable,
)
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution


class State(NamedTuple):
    """The state of the iteration, over the unit of the right-hand side.

    Attributes:
        x: The solution so far.
        r: The residual.
        p: The direction of the next step.
        rz: The inner product of the residual with the preconditioned one.
        norms: The inner products x'x, x'p and p'p in the norm of the preconditioner's
            inverse, by recurrences: the preconditioner itself is not inverted.
        steps: The number of products.
        curvature: The smallest Rayleigh quotient met.
        direction: Its direction if it is not positive, else zero.
        running: Whether to go on.
        reason: Why it stopped.
    """

    x: Vector
    r: Vector
    p: Vector
    rz: Scalar
    norms: tuple[Scalar, Scalar, Scalar]
    steps: Int[Array, ""]
    curvature: Float[Array, ""]
    direction: Vector
    running: Bool[Array, ""]
    reason: Reason


def cg(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    verify: bool = True,
) -> Solution:
    r"""Solve `A x = b` by conjugate gradients, for a positive definite operator.

    The iteration minimizes $x^T A x / 2 - b^T x$ over a growing Krylov space. It stops
    where a direction without positive curvature is met: the operator is not positive
    definite then, and the solution so far, a descent direction, is returned with that
    direction. It never divides by a curvature that is not positive.

    Args:
        operator: A symmetric operator.
        b: The right-hand side: a vector of the space.
        x0: The start of the iteration; zero if left out.
        preconditioner: An operator close to the inverse of `A`, positive definite.
        tol: Stop when the residual is below `tol` times the norm of `b`.
        max_steps: Stop after this number of products; `10 n` if left out.
        verify: Whether to compute the residual anew at the end, by one more product;
            else it is that of the recurrence, which rounding makes too small.

    Returns:
        A `Solution`: `x`, the residual, and the reason why it stopped.

    Raises:
        StructureError: If `b` or `x0` is not a vector of the space.
        TypeError: If the operator is not symmetric.
        ValueError: If `max_steps` is not positive.
        ModeError: If a derivative is taken by the operator or a vector.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, 2.0]))
        >>> solution = hotk.linop.cg(H, jnp.array([12.0, 48.0]))
        >>> solution.x.round(4).tolist(), bool(solution.converged)
        ([1.0, 1.0], True)

    References:
        Hestenes and Stiefel (1952). Methods of conjugate gradients for solving linear
            systems. J. Res. Nat. Bur. Standards 49, 409-436. Section 3.
    """
    b, x0, limits = check_system("cg(A, b)", operator, b, x0, tol, max_steps)
    limits = limits._replace(verify=verify)
    inputs = (operator, b, x0, preconditioner, limits)
    inputs = nondifferentiable("cg(A, b)", inputs)
    return loop(operator, _run, *inputs, None)


def steihaug(
    operator: AbstractLinearMap,
    g: PyTree,
    radius: RealNumber,
    *,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    verify: bool = True,
) -> Solution:
    r"""Minimize $g^T x + x^T A x / 2$ over $\|x\| \le \Delta$, by truncated CG.

    The iterates of conjugate gradients for `A x = -g` grow in norm. Where they leave
    the region, or meet a direction without positive curvature, the last direction is
    followed to the boundary. With a preconditioner `M` the norm is $x^T M^{-1} x$.

    Args:
        operator: A symmetric operator, definite or not.
        g: The gradient: a vector of the space.
        radius: The radius of the region, positive; it may be an array.
        preconditioner: An operator close to the inverse of `A`, positive definite.
        tol: Stop when the residual is below `tol` times the norm of `g`.
        max_steps: Stop after this number of products; `10 n` if left out.
        verify: Whether to compute the residual anew at the end, by one more product;
            else it is that of the recurrence, which rounding makes too small.

    Returns:
        A `Solution`; its `model` is the change of the quadratic, never positive.

    Raises:
        StructureError: If `g` is not a vector of the space.
        TypeError: If the operator is not symmetric.
        ValueError: If `max_steps` is not positive.
        ModeError: If a derivative is taken by the operator or a vector.

    Example:
        >>> f = lambda x: x[0] ** 2 - x[1] ** 2
        >>> H = hotk.HessianOperator(f, jnp.array([1.0, 1.0]))
        >>> step = hotk.linop.steihaug(H, H.gradient, 2.0)
        >>> round(jnp.linalg.norm(step.x).item(), 4), float(step.model) < 0
        (2.0, True)

    References:
        Steihaug (1983). The conjugate gradient method and trust regions in large scale
            optimization. SIAM J. Numer. Anal. 20(3), 626-637. Section 2.
    """
    call = "steihaug(A, g, radius)"
    b, x0, limits = check_system(call, operator, g, None, tol, max_steps)
    limits = limits._replace(verify=verify)
    radius = jnp.asarray(radius, space.scalar_dtype(b))
    b = space.times(-1, b)
    inputs = (operator, b, x0, preconditioner, limits, radius)
    return loop(operator, _run, *nondifferentiable(call, inputs))


def _run(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: Vector,
    x0: Vector,
    M: AbstractLinearMap | None,
    limits: Limits,
    radius: Scalar | None,
) -> Solution:
    like = A.like if A.like is not None else b
    mv = in_working_precision(A, like)
    apply_m = (lambda v: v) if M is None else in_working_precision(M, like)
    inner, plus = space.inner, space.plus
    dtype = space.scalar_dtype(b)
    unit = space.power_of_size(b)
    b, x0 = space.times(1 / unit, b), space.times(1 / unit, x0)
    x0 = space.choose(space.norm(b) == 0, space.zeros(b), x0)
    radius = None if radius is None else radius / unit
    target = limits.tol * space.norm(b)

    r = space.minus(b, mv(x0)) if limits.has_start else b
    z = apply_m(r)
    rz = inner(r, z)
    # how much a residual may grow: the root of a condition that rounding can tell from
    # a singular one. A preconditioner may bring the residual of a worse one to zero.
    growth = jnp.asarray(jnp.finfo(dtype).eps, dtype) ** -0.5 if M is None else jnp.inf
    limit = space.norm(r) * growth
    zero = jnp.zeros((), dtype)
    state = State(
        x=x0,
        r=r,
        p=z,
        rz=rz,
        norms=(zero, zero, rz),
        steps=jnp.zeros((), jnp.int32),
        curvature=jnp.asarray(jnp.inf, dtype),
        direction=space.zeros(b),
        running=(space.norm(r) > target) & (rz > 0) & jnp.isfinite(rz),
        reason=_initial_reason(r, rz, target),
    )

    def body(s: State) -> State:
        p, rz, (xx, xp, pp) = s.p, s.rz, s.norms
        ap = mv(p)
        pap, length = inner(p, ap), inner(p, p)
        finite = jnp.isfinite(pap)
        # of a singular operator rounding leaves a curvature, and a step without end
        positive = (pap > 0) & (rz * space.norm(ap) <= pap * limit)
        pap = jnp.where(positive, pap, jnp.minimum(pap, 0))
        alpha = jnp.where(positive & finite, rz / jnp.where(positive, pap, 1), 0)
        reached = jnp.zeros((), bool)
        if radius is not None:
            beyond = xx + 2 * alpha * xp + alpha**2 * pp >= radius**2
            reached = finite & (~positive | beyond)
            root = jnp.sqrt(jnp.maximum(xp**2 + pp * (radius**2 - xx), 0))
            # the positive root, without cancellation
            gap = radius**2 - xx
            far = jnp.where(xp > 0, gap / (xp + root), (root - xp) / pp)
            alpha = jnp.where(reached, far, alpha)
        x = plus(s.x, p, alpha)
        r = plus(s.r, ap, -alpha)
        z = apply_m(r)
        new_rz = inner(r, z)
        beta = new_rz / rz
        small = space.norm(r) <= target
        steps = s.steps + 1
        curvature = jnp.where(finite, pap / length, jnp.nan)
        lower = curvature < s.curvature
        reasons = (
            (~finite | ~jnp.isfinite(new_rz), Reason.not_finite),
            (~positive, Reason.negative_curvature),
            (reached, Reason.boundary),
            (small, Reason.converged),
            (new_rz <= 0, Reason.preconditioner),
            (steps >= limits.max_steps, Reason.most_steps),
        )
        reason = s.reason
        for condition, each in reversed(reasons):  # the first one that holds counts
            reason = Reason.where(condition, each, reason)
        stop = functools.reduce(jnp.logical_or, [c for c, _ in reasons])
        bad = ~positive & finite & lower
        return State(
            x=space.choose(finite, x, s.x),
            r=space.choose(finite, r, s.r),
            p=plus(z, p, beta),
            rz=new_rz,
            norms=(
                xx + 2 * alpha * xp + alpha**2 * pp,
                beta * (xp + alpha * pp),
                new_rz + beta**2 * pp,
            ),
            steps=steps,
            curvature=jnp.where(lower, curvature, s.curvature),
            direction=space.choose(bad, p, s.direction),
            running=~stop,
            reason=reason,
        )

    s = while_loop(lambda s: s.running, body, state)
    end = End(s.x, s.r, s.steps, s.curvature, s.direction, s.reason)
    method = Method.cg if radius is None else Method.steihaug
    return finished(mv, b, end, target, method, like, unit, verify=limits.verify)


def _initial_reason(r: Vector, rz: Scalar, target: Scalar) -> Reason:
    size = space.norm(r)
    reason = Reason.where(rz > 0, Reason.most_steps, Reason.preconditioner)
    reason = Reason.where(size <= target, Reason.converged, reason)
    return Reason.where(jnp.isfinite(size), reason, Reason.not_finite)
