"""The largest or smallest number of an array, with the derivative of one.

JAX finds the entries that a maximum depends on by comparing the array with the maximum.
XLA computes an array that is the result of cheap operations anew in each place where it
is read, and may round it otherwise there: with a product and a sum in one operation, or
in more digits than it has. Then no entry is the largest, or another one in each use,
and the derivative is `nan`, or a part of it is lost without a sign. Here the array is
compared as it was written once.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import Arrays, JaxprEqn, Leaf, Primitive

from ._ruled import AbstractRuled, Tangents, apply_ruled
from ._written import written


@dataclasses.dataclass(frozen=True)
class _Extreme(AbstractRuled):
    """The largest or the smallest number along axes.

    Attributes:
        primitive: The operation of JAX.
        parameters: Its parameters, with their names.
    """

    primitive: Primitive
    parameters: tuple[tuple[str, Hashable], ...]

    users_rule = False

    def run(self, arrays: Arrays) -> Arrays:
        """Find it."""
        return [self.primitive.bind(*arrays, **dict(self.parameters))]

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Take the mean of those that are equal to it; all are `nan` if it is."""
        [tangent] = along
        if tangent is None:
            return [None]
        array = written(jax.lax.stop_gradient(jnp.asarray(arrays[0])))
        axes: Any = dict(self.parameters)["axes"]
        [extreme] = self.run([array])
        extreme = jnp.expand_dims(jnp.asarray(extreme), axes)
        chosen = (array == extreme).astype(array.dtype)
        chosen = jnp.where(extreme == extreme, chosen, jnp.nan)
        return [jnp.sum(tangent * chosen, axes) / jnp.sum(chosen, axes)]


def extreme(equation: JaxprEqn, inputs: list[Leaf]) -> Arrays:
    """Evaluate `reduce_max` or `reduce_min` so that its derivative is right."""
    parameters = tuple(sorted(equation.params.items()))
    return apply_ruled(_Extreme(equation.primitive, parameters), inputs)
