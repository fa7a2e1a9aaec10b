"""Axes of arrays: those that are mapped, and those of a mesh with its `Shard`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree, Shaped

from ._compat import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Tracer,
    batching,
    inner_jaxprs,
    is_type,
)
from ._types import Leaf


# Operations across devices, which JAX transposes as if each device had a result, and a
# derivative, of its own.
_COLLECTIVES = (
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "ppermute",
    "psum",
    "psum_invariant",
    "reduce_scatter",
)


def varies_by_device(arrays: Iterable[Leaf]) -> bool:
    """Whether `shard_map` has typed any of these by the mesh axes it varies along.

    A program traced without such types has lost where the types change, so it has to be
    traced for them. The type has no public reader in every version.
    """
    return any(map(_varying, arrays))


def varying_alike(arrays: Sequence[Leaf]) -> list[Any]:
    """Let arrays vary along the same mesh axes of a `shard_map`, all that any does.

    JAX does so before each primitive of its own; the transpose is a sum over devices,
    and so what comes back for an array that all devices share is whole.
    """
    axes = [_varying(a) for a in arrays]
    every = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(sorted(every - own)), to="varying")
        if own != every
        else a
        for a, own in zip(arrays, axes, strict=True)
    ]


def varying_along(arrays: Sequence[Leaf], axes: Sequence[str]) -> list[Any]:
    """Let arrays vary along axes of a `shard_map`, as each device has its own copy.

    Without the types that say which arrays vary they are returned as they are.
    """
    return [
        jax.lax.pcast(a, new, to="varying")
        if (new := tuple(b for b in axes if b not in _varying(a))) and has_types(axes)
        else a
        for a in arrays
    ]


def varying_as(types: Sequence[Any], arrays: Sequence[Leaf]) -> list[Any]:
    """Let arrays vary along the axes of a `shard_map` that types say.

    Numbers that are known in place of traced ones have lost it. They keep none as long
    as there are only such.
    """
    if not (manual_axes() and any(isinstance(a, Tracer) for a in arrays)):
        return list(arrays)
    return [
        jax.lax.pcast(a, tuple(sorted(new)), to="varying")
        if (new := varying_axes(t) - _varying(a))
        else a
        for t, a in zip(types, arrays, strict=True)
    ]


def shared_as(type_: Any, array: Leaf) -> Any:
    """Let an array vary along the axes that a type says, summed over all others.

    So do cotangents that devices have of a number that they share become its own: the
    transpose of letting that number vary.
    """
    if extra := axes_beyond(type_, jax.typeof(array)):
        array = jax.lax.psum(array, extra)
    if missing := tuple(sorted(varying_axes(type_) - _varying(array))):
        return jax.lax.pcast(array, missing, to="varying")
    return array


def called_on_host(
    host: Callable[..., PyTree],
    shapes: PyTree,
    *arrays: PyTree,
    vmap_method: str | None = "sequential",
) -> Any:
    """Call a function of NumPy as `jax.pure_callback` does, typed for a `shard_map`.

    Results vary along the mesh axes that any argument does. To JAX they are the same on
    all devices: then `out_specs=P()` takes that of one of them, and derivatives are as
    many times too large as there are devices.
    """
    found = jax.pure_callback(host, shapes, *arrays, vmap_method=vmap_method)
    types = map(jax.typeof, jax.tree.leaves(arrays))
    axes = frozenset().union(*map(varying_axes, types))
    return jax.tree.map(lambda a: varying_along([a], sorted(axes))[0], found)


def zeros_like(array: Leaf) -> Array:
    """Return zeros that vary along the same axes of a `shard_map` as an array."""
    return varying_alike([jnp.zeros_like(array), array])[0]


def axes_beyond(type_: Any, other: Any) -> tuple[str, ...]:
    """Return the axes along which arrays of another type vary, and not of this one."""
    return tuple(sorted(varying_axes(other) - varying_axes(type_)))


def has_types(axes: Sequence[str]) -> bool:
    """Whether a `shard_map` types arrays by the axes that they vary along.

    It does with `check_vma=True`, its default. What is different on each device by
    definition has such a type then.
    """
    return bool(_varying(jax.lax.axis_index(axes[0])))


def differs_along(array: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """Return those of some axes along which an array, or a type, is said to vary."""
    type_ = array if is_type(array) else jax.typeof(array)
    return tuple(axis for axis in axes if axis in varying_axes(type_))


def manual_axes() -> tuple[str, ...]:
    """Return the mesh axes of the `shard_map` that is traced, none outside of one."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def crosses_devices(equation: JaxprEqn) -> bool:
    """Whether an operation may read what others along a mapped axis hold.

    JAX's own name the axis; what a rule of hotk does is not known.
    """
    name, inside = equation.primitive.name, bool(manual_axes())
    if name == "pvary" or (name == "shard_map" and not inside):
        return False  # what is inside reads what others hold, and gives all of it
    if name.startswith("hotk_") and inside:
        return True
    if names_axes(equation.params):
        return True
    inner = inner_jaxprs(equation.params.values())
    return any(crosses_devices(e) for jaxpr in inner for e in jaxpr.eqns)


def names_axes(parameters: Mapping[str, object]) -> bool:
    """Whether the parameters of an operation name mapped axes."""
    names = [parameters.get(name) for name in ("axes", "axis_name")]
    return any(isinstance(name, str) for name in jax.tree.leaves(names))


def first_collective(
    jaxpr: Jaxpr, moving: Sequence[bool], axes: set[str]
) -> tuple[JaxprEqn, str] | None:
    """Return the first collective of what depends on some inputs, and its axis.

    Args:
        jaxpr: A program.
        moving: For each of its inputs whether it is one of these.
        axes: The axes that matter.
    """
    reached = {v for v, moves in zip(jaxpr.invars, moving, strict=True) if moves}
    for equation in jaxpr.eqns:
        operands = [
            not isinstance(atom, Literal) and atom in reached
            for atom in equation.invars
        ]
        if not any(operands):
            continue
        reached.update(equation.outvars)
        if equation.primitive.name in _COLLECTIVES:
            over = axes & axes_named(equation)
            if over:
                return equation, min(over)
        for inner in inner_jaxprs(equation.params.values()):
            same = len(inner.invars) == len(operands)
            found = first_collective(
                inner, operands if same else [True] * len(inner.invars), axes
            )
            if found is not None:
                return found
    return None


def axes_named(equation: JaxprEqn) -> set[str]:
    """Return the mapped axes that a collective names."""
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    return {names} if isinstance(names, str) else set(names)


def has_explicit_axes(array: Leaf) -> bool:
    """Whether the type of an array is one on a mesh with explicit axes."""
    return bool(jax.typeof(array).sharding.mesh.explicit_axes)


def whole(array: Array) -> Array:
    """Let each device hold all of an array that its type says is divided."""
    if not is_divided_by_type(array):
        return array
    sharding: Any = jax.typeof(array).sharding
    return jax.sharding.reshard(array, sharding.update(spec=P(*[None] * array.ndim)))


def is_divided_by_type(array: Leaf) -> bool:
    """Whether the type of an array says how it is divided among devices."""
    return any(axis is not None for axis in jax.typeof(array).sharding.spec)


def typed_as(array: Leaf, like: Leaf) -> Any:
    """Divide an array among devices as the type of another one says, if it does.

    Inside of `shard_map` it varies along the axes along which that one does.
    """
    if varying := sorted(_varying(like)):
        array = varying_along([array], varying)[0]
    if not is_divided_by_type(like):
        return array
    sharding: Any = jax.typeof(like).sharding
    return jax.sharding.reshard(array, sharding)


def _varying(array: Leaf) -> frozenset[str]:
    return varying_axes(jax.typeof(array))


def varying_axes(type_: Any) -> frozenset[str]:
    """Return the axes of a `shard_map` along which an array of a type varies."""
    kind = getattr(type_, "manual_axis_type", None)
    return frozenset(getattr(kind, "varying", None) or ())


def in_front(
    arrays: Sequence[Any], axes: Sequence[int | None]
) -> tuple[list[Leaf], int]:
    """Move the mapped axes of arrays to the front; return also how long they are."""
    sizes = [a.shape[d] for a, d in zip(arrays, axes, strict=True) if d is not None]
    moved = [
        a if d is None else batching.bdim_at_front(a, d, sizes[0])
        for a, d in zip(arrays, axes, strict=True)
    ]
    return moved, sizes[0]


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
