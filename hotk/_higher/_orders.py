"""Orders that are too high: for the memory, or for the numbers of a dtype."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Function, Point, TooLargeError, message
from hotk._dense import size_of
from hotk._prepared import check_bytes


def check_factorial(call: str, y: PyTree, order: int) -> None:
    """Refuse an order K for which K! or 1/K! is out of range for the dtype of `y`.

    Args:
        call: The call, for messages.
        y: Values of the function, or their shapes.
        order: K.
    """
    # 400! is beyond every dtype; a larger order need not be computed to know that.
    factorial = math.factorial(min(order, 400))
    for leaf in jax.tree.leaves(y):
        limits = jnp.finfo(leaf.dtype)
        if factorial > float(limits.max) or factorial * float(limits.tiny) > 1:
            highest = _highest(float(limits.max), float(limits.tiny))
            raise TooLargeError(
                message(
                    call,
                    f"{order}! is out of range for {leaf.dtype}.",
                    expected=f"an order of at most {highest}",
                    got=str(order),
                    fix="Use `hotk.taylor`, whose coefficients have no factor, or a "
                    "wider dtype.",
                )
            )


def _highest(largest: float, tiny: float) -> int:
    largest = min(largest, 1 / tiny)
    return next(k for k in range(400) if math.factorial(k + 1) > largest)


def check_all_orders(call: str, f: Function, x: Point, order: int) -> None:
    """Refuse so many orders that their values exceed the memory budget."""
    y, _ = jax.eval_shape(f, x)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(y))
    check_bytes(call, size_of(x), (order + 1) * each, "a lower order")
