"""`Terms`: which partial derivatives, by the flat places of what they are taken by."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hotk._core import (
    DtypeError,
    StructureError,
    is_inexact_or_shape,
    leaf_name,
    message,
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
    name: str
    shape: tuple[int, ...]
    start: int | None


def multi_index(call: str, x: Any, index: Any) -> Index:
    """Return what a user wrote as a multi-index, by flat places.

    Args:
        call: The call, for messages.
        x: The point.
        index: How often to differentiate by each number: a tree like `x`, whole
            numbers where `x` has numbers, arrays of them where it has arrays; for a
            dict the keys that count are enough, or their names in a string or a tuple,
            each as often as it is differentiated by.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(x)
    leaves, start = [], 0
    for path, leaf in paths:
        shape, moves = np.shape(leaf), is_inexact_or_shape(leaf)
        leaves.append(_Leaf(leaf_name("x", path), shape, start if moves else None))
        start += int(np.prod(shape)) if moves else 0
    if isinstance(index, str) or _is_names(index, x):
        index = _counted(call, x, index)
    _check_extent(call, x, x, index)
    parts = [_part(call, x, index, path) for path, _ in paths]
    found: list[tuple[int, int]] = []
    for leaf, part in zip(leaves, parts, strict=True):
        powers = np.zeros(leaf.shape, int) if part is _ZERO else np.asarray(part)
        if powers.shape != leaf.shape or powers.dtype.kind not in "iu":
            got = f"{part!r} for `{leaf.name}`, which is of shape {leaf.shape}"
            raise _wrong(call, x, got)
        if (powers < 0).any():
            raise ValueError(
                f"`{call}`: {part!r} for `{leaf.name}`: one cannot differentiate less "
                "than zero times."
            )
        if powers.any() and leaf.start is None:
            raise DtypeError(
                message(
                    call,
                    f"`{leaf.name}` cannot be differentiated by.",
                    expected="a floating-point number or array",
                    got="integers, or no number",
                    fix="Convert it to a float.",
                )
            )
        start = leaf.start or 0
        found += [(start + int(i), int(powers.flat[i])) for i in np.flatnonzero(powers)]
    return tuple(found)


class _Pairs(tuple[tuple[Any, Any], ...]):
    """The items of a dict."""


def frozen(index: Any) -> Any:
    """Return a multi-index as something that has a hash."""
    if isinstance(index, Mapping):
        return _Pairs((key, frozen(part)) for key, part in index.items())
    if isinstance(index, np.ndarray):
        index = index.tolist()
    return _mapped(frozen, index)


def thawed(index: Any) -> Any:
    """Return a multi-index as it was written."""
    if isinstance(index, _Pairs):
        return {key: thawed(part) for key, part in index}
    return _mapped(thawed, index)


def _mapped(change: Callable[[Any], Any], index: Any) -> Any:
    """Change the parts of a sequence, and make a tuple of a list."""
    if hasattr(index, "_fields"):
        return type(index)(*map(change, index))
    return tuple(map(change, index)) if isinstance(index, list | tuple) else index


_ZERO = object()


def _check_extent(call: str, x: Any, here: Any, index: Any) -> None:
    """Refuse an index with more parts than a point, at any depth."""
    if isinstance(here, Mapping) and isinstance(index, Mapping):
        unknown = [key for key in index if key not in here]
        if unknown:
            raise _wrong(call, x, f"the key {unknown[0]!r}, not one of {[*here]}")
        for key, part in index.items():
            _check_extent(call, x, here[key], part)
    elif isinstance(here, list | tuple):
        if not isinstance(index, list | tuple) or len(index) != len(here):
            raise _wrong(call, x, repr(index))
        for one, part in zip(here, index, strict=True):
            _check_extent(call, x, one, part)


def _part(call: str, x: Any, index: Any, path: Any) -> Any:
    """Return what an index says of one leaf: nothing where a dict has not its key."""
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


def _is_names(index: Any, x: Any) -> bool:
    if not isinstance(x, Mapping) or not isinstance(index, tuple):
        return False
    return all(isinstance(name, str) for name in index)


def _counted(call: str, x: Any, names: Any) -> dict[str, int]:
    if not isinstance(x, Mapping):
        raise _wrong(call, x, repr(names))
    made: dict[str, int] = {}
    for name in names:
        made[name] = made.get(name, 0) + 1
    return made


def _wrong(call: str, x: Any, got: str) -> StructureError:
    leaves = jax.tree.leaves(x)
    one = len(leaves) == 1 and jax.tree.structure(x) == jax.tree.structure(0)
    fix = 'Write a dict, as {"x": 2} or {"x": (2, 0, 1)}. Numbers may be named, "xxt".'
    if one and np.shape(leaves[0]) == ():
        fix = "Write how often, as 2."
    elif one:
        fix = "Write one whole number for each entry of `x`, as (2, 0, 1)."
    return StructureError(
        message(
            call,
            "the multi-index does not belong to `x`.",
            expected="a tree like `x`, of whole numbers",
            got=got,
            fix=fix,
        )
    )
