"""`Shard`: an array of which each device of a `shard_map` holds a part."""

from typing import Any, NamedTuple, TypeGuard, final

import equinox as eqx
import jax
from jaxtyping import PyTree, Shaped


@final
class Shard(eqx.Module):
    """One device's part of an array, inside of `jax.shard_map`.

    It is a node of a tree, so that every vector like the tree has it too: gradients,
    products, steps and the states of optimizers. Inner products add over the devices
    for what is in it. `hotk.as_shards` makes it, `hotk.from_shards` takes it away.

    Attributes:
        value: The part that this device holds.
        axis_name: The axes of the mesh along which the parts differ.
    """

    value: Shaped[jax.Array, "..."]
    axis_name: tuple[str, ...] = eqx.field(static=True)


class Held(NamedTuple):
    """An array of a vector, and the mesh axes along which each device has a part.

    Attributes:
        array: What this device holds.
        axes: The axes; none for an array that all hold alike.
    """

    array: Any
    axes: tuple[str, ...]


def is_shard(node: object) -> TypeGuard[Shard]:
    """Whether a node of a tree is a part of an array."""
    return type(node) is Shard  # `isinstance` is slow for classes of Equinox


def held(tree: PyTree) -> list[Held]:
    """List the arrays of a tree, each with the axes along which it is divided."""
    nodes = jax.tree.leaves(tree, is_leaf=is_shard)
    return [
        Held(node.value, node.axis_name) if is_shard(node) else Held(node, ())
        for node in nodes
    ]


def has_shards(tree: PyTree) -> bool:
    """Whether a tree has parts of arrays."""
    return any(map(is_shard, jax.tree.leaves(tree, is_leaf=is_shard)))


def without_shards(tree: PyTree) -> PyTree:
    """Return the same tree with each part as a plain array."""
    bare = lambda node: node.value if is_shard(node) else node
    return jax.tree.map(bare, tree, is_leaf=is_shard)
