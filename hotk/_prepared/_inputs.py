"""The arguments of a call: what is an array, what is static, what is differentiated."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._capture import Walk, is_numeric, own_copy
from hotk._core import ARRAY, Leaf, Point, PointLeaves, describe, nothing_inexact


_NUMBERS = (bool, int, float, complex)
POINT, DIRECTION, ARGS = range(3)
_LARGE = 1 << 31


class Inputs(NamedTuple):
    """The leaves of one call, sorted.

    Attributes:
        arrays: What goes into the compiled program, in order.
        statics: What does not, by its number among all leaves.
        castable: Numbers of the direction's leaves that may be cast to the dtype of the
            point (NumPy arrays and Python numbers); a static one as a negative number.
        visited: The static leaves besides those of the direction, in order.
    """

    arrays: list[Leaf]
    statics: dict[int, object]
    castable: tuple[int, ...]
    visited: tuple[object, ...]


def sort_inputs(
    leaves: Sequence[PyTree],
    counts: tuple[int, int],
    walk: Walk | None,
    point_leaves: PointLeaves,
    *,
    opaque: bool = False,
) -> Inputs:
    """Sort the leaves of a call; the walk's key gets the places of what it shall visit.

    Args:
        leaves: Leaves of the point, the direction and the further arguments.
        counts: How many leaves the point and the direction have.
        walk: Takes the places of the static leaves into its key, if there is one.
        point_leaves: What the leaves of the point are.
        opaque: Whether all that is not differentiated stays what it is.
    """
    arrays: list[Leaf] = []
    statics: dict[int, object] = {}
    castable: list[int] = []
    point, ahead = counts[0], counts[0] + counts[1]
    # Only in the first stage is an array of JAX an input wherever it stands.
    content = walk is not None and (walk.static_arrays or walk.chosen)
    always_input = not opaque and not content
    for i, leaf in enumerate(leaves):
        if always_input and type(leaf) is ARRAY:
            arrays.append(leaf)
            continue
        part = POINT if i < point else DIRECTION if i < ahead else ARGS
        array = as_input(leaf)
        fixed = part == POINT and i in point_leaves.fixed
        if part == ARGS or (part == POINT and not (fixed or point_leaves.moves[i])):
            fixed = _is_fixed(leaf, walk, opaque)
        if array is None or fixed:
            statics[i] = leaf
            if part == DIRECTION:
                castable.append(-1 - i)
            elif walk is not None:
                walk.key.append(("static", part, i if part == POINT else i - ahead))
            continue
        # The dtype of a NumPy direction is often an accident, as of `np.ones(3)`.
        if part == DIRECTION and not isinstance(leaf, jax.Array):
            castable.append(i)
        elif (
            walk is not None
            and isinstance(leaf, (np.ndarray, np.generic))
            and not (part == POINT and point_leaves.moves[i])
        ):
            # The class is part of the key: `f` may compute with it by NumPy
            # (`reliability/test_inputs`).
            walk.key.append((type(leaf), part, i if part == POINT else i - ahead))
        arrays.append(array)
    visited = tuple(s for i, s in statics.items() if not point <= i < ahead)
    return Inputs(arrays, statics, tuple(castable), visited)


def as_input(leaf: PyTree) -> Leaf | None:
    """Return what JAX shall see of a leaf, or `None` for a static thing.

    NumPy arrays are copied: JAX shares their memory on CPU, and the user may write
    into them as soon as the call has returned
    (`numpy_arguments_may_be_overwritten_as_soon_as_the_call_returns`).
    """
    if type(leaf) is int and not -_LARGE <= leaf < _LARGE and not _is_in_range(leaf):
        return None
    if type(leaf) is ARRAY or isinstance(leaf, (jax.Array, *_NUMBERS)):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)) and is_numeric(leaf.dtype):
        array = np.asarray(leaf)
        return own_copy(array) if _has_room(array) else None
    return None


def _has_room(array: np.ndarray) -> bool:
    """Whether JAX has room for the integers of an array."""
    if array.dtype.kind not in "iu" or not array.size:
        return True
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype == array.dtype:
        return True
    limits = jnp.iinfo(dtype)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def _is_in_range(number: int) -> bool:
    """Whether JAX has room for an integer."""
    limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(int))
    return limits.min <= number <= limits.max


def _is_fixed(leaf: object, walk: Walk | None, opaque: bool) -> bool:
    """Whether a leaf that could be an array is static in this kind of trace."""
    if opaque:
        return True
    return walk is not None and walk.by_content(leaf)


def check_point(
    call: str, x: Point, moves: Sequence[bool], selected: Sequence[bool] | None
) -> None:
    """Refuse a point in which there is nothing to differentiate.

    Args:
        call: The call, for messages.
        x: The point.
        moves: For each of its leaves whether it is differentiated.
        selected: For each of its leaves whether a filter selects it.
    """
    leaves = jax.tree.leaves(x)
    if not leaves or any(moves):
        return
    arrays = [leaf for leaf in leaves if as_input(leaf) is not None]
    what = describe(leaves[0]) if len(leaves) == 1 else f"{len(leaves)} leaves"
    got = what if arrays else f"{what} without any number"
    raise nothing_inexact(call, x, got=got, selected=selected)
