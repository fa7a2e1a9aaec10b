"""Conjugate gradients that minimal residuals continue, in one loop with one product."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from hotk._core import (
    RealNumber,
    Vector,
    WhileLoop,
    equations,
    goes_into_program,
    while_loop,
)

from . import _cg, _minres, space
from ._cg_state import CGState as CGState
from ._driver import (
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


S = TypeVar("S")

# A product of so many equations takes the compiler as long as minimal residuals do.
_MANY = 200
# Numbers of a vector: minimal residuals keep ten vectors more than conjugate gradients,
# so a larger system, which may be definite, has a program of its own for each.
_LARGEST = 1 << 22


# What both have: the solution, what is preconditioned and what is multiplied, the
# curvature and its direction, and where the iteration stands.
_SHARED = ("x", "r2", "v", "curvature", "direction", "phase", "reason")


class TruncatedState(NamedTuple):
    """The state of the iteration.

    Attributes:
        cg: That of conjugate gradients.
        minres: That of minimal residuals, with `None` for what both have.
        continued: Whether minimal residuals have taken over.
    """

    cg: CGState
    minres: _minres.MinresState
    continued: Bool[Array, ""]


def cg_then_minres(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    x0: PyTree,
    preconditioner: AbstractLinearMap | None,
    tol: RealNumber,
    max_steps: int | Int[Array, ""] | None,
) -> Solution:
    """Solve `A x = b`, by minimal residuals from where curvature is not positive.

    As `cg` until then, with the same steps; ten vectors more are kept. The curvature
    and direction are those that conjugate gradients met, as minimal residuals need not
    meet that direction.

    With a small product it is `cg` alone, which stops there: another program with it is
    cheaper then than minimal residuals in the first one, as most systems are definite.
    """
    system = operator, b, x0, tol, max_steps
    b, x0, limits = check_system("solve(A, b)", *system)
    inputs = (operator, b, x0, preconditioner, limits)
    return loop(operator, _run_flat if is_better_flat(*inputs) else _run, *inputs)


def may_continue(operator: AbstractLinearMap, b: PyTree) -> bool:
    """Whether a system is one for `cg_then_minres`; inside of a trace, also to the end.

    Inside of a trace no other program can follow, so a small product is not.
    """
    if operator.on_host or space.dimension(b) > _LARGEST:
        return False
    return not goes_into_program((operator, b)) or _is_large(operator, b)


def _is_large(operator: AbstractLinearMap, b: PyTree) -> bool:
    like = operator.like if operator.like is not None else b
    product = jax.make_jaxpr(in_working_precision(operator, like))
    return len(equations(product(space.widened(like)).jaxpr)) >= _MANY


def _run(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: Vector,
    x0: Vector | None,
    M: AbstractLinearMap | None,
    limits: Limits,
) -> Solution:
    if not _is_large(A, b):
        return _cg.iterate(while_loop, A, b, x0, M, limits, None)
    like = A.like if A.like is not None else b
    mv = in_working_precision(A, like)
    options = x0 is not None, True
    cg, system, unit = _cg.initial(b, x0, limits, None, M is None)
    # Without a preconditioner its product is the residual: `None` stands for that.
    apply_m, first, _ = Preconditioned.of(M, like, cg.r)
    of_minres, of_system, _ = _minres.initial(system.b, None, limits, like)
    if x0 is None:
        cg = _cg.begin(cg, first, system, *options)

    def cg_moved(
        s: TruncatedState, image: Vector
    ) -> tuple[TruncatedState, _cg.CGProduct]:
        moved, move = _cg.after_product(s.cg, image, system, *options)
        return s._replace(cg=moved), move

    def cg_turned(
        s: TruncatedState, z: Vector | None, move: _cg.CGProduct
    ) -> TruncatedState:
        new = _cg.next_direction(s.cg, z, move, system, *options)
        bent = (s.cg.phase == STEP) & (new.reason == Reason.negative_curvature)
        goes_on = bent & (new.steps < system.max_steps)
        # the solution is what is multiplied next, as for a check
        phase = jnp.where(goes_on, START, new.phase)
        return TruncatedState(new._replace(phase=phase), s.minres, goes_on)

    def smaller(s: TruncatedState) -> _minres.MinresSystem:
        left = system.max_steps - s.cg.steps
        return of_system._replace(b=system.b, target=system.target, max_steps=left)

    def minres_moved(
        s: TruncatedState, image: Vector
    ) -> tuple[TruncatedState, _cg.CGProduct]:
        moved, move = _minres.after_product(_as_minres(s), image, smaller(s))
        yes = jnp.ones((), bool)
        return _of_minres(s, moved), _cg.CGProduct(
            move.alpha, move.rayleigh, yes, yes, ~yes
        )

    def minres_turned(
        s: TruncatedState, z: Vector | None, move: _cg.CGProduct
    ) -> TruncatedState:
        of_product = _minres.MinresProduct(move.alpha, move.rayleigh)
        new = _minres.next_direction(_as_minres(s), z, of_product, smaller(s), True)
        return _of_minres(s, new)

    def body(s: TruncatedState) -> TruncatedState:
        image, by_cg = mv(s.cg.p), ~s.continued
        if M is None:
            s = _if(by_cg, lambda s: cg_turned(*_alone(cg_moved(s, image))), s)
            return _if(
                ~by_cg, lambda s: minres_turned(*_alone(minres_moved(s, image))), s
            )
        nothing, no = jnp.zeros_like(s.cg.rz), jnp.zeros((), bool)
        pair = s, _cg.CGProduct(nothing, nothing, no, no, no)
        pair = _if(by_cg, lambda pair: cg_moved(pair[0], image), pair)
        s, move = _if(~by_cg, lambda pair: minres_moved(pair[0], image), pair)
        z = apply_m(s.cg.r)
        s = _if(by_cg, lambda s: cg_turned(s, z, move), s)
        return _if(~by_cg, lambda s: minres_turned(s, z, move), s)

    start = TruncatedState(cg, _without_shared(of_minres), jnp.zeros((), bool))
    s = while_loop(lambda s: s.cg.phase != DONE, body, start)
    steps = s.cg.steps + s.minres.steps
    # in both, the last product was for the residual
    end = End(s.cg.x, s.cg.r, steps, s.cg.curvature, s.cg.direction, s.cg.reason)
    method = Method.where(s.continued, Method.minres, Method.cg)
    return finished(system.b, end, limits.tol, method, like, unit)


def _alone(
    pair: tuple[TruncatedState, _cg.CGProduct],
) -> tuple[TruncatedState, None, _cg.CGProduct]:
    return pair[0], None, pair[1]


# A loop of at most one step: `jax.lax.cond` copies all vectors that a branch leaves as
# they are, twice as long for conjugate gradients of a cheap operator.
def _if(condition: Bool[Array, ""], function: Callable[[S], S], state: S) -> S:
    """Return `function(state)` if a condition holds, else the state."""
    step = lambda s: (jnp.zeros_like(s[0]), function(s[1]))
    return while_loop(lambda s: s[0], step, (condition, state))[1]


def _as_minres(s: TruncatedState) -> _minres.MinresState:
    cg, begins = s.cg, s.cg.phase == START
    return s.minres._replace(
        best=space.choose(begins, cg.x, s.minres.best),
        x=cg.x,
        r2=cg.r,
        v=cg.p,
        curvature=cg.curvature,
        direction=cg.direction,
        phase=cg.phase,
        reason=cg.reason,
    )


def _of_minres(s: TruncatedState, new: _minres.MinresState) -> TruncatedState:
    cg = s.cg._replace(x=new.x, r=new.r2, p=new.v, phase=new.phase, reason=new.reason)
    return TruncatedState(cg, _without_shared(new), s.continued)


def _without_shared(s: _minres.MinresState) -> _minres.MinresState:
    return s._replace(**dict.fromkeys(_SHARED))


_run_flat = flat(_run)
