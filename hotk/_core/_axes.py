"""Axes of arrays: those that are mapped, and those of a mesh."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from ._compat import batching
from ._types import Leaf


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


def _varying(array: Leaf) -> frozenset[str]:
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
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
