"""Sizes of a program."""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree


# What a symbolic size stands for where modes are compared: more than any number that
# is written, and as many as another symbolic one.
_SYMBOLIC = 1 << 40


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
        return Sizes(_count(x), _count(y))


def _count(tree: PyTree) -> int:
    sizes = [math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return sum(size if isinstance(size, int) else _SYMBOLIC for size in sizes)
