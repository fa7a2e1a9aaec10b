"""`Division`: how a dense result is divided among devices, and over which mesh."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from hotk._core import StructureError, Tracer, message


By: TypeAlias = Literal["columns", "rows"]
AnyMesh: TypeAlias = Mesh | AbstractMesh


@dataclasses.dataclass(frozen=True)
class Division:
    """How a dense result is divided among devices, and how many columns go at once.

    Attributes:
        by: Whether each device has columns or rows.
        axis: The axis of the mesh.
        mesh: The mesh.
        is_free: Whether what goes in is whole along the axis; `None` if that is not
            known, as inside of `jax.jit` along automatic axes.
        size: How many directions at once, chosen from the program if `None`.
    """

    by: By
    axis: str
    mesh: AnyMesh
    is_free: bool | None
    size: int | None = None

    @property
    def parts(self) -> int:
        """The number of devices along the axis."""
        return self.mesh.shape[self.axis]

    @property
    def is_explicit(self) -> bool:
        """Whether types say how arrays are divided along the axis."""
        return _kind(self.mesh, self.axis) == AxisType.Explicit

    def place(self, shape: tuple[int, ...]) -> int | None:
        """Return the first axis of an array that can be divided, `None` if none can."""
        places = [d for d, size in enumerate(shape) if size and size % self.parts == 0]
        return places[0] if places else None

    def share(self, tree: PyTree) -> int:
        """Count the numbers of a tree that one device has columns or rows of."""
        each = [(a.size, self.place(a.shape)) for a in jax.tree.leaves(tree)]
        return sum(size if d is None else size // self.parts for size, d in each)

    def divide(self, a: Array, place: int) -> Array:
        """Divide an array along one of its axes, and leave the others as they are."""
        if self.is_explicit:
            return self._typed(a, place)
        free = [PartitionSpec.UNCONSTRAINED] * a.ndim
        return self._constrained(a, [*free[:place], self.axis, *free[place + 1 :]])

    def gather(self, a: Array) -> Array:
        """Make an array whole along the axis."""
        if self.is_explicit:
            return self._typed(a, None)
        return self._constrained(a, [None] * a.ndim)

    def merge(self, a: Array, ahead: int, shape: tuple[int, ...]) -> Array:
        """Give the last two axes another shape, which is divided along its first one.

        Args:
            a: An array whose last axis but one is divided.
            ahead: How many axes stay as they are.
            shape: The shape of the others.
        """
        shape = (*a.shape[:ahead], *shape)
        if not self.is_explicit:
            return a.reshape(shape)
        spec = [*jax.typeof(a).sharding.spec[:ahead], self.axis]
        sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
        return jnp.reshape(a, shape, out_sharding=sharding)

    def _typed(self, a: Array, place: int | None) -> Array:
        typed = jax.typeof(a).sharding.spec
        spec: list[Any] = [_without(names, self.axis) for names in typed]
        if place is not None:
            spec[place] = self.axis
        return jax.sharding.reshard(a, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def _constrained(self, a: Array, spec: list[Any]) -> Array:
        sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
        return jax.lax.with_sharding_constraint(a, sharding)


Block: TypeAlias = int | Division | None
"""How many directions at once, and whether the result is divided among devices."""


def split_over(
    call: str,
    by: By | None,
    axis: str | None,
    size: int | None,
    arrays: Sequence[object],
    *,
    all_known: bool = True,
) -> Block:
    """Find the mesh that a dense result is to be divided over.

    Args:
        call: What is called, for messages.
        by: The keyword `split`; without it nothing is divided.
        axis: The keyword `mesh_axis`.
        size: How many directions at once.
        arrays: All that goes in.
        all_known: Whether those are all.

    Raises:
        ValueError: If `split` is neither of the two, or `mesh_axis` comes alone.
        StructureError: If there is no mesh, or no such axis of it.
    """
    if by not in ("columns", "rows"):
        if by is None and axis is None:
            return size
        raise ValueError(
            message(
                call,
                "`split` says how the result is divided among devices.",
                expected="'columns' or 'rows'",
                got=repr(by) if by is not None else f"`mesh_axis={axis!r}` alone",
                fix="Write `split='columns', mesh_axis='...'`, or leave both out.",
            )
        )
    meshes = _meshes(arrays)
    if not meshes:
        raise StructureError(
            message(
                call,
                "there is no mesh to divide the result over.",
                expected="arrays placed on a mesh, or `with jax.set_mesh(mesh):`",
                got="arrays on one device, and no mesh is set",
                fix="Place `x` by `jax.device_put(x, NamedSharding(mesh, P()))`. "
                "Inside of `jax.jit` only a mesh that is set is known.",
            )
        )
    mesh = next((m for m in meshes if axis in m.axis_names), meshes[0])
    if axis is None and len(mesh.axis_names) == 1:
        (axis,) = mesh.axis_names
    known = axis is not None and axis in mesh.axis_names
    manual = known and _kind(mesh, axis) == AxisType.Manual
    if not known or manual:
        raise StructureError(
            message(
                call,
                "the result cannot be divided over this axis.",
                expected=f"`mesh_axis=` one of {', '.join(map(repr, mesh.axis_names))}",
                got=f"{axis!r}, which the `shard_map` around it has divided already"
                if manual
                else f"`mesh_axis={axis!r}`",
                fix="Call it outside of `shard_map`."
                if manual
                else "Name the axis whose devices are to share the work.",
            )
        )
    assert axis is not None
    return Division(by, axis, mesh, _is_free(arrays, axis, all_known), size)


def _kind(mesh: AnyMesh, axis: str | None) -> AxisType:
    return dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[axis]


def _without(names: Any, axis: str) -> Any:
    if isinstance(names, tuple):
        return tuple(name for name in names if name != axis) or None
    return None if names == axis else names


def _sharding(a: object) -> NamedSharding | None:
    """Return how an array is divided, as far as that is known."""
    if not isinstance(a, jax.Array):
        return None
    sharding: Any = jax.typeof(a).sharding if isinstance(a, Tracer) else a.sharding
    return sharding if isinstance(sharding, NamedSharding) else None


def _meshes(arrays: Sequence[object]) -> list[AnyMesh]:
    """List the meshes that arrays are placed on, and the one that is set."""
    found: list[AnyMesh] = []
    for a in arrays:
        sharding = _sharding(a)
        if sharding is not None and not sharding.mesh.empty:
            found.append(sharding.mesh)
    context = jax.sharding.get_abstract_mesh()
    # Those of arrays that are there have devices, and come first.
    found.sort(key=lambda mesh: isinstance(mesh, AbstractMesh))
    return [*found, *([] if context.empty else [context])]


def _is_free(arrays: Sequence[object], axis: str, all_known: bool) -> bool | None:
    """Whether arrays are whole along an axis, `None` if that is not known."""
    known = all_known
    for a in arrays:
        sharding = _sharding(a)
        if sharding is None:
            # on one device, or divided in a way that names no axes
            known &= not isinstance(a, jax.Array) or len(a.sharding.device_set) == 1
            continue
        names = [
            name
            for entry in sharding.spec
            for name in (entry if isinstance(entry, tuple) else (entry,))
        ]
        if axis in names:
            return False
        if isinstance(a, Tracer):
            on_mesh = axis in sharding.mesh.axis_names
            known &= on_mesh and _kind(sharding.mesh, axis) == AxisType.Explicit
    return True if known else None
