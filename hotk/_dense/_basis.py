"""Unit directions of a tree, made where they are used, in blocks."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from hotk._core import Point, Tangent

from ._flat import refuse_shards


def size_of(x: PyTree) -> int:
    """Count the numbers in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(x))


def unit(x: Point, index: int | Int[Array, ""], scale: complex = 1.0) -> Tangent:
    """Return the direction with `scale` at one flat index of `x` and zero elsewhere.

    An index beyond the end gives the zero direction. A complex scale reaches the
    complex leaves only.

    Raises:
        StructureError: If `x` has a leaf of which this device holds only a part.
    """
    refuse_shards(x)
    leaves, treedef = jax.tree.flatten(x)
    parts, offset = [], 0
    for leaf in leaves:
        if not leaf.size:
            parts.append(jnp.zeros_like(leaf))
            continue
        here = jax.lax.iota(jnp.int32, leaf.size) == index - offset
        offset += leaf.size
        real = not jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        if real and isinstance(scale, complex) and scale.imag:
            parts.append(jnp.zeros(leaf.shape, leaf.dtype))
        else:
            value = jnp.asarray(scale.real if real else scale, leaf.dtype)
            zero = jnp.zeros((), leaf.dtype)
            parts.append(jnp.where(here, value, zero).reshape(leaf.shape))
    return treedef.unflatten(parts)


def over_basis(
    each: Callable[[Int[Array, ""]], PyTree], n: int, block: int | None
) -> PyTree:
    """Evaluate `each(index)` for the indices 0 to n-1, a block of them at once.

    Args:
        each: From one index, a tracer, to a tree of arrays.
        n: Number of indices.
        block: How many at once; `None` or `n` means all.

    Returns:
        The results with one leading axis of length `n`.
    """
    if block is None or block >= n:
        return jax.vmap(each)(jnp.arange(n, dtype=jnp.int32))
    count = math.ceil(n / block)
    block = math.ceil(n / count)
    starts = jnp.arange(count, dtype=jnp.int32) * block

    def one_block(start: Int[Array, ""]) -> PyTree:
        return jax.vmap(each)(start + jnp.arange(block, dtype=jnp.int32))

    stacked = jax.lax.map(one_block, starts)
    return jax.tree.map(lambda a: a.reshape(count * block, *a.shape[2:])[:n], stacked)


def split_rows(rows: Shaped[Array, "n ..."], x: Point) -> list[Array]:
    """Cut an array with a leading axis over all of `x` into one piece a leaf of `x`."""
    pieces, offset = [], 0
    for leaf in jax.tree.leaves(x):
        piece = jax.lax.slice_in_dim(rows, offset, offset + leaf.size, axis=0)
        pieces.append(piece.reshape(leaf.shape + rows.shape[1:]))
        offset += leaf.size
    return pieces


def is_complex(x: PyTree) -> bool:
    """Whether any leaf is complex."""
    return any(
        jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in jax.tree.leaves(x)
    )
