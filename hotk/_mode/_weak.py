"""Weak types of results: those of `jax.jacobian` and `jax.hessian`, in every mode.

With these a derivative by a weakly typed number, such as a Python float, is weakly
typed itself. Unit directions are not, so that forward mode loses it.
"""

import jax
from jaxtyping import PyTree

from hotk._core import Leaf, Point, with_weak_type


def weak_like(result: PyTree, x: Point) -> PyTree:
    """Make leaves of a tree weakly typed where those of a tree like it are."""
    return jax.tree.map(lambda a, b: with_weak_type(a, _is_weak(b)), result, x)


def weak_if(result: PyTree, *points: Point) -> PyTree:
    """Make all leaves of a tree weakly typed if all leaves of some others are."""
    leaves = jax.tree.leaves(points)
    weak = bool(leaves) and all(map(_is_weak, leaves))
    return jax.tree.map(lambda a: with_weak_type(a, weak), result) if weak else result


def _is_weak(leaf: Leaf) -> bool:
    return jax.typeof(leaf).weak_type
