"""What raises where a derivative of it is taken: in any mode, or in reverse."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    AbstractValue,
    Arrays,
    Leaf,
    ModeError,
    Tracer,
    Types,
    message,
    nan_on_purpose,
)

from ._linear import AbstractLinear, apply_linear
from ._ruled import AbstractRuled, Tangents, apply_ruled


S = TypeVar("S")


def _refuse(call: str, primals: PyTree, tangents: PyTree) -> NoReturn:
    raise ModeError(
        message(
            call,
            "the result of an iteration with a stopping rule cannot be differentiated.",
            expected="arguments that are held constant",
            got="a derivative with respect to one of them",
            fix="Take `jax.lax.stop_gradient` of them, or call what has derivatives of "
            "its equation: `hotk.linop.solve(A, b)`, `hotk.optim.minimize(f, x0)`.",
        )
    )


def nondifferentiable(call: str, inputs: S) -> S:
    """Return trees that raise when a derivative is taken by their arrays.

    The derivative of the steps is not that of the solution if the steps are few, and
    JAX would return it without an error: `tests/linop/test_derivatives.py`.

    Args:
        call: What was called, for the message.
        inputs: Trees; what is not a tracer of floating numbers is left as it is.
    """

    @jax.custom_jvp
    def same(leaf: Array) -> Array:
        return leaf

    same.defjvp(functools.partial(_refuse, call))
    # only a tracer can be differentiated; an array outside would cost a call of JAX
    traced = lambda a: isinstance(a, Tracer) and jnp.issubdtype(a.dtype, jnp.inexact)
    return jax.tree.map(lambda a: same(a) if traced(a) else a, inputs)


@dataclasses.dataclass(frozen=True)
class _Missing(AbstractLinear):
    """A derivative that no one has: NaN in forward mode, an error in reverse mode.

    In forward mode JAX computes tangents whether they are used or not, so an error
    there would refuse those of other results as well.

    Attributes:
        call: What was called.
        names: The results.
        fix: What to do.
        type: The type of the tangent that it is applied to.
    """

    call: str
    names: str
    fix: str
    type: AbstractValue

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Return NaN of the type of the result."""
        del inputs
        return [residuals[0] * jnp.nan]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Raise."""
        del residuals, cotangents
        raise ModeError(
            message(
                self.call,
                f"the derivative of {self.names} is not known.",
                expected="a derivative of results that have one",
                got="a cotangent of another one",
                fix=self.fix,
            )
        )

    def takes(self, residuals: Types) -> Types:
        """Return the type of the tangent."""
        del residuals
        return [self.type]

    def gives(self, residuals: Types) -> Types:
        """Return the type of the result's tangent."""
        return [residuals[0].to_tangent_aval()]


@dataclasses.dataclass(frozen=True)
class _WithoutDerivative(AbstractRuled):
    """The first of some arrays, which depend on the others in no known way.

    Attributes:
        call: What was called.
        names: The results.
        fix: What to do.
        count: How many they are.
    """

    call: str
    names: str
    fix: str
    count: int
    users_rule = False

    def run(self, arrays: Arrays) -> Arrays:
        """Return them."""
        return arrays[: self.count]

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Return tangents that are NaN, and raise where they are transposed."""
        del arrays
        moved = next(t for t in along if t is not None)
        missing = _Missing(self.call, self.names, self.fix, jax.typeof(moved))
        with nan_on_purpose():
            return [apply_linear(missing, [o], [moved])[0] for o in outputs]


def without_derivative(
    call: str, results: S, sources: PyTree, *, names: str, fix: str
) -> S:
    """Return results whose derivative by some arrays is not known, rather than zero.

    In forward mode it is NaN. In reverse mode it raises, if it is asked for.

    Args:
        call: What was called, for the message.
        results: A tree that was computed from the arrays without their tangents.
        sources: A tree of the arrays.
        names: What the results are called.
        fix: What to do instead.
    """
    inexact = lambda a: isinstance(a, Array) and jnp.issubdtype(a.dtype, jnp.inexact)
    by = [a for a in jax.tree.leaves(sources) if isinstance(a, Tracer) and inexact(a)]
    leaves, tree = jax.tree.flatten(results)
    places = [i for i, leaf in enumerate(leaves) if inexact(leaf)]
    if not by or not places:
        return results
    function = _WithoutDerivative(call, names, fix, len(places))
    found = apply_ruled(function, [*(leaves[i] for i in places), *by])
    for i, leaf in zip(places, found, strict=True):
        leaves[i] = leaf
    return tree.unflatten(leaves)


@dataclasses.dataclass(frozen=True)
class _ForwardOnly(AbstractLinear):
    """The same numbers, whose reverse derivative raises."""

    refused: Callable[[], Exception]
    type: AbstractValue

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Return them."""
        del residuals
        return list(inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Raise."""
        del residuals, cotangents
        raise self.refused()

    def takes(self, residuals: Types) -> Types:
        """Return their type."""
        del residuals
        return [self.type]

    gives = takes


def forward_only(refused: Callable[[], Exception], array: Leaf) -> Leaf:
    """Return an array that raises when it is differentiated in reverse mode."""
    return apply_linear(_ForwardOnly(refused, jax.typeof(array)), [], [array])[0]
