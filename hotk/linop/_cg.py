"""Conjugate gradients, alone and in a trust region."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from hotk._core import (
    RealNumber,
    Scalar,
    V,
    Vector,
    WhileLoop,
    from_host,
    names_ours,
)
from hotk._prepared import jitted, shown
from hotk._primitive import nondifferentiable

from . import space
from ._cg_state import CGState, CGSystem
from ._driver import (
    CHECK,
    DONE,
    START,
    STEP,
    End,
    Limits,
    Preconditioned,
    check_system,
    finished,
    in_working_precision,
    loop,
)
from ._flat import flat, is_better_flat
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution


@names_ours
@shown
def cg(
    operator: AbstractLinearMap[V],
    b: PyTree,
    *,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    verify: bool = True,
) -> Solution[V]:
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
    return loop(operator, _chosen(inputs), *inputs, None)


@names_ours
@shown
def steihaug(
    operator: AbstractLinearMap[V],
    g: PyTree,
    radius: RealNumber,
    *,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    verify: bool = True,
) -> Solution[V]:
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
    radius = from_host(radius, space.scalar_dtype(b))
    b = space.times(-1, b)
    inputs = (operator, b, x0, preconditioner, limits)
    inputs = nondifferentiable(call, inputs)
    return loop(operator, _chosen(inputs), *inputs, nondifferentiable(call, radius))


def _chosen(inputs: tuple[PyTree, ...]) -> Callable[..., Solution]:
    better = not inputs[0].on_host and is_better_flat(*inputs)
    return _run_flat if better else iterate


def iterate(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: Vector,
    x0: Vector | None,
    M: AbstractLinearMap | None,
    limits: Limits,
    radius: Scalar | None,
) -> Solution:
    like = A.like if A.like is not None else b
    mv = in_working_precision(A, like)
    state, system, unit = initial(b, x0, limits, radius, M is None)
    # Without a preconditioner its product is the residual: `None` stands for that.
    apply_m, first, size = Preconditioned.of(M, like, state.r)
    if system.radius is not None and M is not None:  # in the norm of its inverse
        system = system._replace(radius=system.radius * jnp.sqrt(size))
    options = x0 is not None, limits.verify
    if x0 is None:
        state = begin(state, first, system, *options)

    def body(s: CGState) -> CGState:
        s, move = after_product(s, mv(s.p), system, *options)
        return next_direction(s, apply_m(s.r), move, system, *options)

    s = while_loop(lambda s: s.phase != DONE, body, state)
    end = End(s.x, s.r, s.steps, s.curvature, s.direction, s.reason)
    method = Method.cg if radius is None else Method.steihaug
    return finished(system.b, end, limits.tol, method, like, unit)


# Compiled, here and below: where the operator's products run on the host, so does the
# loop, and each operation would be a program of its own.
@jitted(static_argnums=4)
def initial(
    b: Vector,
    x0: Vector | None,
    limits: Limits,
    radius: Scalar | None,
    plain: bool,
) -> tuple[CGState, CGSystem, Scalar]:
    dtype = space.scalar_dtype(b)
    unit = space.power_of_size(b)
    b = space.times(1 / unit, b)
    square, nothing = space.inner(b, b), space.zeros(b)
    if x0 is not None:
        x0 = space.choose(square == 0, nothing, space.times(1 / unit, x0))
    # how much a residual may grow: the root of a condition that rounding can tell from
    # a singular one. A preconditioner may bring the residual of a worse one to zero.
    growth = jnp.asarray(1 / jnp.finfo(dtype).eps if plain else jnp.inf, dtype)
    zero = jnp.zeros((), dtype)
    state = CGState(
        x=nothing,
        r=b,
        p=nothing if x0 is None else x0,
        rz=zero,
        norms=(zero, zero, zero),
        limit=zero,
        steps=jnp.zeros((), jnp.int32),
        largest=zero,
        curvature=jnp.asarray(jnp.inf, dtype),
        direction=nothing,
        phase=jnp.asarray(START, jnp.int32),
        reason=Reason.most_steps,
    )
    radius = None if radius is None else radius / unit
    target = limits.tol**2 * square
    return state, CGSystem(b, target, growth, limits.max_steps, radius), unit


class CGProduct(NamedTuple):
    """What a step has met.

    Attributes:
        alpha: How far it went, in lengths of its direction.
        rayleigh: The Rayleigh quotient of its direction.
        finite: Whether the product is finite.
        positive: Whether the curvature is positive by more than rounding.
        reached: Whether the boundary of the trust region was reached.
    """

    alpha: Scalar
    rayleigh: Scalar
    finite: Bool[Array, ""]
    positive: Bool[Array, ""]
    reached: Bool[Array, ""]


@jitted(static_argnums=(3, 4))
def after_product(
    s: CGState, ap: Vector, system: CGSystem, has_start: bool, verify: bool
) -> tuple[CGState, CGProduct]:
    """Go along the direction, whose product is there, as far as it descends."""
    p, rz, (xx, xp, pp) = s.p, s.rz, s.norms
    sums = space.inner(p, ap), space.inner(p, p), space.scaled_norm(ap)
    pap, length, image = space.settled(p, *sums)
    finite = jnp.isfinite(pap)
    # of a singular operator rounding leaves a curvature, and a step without end
    enough = pap > s.largest * length / system.growth
    positive = enough & (rz * image <= pap * jnp.sqrt(s.limit))
    pap = jnp.where(positive, pap, jnp.minimum(pap, 0))
    rayleigh = pap / length
    alpha = jnp.where(positive & finite, rz / jnp.where(positive, pap, 1), 0)
    reached = jnp.zeros((), bool)
    if system.radius is not None:
        gap, share = 1 - xx, alpha / system.radius
        beyond = 2 * share * xp + share**2 * pp >= gap
        reached = finite & (~positive | beyond)
        root = jnp.sqrt(jnp.maximum(xp**2 + pp * gap, 0))
        # the positive root, without cancellation
        far = jnp.where(xp > 0, gap / (xp + root), (root - xp) / pp)
        alpha = jnp.where(reached, far * system.radius, alpha)
    x = space.choose(finite, space.plus(s.x, p, alpha), s.x)
    r = space.choose(finite, space.plus(s.r, ap, -alpha), s.r)
    if has_start or verify:  # b - A p for the start, and for the solution
        step = s.phase == STEP
        x = space.choose(step, x, p)
        r = space.choose(step, r, space.minus(system.b, ap))
    return s._replace(x=x, r=r), CGProduct(alpha, rayleigh, finite, positive, reached)


@jitted(static_argnums=(3, 4))
def begin(
    s: CGState, z: Vector | None, system: CGSystem, has_start: bool, verify: bool
) -> CGState:
    """Begin with the residual of the start, and what the preconditioner makes of it."""
    del has_start
    z = s.r if z is None else z
    size, rz = space.inner(s.r, s.r), space.inner(s.r, z)
    goes_on = (size > system.target) & (rz > 0) & jnp.isfinite(rz)
    reason = Reason.where(rz > 0, Reason.most_steps, Reason.preconditioner)
    reason = Reason.where(size <= system.target, Reason.converged, reason)
    zero = jnp.zeros_like(rz)
    return s._replace(
        rz=rz,
        p=space.choose(goes_on, z, s.x),
        norms=(zero, zero, rz),
        limit=size * system.growth,
        phase=jnp.where(goes_on, STEP, CHECK if verify else DONE).astype(jnp.int32),
        reason=Reason.where(jnp.isfinite(size), reason, Reason.not_finite),
    )


@jitted(static_argnums=(4, 5))
def next_direction(
    s: CGState,
    z: Vector | None,
    move: CGProduct,
    system: CGSystem,
    has_start: bool,
    verify: bool,
) -> CGState:
    """Stop, or turn to the next direction."""
    step, (xx, xp, pp) = s.phase == STEP, s.norms
    z, alpha, finite = s.r if z is None else z, move.alpha, move.finite
    alpha = alpha if system.radius is None else alpha / system.radius
    sums = space.inner(s.r, z), space.inner(s.r, s.r)
    new_rz, square = space.settled(z, *sums)
    beta = new_rz / s.rz
    steps = s.steps + step.astype(jnp.int32)
    rayleigh = jnp.where(finite, move.rayleigh, jnp.nan)
    lower = step & (rayleigh < s.curvature)
    reasons = (
        (~finite | ~jnp.isfinite(new_rz), Reason.not_finite),
        (~move.positive, Reason.negative_curvature),
        (move.reached, Reason.boundary),
        (square <= system.target, Reason.converged),
        (new_rz <= 0, Reason.preconditioner),
        (steps >= system.max_steps, Reason.most_steps),
    )
    reason = s.reason
    for condition, each in reversed(reasons):  # the first one that holds counts
        reason = Reason.where(condition & step, each, reason)
    stop = functools.reduce(jnp.logical_or, [c for c, _ in reasons])
    bad = ~move.positive & finite & lower
    after = jnp.where(stop, CHECK if verify else DONE, STEP)
    new = CGState(
        x=s.x,
        r=s.r,
        p=space.plus(z, s.p, beta),
        rz=new_rz,
        norms=(
            xx + 2 * alpha * xp + alpha**2 * pp,
            beta * (xp + alpha * pp),
            new_rz + beta**2 * pp,
        ),
        limit=s.limit,
        steps=steps,
        largest=jnp.where(step, jnp.fmax(s.largest, rayleigh), s.largest),
        curvature=jnp.where(lower, rayleigh, s.curvature),
        direction=space.choose(bad, s.p, s.direction),
        phase=jnp.where(step, after, DONE).astype(jnp.int32),
        reason=reason,
    )
    if verify:  # then it is the solution that is multiplied
        new = new._replace(p=space.choose(stop, s.x, new.p))
    if not has_start:
        return new
    begun = begin(s, z, system, has_start, verify)
    begins = s.phase == START
    return jax.tree.map(lambda a, b: jnp.where(begins, a, b), begun, new)


_run_flat = flat(iterate)
