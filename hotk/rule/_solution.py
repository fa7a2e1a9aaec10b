"""`ImplicitFunction`: a solver with the derivatives of the equation it solves."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    Function,
    OutputError,
    Point,
    PyTreeDef,
    describe_tree,
    first_collective,
    function_name,
    has_types,
    manual_axes,
    message,
)
from hotk._mode import Facts, Forward, Reverse
from hotk._prepared import lost_sum
from hotk._primitive import released, shared_axes, with_rules

from ._application import FunctionArgument
from ._custom import custom, is_disabled
from ._linear_solve import LinearSolver, linear_solve, real_parts


@final
class ImplicitFunction(eqx.Module):
    """A function `solution(x0, *theta)`: a solver, and the equation that it solves.

    Attributes:
        equation: The residual, the objective or the step.
        solve: The solver.
        linear_solver: What solves the linear systems of derivatives.
        has_aux: Whether the solver returns `(x, aux)`.
        problem: `"root"`, `"minimum"` or `"fixed point"`.
    """

    equation: Function
    solve: Function
    linear_solver: LinearSolver | None
    has_aux: bool = eqx.field(static=True)
    problem: str = eqx.field(static=True)

    @property
    def origin(self) -> Function:
        """What `disabled` knows it by."""
        return self.solve

    @property
    def func(self) -> Function:
        """What it is named after in messages, as a partial is."""
        return self.equation

    def __call__(self, x0: Point, *theta: PyTree) -> PyTree:
        """Solve, so that derivatives are those of the solution."""
        if is_disabled(self):
            solution = self._with_aux(x0, *theta)
        else:
            solution = _solution(
                self.problem,
                self.equation,
                self._with_aux,
                self.linear_solver,
                x0,
                theta,
            ).tree()
        return solution if self.has_aux else solution[0]

    def _with_aux(self, x0: Point, *theta: PyTree) -> tuple[PyTree, PyTree]:
        solution = self.solve(x0, *theta)
        if not self.has_aux:
            return solution, None
        if isinstance(solution, tuple) and len(solution) == 2:
            return solution
        raise OutputError(
            message(
                f"{self.problem} of {function_name(self.equation)}",
                "with `has_aux=True` the solver returns two things.",
                expected="(x, aux)",
                got=describe_tree(solution),
                fix="Return `x, aux`, or leave out `has_aux`.",
            )
        )

    def __repr__(self) -> str:
        """Name the problem and the equation."""
        return f"<{self.problem} of {function_name(self.equation)}>"


class _Split(eqx.Module):
    """A tree as its arrays and what is static in it, such as a function.

    Attributes:
        arrays: The arrays and numbers among the leaves, `None` for the others.
        static: The others, `None` for arrays.
        structure: The structure of the tree.
    """

    arrays: list[Array | None]
    static: tuple[object, ...] = eqx.field(static=True)
    structure: PyTreeDef = eqx.field(static=True)

    @staticmethod
    def of(tree: PyTree) -> "_Split":
        """Split a tree."""
        leaves, structure = jax.tree.flatten(tree)
        arrays, static = eqx.partition(leaves, eqx.is_array_like)
        # What the solver handed on of its start was wrapped for the call.
        own = [a.func if isinstance(a, FunctionArgument) else a for a in static]
        arrays = [None if a is None else jnp.asarray(a) for a in arrays]
        return _Split(arrays, tuple(own), structure)

    def tree(self) -> PyTree:
        """Return the tree."""
        pairs = zip(self.arrays, self.static, strict=True)
        return self.structure.unflatten([s if a is None else a for a, s in pairs])


@custom
def _solution(
    problem: str,
    equation: Function,
    solve: Function,
    linear_solver: LinearSolver | None,
    x0: Point,
    theta: tuple[PyTree, ...],
) -> _Split:
    del problem, equation, linear_solver  # for the rule
    return _Split.of(solve(x0, *theta))


@_solution.def_jvp
def _implicit(
    primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...], *, y: _Split
) -> _Split:
    problem, equation, _, linear_solver, _, theta = primals
    _, d_equation, *_, d_theta = tangents
    # The tangent is written with the solution `y` of the primal, which is itself a call
    # with this rule: differentiated again, it brings its own linear system.
    solution = y.tree()[0]
    along = (equation, theta), (d_equation, d_theta)
    moved = tangent_of_solution(problem, solution, *along, linear_solver)
    leaves = jax.tree.structure(solution).flatten_up_to(moved)
    leaves += [None] * (len(y.arrays) - len(leaves))  # those of the auxiliary output
    return _Split(leaves, y.static, y.structure)


def tangent_of_solution(
    problem: str,
    solution: PyTree,
    whole: tuple[Function, tuple[PyTree, ...]],
    tangents: PyTree,
    linear_solver: LinearSolver | None,
) -> PyTree:
    """Return the tangent of a solution: one linear system.

    Args:
        problem: `"root"`, `"symmetric root"`, `"minimum"` or `"fixed point"`.
        solution: The solution, which may have leaves that are not unknown.
        whole: The equation, and its arguments after the solution.
        tangents: The tangents of both.
        linear_solver: What solves the system, `None` for a factorization.
    """
    equation, _ = whole
    # Real parts are solved for, as an equation need not be holomorphic: |x|^2 = a has
    # no derivative by the complex number x.
    unknown = jax.tree.map(eqx.is_inexact_array, solution)
    inexact, others = eqx.partition(solution, unknown)
    x, joined = real_parts(inexact)
    whole_of = lambda x: eqx.combine(joined(x), others)
    mode: Forward | Reverse = Reverse()
    if problem == "minimum":
        objective = lambda x: equation(whole_of(x), *whole[1])
        _refuse_sums(equation, objective, x)
        mode = _mode_of_gradient(objective, x)

    def residual(x: Point, equation: Function, theta: tuple[PyTree, ...]) -> PyTree:
        if problem == "minimum":
            return mode.gradient(lambda x: (equation(whole_of(x), *theta), None), x)[1]
        value = equation(whole_of(x), *theta)
        _check_residual(problem, equation, value, solution)
        # What the unknowns are rounded to is all that the equation can tell of them.
        of_kind = lambda v, a: jnp.asarray(v, a.dtype)
        value = jax.tree.map(of_kind, eqx.filter(value, unknown), inexact)
        value, _ = real_parts(value)
        if problem != "fixed point":
            return value
        return jax.tree.map(jnp.subtract, value, x)

    moving, static = eqx.partition(whole, eqx.is_inexact_array)
    # With forward rules, as the equation may hold a `jax.custom_vjp`, as diffrax does,
    # which JAX refuses to differentiate in forward mode.
    derivable = lambda f: with_rules(released(f))
    _, product = jax.linearize(derivable(lambda x: residual(x, *whole)), x)
    _, change = jax.jvp(
        derivable(lambda moving: residual(x, *eqx.combine(moving, static))),
        (moving,),
        (tangents,),
    )
    minus = jax.tree.map(jnp.negative, change)
    symmetric = problem in ("minimum", "symmetric root")
    return joined(linear_solve(product, minus, linear_solver, symmetric=symmetric))


def _mode_of_gradient(objective: Function, x: Point) -> Forward | Reverse:
    """Return reverse mode, or forward mode if a loop in the objective has no other."""
    if Facts.of(jax.make_jaxpr(objective)(x).jaxpr).loops:
        try:
            jax.eval_shape(jax.grad(objective), x)
        except ValueError:  # of JAX, for a `while_loop`; all else is raised once more
            return Forward()
    return Reverse()


def _refuse_sums(equation: Function, objective: Function, x: Point) -> None:
    """Raise if the gradient of an objective would be that of one device's part."""
    axes = manual_axes()
    if not axes or has_types(axes):
        return
    program = jax.make_jaxpr(objective)(x).jaxpr
    alone = {*axes} - shared_axes(program)
    if found := first_collective(program, [True] * len(program.invars), alone):
        raise lost_sum(f"minimum of {function_name(equation)}", *found)


def _check_residual(problem: str, equation: Function, value: PyTree, x: PyTree) -> None:
    if jax.tree.structure(value) == jax.tree.structure(x):
        pairs = zip(*map(jax.tree.leaves, (value, x)), strict=True)
        unknowns = ((v, a) for v, a in pairs if eqx.is_inexact_array(a))
        if all(
            jnp.shape(v) == a.shape and jnp.iscomplexobj(v) == jnp.iscomplexobj(a)
            for v, a in unknowns
        ):
            return
    raise OutputError(
        message(
            f"{problem} of {function_name(equation)}",
            "the equation has another structure or shape than the solution, or one is "
            "complex and the other is not.",
            expected=describe_tree(x),
            got=describe_tree(value),
            fix="Return one equation for each unknown.",
        )
    )
