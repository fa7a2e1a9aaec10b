"""Orders that are too high: for the memory, or for the numbers of a dtype."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import TooLargeError, message
from hotk.dense import size_of
from hotk.prepared import check_bytes


def check_factorial(call: str, y: Any, order: int) -> None:
    """Refuse an order K for which K! or 1/K! is no number of the dtype of a result.

    Args:
        call: The call, for messages.
        y: Values of the function, or their shapes.
        order: K.
    """
    factorial = math.factorial(min(order, 400))
    for leaf in jax.tree.leaves(y):
        limits = jnp.finfo(leaf.dtype)
        if factorial > float(limits.max) or factorial * float(limits.tiny) > 1:
            highest = _highest(limits)
            raise TooLargeError(
                message(
                    call,
                    f"{order}! is beyond the numbers of {leaf.dtype}.",
                    expected=f"an order of at most {highest}",
                    got=str(order),
                    fix="Use `hotk.taylor`, whose coefficients have no factor, or a "
                    "wider dtype.",
                )
            )


def _highest(limits: Any) -> int:
    largest = min(float(limits.max), 1 / float(limits.tiny))
    return next(k for k in range(400) if math.factorial(k + 1) > largest)


def check_all_orders(call: str, f: Any, x: Any, order: int) -> None:
    """Refuse so many orders that their values exceed the memory budget."""
    y, _ = jax.eval_shape(f, x)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(y))
    check_bytes(call, size_of(x), (order + 1) * each, "a lower order")
