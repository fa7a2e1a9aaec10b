"""Solutions that were found on values held constant, with derivatives of their own."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from hotk._core import Function, Point, Scalar, shared_as
from hotk._primitive import released, with_rules

from ._custom import custom
from ._linear_solve import LinearSolver
from ._solution import tangent_of_solution


class Condition(NamedTuple):
    r"""What a solution fulfils, from which its derivatives follow.

    For a solution that was found already, by a solver that ran on values without
    tangents (`jax.lax.stop_gradient`). The program is then that of the solver, and what
    belongs to derivatives is traced and computed only if one is taken. Where a function
    calls the solver, `hotk.rule.root`, `minimum` and `fixed_point` do the same.

    Attributes:
        kind: `"minimum"`, of the equation; `"root"`; `"symmetric root"`, whose Jacobian
            is symmetric; or `"fixed point"`.
        equation: `equation(x, *theta)`: the objective, the residual or the step. Arrays
            that it captures are differentiated as well.
        theta: Its further arguments.
        solved: Whether the solver has found it; if not, all derivatives are NaN.
        linear_solver: `linear_solver(product, b)`; see `hotk.rule.minimum`.

    Example:
        >>> def nearest(a):  # known without a solver
        ...     f = lambda x: (x[0] - 2) ** 2 + (a * x[1] - 3) ** 2
        ...     condition = hotk.rule.Condition("minimum", f)
        ...     x = jax.lax.stop_gradient(jnp.array([2.0, 3 / a]))
        ...     return condition.attach(x)
        >>> jax.grad(lambda a: nearest(a)[1])(1.0).item()
        -3.0
    """

    kind: str
    equation: Function
    theta: tuple[PyTree, ...] = ()
    solved: bool | Bool[Array, ""] = True
    linear_solver: LinearSolver | None = None

    def attach(self, x: Point) -> Point:
        """Return a solution with its derivatives, to any order.

        Args:
            x: The solution: a tree of arrays, without tangents.
        """
        return _attached(
            self.kind,
            self.equation,
            self.linear_solver,
            x,
            self.theta,
            jnp.asarray(self.solved),
        )

    def attach_value(self, value: Scalar, x: Point) -> Scalar:
        r"""Return the value at a minimum with its derivatives, to any order.

        The derivative is $\partial_\theta f(x, \theta)\,d\theta$ with the minimum held
        fixed (the envelope theorem), without a linear system. That is differentiated
        again with the minimum, which moves.

        Args:
            value: The value, without tangents.
            x: The minimum, as `attach` returned it.
        """
        solved = jnp.asarray(self.solved)
        return _valued(self.equation, value, x, solved, self.theta)


@custom
def _attached(
    kind: str,
    equation: Function,
    linear_solver: LinearSolver | None,
    x: Point,
    theta: tuple[PyTree, ...],
    solved: Bool[Array, ""],
) -> Point:
    del kind, equation, linear_solver, theta, solved  # for the rule
    return x


@_attached.def_jvp
def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...], *, y: Point) -> PyTree:
    kind, equation, linear_solver, _, theta, solved = primals
    _, d_equation, _, _, d_theta, _ = tangents
    along = (equation, theta), (d_equation, d_theta)
    # `y` is a call with this rule, so that the tangent is differentiated as well.
    dx = tangent_of_solution(kind, y, *along, linear_solver)
    return jax.tree.map(lambda d: _if_solved(solved, d), dx)


@custom
def _valued(
    equation: Function,
    value: Scalar,
    x: Point,
    solved: Bool[Array, ""],
    theta: tuple[PyTree, ...],
) -> Scalar:
    del equation, x, solved, theta  # for the rule
    return value


@_valued.def_jvp
def _(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> Array:
    equation, value, x, solved, theta = primals
    d_equation, *_, d_theta = tangents
    moving, static = eqx.partition((equation, theta), eqx.is_inexact_array)

    def at(moving: PyTree) -> Array:
        equation, theta = eqx.combine(moving, static)
        return jnp.asarray(equation(x, *theta)).astype(value.dtype)

    slope = jax.jvp(with_rules(released(at)), (moving,), ((d_equation, d_theta),))[1]
    # Of devices that share the point, the value is the sum.
    return _if_solved(solved, shared_as(jax.typeof(value), slope))


def _if_solved(solved: Bool[Array, ""], tangent: Array) -> Array:
    """Return a tangent, NaN if there is no solution: a factor, which is transposed."""
    return tangent * jnp.where(solved, 1, jnp.nan).astype(tangent.dtype)
