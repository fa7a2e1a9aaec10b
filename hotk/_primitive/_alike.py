"""Results that are divided among devices as the point is.

Along automatic axes of a mesh XLA's partitioner decides how a result is divided, and
leaves a gradient whole that has no elementwise operation of the point in it. This
primitive returns its first operand, and asks the partitioner to divide it as the second
one, wherever that turns out to be: nothing has to be known while it is traced.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    AbstractValue,
    Arrays,
    Leaf,
    Point,
    ad,
    divided_alike,
    is_divided_by_type,
    manual_axes,
    new_primitive,
    typed_as,
)


def divided_as(result: PyTree, x: Point) -> PyTree:
    """Ask that leaves of a tree be divided among devices as those of a point.

    Where its type says how the point is divided, the leaves get that type. Inside of
    `shard_map` there is nothing to ask. Leaves of another shape are left alone, as
    those of a derivative of several outputs are.

    Args:
        result: A tree like the point, or one of other arrays.
        x: The point.
    """
    if jax.device_count() == 1 or manual_axes():
        return result
    points, structure = jax.tree.flatten(x)
    leaves, other = jax.tree.flatten(result)
    if other != structure:
        return result
    pairs = zip(leaves, points, strict=True)
    return structure.unflatten([_divided_as(a, b) for a, b in pairs])


def _divided_as(a: Leaf, like: Leaf) -> Leaf:
    if not jnp.ndim(a) or jnp.shape(a) != jnp.shape(like):
        return a
    if is_divided_by_type(like):
        return typed_as(a, like)
    return a if is_divided_by_type(a) else _PRIMITIVE.bind(a, like)[0]


def _run(a: Leaf, like: Leaf) -> Arrays:
    del like
    return [a]


def _types(a: AbstractValue, like: AbstractValue) -> list[AbstractValue]:
    del like
    return [a]


def _jvp(
    primals: Sequence[Leaf], tangents: Sequence[Leaf | ad.Zero]
) -> tuple[Arrays, list[Any]]:
    a, like = primals
    moving = tangents[0]
    along = moving if isinstance(moving, ad.Zero) else _PRIMITIVE.bind(moving, like)[0]
    return _PRIMITIVE.bind(a, like), [along]


def _transpose(
    cotangents: Sequence[Leaf | ad.Zero], a: Any, like: Any
) -> list[Leaf | ad.Zero | None]:
    (u,) = cotangents
    # Where the point is transposed as well, it is not there to be divided alike.
    known = not (isinstance(u, ad.Zero) or ad.is_undefined_primal(like))
    return [_PRIMITIVE.bind(u, like)[0] if known else u, None]


def _batch(
    arguments: Sequence[Leaf], axes: Sequence[int | None]
) -> tuple[Arrays, list[int | None]]:
    (a, like), (axis, own) = arguments, axes
    if axis is None:
        return [a], [None]
    if own is None:
        like = jnp.broadcast_to(jnp.expand_dims(like, axis), jnp.shape(a))
    else:
        like = jnp.moveaxis(like, own, axis)
    return _PRIMITIVE.bind(a, like), [axis]


_PRIMITIVE = new_primitive(
    "hotk_alike",
    run=_run,
    types=_types,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=divided_alike,
)
