r"""Where a loss takes over from its model: marked in the program of a function.

The Hessian of $L(z(x), x)$, with the second derivative of z left out, is that of L by
its two arguments, multiplied with the Jacobian of z from both sides. An operator has a
function only, which may add terms to such a loss, or scale it: so the outputs of the
model pass through an equation that does nothing, and what stands before it and behind
it are the two functions.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    MOVES,
    Arrays,
    ClosedJaxpr,
    JaxprEqn,
    Leaf,
    Point,
    Scalar,
    Var,
    bound,
    equations,
    inlined,
    inlined_equations,
    is_inexact,
    run_replaced,
)
from hotk._primitive import AbstractRuled, apply_ruled, held, held_in, with_extremes


# What gives the numbers that it is given: an optimizer steps on one flat vector.
_MOVES = frozenset(MOVES) | {"convert_element_type"}


@dataclasses.dataclass(frozen=True)
class _Outputs(AbstractRuled):
    """The outputs of a model as they are, beside what they are computed from.

    Attributes:
        count: How many outputs there are.
        moving: How many leaves of the point follow them; after these come the floating
            arrays that the model captures.
    """

    count: int
    moving: int

    # No rule of a user: the derivative of the outputs is theirs.
    users_rule = False

    def run(self, arrays: Arrays) -> Arrays:
        """Return the outputs."""
        return list(arrays[: self.count])

    def tangents(
        self, outputs: Arrays, arrays: Arrays, along: list[Leaf | None]
    ) -> list[Leaf | None]:
        """Return the tangents of the outputs."""
        return list(along[: self.count])


def as_outputs(z: PyTree, x: Sequence[Leaf], captured: Sequence[Leaf]) -> PyTree:
    """Return the outputs of a model, known as such to `composition`.

    Args:
        z: The outputs, whose second derivative by the point is zero.
        x: The floating leaves of the point.
        captured: What else the model is computed from.
    """
    leaves, tree = jax.tree.flatten(z)
    # Known ones too: of arrays of NumPy it is looked whether a program is the same with
    # a tracer in their place (`test_indices_of_numpy_in_a_model_stay_leaves`).
    floating = [a for a in captured if is_inexact(a)]
    mark = _Outputs(len(leaves), len(x))
    return tree.unflatten(apply_ruled(mark, [*leaves, *x, *floating]))


class Composition(NamedTuple):
    """A function as a loss of a model, whose second derivative is left out.

    Attributes:
        model: From a point to the outputs of the model. Its first derivative is the
            Jacobian, in which nothing is held: its derivatives are those of an array.
        outputs: The same as a function of which nothing is held at all.
        loss: From outputs and a point to the value.
    """

    model: Callable[[Point], list[Any]]
    outputs: Callable[[Point], list[Any]]
    loss: Callable[[list[Any], Point], Scalar]


def composition(closed: ClosedJaxpr, x: Point) -> Composition | None:
    """Split a function, `None` if it is not the loss of one model.

    Args:
        closed: The program of a function of one argument; its value comes first among
            the results.
        x: The point: a tree of floating arrays.

    Returns:
        The two functions. The model is linear in the point but for its first
        derivative: a function that changes the point before it calls the loss has
        none.

    Example:
        >>> f = hotk.curvature.GaussNewton(jnp.sin, lambda z: jnp.sum(z**2) / 2)
        >>> x = jnp.array([0.0, 1.0])
        >>> found = hotk.curvature.composition(jax.make_jaxpr(f)(x), x)
        >>> [z] = found.model(x)
        >>> jnp.allclose(z, jnp.sin(x)).item(), found.loss([2 * z], x).item() > 1.4
        (True, True)
    """
    marks = [e for e in equations(closed.jaxpr) if _is_mark(e)]
    inlined = [e for e, _ in inlined_equations(closed.jaxpr) if _is_mark(e)]
    if len(marks) != 1 or len(inlined) != 1:
        return None
    mark = marks[0].params["function"]
    leaves = jax.tree.leaves(x)

    def given(*leaves: Leaf) -> list[Leaf]:
        """Return what the equation of the outputs is given."""
        met: list[Leaf] = []

        def handle(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
            if _is_mark(equation):
                met.extend(inputs)
            return bound(equation, inputs)

        run_replaced(closed, leaves, {"hotk_ruled": handle})
        return met

    before = jax.make_jaxpr(given)(*leaves)
    if not _is_of_the_point(before, mark):
        return None

    def after(derivatives: int) -> Callable[[Point], list[Leaf]]:
        """Return the outputs as they are behind some of the derivatives."""

        def handle(equation: JaxprEqn, inputs: list[Leaf]) -> list[Leaf]:
            return held(inputs, held_in(equation) - derivatives)

        run = lambda *leaves: run_replaced(before, leaves, {"hotk_held": handle})
        moving = with_extremes(jax.make_jaxpr(run)(*leaves))
        return lambda x: list(moving(*jax.tree.leaves(x))[: mark.count])

    def loss(z: list[Leaf], x: Point) -> Scalar:
        def handle(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
            return list(z) if _is_mark(equation) else bound(equation, inputs)

        handlers = {"hotk_ruled": handle}
        return jnp.asarray(run_replaced(closed, jax.tree.leaves(x), handlers)[0])

    return Composition(after(1), after(2), loss)


def _is_mark(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "hotk_ruled":
        return False
    return isinstance(equation.params["function"], _Outputs)


def _is_of_the_point(before: ClosedJaxpr, mark: _Outputs) -> bool:
    """Whether the point of the model has the numbers of the point of the function.

    Otherwise the outputs have a second derivative, that of what changes the point.
    """
    jaxpr = inlined(before).jaxpr
    if len(jaxpr.outvars) < mark.count + mark.moving:  # it is in what is not run here
        return False
    same, other = set(jaxpr.invars), set[Var]()
    for equation in jaxpr.eqns:
        read = {v for v in equation.invars if isinstance(v, Var)}
        if read & other or (read & same and equation.primitive.name not in _MOVES):
            other.update(equation.outvars)
        elif read & same:
            same.update(equation.outvars)
    behind = jaxpr.outvars[mark.count :]
    of_model, captured = behind[: mark.moving], behind[mark.moving :]
    changes = any(v in other for v in of_model if isinstance(v, Var))
    return not changes and not any(
        v in same | other for v in captured if isinstance(v, Var)
    )
