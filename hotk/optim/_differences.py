"""The Hessian of few parameters, by differences of the gradients that a loop takes.

The program of `minimize` tells the gradient at any point. One of second derivatives
would take as long to compile as all of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


AnyArray: TypeAlias = Array | np.ndarray
"""What `numpy` and `jax.numpy` compute with."""


class Around(NamedTuple):
    """What a loop is asked for besides its steps: gradients around a point.

    Attributes:
        asked: Whether it is to take these, and no steps.
        low: The lower value of each parameter.
        high: The higher one.
        start: The start of the run.
    """

    asked: Bool[Array, ""]
    low: Float[Array, " n"]
    high: Float[Array, " n"]
    start: Float[Array, " n"]

    def point(self, x: Float[Array, " n"], count: Int[Array, ""]) -> Float[Array, " n"]:
        """Return where a gradient is taken: at a high value, then at the low one."""
        i, is_high = count // 2, count % 2 == 0
        return x.at[i].set(jnp.where(is_high, self.high[i], self.low[i]), mode="drop")

    def added(
        self, sums: Float[Array, "n n"], g: Float[Array, " n"], count: Int[Array, ""]
    ) -> Float[Array, "n n"]:
        """Return the differences of gradients with one more gradient."""
        return sums.at[count // 2].add(jnp.where(count % 2 == 0, g, -g), mode="drop")


def sides(
    xp: Any,
    x: Float[AnyArray, " n"],
    start: Float[AnyArray, " n"],
    lower: Float[AnyArray, " n"] | None,
    upper: Float[AnyArray, " n"] | None,
) -> tuple[Any, Any]:
    """Return for each parameter two values around it, within the bounds.

    At a distance at which central differences of gradients err least, if parameters are
    of the size of their values, here or at the start.

    Args:
        xp: `numpy` or `jax.numpy`.
        x: The point.
        start: The start of the run.
        lower: The lower bounds.
        upper: The upper ones.
    """
    size = xp.maximum(xp.abs(x), xp.abs(start))
    far = xp.finfo(x.dtype).eps ** (1 / 3) * xp.where(size > 0, size, 1)
    low, high = x - far, x + far
    if lower is None or upper is None:
        return low, high
    return xp.clip(low, lower, upper), xp.clip(high, lower, upper)


def differences(
    gradient: Callable[[Array], Array], x: Array, low: Array, high: Array
) -> Float[Array, "n n"]:
    """Return the differences of the gradients at two values of each parameter."""

    def row(i: Array) -> Array:
        at = lambda value: gradient(x.at[i].set(value))
        return at(high[i]) - at(low[i])

    return jax.lax.map(row, jnp.arange(len(x)))
