"""Sizes of a program, and how many directions it takes at once."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Sizes(NamedTuple):
    """How many numbers go in and come out.

    Attributes:
        n: Numbers in the point.
        m: Numbers in the value.
        itemsize: Bytes of the widest number in the point.
    """

    n: int
    m: int
    itemsize: int

    @staticmethod
    def of(x: Any, y: Any) -> "Sizes":
        """Count the numbers of a point and a value, or of their shapes."""
        leaves = jax.tree.leaves(x)
        n = sum(int(np.size(leaf)) for leaf in leaves)
        m = sum(int(np.prod(np.shape(leaf), dtype=int)) for leaf in jax.tree.leaves(y))
        widths = [jax.dtypes.result_type(leaf).itemsize for leaf in leaves]
        return Sizes(n, m, max(widths, default=4))


def block_of(closed: Any, sizes: Sizes) -> int | None:
    """Choose how many directions are pushed at once; `None` means all."""
    del closed
    return None if sizes.n <= 128 else 16
