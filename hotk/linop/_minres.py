"""Minimal residuals: symmetric systems, definite or not."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import RealNumber, Scalar, V, Vector, WhileLoop, names_ours
from hotk._prepared import jitted, shown
from hotk._primitive import nondifferentiable

from . import space
from ._driver import (
    CHECK,
    DONE,
    START,
    STEP,
    End,
    Limits,
    check_system,
    finished,
    in_working_precision,
    loop,
)
from ._flat import flat, is_better_flat
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution


class MinresSystem(NamedTuple):
    """What an iteration is given, over the unit of the right-hand side.

    Attributes:
        b: The right-hand side.
        target: The square of the norm that the residual is to be below.
        max_steps: The largest number of steps.
        rounding: The precision of a product: that of the leaf with the most digits.
    """

    b: Vector
    target: Scalar
    max_steps: Int[Array, ""]
    rounding: Scalar


class MinresState(NamedTuple):
    """The state of the iteration, over the unit of the right-hand side.

    The scalars have the names of Paige and Saunders.

    Attributes:
        x: The solution so far.
        best: The one with the best score, returned where the last is not good enough.
        score: Its residual, plus what rounding leaves of one for an `x` of that size.
        r: The residual.
        r1: The Lanczos vector before the last, not normalized.
        r2: The last one.
        v: What is multiplied next: the last one, preconditioned and normalized.
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
        phase: What the next product is for.
        reason: Why it stopped.
    """

    x: Vector
    best: Vector
    score: Scalar
    r: Vector
    r1: Vector
    r2: Vector
    v: Vector
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
    phase: Int[Array, ""]
    reason: Reason


@names_ours
@shown
def minres(
    operator: AbstractLinearMap[V],
    b: PyTree,
    *,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
) -> Solution[V]:
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
    inputs = nondifferentiable(call, inputs)
    better = not operator.on_host and is_better_flat(*inputs)
    return loop(operator, _run_flat if better else iterate, *inputs)


def iterate(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: Vector,
    x0: Vector | None,
    M: AbstractLinearMap | None,
    limits: Limits,
) -> Solution:
    like = A.like if A.like is not None else b
    mv = in_working_precision(A, like)
    # Without a preconditioner its product is the vector: `None` stands for that.
    apply_m = (lambda v: None) if M is None else in_working_precision(M, like)
    has_start = x0 is not None
    state, system, unit = initial(b, x0, limits, like)
    if not has_start:
        state = begin(state, apply_m(state.r2), system)

    def body(s: MinresState) -> MinresState:
        s, move = after_product(s, mv(s.v), system)
        return next_direction(s, apply_m(s.r2), move, system, has_start)

    s = while_loop(lambda s: s.phase != DONE, body, state)
    end = End(s.x, s.r, s.steps, s.curvature, s.direction, s.reason)
    return finished(system.b, end, limits.tol, Method.minres, like, unit)


@jitted
def initial(
    b: Vector, x0: Vector | None, limits: Limits, like: Vector
) -> tuple[MinresState, MinresSystem, Scalar]:
    dtype = space.scalar_dtype(b)
    unit = space.power_of_size(b)
    b = space.times(1 / unit, b)
    square, nothing = space.inner(b, b), space.zeros(b)
    if x0 is not None:
        x0 = space.choose(square == 0, nothing, space.times(1 / unit, x0))
    x = nothing if x0 is None else x0
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    state = MinresState(
        x=x,
        best=x,
        score=jnp.asarray(jnp.inf, dtype),
        r=b,
        r1=b,
        r2=b,
        v=x,
        w=nothing,
        w2=nothing,
        old_beta=zero,
        beta=zero,
        dbar=zero,
        epsilon=zero,
        phibar=zero,
        cs=-one,
        sn=zero,
        largest=zero,
        steps=jnp.zeros((), jnp.int32),
        curvature=jnp.asarray(jnp.inf, dtype),
        direction=nothing,
        phase=jnp.asarray(START, jnp.int32),
        reason=Reason.most_steps,
    )
    precisions = [float(jnp.finfo(a.dtype).eps) for a in jax.tree.leaves(like)]
    target = limits.tol**2 * square
    rounding = min(precisions, default=0.0) * one
    return state, MinresSystem(b, target, limits.max_steps, rounding), unit


class MinresProduct(NamedTuple):
    """What a product has given.

    Attributes:
        alpha: The entry on the diagonal of the Lanczos matrix.
        rayleigh: The Rayleigh quotient of what was multiplied.
    """

    alpha: Scalar
    rayleigh: Scalar


@jitted
def after_product(
    s: MinresState, image: Vector, system: MinresSystem
) -> tuple[MinresState, MinresProduct]:
    """Go on to the next Lanczos vector, or to the residual of what was multiplied."""
    v, beta = s.v, s.beta
    # zero in the first step, where there is no vector before
    old = beta / jnp.where(s.steps > 0, s.old_beta, jnp.inf)
    y = space.plus(image, s.r1, -old)
    (alpha,) = space.settled(v, space.inner(v, y))
    y = space.plus(y, s.r2, -alpha / beta)
    sums = space.inner(v, image), space.inner(v, v)
    image_v, length = space.settled(v, *sums)
    r2 = space.choose(s.phase == STEP, y, space.minus(system.b, image))
    return s._replace(r1=s.r2, r2=r2), MinresProduct(alpha, image_v / length)


@jitted
def begin(s: MinresState, z: Vector | None, system: MinresSystem) -> MinresState:
    """Begin with the residual of the start, and what the preconditioner makes of it."""
    if z is None:
        # In half precision conjugate gradients may end where the residual has grown far
        # beyond `b`, and its rounding is all that further steps see: begin anew.
        b, eps = system.b, jnp.finfo(s.beta.dtype).eps
        grown = space.inner(s.r2, s.r2) > space.inner(b, b)
        grown &= system.rounding > eps
        x = space.choose(grown, space.zeros(s.x), s.x)
        s = s._replace(x=x, best=x, r2=space.choose(grown, b, s.r2))
        z = s.r2
    square, size = space.inner(s.r2, z), space.inner(s.r2, s.r2)
    beta = jnp.sqrt(jnp.maximum(square, 0))
    goes_on = (size > system.target) & (square > 0) & jnp.isfinite(square)
    reason = Reason.where(square > 0, Reason.most_steps, Reason.preconditioner)
    reason = Reason.where(size <= system.target, Reason.converged, reason)
    return s._replace(
        score=jnp.sqrt(size),
        r=s.r2,
        r1=s.r2,
        v=space.choose(goes_on, space.times(1 / beta, z), s.x),
        beta=beta,
        phibar=beta,
        phase=_int(jnp.where(goes_on, STEP, CHECK)),
        reason=Reason.where(jnp.isfinite(square), reason, Reason.not_finite),
    )


@jitted(static_argnums=4)
def next_direction(
    s: MinresState,
    z: Vector | None,
    move: MinresProduct,
    system: MinresSystem,
    has_start: bool,
) -> MinresState:
    """Stop, or turn to the next direction."""
    preconditioned, z = z, s.r2 if z is None else z
    plus, times = space.plus, space.times
    step, alpha, beta, v = s.phase == STEP, move.alpha, s.beta, s.v
    eps, tiny = jnp.finfo(alpha.dtype).eps, jnp.finfo(alpha.dtype).tiny
    # `|A r| / |A| |r|` comes no closer to zero when the directions lose orthogonality
    nothing = min(float(eps) ** 0.5, 7e-5)
    (square,) = space.settled(z, space.inner(s.r2, z))
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

    w = times(1 / gamma, plus(plus(v, s.w2, -s.epsilon), s.w, -delta))
    x = plus(s.x, w, phi)
    steps = s.steps + step.astype(jnp.int32)
    before = jnp.where(s.steps > 0, beta, 0)
    row = jnp.sqrt(alpha**2 + before**2 + new_beta**2)
    largest = jnp.maximum(s.largest, row)
    # the residual itself: `phibar` is its norm as the preconditioner measures it
    share = cs * phibar / jnp.where(new_beta > 0, new_beta, 1)
    r = plus(times(sn**2, s.r), s.r2, -share)
    (size,) = space.settled(r, space.inner(r, r))
    finite = jnp.isfinite(alpha) & jnp.isfinite(square)
    small = size <= system.target
    singular = root <= nothing * largest
    # the residual, and what rounding makes of it: that of a singular system grows
    (far,) = space.settled(x, space.scaled_norm(x))
    lost = system.rounding * largest * far
    score = jnp.sqrt(size) + lost
    # in half precision no step is left then that makes the residual smaller
    stalls = (system.rounding > eps) & (score <= 2 * lost)
    better = step & finite & ~singular & (score < s.score)
    lower = step & (move.rayleigh < s.curvature)
    reasons = (
        (~finite, Reason.not_finite),
        (small, Reason.converged),
        (singular, Reason.least_squares),
        (stalls, Reason.stagnated),
        (square < 0, Reason.preconditioner),
        (new_beta <= eps * largest, Reason.least_squares),
        (steps >= system.max_steps, Reason.most_steps),
    )
    reason = s.reason
    for condition, each in reversed(reasons):  # the first one that holds counts
        reason = Reason.where(condition & step, each, reason)
    stop = functools.reduce(jnp.logical_or, [c for c, _ in reasons])
    x = space.choose(step & finite, x, s.x)
    best = space.choose(better, x, s.best)
    # what is returned, and multiplied once more to check it
    x = space.choose(step & stop & (reason != Reason.converged), best, x)
    new = MinresState(
        x=x,
        best=best,
        score=jnp.where(better, score, s.score),
        r=space.choose(step, r, s.r2),
        r1=s.r1,
        r2=s.r2,
        v=space.choose(stop, x, times(1 / new_beta, z)),
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
        curvature=jnp.where(lower, move.rayleigh, s.curvature),
        direction=space.choose(lower & (move.rayleigh <= 0), v, s.direction),
        phase=_int(jnp.where(step, jnp.where(stop, CHECK, STEP), DONE)),
        reason=reason,
    )
    if not has_start:
        return new
    begun, begins = begin(s, preconditioned, system), s.phase == START
    return jax.tree.map(lambda a, b: jnp.where(begins, a, b), begun, new)


def _int(number: Int[Array, ""]) -> Int[Array, ""]:
    return number.astype(jnp.int32)


_run_flat = flat(iterate)
