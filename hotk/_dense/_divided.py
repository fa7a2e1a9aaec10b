"""Columns that are divided over an axis of a mesh.

Each leaf of the point has an axis of its own whose columns are shared out, a run of
them to each device. A window has some columns of every device, so that it is divided as
the result is, and no device holds more of the result than its own part. Where all that
goes in is whole along the mesh axis, each device computes its columns of a window, and
there is no communication; where the data are divided, all take part in each product.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Int, PyTree

from hotk._core import AbstractValue, Point, Tangent, fori_loop, output_types, shape_of

from ._block import choose_block
from ._columns import of_some, whole_columns
from ._split import Block, Division


# A window of columns is whole on each device before it is divided, if the data are
# divided. Such a part of all columns leaves the temporaries below a quarter of the
# whole result.
_WINDOW = 1 / 16


def columns(
    push: Callable[[Tangent], PyTree], x: Point, block: Block
) -> list[list[Array]]:
    """Push all unit directions of `x` through a linear map.

    Args:
        push: The linear map, from a tree like `x` to a tree of arrays.
        x: A tree of real arrays.
        block: How many directions at once, chosen from the program if `None`; or how
            the result is divided among devices. A leaf that has no axis whose length
            the number of devices divides is whole on each of them.

    Returns:
        For each leaf of the result, for each leaf of `x`: an array of shape
        `result.shape + leaf.shape`.
    """
    if not isinstance(block, Division):
        return whole_columns(push, x, block)
    size = choose_block(push, x) if block.size is None else block.size
    found: list[list[Array]] = []
    for k, leaf in enumerate(jax.tree.leaves(x)):
        some = of_some(push, x, [k])
        pushed = lambda seed, some=some: jax.tree.leaves(some([seed]))
        place = block.place(leaf.shape)
        if place is None:
            found.append([row[0] for row in whole_columns(pushed, leaf, size)])
        else:
            found.append(_Divided(pushed, leaf, place, block).columns(size))
    return [list(row) for row in zip(*found, strict=True)]


class _Divided:
    """The columns of one leaf, counted so that those of a device are a run."""

    def __init__(
        self,
        push: Callable[[Array], list[Array]],
        leaf: Array,
        place: int,
        split: Division,
    ) -> None:
        self.push, self.leaf, self.place, self.split = push, leaf, place, split
        rest = [size for d, size in enumerate(leaf.shape) if d != place]
        self.shape = (leaf.shape[place], *rest)
        self.mine = leaf.size // split.parts

    def column(self, number: Int[Array, ""]) -> list[Array]:
        """Push the unit direction of one number."""
        here = jax.lax.iota(jnp.int32, self.leaf.size) == number
        seed = here.astype(self.leaf.dtype).reshape(self.shape)
        return self.push(jnp.moveaxis(seed, 0, self.place))

    def columns(self, block: int) -> list[Array]:
        """Return all columns, about `block` of them at once."""
        split = self.split
        if not split.is_free:
            block = min(block, math.ceil(self.leaf.size * _WINDOW))
        width = max(1, min(block // split.parts, self.mine))
        count = math.ceil(self.mine / width)
        width = math.ceil(self.mine / count)
        device = jax.lax.broadcasted_iota(jnp.int32, (split.parts, width), 0)
        column = jax.lax.broadcasted_iota(jnp.int32, (split.parts, width), 1)

        def window(start: Int[Array, ""]) -> list[Array]:
            numbers = device * self.mine + start + column
            if split.is_free:
                numbers = split.divide(numbers, 0)
            found = jax.vmap(self.column, out_axes=-1)(numbers.ravel())
            if split.is_free is False:
                # Whole on each device first, as a sum over the data is. Otherwise XLA
                # gathers the data, and lets each device compute its own columns.
                found = [split.gather(a) for a in found]
            parts = [a.reshape(*a.shape[:-1], *numbers.shape) for a in found]
            return [split.divide(a, a.ndim - 2) for a in parts]

        def write(step: int | Int[Array, ""], buffers: list[Array]) -> list[Array]:
            # The last window overlaps the one before it.
            start = jnp.asarray(step, jnp.int32) * width
            start = jnp.minimum(start, self.mine - width)
            pairs = zip(buffers, window(start), strict=True)
            updated = [
                jax.lax.dynamic_update_slice_in_dim(a, part, start, a.ndim - 1)
                for a, part in pairs
            ]
            return [split.divide(a, a.ndim - 2) for a in updated]

        first = jax.typeof(jnp.zeros((), jnp.int32))
        types = output_types(lambda starts: window(starts[0]), [first])
        buffers = list(map(self._buffer, types))
        return list(map(self._leaf, fori_loop(0, count, write, buffers)))

    def _buffer(self, window: AbstractValue) -> Array:
        """Return zeros for all columns, divided as a window of them is."""
        shape = (*shape_of(window).shape[:-1], self.mine)
        sharding: Any = getattr(window, "sharding", None)
        buffer = jnp.zeros(shape, shape_of(window).dtype)
        if sharding is not None and any(sharding.spec):
            # not by `out_sharding`, which `jnp.zeros` of jax 0.12 ignores
            like = NamedSharding(self.split.mesh, sharding.spec)
            buffer = jax.sharding.reshard(buffer, like)
        return self.split.divide(buffer, buffer.ndim - 2)

    def _leaf(self, buffer: Array) -> Array:
        """Give the columns the axes of the leaf."""
        ahead = buffer.ndim - 2
        whole = self.split.merge(buffer, ahead, self.shape)
        whole = jnp.moveaxis(whole, ahead, ahead + self.place)
        return self.split.divide(whole, ahead + self.place)
