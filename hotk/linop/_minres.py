"""Minimal residuals: symmetric systems, definite or not."""

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

    The scalars have the names of Paige and Saunders.

    Attributes:
        x: The solution so far.
        best: The one with the best score, returned where the last is not good enough.
        score: Its residual, plus what rounding leaves of one for an `x` of that size.
        r: The residual.
        r1: The Lanczos vector before the last, not normalized.
        r2: The last one.
        y: The last one, preconditioned.
        w: The last direction of the solution.
        w2: The one before.
        old_beta: The norm of the Lanczos vector before the last.
        beta: The norm of the last.
        dbar: An entry of the triangle that the next rotation changes.
        epsilon: The entry two columns above the diagonal.
        phibar: The norm of the residual, as the preconditioner measures it.
        cs: The cosine of the last rotation.
        sn: The sine.
        largest: The norm of the largest column of the Lanczos matrix.
        steps: The number of products.
        curvature: The smallest Rayleigh quotient met.
        direction: Its direction if it is not positive, else zero.
        running: Whether to go on.
        reason: Why it stopped.
    """

    x: Vector
    best: Vector
    score: Scalar
    r: Vector
    r1: Vector
    r2: Vector
    y: Vector
    w: Vector
    w2: Vector
    old_beta: Scalar
    beta: Scalar
    dbar: Scalar
    epsilon: Scalar
    phibar: Scalar
    cs: Scalar
    sn: Scalar
    largest: Scalar
    steps: Int[Array, ""]
    curvature: Float[Array, ""]
    direction: Vector
    running: Bool[Array, ""]
    reason: Reason


def minres(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
) -> Solution:
    r"""Solve `A x = b` by minimal residuals, for an operator definite or not.

    The iteration minimizes $\|b - A x\|$ over a growing Krylov space, by a QR
    factorization of the Lanczos matrix. Where `A r` vanishes against `A` and `r`,
    the system is singular: it stops at a least-squares solution, with the reason
    `least_squares`. That is not the solution of least norm.

    Args:
        operator: A symmetric operator.
        b: The right-hand side: a vector of the space.
        x0: The start of the iteration; zero if left out.
        preconditioner: A positive definite operator close to the inverse of the
            operator's absolute value.
        tol: Stop when the residual is below `tol` times the norm of `b`.
        max_steps: Stop after this number of products; `10 n` if left out.

    Returns:
        A `Solution`. Its `curvature` is the smallest Rayleigh quotient of the Lanczos
        vectors.

    Raises:
        StructureError: If `b` or `x0` is not a vector of the space.
        TypeError: If the operator is not symmetric.
        ValueError: If `max_steps` is not positive.
        ModeError: If a derivative is taken by the operator or a vector.

    Example:
        >>> f = lambda x: x[0] ** 2 - x[1] ** 2
        >>> H = hotk.HessianOperator(f, jnp.array([1.0, 1.0]))
        >>> solution = hotk.linop.minres(H, jnp.array([2.0, 2.0]))
        >>> solution.x.round(4).tolist(), bool(solution.definite)
        ([1.0, -1.0], False)

    References:
        Paige and Saunders (1975). Solution of sparse indefinite systems of linear
            equations. SIAM J. Numer. Anal. 12(4), 617-629. Section 6.
    """
    call = "minres(A, b)"
    b, x0, limits = check_system(call, operator, b, x0, tol, max_steps)
    inputs = (operator, b, x0, preconditioner, limits)
    return loop(operator, _run, *nondifferentiable(call, inputs))


def _run(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: Vector,
    x0: Vector,
    M: AbstractLinearMap | None,
    limits: Limits,
) -> Solution:
    like = A.like if A.like is not None else b
    mv = in_working_precision(A, like)
    apply_m = (lambda v: v) if M is None else in_working_precision(M, like)
    inner, plus, times = space.inner, space.plus, space.times
    dtype = space.scalar_dtype(b)
    tiny = jnp.finfo(dtype).tiny
    eps = jnp.finfo(dtype).eps
    # `|A r| / |A| |r|` comes no closer to zero when the directions lose orthogonality
    nothing = min(float(eps) ** 0.5, 7e-5)
    unit = space.power_of_size(b)
    b, x0 = space.times(1 / unit, b), space.times(1 / unit, x0)
    x0 = space.choose(space.norm(b) == 0, space.zeros(b), x0)
    target = limits.tol * space.norm(b)

    r = space.minus(b, mv(x0)) if limits.has_start else b
    y = apply_m(r)
    square = inner(r, y)
    beta1 = jnp.sqrt(jnp.maximum(square, 0))
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    running = (space.norm(r) > target) & (square > 0) & jnp.isfinite(square)
    reason = Reason.where(square > 0, Reason.most_steps, Reason.preconditioner)
    reason = Reason.where(space.norm(r) <= target, Reason.converged, reason)
    reason = Reason.where(jnp.isfinite(square), reason, Reason.not_finite)
    state = State(
        x=x0,
        best=x0,
        score=jnp.asarray(jnp.inf, dtype),
        r=r,
        r1=r,
        r2=r,
        y=y,
        w=space.zeros(b),
        w2=space.zeros(b),
        old_beta=zero,
        beta=beta1,
        dbar=zero,
        epsilon=zero,
        phibar=beta1,
        cs=-one,
        sn=zero,
        largest=zero,
        steps=jnp.zeros((), jnp.int32),
        curvature=jnp.asarray(jnp.inf, dtype),
        direction=space.zeros(b),
        running=running,
        reason=reason,
    )

    def body(s: State) -> State:
        beta = s.beta
        v = times(1 / beta, s.y)
        y = mv(v)
        image = y
        # zero in the first step, where there is no vector before
        old = beta / jnp.where(s.steps > 0, s.old_beta, jnp.inf)
        y = plus(y, s.r1, -old)
        alpha = inner(v, y)
        y = plus(y, s.r2, -alpha / beta)
        r2 = y
        y = apply_m(r2)
        square = inner(r2, y)
        new_beta = jnp.sqrt(jnp.maximum(square, 0))

        # the rotation before, then this one
        delta = s.cs * s.dbar + s.sn * alpha
        gbar = s.sn * s.dbar - s.cs * alpha
        epsilon = s.sn * new_beta
        dbar = -s.cs * new_beta
        root = jnp.hypot(gbar, dbar)
        pivot = jnp.hypot(gbar, new_beta)
        whole = jnp.where(pivot > 0, pivot, 1)
        cs, sn = gbar / whole, jnp.where(pivot > 0, new_beta / whole, 1)
        gamma = jnp.maximum(pivot, eps * s.largest + tiny)
        phi, phibar = cs * s.phibar, sn * s.phibar

        w = plus(plus(v, s.w2, -s.epsilon), s.w, -delta)
        w = times(1 / gamma, w)
        x = plus(s.x, w, phi)
        steps = s.steps + 1
        before = jnp.where(s.steps > 0, beta, 0)
        row = jnp.sqrt(alpha**2 + before**2 + new_beta**2)
        largest = jnp.maximum(s.largest, row)
        # the residual itself: `phibar` is its norm as the preconditioner measures it
        share = cs * phibar / jnp.where(new_beta > 0, new_beta, 1)
        r = plus(times(sn**2, s.r), r2, -share)
        size = space.norm(r)
        finite = jnp.isfinite(alpha) & jnp.isfinite(square)
        small = size <= target
        singular = root <= nothing * largest
        # the residual, and what rounding makes of it: that of a singular system grows
        score = size + eps * largest * space.norm(x)
        better = finite & ~singular & (score < s.score)
        rayleigh = inner(v, image) / inner(v, v)
        lower = rayleigh < s.curvature
        reasons = (
            (~finite, Reason.not_finite),
            (small, Reason.converged),
            (singular, Reason.least_squares),
            (square < 0, Reason.preconditioner),
            (new_beta <= eps * largest, Reason.least_squares),
            (steps >= limits.max_steps, Reason.most_steps),
        )
        reason = s.reason
        for condition, each in reversed(reasons):  # the first one that holds counts
            reason = Reason.where(condition, each, reason)
        stop = functools.reduce(jnp.logical_or, [c for c, _ in reasons])
        return State(
            x=space.choose(finite, x, s.x),
            r=r,
            best=space.choose(better, x, s.best),
            score=jnp.where(better, score, s.score),
            r1=s.r2,
            r2=r2,
            y=y,
            w=w,
            w2=s.w,
            old_beta=beta,
            beta=new_beta,
            dbar=dbar,
            epsilon=epsilon,
            phibar=phibar,
            cs=cs,
            sn=sn,
            largest=largest,
            steps=steps,
            curvature=jnp.where(lower, rayleigh, s.curvature),
            direction=space.choose(lower & (rayleigh <= 0), v, s.direction),
            running=~stop,
            reason=reason,
        )

    s = while_loop(lambda s: s.running, body, state)
    x = space.choose(s.reason == Reason.converged, s.x, s.best)
    end = End(x, s.r, s.steps, s.curvature, s.direction, s.reason)
    return finished(mv, b, end, target, Method.minres, like, unit)
