"""Preconditioners of an optimizer: made from the curvature, and used for many steps."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from hotk._capture import Closure, Skeleton
from hotk._core import (
    Point,
    Scalar,
    StructureError,
    cond,
    describe,
    message,
)
from hotk.linop import AbstractOperator, LeafBlocks, space

from ._local import LinearizedHessian, Numbers
from ._transformation import show_state


Preconditioner: TypeAlias = Callable[..., AbstractOperator]
"""From a curvature A and a key to an operator near it: `preconditioner(A, key=key)`.

The key is passed by its name, so that `functools.partial(nystrom, rank=50)` is one.
"""


class PreconditionerState(NamedTuple):
    """What an optimizer keeps of its preconditioner.

    Attributes:
        age: Updates since the first one; with it the key is made.
        arrays: Those of the operator near the curvature.
    """

    age: Int[Array, ""]
    arrays: tuple[Array, ...]

    __repr__ = show_state


class Preconditioning(NamedTuple):
    """What a program knows of a preconditioner.

    Attributes:
        skeleton: The function without the arrays that it captured: one that is made
            anew has an equal one. The function itself if it is opaque.
    """

    skeleton: Skeleton | Preconditioner

    def function(self, captured: tuple[Any, ...]) -> Preconditioner:
        """Return the function, with what it captured."""
        if isinstance(self.skeleton, Skeleton):
            return self.skeleton.function(captured)
        opaque = self.skeleton
        return lambda A, key: opaque(A, key=key)

    def shapes(self, captured: tuple[Any, ...], x: Point) -> Any:
        """Return the operator that is made at a point, with shapes for arrays."""
        nothing = LinearizedHessian(lambda v: v, x).as_argument()
        key = jax.random.key(0)
        return jax.eval_shape(lambda k: self.function(captured)(nothing, k), key)

    def first(self, captured: tuple[Any, ...], x: Point) -> PreconditionerState:
        """Return the state before any step."""
        shapes = jax.tree.leaves(self.shapes(captured, x))
        arrays = tuple(jnp.zeros(a.shape, a.dtype) for a in shapes)
        return PreconditionerState(jnp.zeros((), int), arrays)

    def at(
        self,
        name: str,
        captured: tuple[Any, ...],
        state: PreconditionerState,
        curvature: LinearizedHessian,
        every: Array,
    ) -> tuple[AbstractOperator, PreconditionerState]:
        """Return the operator of an update, made anew in every k-th of them.

        Args:
            name: The optimizer, for messages.
            captured: What the function captured.
            state: What is kept.
            curvature: The curvature at the point.
            every: How many updates one operator serves.

        Raises:
            StructureError: If the parameters are not those of the first state.
        """
        shapes = self.shapes(captured, curvature.like)
        leaves, tree = jax.tree.flatten(shapes)
        if [a.shape for a in leaves] != [a.shape for a in state.arrays]:
            raise StructureError(
                message(
                    f"{name}(preconditioner=...).update(updates, state, params)",
                    "the state is that of other parameters.",
                    expected=f"an operator on {space.dimension(curvature.like)} "
                    "parameters that have a gradient",
                    got=f"arrays of shapes {[a.shape for a in state.arrays]}",
                    fix="Call `init` with the parameters that have a gradient.",
                )
            )
        key = jax.random.fold_in(jax.random.key(0), state.age)

        def make() -> tuple[Array, ...]:
            made = self.function(captured)(curvature.as_argument(), key)
            return tuple(
                a.astype(b.dtype)
                for a, b in zip(jax.tree.leaves(made), state.arrays, strict=True)
            )

        due = state.age % jnp.maximum(every.astype(state.age.dtype), 1) == 0
        arrays = cond(due, make, lambda: state.arrays)
        return tree.unflatten(arrays), PreconditionerState(state.age + 1, arrays)


class KeptPreconditioner(NamedTuple):
    """The preconditioner of an update.

    Attributes:
        near: The operator near the curvature, `None` without a preconditioner.
        state: What is kept of it.
    """

    near: AbstractOperator | None
    state: PreconditionerState | None

    def inverse(self, damping: Scalar) -> AbstractOperator | None:
        """Return the preconditioner for a damping, `None` without one."""
        near = self.near
        if isinstance(near, LeafBlocks):  # of a Hessian that may be indefinite
            near = near.absolute()
        return None if near is None else near.inverse(damping)


def preconditioning(
    name: str, function: Preconditioner | None
) -> tuple[Preconditioning | None, tuple[Any, ...]]:
    """Split a preconditioner into what is static and what it captured.

    In each update, as what it captured may have changed.

    Raises:
        TypeError: If it cannot be called.
    """
    if function is None:
        return None, ()
    if isinstance(function, AbstractOperator) or not callable(function):
        raise TypeError(
            message(
                f"{name}(preconditioner=...)",
                "an optimizer calls it with the curvature at a point.",
                expected="a function of an operator and a random key",
                got=describe(function),
                fix="Write `functools.partial(hotk.linop.nystrom, rank=50)`, or "
                "`lambda A, key: hotk.linop.Diagonal(A.diagonal())`.",
            )
        )
    closure = Closure.of(lambda A, key: function(A, key=key))
    if closure.skeleton.opaque is not None:
        return Preconditioning(function), ()
    return Preconditioning(closure.skeleton), closure.leaves


def only_for_iterations(name: str, *choices: str) -> None:
    """Refuse a preconditioner beside a solver that does not iterate.

    Args:
        name: The optimizer, for messages.
        *choices: What was chosen of systems and solvers.

    Raises:
        ValueError: If one of them is by factors.
    """
    for choice in choices:
        if choice in ("samples", "sparse", "exact"):
            raise ValueError(
                f"`{name}`: a preconditioner is for conjugate gradients, and "
                f"{choice!r} solves by factors. Leave out one of them."
            )


def first_preconditioner(
    name: str, function: Preconditioner | None, params: optax.Params
) -> PreconditionerState | None:
    """Return the state of a preconditioner before any step, `None` without one."""
    choice, captured = preconditioning(name, function)
    return None if choice is None else choice.first(captured, params)


def preconditioner_at(
    name: str,
    choice: Preconditioning | None,
    numbers: Numbers,
    state: PreconditionerState | None,
    curvature: AbstractOperator,
) -> KeptPreconditioner:
    """Return the preconditioner of an update; see `Preconditioning.at`."""
    if choice is None or state is None:
        return KeptPreconditioner(None, None)
    assert isinstance(curvature, LinearizedHessian)  # as `AtPoint.linearized` makes it
    captured: Any = numbers["captured"]
    every = numbers["update_every"]
    return KeptPreconditioner(*choice.at(name, captured, state, curvature, every))
