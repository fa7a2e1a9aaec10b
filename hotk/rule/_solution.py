"""`Solution`: a solver whose derivatives follow from the equation that it solves."""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    Function,
    OutputError,
    Point,
    describe_tree,
    function_name,
    message,
)
from hotk.primitive import with_forward_rules

from ._custom import custom
from ._disabled import is_disabled
from ._linear_solve import LinearSolver, linear_solve


@final
class Solution(eqx.Module):
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
            )
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


@custom
def _solution(
    problem: str,
    equation: Function,
    solve: Function,
    linear_solver: LinearSolver | None,
    x0: Point,
    theta: tuple[PyTree, ...],
) -> PyTree:
    del problem, equation, linear_solver  # for the rule
    return jax.tree.map(jnp.asarray, solve(x0, *theta))


@_solution.def_jvp
def _implicit(
    primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...], *, y: PyTree
) -> PyTree:
    problem, equation, _, linear_solver, _, theta = primals
    _, d_equation, *_, d_theta = tangents
    # Real parts are solved for, as an equation need not be holomorphic: |x|^2 = a has
    # no derivative by the complex number x.
    x, joined = _real_parts(y[0])

    def residual(x: Point, equation: Function, theta: tuple[PyTree, ...]) -> PyTree:
        if problem == "minimum":
            return jax.grad(lambda x: equation(joined(x), *theta))(x)
        value = equation(joined(x), *theta)
        _check_residual(problem, equation, value, joined(x))
        value, _ = _real_parts(value)
        if problem == "root":
            return value
        return jax.tree.map(jnp.subtract, value, x)

    # The tangent is written with the solution `y` of the primal, which is itself a call
    # with this rule: differentiated again, it brings its own linear system.
    whole = (equation, theta)
    moving, static = eqx.partition(whole, eqx.is_inexact_array)
    # With forward rules, as the equation may hold a `jax.custom_vjp`, as diffrax does,
    # which JAX refuses to differentiate in forward mode.
    _, product = jax.linearize(with_forward_rules(lambda x: residual(x, *whole)), x)
    _, change = jax.jvp(
        with_forward_rules(lambda moving: residual(x, *eqx.combine(moving, static))),
        (moving,),
        ((d_equation, d_theta),),
    )
    minus = jax.tree.map(jnp.negative, change)
    dx = linear_solve(product, minus, linear_solver, symmetric=problem == "minimum")
    return joined(dx), None


def _real_parts(tree: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Return a tree with pairs of real arrays for complex ones, and the inverse."""
    leaves, structure = jax.tree.flatten(tree)
    pairs = [jnp.iscomplexobj(leaf) for leaf in leaves]

    def joined(parts: PyTree) -> PyTree:
        split = structure.flatten_up_to(parts)
        return structure.unflatten(
            jax.lax.complex(*part) if pair else part
            for part, pair in zip(split, pairs, strict=True)
        )

    parts = [
        (jnp.real(leaf), jnp.imag(leaf)) if pair else leaf
        for leaf, pair in zip(leaves, pairs, strict=True)
    ]
    return structure.unflatten(parts), joined


def _check_residual(problem: str, equation: Function, value: PyTree, x: PyTree) -> None:
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(t)] for t in (value, x)]
    if jax.tree.structure(value) == jax.tree.structure(x) and shapes[0] == shapes[1]:
        return
    raise OutputError(
        message(
            f"{problem} of {function_name(equation)}",
            "the equation has another structure or shape than the solution.",
            expected=describe_tree(x),
            got=describe_tree(value),
            fix="Return one equation for each unknown.",
        )
    )
