"""`Terms`: which partial derivatives, by the flat places of what they are taken by."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeGuard

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    DtypeError,
    Point,
    StructureError,
    Where,
    differentiated,
    leaf_name,
    message,
    selection,
)

from ._directions import Index, order_of


@dataclasses.dataclass(frozen=True)
class Terms:
    """Partial derivatives whose weighted sum is taken.

    Attributes:
        indices: One multi-index each.
    """

    indices: tuple[Index, ...]

    def are_curved(self) -> bool:
        """Whether all are of second order or higher."""
        return all(order_of(index) > 1 for index in self.indices)


class _Leaf(NamedTuple):
    """A leaf of the point.

    Attributes:
        name: Its name in messages.
        shape: Its shape.
        start: Its first flat place, if it is differentiated.
        floating: Whether it could be, if a filter selected it.
    """

    name: str
    shape: tuple[int, ...]
    start: int | None
    floating: bool


def multi_index(call: str, x: Point, index: object, where: Where = None) -> Index:
    """Return what a user wrote as a multi-index, by flat places.

    Args:
        call: The call, for messages.
        x: The point.
        index: How often to differentiate by each number: a tree like `x`, whole
            numbers where `x` has numbers, arrays of them where it has arrays; for a
            dict the keys that count are enough, or their names in a string or a tuple,
            each as often as it is differentiated by.
        where: Which leaves are differentiated; flat places count these alone.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(x)
    values = [leaf for _, leaf in paths]
    could = differentiated(values, treedef, shapes=True)
    selected = selection(call, x, where)
    moves = differentiated(values, treedef, selected, shapes=True)
    leaves, start = [], 0
    for (path, leaf), able, moving in zip(paths, could, moves, strict=True):
        shape = np.shape(leaf)
        name = leaf_name("x", path)
        leaves.append(_Leaf(name, shape, start if moving else None, able))
        start += int(np.prod(shape)) if moving else 0
    if isinstance(index, str) or (isinstance(x, Mapping) and _are_names(index)):
        index = _counted(call, x, index)
    _check_extent(call, x, x, index)
    parts = [_part(call, x, index, path) for path, _ in paths]
    powers_at: list[tuple[int, int]] = []
    for leaf, part in zip(leaves, parts, strict=True):
        powers = np.zeros(leaf.shape, int) if part is _ZERO else np.asarray(part)
        if powers.shape != leaf.shape or powers.dtype.kind not in "iu":
            got = f"{part!r} for `{leaf.name}`, which is of shape {leaf.shape}"
            raise _wrong(call, x, got)
        if (powers < 0).any():
            raise ValueError(
                f"`{call}`: {part!r} for `{leaf.name}`: a power of a multi-index is "
                "zero or more."
            )
        if powers.any() and leaf.start is None:
            raise _not_differentiated(call, leaf)
        start = leaf.start or 0
        powers_at += [
            (start + int(i), int(powers.flat[i])) for i in np.flatnonzero(powers)
        ]
    return tuple(powers_at)


def _not_differentiated(call: str, leaf: _Leaf) -> DtypeError:
    """Return the error for an index that counts a leaf without a derivative."""
    if leaf.floating:
        problem = f"`{leaf.name}` is held fixed: `where=` does not select it."
        expected, got = "a multi-index of selected leaves", "one that counts it"
        fix = "Select it, or leave it out of the index."
    else:
        problem = f"`{leaf.name}` has no derivative: it is not floating-point."
        expected, got = "a floating-point number or array", "integers, or no number"
        fix = "Convert it to a float."
    return DtypeError(message(call, problem, expected=expected, got=got, fix=fix))


class _Pairs(tuple[tuple[object, Hashable], ...]):
    """The items of a dict, told by this class from a tuple of pairs."""


def frozen(index: object) -> Hashable:
    """Return a multi-index as something that has a hash: it is a static field."""
    if isinstance(index, Mapping):
        return _Pairs((key, frozen(part)) for key, part in index.items())
    if isinstance(index, np.ndarray):
        index = index.tolist()
    return _mapped(frozen, index)


def thawed(index: Hashable) -> object:
    """Return a frozen multi-index as it was written, but for lists and arrays."""
    if isinstance(index, _Pairs):
        return {key: thawed(part) for key, part in index}
    return _mapped(thawed, index)


def _mapped(change: Callable[[PyTree], PyTree], index: PyTree) -> PyTree:
    """Change the parts of a sequence, and make a tuple of a list."""
    if hasattr(index, "_fields"):  # a named tuple takes its parts one by one
        return type(index)(*map(change, index))
    return tuple(map(change, index)) if isinstance(index, list | tuple) else index


_ZERO = object()
"""What an index says of a leaf that it leaves out."""


def _check_extent(call: str, x: Point, node: PyTree, index: object) -> None:
    """Refuse an index with more parts than a point, at any depth.

    `_part` reads an index along the paths of the leaves of `x`, so it would not notice
    a misspelled key, and the derivative would silently be another one.
    """
    if isinstance(node, Mapping) and isinstance(index, Mapping):
        unknown = [key for key in index if key not in node]
        if unknown:
            raise _wrong(call, x, f"the key {unknown[0]!r}, not one of {[*node]}")
        for key, part in index.items():
            _check_extent(call, x, node[key], part)
    elif isinstance(node, list | tuple):
        if not isinstance(index, list | tuple) or len(index) != len(node):
            raise _wrong(call, x, repr(index))
        for child, part in zip(node, index, strict=True):
            _check_extent(call, x, child, part)


def _part(
    call: str, x: Point, index: PyTree, path: tuple[jax.tree_util.KeyEntry, ...]
) -> PyTree:
    """Return what an index says of one leaf, `_ZERO` where a dict lacks its key."""
    part = index
    for step in path:
        name = getattr(step, "key", getattr(step, "idx", getattr(step, "name", None)))
        if isinstance(part, Mapping):
            if name not in part:
                return _ZERO
            part = part[name]
        elif isinstance(step, jax.tree_util.SequenceKey):
            part = part[step.idx]
        elif isinstance(step, jax.tree_util.GetAttrKey) and hasattr(part, step.name):
            part = getattr(part, step.name)
        else:
            raise _wrong(call, x, repr(index))
    return part


def _are_names(index: object) -> TypeGuard[tuple[str, ...]]:
    """Whether it is ("x", "x", "t"), which is not a tree like a dict."""
    return isinstance(index, tuple) and all(isinstance(name, str) for name in index)


def _counted(call: str, x: Point, names: Iterable[str]) -> dict[str, int]:
    if not isinstance(x, Mapping):
        raise _wrong(call, x, repr(names))
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _wrong(call: str, x: Point, got: str) -> StructureError:
    leaves = jax.tree.leaves(x)
    one = len(leaves) == 1 and jax.tree.structure(x) == jax.tree.structure(0)
    fix = 'Write a dict, as {"x": 2} or {"x": (2, 0, 1)}. Numbers may be named, "xxt".'
    if one and np.shape(leaves[0]) == ():
        fix = "Write how often, as 2."
    elif one:
        fix = "Write one integer for each entry of `x`, as (2, 0, 1)."
    elif isinstance(x, tuple):
        own = lambda i, a: len(x) - i if np.shape(a) == () else (2, 0, 1)
        tree = tuple(own(i, a) for i, a in enumerate(x))
        fix = (
            f"Write how often for each entry of the tuple, as {tree}. Letters name the "
        )
        fix += 'keys of a dict: `x = {"x": ..., "t": ...}` takes "xxt".'
    return StructureError(
        message(
            call,
            "the multi-index does not belong to `x`.",
            expected="a tree like `x`, of integers",
            got=got,
            fix=fix,
        )
    )
