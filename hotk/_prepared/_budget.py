"""The memory budget: a dense result that cannot fit is refused before it is made."""

import math
import os

import jax
import numpy as np

from hotk._core import Function, Point, TooLargeError, bytes_name, message
from hotk._dense import Block, Division

from ._store import STORE


_SHARE = 0.5


class _Budget:
    chosen: int | None = None


_BUDGET = _Budget()


def memory_budget() -> int:
    """Return how many bytes a dense result may have.

    Operators that return a matrix, such as `hotk.hessian`, compare the size of the
    result with this budget before they allocate it, and raise `hotk.TooLargeError` if
    it does not fit. Unless set with `hotk.set_memory_budget` the budget is half of the
    memory of the default device.

    Returns:
        The budget in bytes, an integer.

    Example:
        >>> hotk.memory_budget() > 0
        True
    """
    chosen = _BUDGET.chosen
    return chosen if chosen is not None else int(_SHARE * _device_bytes())


def set_memory_budget(count: int | None) -> None:
    """Set how many bytes a dense result may have.

    A larger one raises `hotk.TooLargeError` before it is allocated. Compiled programs
    are dropped, as the budget is checked when a program is traced.

    Args:
        count: The budget in bytes, or `None` for half of the device's memory.

    Raises:
        TypeError: If `count` is not an integer.
        ValueError: If `count` is not positive.

    Example:
        >>> hotk.set_memory_budget(1 << 30)
        >>> hotk.memory_budget()
        1073741824
        >>> hotk.set_memory_budget(None)
    """
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise TypeError(
            f"`set_memory_budget(count)`: {count!r} must be an integer, the number of "
            "bytes; write `1 << 30` for a GiB."
        )
    if count is not None and count <= 0:
        raise ValueError(f"`set_memory_budget(count)`: {count} must be positive.")
    _BUDGET.chosen = count
    STORE.clear_programs()  # the budget is checked while a program is traced


def _device_bytes() -> int:
    device = jax.local_devices()[0]
    statistics = device.memory_stats() if device.platform != "cpu" else None
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 16 << 30


def check_budget(
    call: str, f: Function, x: Point, order: int, block: Block = None
) -> None:
    """Refuse a dense derivative of this order that would exceed the budget.

    Args:
        call: What was called, for the message.
        f: A function of one argument, with auxiliary output.
        x: The point.
        order: The order of the derivative.
        block: How the result is divided: then the part of one device counts.

    Raises:
        TooLargeError: If it does not fit.
    """
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
    needed = m * rows * n ** (order - 1)
    if isinstance(block, Division):
        divided = y if order == 1 and block.by == "rows" else x
        needed = math.ceil(
            needed * block.share(divided) / max(m if divided is y else n, 1)
        )
        instead = f"more devices than {block.parts}, or {instead}"
    check_bytes(call, n, needed, instead)


def check_bytes(call: str, n: int, needed: int, instead: str) -> None:
    """Refuse a dense result of so many bytes if that is above the budget.

    Args:
        call: What was called.
        n: How many numbers it is for.
        needed: Its bytes.
        instead: What to use in its place.

    Raises:
        TooLargeError: If they are.
    """
    budget = memory_budget()
    if not isinstance(
        needed, (int, float, np.number)
    ):  # symbolic: it may have any size
        return
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
