"""`VectorEntries`: some entries of the vectors of a space."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from hotk._core import (
    StructureError,
    Tracer,
    Vector,
    Where,
    describe,
    describe_tree,
    message,
    selection,
)
from hotk._dense import Index, leaf_numbers, of_some

from . import space
from ._linear_map import AbstractLinearMap


Mask: TypeAlias = bool | np.bool_ | Bool[np.ndarray, "..."] | Bool[Array, "..."]
"""Entries of a leaf, or rows: what `leaf[mask]` is; or whether all of it."""

Part: TypeAlias = str | Where | PyTree[Mask]
"""Some entries of the vectors of a space.

A path, as `index` prints it; a leaf filter, as `where=` takes it; or a tree of boolean
arrays. One boolean array may stand for all entries in the order of `index`.
"""


@final
class VectorEntries(eqx.Module):
    """Some entries of the vectors of a space: how to take them and to put them back.

    Attributes:
        indices: For each leaf the indices of the entries, `None` if all of it, or
            nothing of it, is selected.
        kept: For each leaf whether anything of it is selected.
    """

    indices: tuple[tuple[Int[Array, " _"], ...] | None, ...]
    kept: tuple[bool, ...] = eqx.field(static=True)

    @staticmethod
    def of(call: str, like: Vector, part: Part) -> "VectorEntries":
        """Find entries of the vectors of a space.

        Args:
            call: The call, for messages.
            like: A vector of the space.
            part: Which entries.

        Raises:
            KeyError: If there is no such path.
            StructureError: If a mask does not have the shape of its leaf or of its
                first axes, or nothing is selected.
            TypeError: If it is not a path, filter or mask: an array of integers, say.
        """
        masks = _masks(call, like, part)
        kept = tuple(bool(np.any(mask)) for mask in masks)
        if not any(kept):
            raise StructureError(
                message(
                    call,
                    "nothing is selected.",
                    expected=f"some of {describe_tree(like)}",
                    got="a filter or mask that is false everywhere",
                    fix="Select at least one entry.",
                )
            )
        indices = tuple(
            None if not some or np.all(mask) else tuple(map(_index, np.nonzero(mask)))
            for some, mask in zip(kept, masks, strict=True)
        )
        return VectorEntries(indices, kept)

    @property
    def of_whole_leaves(self) -> bool:
        """Whether each leaf is selected as a whole or not at all."""
        return all(index is None for index in self.indices)

    def size(self, like: Vector) -> int:
        """Count the real numbers among these entries: two for each complex one."""
        total = 0
        rows = zip(jax.tree.leaves(like), self.indices, self.kept, strict=True)
        for leaf, index, some in rows:
            count = leaf.size
            if index is not None:
                count = len(index[0]) * math.prod(leaf.shape[len(index) :])
            total += some * count * (2 if jnp.iscomplexobj(leaf) else 1)
        return total

    def take(self, v: Vector) -> Vector:
        """Return these entries of a vector: a leaf has the shape of `leaf[mask]`."""
        leaves, treedef = jax.tree.flatten(v)
        rows = zip(leaves, self.indices, self.kept, strict=True)
        return treedef.unflatten(
            [_taken(leaf, index) if some else None for leaf, index, some in rows]
        )

    def within(self, operator: AbstractLinearMap) -> Callable[[Vector], Vector]:
        """Return the product of an operator as one with these entries, others zero."""
        like = operator.like
        if operator.on_host:
            return lambda v: operator.mv(self.put(v, like))
        group = [i for i, some in enumerate(self.kept) if some]
        product = of_some(operator.mv, like, group)
        leaves, treedef = jax.tree.flatten(like)

        def of_entries(v: Vector) -> Vector:
            given = treedef.flatten_up_to(v)
            return product(
                [_filled(leaves[i], self.indices[i], given[i]) for i in group]
            )

        return of_entries

    def put(self, entries: Vector, like: Vector) -> Vector:
        """Return the vector that has these entries, and zeros elsewhere."""
        leaves, treedef = jax.tree.flatten(like)
        given = treedef.flatten_up_to(entries)
        return treedef.unflatten(
            [
                jnp.zeros_like(leaf) if not some else _filled(leaf, index, new)
                for leaf, index, some, new in zip(
                    leaves, self.indices, self.kept, given, strict=True
                )
            ]
        )


def _index(places: np.ndarray) -> Int[Array, " count"]:
    return jnp.asarray(places, jnp.int32)


def _taken(leaf: Array, index: tuple[Array, ...] | None) -> Array:
    return leaf if index is None else space.gathered(leaf)[index]


def _filled(leaf: Array, index: tuple[Array, ...] | None, new: Array) -> Array:
    if index is None:
        return new
    # Each place is there once, and none is out of bounds: the transpose is a gather.
    zeros = jnp.zeros(leaf.shape, leaf.dtype)
    return zeros.at[index].set(new, unique_indices=True, mode="promise_in_bounds")


def _masks(call: str, like: Vector, part: Part) -> list[Any]:
    """Return for each leaf a mask, or one number that says whether it is selected."""
    leaves = jax.tree.leaves(like)
    if isinstance(part, str):
        numbers = leaf_numbers(like, Index.of(like)[part])
        return [i in numbers for i in range(len(leaves))]
    if isinstance(part, list) and jax.tree.structure(like) == jax.tree.structure(0):
        part = np.asarray(part)  # a list of booleans for the entries of one array
    given = jax.tree.leaves(part)
    if not any(map(_is_mask, given)):
        if any(map(_is_no_filter, given)):
            raise _no_part(call, part)
        flags = selection(call, like, part)
        return [True] * len(leaves) if flags is None else list(flags)
    if len(given) == 1 and given[0] is part and _is_flat(part, like):
        return _split(np.asarray(part), leaves)
    try:
        places = jax.tree.structure(part).flatten_up_to(like)
    except (ValueError, TypeError, KeyError):
        raise _other_structure(call, like, part) from None
    found = []
    for mask, place in zip(given, places, strict=True):
        found += [_checked(call, mask, leaf) for leaf in jax.tree.leaves(place)]
    return found


def _is_mask(mask: Any) -> bool:
    known = isinstance(mask, (np.ndarray, jax.Array)) and not isinstance(mask, Tracer)
    return known and mask.dtype == bool and mask.ndim > 0


def _is_flag(mask: Any) -> bool:
    known = isinstance(mask, (np.ndarray, jax.Array)) and not isinstance(mask, Tracer)
    return known and mask.dtype == bool and mask.ndim == 0


def _is_no_filter(part: Any) -> bool:
    """Whether it is a text, a number or an array that says of no leaf whether it is."""
    if isinstance(part, (np.ndarray, jax.Array)):
        return not _is_flag(part)
    numbers = (int, float, np.integer, np.floating)
    return isinstance(part, (str, *numbers)) and not isinstance(part, bool)


def _is_flat(mask: Any, like: Vector) -> bool:
    """Whether one mask is for all entries, in the order of the index."""
    if any(map(jnp.iscomplexobj, jax.tree.leaves(like))):  # two entries for a number
        return False
    one = jax.tree.structure(like) == jax.tree.structure(0)
    return not one and mask.shape == (space.dimension(like),)


def _split(mask: np.ndarray, leaves: list[Array]) -> list[np.ndarray]:
    pieces = np.split(mask, np.cumsum([leaf.size for leaf in leaves])[:-1])
    pairs = zip(pieces, leaves, strict=True)
    return [piece.reshape(leaf.shape) for piece, leaf in pairs]


def _checked(call: str, mask: Any, leaf: Array) -> Any:
    """Return a mask that fits a leaf, or one number for a leaf as a whole."""
    if isinstance(mask, (bool, np.bool_)) or _is_flag(mask):
        return bool(mask)
    if not _is_mask(mask) or mask.shape != leaf.shape[: mask.ndim]:
        raise _other_structure(call, leaf, mask)
    return np.asarray(mask)


def _no_part(call: str, part: object) -> TypeError:
    fix = "Indices become a mask by `np.isin(np.arange(n), indices)`."
    given = jax.tree.leaves(part)
    if any(isinstance(each, Tracer) for each in given):
        fix = "How many entries there are must be known: make the mask with NumPy, or "
        fix += "outside of the transformation."
    if any(isinstance(each, str) for each in given):
        fix = "For several leaves give a tree of `True` and `False`."
    return TypeError(
        message(
            call,
            "this does not select a part of the space.",
            expected="a path, a leaf filter, or boolean arrays that are not tracers",
            got=describe_tree(part),
            fix=fix,
        )
    )


def _other_structure(call: str, like: Vector, got: object) -> StructureError:
    return StructureError(
        message(
            call,
            "this mask does not fit the vectors of the space.",
            expected="booleans with the shape, or the first axes, of "
            + describe_tree(like),
            got=describe(got) if _is_mask(got) else describe_tree(got),
            fix="Build it from the point, as in `jax.tree.map(lambda a: a > 0, x)`.",
        )
    )
