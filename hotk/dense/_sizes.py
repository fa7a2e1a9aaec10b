"""Sizes of a program."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree


class Sizes(NamedTuple):
    """How many numbers go in and come out.

    Attributes:
        n: Numbers in the point.
        m: Numbers in the value.
    """

    n: int
    m: int

    @staticmethod
    def of(x: PyTree, y: PyTree) -> "Sizes":
        """Count the numbers of a point and a value, or of their shapes."""
        leaves = jax.tree.leaves(x)
        n = sum(int(np.size(leaf)) for leaf in leaves)
        m = sum(int(np.prod(np.shape(leaf), dtype=int)) for leaf in jax.tree.leaves(y))
        return Sizes(n, m)
