"""Arguments without their tangents, and whether there were any."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Tracer


S = TypeVar("S")


def constants(tree: S) -> S:
    """Return a tree whose arrays have the same values, and no tangents."""
    # `asarray`: a number of Python that is differentiated has one of JAX's own types.
    constant = lambda a: jnp.asarray(jax.lax.stop_gradient(a))
    return jax.tree.map(lambda a: constant(a) if _may_vary(a) else a, tree)


def may_have_tangents(tree: PyTree) -> bool:
    """Whether a derivative may be taken by an array of a tree, now or later."""
    return any(map(_may_vary, jax.tree.leaves(tree)))


def have_tangents(tree: PyTree, alike: PyTree) -> bool:
    """Whether a derivative is taken now, at numbers that are known.

    Args:
        tree: A tree.
        alike: The same tree by `constants`. What is a number there, and was none, is
            differentiated outside of a `jit`, where Python may still read it.
    """
    moving = list(filter(_may_vary, jax.tree.leaves(tree)))
    return bool(moving) and not any(map(_is_tracer, jax.tree.leaves(alike)))


def _is_tracer(leaf: object) -> bool:
    return isinstance(leaf, Tracer)


def _may_vary(leaf: object) -> bool:
    return isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, jnp.inexact)
