"""Parameters of which each device of a `shard_map` holds a part."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

from hotk._core import (
    Shard,
    StructureError,
    differs_along,
    has_types,
    is_shard,
    leaf_name,
    manual_axes,
    message,
    without_shards,
)


def as_shards(x: PyTree, specs: PyTree) -> PyTree:
    """Mark the leaves of a tree of which each device holds a part.

    Inside of `jax.shard_map` an array that is divided is one device's part of it, and
    nothing tells it from an array that all devices hold alike. Marked, its part becomes
    a node `hotk.Shard` of the tree. Gradients, products, solutions, steps and states of
    optimizers then have that node as well. Inner products, norms, tests of convergence
    and random vectors of all solvers are those of the whole array.

    The function has to be one of `hotk.over_axis`, which gets the parts as plain
    arrays. It puts them together by `jax.lax.all_gather(w, "data", tiled=True)`, the
    derivative of which adds over the devices and gives each its part.

    What needs unit directions or one flat vector raises `StructureError`: dense
    Hessians and Jacobians, diagonals, Laplacians, sparse matrices, optimizers that form
    a matrix. Call these outside of `shard_map`.

    Args:
        x: A tree of arrays, as it came into the function that `shard_map` maps.
        specs: A `PartitionSpec` for each leaf, or for a subtree: the `in_specs` of this
            argument. A leaf whose spec names no axis stays as it is.

    Returns:
        The tree with a `hotk.Shard` in place of each leaf that is divided.

    Raises:
        StructureError: If an axis is none of the `shard_map` that is traced, or with
            `check_vma=True` a leaf does not vary along it.
        TypeError: If `specs` has anything but `PartitionSpec`.

    Example:
        >>> from jax.sharding import AxisType, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> specs = {"w": P("data"), "b": P()}
        >>> def loss(p, rows):
        ...     w = jax.lax.all_gather(p["w"], "data", tiled=True)
        ...     return jnp.mean((rows @ w + p["b"]) ** 2) / 2
        >>> def newton(p, rows):
        ...     f, q = hotk.over_axis(loss, "data"), hotk.as_shards(p, specs)
        ...     H = hotk.HessianOperator(f, q, rows)
        ...     return hotk.from_shards(H.solve(hotk.gradient(f, q, rows)).x)
        >>> over = jax.shard_map(
        ...     newton, mesh=mesh, in_specs=(specs, P("data")), out_specs=specs
        ... )
        >>> p, rows = {"w": jnp.ones(2), "b": jnp.ones(())}, jnp.eye(4, 2)
        >>> jax.tree.map(lambda a: a.round(3).tolist(), jax.jit(over)(p, rows))
        {'b': 1.0, 'w': [1.0, 1.0]}

    References:
        Rajbhandari, Rasley, Ruwase and He (2020). ZeRO: memory optimizations toward
            training trillion parameter models. arXiv:1910.02054, section 5.3.
    """
    is_spec = lambda node: isinstance(node, PartitionSpec)
    flat, structure = jax.tree.flatten_with_path(specs, is_leaf=is_spec)
    wrong = [spec for _, spec in flat if not is_spec(spec)]
    if wrong:
        raise TypeError(
            f"`as_shards(x, specs)`: expected a tree of `PartitionSpec`, got "
            f"{wrong[0]!r} in it."
        )
    subtrees = structure.flatten_up_to(x)
    return structure.unflatten(
        jax.tree.map_with_path(
            lambda path, leaf, at=at, spec=spec: _as_shard((*at, *path), leaf, spec),
            subtree,
            is_leaf=is_shard,
        )
        for (at, spec), subtree in zip(flat, subtrees, strict=True)
    )


def from_shards(tree: PyTree) -> PyTree:
    """Take the parts of arrays out of their nodes: what `shard_map` returns.

    Args:
        tree: A tree with `hotk.Shard` nodes, or without any.

    Returns:
        The same with a plain array in the place of each.

    Example:
        >>> hotk.from_shards({"w": hotk.Shard(jnp.ones(2), ("data",)), "b": 1.0})["b"]
        1.0
    """
    return without_shards(tree)


def _as_shard(path: tuple[Any, ...], leaf: object, spec: PartitionSpec) -> object:
    names = [
        name
        for entry in spec
        for name in (entry if isinstance(entry, tuple) else (entry,))
        if isinstance(name, str)
    ]
    axes = tuple(names)
    if not axes or is_shard(leaf):
        return leaf
    inside = manual_axes()
    missing = [axis for axis in axes if axis not in inside]
    array = jnp.asarray(leaf)
    alike = not missing and has_types(axes)
    same = [a for a in axes if alike and a not in differs_along(array, axes)]
    if missing or same:
        axis = (missing or same)[0]
        raise StructureError(
            message(
                "as_shards(x, specs)",
                f"`{leaf_name('x', path)}` is not divided along {axis!r} here.",
                expected="a leaf that came into `jax.shard_map` by this spec",
                got=str(jax.typeof(array)) if same else f"the axes {inside} around it",
                fix="Call it inside of `jax.shard_map`, with the `in_specs` of the "
                "argument.",
            )
        )
    return Shard(array, axes)
