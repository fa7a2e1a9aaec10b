"""Sizes of a program."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Sizes(NamedTuple):
    """How many numbers go in and come out.

    Attributes:
        n: Numbers in the point.
        m: Numbers in the value.
    """

    n: int
    m: int

    @staticmethod
    def of(x: Any, y: Any) -> "Sizes":
        """Count the numbers of a point and a value, or of their shapes."""
        leaves = jax.tree.leaves(x)
        n = sum(int(np.size(leaf)) for leaf in leaves)
        m = sum(int(np.prod(np.shape(leaf), dtype=int)) for leaf in jax.tree.leaves(y))
        return Sizes(n, m)
