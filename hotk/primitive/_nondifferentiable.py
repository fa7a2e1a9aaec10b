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
)

from ._linear import AbstractLinear, apply_linear


S = TypeVar("S")

_DERIVATIVE = (
    "from A x = b follows A dx = db - dA x, another system with A, as "
    "`hotk.rule.linear_solve` solves it. For a minimum there is `hotk.rule.minimum`"
)


def _refuse(call: str, derivative: str, primals: PyTree, tangents: PyTree) -> NoReturn:
    raise ModeError(
        message(
            call,
            "the result of an iteration with a stopping rule cannot be differentiated.",
            expected="arguments that are held constant",
            got="a derivative with respect to one of them",
            fix="Take `jax.lax.stop_gradient` of them, or differentiate the equation: "
            f"{derivative}.",
        )
    )


def nondifferentiable(call: str, inputs: S, derivative: str = _DERIVATIVE) -> S:
    """Return trees that raise when a derivative is taken by their arrays.

    The derivative of the steps is not that of the solution if the steps are few, and
    JAX would return it without an error: `tests/linop/test_derivatives.py`.

    Args:
        call: What was called, for the message.
        inputs: Trees; what is no tracer of floating numbers is left as it is.
        derivative: What the derivative is, for the message.
    """

    @jax.custom_jvp
    def same(leaf: Array) -> Array:
        return leaf

    same.defjvp(functools.partial(_refuse, call, derivative))
    # only a tracer can be differentiated; an array outside would cost a call of JAX
    traced = lambda a: isinstance(a, Tracer) and jnp.issubdtype(a.dtype, jnp.inexact)
    return jax.tree.map(lambda a: same(a) if traced(a) else a, inputs)


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
