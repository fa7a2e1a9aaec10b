"""Derivatives of what `minimize` returns, by the condition that a minimum fulfils."""

from collections.abc import Callable
from typing import Any, NamedTuple
from warnings import warn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import (
    LARGEST_FACTOR,
    HotkError,
    ModeError,
    Point,
    Scalar,
    SingularHessianWarning,
    Tangent,
    Where,
    WhileLoop,
    manual_axes,
    message,
)
from hotk._prepared import jitted, user_level
from hotk._primitive import constants, have_tangents, released, without_derivative
from hotk.linop import HessianOperator, by_iteration, loop, space
from hotk.rule import Condition, linear_solve
from hotk.sparse import is_worth_factors, traced_matrix_if_sparse

from ._bounds import Bounds
from ._chunk import Iterate
from ._minimum import has_converged


_NAMES = "`gradient_norm`, `history`, `multipliers`, `smallest_curvature` and `state`"
_FIX = (
    "Differentiate `x` or `value`, and return these alone from a loop or a function "
    "with a rule of its own, of which JAX may differentiate all results."
)


class Objective(eqx.Module):
    """The objective as a function of what changes, and of the other arrays."""

    def __call__(
        self,
        moving: Point,
        f: Callable[..., PyTree],
        rest: PyTree,
        args: PyTree,
        sides: tuple[PyTree, Point] | None,
    ) -> PyTree:
        """Evaluate it at a point put together.

        Entries at a bound follow that bound, in the objective and as unknowns: of these
        it has the square of the distance to it, which is zero.
        """
        if sides is None:
            return f(eqx.combine(moving, rest), *args)
        free, bound = sides
        at = jax.tree.map(jnp.where, free, moving, bound)
        value = jnp.asarray(f(eqx.combine(at, rest), *args))
        apart = jax.tree.map(
            lambda i, a, b: jnp.where(i, 0, a - b), free, moving, bound
        )
        squares = [jnp.sum(a**2).astype(value.dtype) for a in jax.tree.leaves(apart)]
        return value + sum(squares) / 2


class Differentiable(NamedTuple):
    """A minimization inside of a transformation.

    Attributes:
        call: The call, for messages.
        whole: The function, the point and further arguments, with their tangents.
        held: The same without tangents: what the steps see.
        bounds: The bounds with their tangents, if there are some.
    """

    call: str
    whole: HessianOperator
    held: HessianOperator
    bounds: Bounds | None = None

    @staticmethod
    def of(
        call: str, f: Callable[..., PyTree], x0: Point, args: PyTree, where: Where
    ) -> "Differentiable":
        """Split a function and its arguments into arrays, and the rest."""
        try:
            whole = HessianOperator(f, x0, *args, where=where)
        except HotkError as error:  # it names the call that the user made
            text = str(error).replace("`HessianOperator(f, x)`", f"`{call}`")
            error.args = (text, *error.args[1:])
            raise
        return Differentiable(call, whole, constants(whole))

    def attach(self, end: Iterate) -> Iterate:
        """Return the end of the steps with the derivatives of the minimum.

        Args:
            end: The end, found without tangents.

        Raises:
            ModeError: If it has not converged, and numbers are known.
        """
        H, solved = self.whole, has_converged(end.reason)
        fixed = lambda a, moving: a if moving is None else None
        rest = jax.tree.map(fixed, H.x, H.like, is_leaf=lambda a: a is None)
        sources = H.f, rest, H.args, self._sides(end)
        if have_tangents(sources, (end.x, end.reason, self.held)):
            if not bool(solved):
                raise self._not_converged(end)
            if end.active is None:
                self._warn_if_singular(eqx.combine(end.x, rest))
        large = space.dimension(end.x) > LARGEST_FACTOR
        condition = Condition(
            "minimum",
            Objective(),
            sources,
            solved,
            _by_factors_or_iteration if large else None,
        )
        # Compiled, as the steps are: else each call outside of `jit` would trace them.
        x = loop(H, _attached, condition, end.x)
        others = (
            *(end.size, end.state, end.curvature, end.start, end.values),
            end.multipliers,
        )
        size, state, curvature, start, values, multipliers = without_derivative(
            self.call, others, sources, names=_NAMES, fix=_FIX
        )
        return end._replace(
            x=x,
            y=loop(H, _with_value, condition, end.y, x),
            size=size,
            state=state,
            curvature=curvature,
            start=start,
            values=values,
            multipliers=multipliers,
        )

    def _sides(self, end: Iterate) -> tuple[PyTree, Point] | None:
        """Return which entries are inside of their bounds, and where the others are."""
        if end.active is None or self.bounds is None:
            return None
        free = jax.tree.map(lambda side: side == 0, end.active)
        # a finite number in place of a bound that there may not be
        bound = jax.tree.map(
            lambda side, x, low, high: jnp.where(
                side > 0, high, jnp.where(side < 0, low, x)
            ),
            end.active,
            end.x,
            *self.bounds,
        )
        return free, bound

    def _not_converged(self, end: Iterate) -> ModeError:
        return ModeError(
            message(
                self.call,
                "the run has not converged, so there is no derivative.",
                expected="a run that has converged",
                got=f"{end.reason}; the norm of the gradient is {float(end.size):.3g}",
                fix="Give `rtol=1e-8`, which has no unit, a larger `tol` or "
                "`max_steps`, or write the mean of many terms in place of their sum. "
                "If no derivative is meant, take `jax.lax.stop_gradient` of the "
                "arguments.",
            )
        )

    def _warn_if_singular(self, x: Point) -> None:
        """Warn where the Hessian is singular: the derivatives of `x` are NaN."""
        at = self.held.at(constants(x))
        # The operator of a Gauss-Newton function is not that of its values.
        at = HessianOperator(released(at.f), at.x, *at.args, where=at.where)
        if at.size > LARGEST_FACTOR or np.isfinite(_probe(at)).all():
            return
        warn(
            f"`{self.call}`: the Hessian at the minimum is singular up to rounding, so "
            "derivatives of `x` do not exist and are NaN; those of `value` exist. "
            "Add a penalty to the function, or hold some of its variables by `where=`.",
            SingularHessianWarning,
            stacklevel=user_level(),
        )


def _attached(while_loop: WhileLoop, condition: Condition, x: Point) -> Point:
    del while_loop  # the systems of the derivatives have theirs
    return condition.attach(x)


def _with_value(
    while_loop: WhileLoop, condition: Condition, y: Scalar, x: Point
) -> Scalar:
    del while_loop
    return condition.attach_value(y, x)


def _by_factors_or_iteration(product: Callable[[Tangent], Tangent], b: Tangent) -> Any:
    """Solve a large system: by factors if its matrix is sparse, as a mesh's is.

    Those of a chain of some ten thousand are too badly conditioned for an iteration,
    which gives NaN.
    """
    whole = not (space.has_shards(b) or manual_axes())
    matrix = traced_matrix_if_sparse(product, b) if whole else None
    if matrix is None or not is_worth_factors(matrix.pattern):
        return by_iteration(product, b)
    return matrix.solve(b, nan_if_singular=True)


@jitted
def _probe(H: HessianOperator) -> Array:
    """Solve a system with the Hessian, with NaN if that is singular."""
    b = jax.tree.map(jnp.ones_like, H.like)
    return space.flattened(linear_solve(H.mv, b, symmetric=True))
