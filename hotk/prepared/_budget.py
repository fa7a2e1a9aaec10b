"""The memory budget: a dense result that cannot fit is refused before it is made."""

import os
from collections.abc import Callable
from typing import Any

import jax

from hotk._core import TooLargeError, bytes_name, message

from ._store import STORE


_SHARE = 0.5


class _Budget:
    chosen: int | None = None


_BUDGET = _Budget()


def memory_budget() -> int:
    """Return how many bytes a dense result may have.

    Unless set otherwise it is half of the memory of the default device.

    Returns:
        The budget in bytes.

    Example:
        >>> hotk.memory_budget() > 0
        True
    """
    chosen = _BUDGET.chosen
    return chosen if chosen is not None else int(_SHARE * _device_bytes())


def set_memory_budget(count: int | None) -> None:
    """Set how many bytes a dense result may have.

    Args:
        count: The budget in bytes, or `None` for half of the device's memory.

    Raises:
        TypeError: If `count` is no whole number.
        ValueError: If `count` is not positive.

    Example:
        >>> hotk.set_memory_budget(1 << 30)
        >>> hotk.memory_budget()
        1073741824
        >>> hotk.set_memory_budget(None)
    """
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise TypeError(
            f"`set_memory_budget(count)`: {count!r} is no whole number of bytes; "
            "write `1 << 30` for a GiB."
        )
    if count is not None and count <= 0:
        raise ValueError(f"`set_memory_budget(count)`: {count} is not positive.")
    _BUDGET.chosen = count
    STORE.clear_programs()  # a program that is known is checked anew


def _device_bytes() -> int:
    device = jax.local_devices()[0]
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 16 << 30


def check_budget(call: str, f: Callable[..., Any], x: Any, order: int) -> None:
    """Refuse a dense derivative of this order that would exceed the budget."""
    leaves = jax.tree.leaves(x)
    n = sum(leaf.size for leaf in leaves)
    y, _ = jax.eval_shape(f, x)
    m = sum(leaf.size for leaf in jax.tree.leaves(y))
    # a block has the dtype of its row
    rows = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    instead = (
        "`hotk.hvp(f, x, v)` for products, `hotk.hessian_diagonal(f, x)` for the "
        "diagonal, `hotk.quadratic_form(f, x, v)` for curvature along a direction"
        if order == 2
        else "`hotk.jvp(f, x, v)` or `hotk.vjp(f, x, u)` for products"
    )
    check_bytes(call, n, m * rows * n ** (order - 1), instead)


def check_bytes(call: str, n: int, needed: int, instead: str) -> None:
    """Refuse a dense result of so many bytes if that is above the budget.

    Args:
        call: What was called.
        n: How many numbers it is for.
        needed: Its bytes.
        instead: What to use in its place.
    """
    budget = memory_budget()
    if needed > budget:
        raise TooLargeError(
            message(
                call,
                f"the dense result for n = {n} numbers does not fit.",
                expected=f"at most {budget} bytes ({bytes_name(budget)})",
                got=f"{needed} bytes ({bytes_name(needed)})",
                fix=f"Use {instead}; or raise `hotk.set_memory_budget(...)`.",
            )
        )
