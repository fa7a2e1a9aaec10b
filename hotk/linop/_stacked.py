"""Batches that fit in memory together: stacked, so that one program takes them all."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import ARRAY
from hotk._prepared import as_input

from ._source import Source, padded, row_count


# Where the calls of JAX for single batches take as long as what they compute.
_FITS = 1 << 26
# Fewer calls are not worth a program of their own.
_LEAST = 4


class Stacked(NamedTuple):
    """All batches of a pass.

    Attributes:
        batches: Their arrays, with one leading axis. It has room for as many as the
            next power of two, so that a few more of them are no other program.
        weights: What the result of each is multiplied with.
        number: How many batches there are.
        examples: The number of all examples.
    """

    batches: PyTree
    weights: Float[np.ndarray, " k"]
    number: int
    examples: int


def stacked(source: Source, full: int) -> Stacked | None:
    """Return the batches of a list as one tree; `None` if they are to come one by one.

    They do if they do not come from a list, are less than four or no arrays, are split
    among devices, or are more than 64 MiB in all. Arrays of NumPy, which may be written
    to, are read in each pass; what was made of arrays of JAX is kept.

    Args:
        source: The batches.
        full: The number of examples in a full batch.

    Raises:
        StructureError: If the arrays of a batch have no common first axis.
    """
    batches = source.batches
    if source.show or not isinstance(batches, list) or len(batches) < _LEAST:
        return None
    flat = [jax.tree.flatten(batch) for batch in batches]
    leaves = [leaf for each, _ in flat for leaf in each]
    types = set(map(type, leaves))
    if types == {ARRAY} and source.is_kept(leaves):
        return source.kept
    same = all(tree == flat[0][1] for _, tree in flat)
    if not same or types not in ({ARRAY}, {np.ndarray}) or not _fit(leaves):
        return None
    made = _stacked(batches, [each for each, _ in flat], source.reduction, full)
    if types == {ARRAY}:
        source.keep(leaves, made)
    return made


def _fit(leaves: Sequence[Array | np.ndarray]) -> bool:
    whole = lambda a: isinstance(a, np.ndarray) or len(a.devices()) == 1
    numeric = lambda a: (
        getattr(a.dtype, "kind", "none") in "fb"
        or (getattr(a.dtype, "kind", "none") in "iu" and as_input(a) is not None)
    )
    return (
        sum(a.size * a.dtype.itemsize for a in leaves) <= _FITS
        and all(map(whole, leaves))
        and all(map(numeric, leaves))
    )


def _stacked(
    batches: Sequence[PyTree],
    leaves: Sequence[Sequence[Array | np.ndarray]],
    reduction: str,
    full: int,
) -> Stacked | None:
    rows = row_count(batches[0])
    shapes = [a.shape for a in leaves[0]]
    if rows == full and all([a.shape for a in each] == shapes for each in leaves):
        weight = rows if reduction == "mean" else 1.0
        chosen, weights = leaves, [weight] * len(leaves)
        examples = rows * len(leaves)
    else:
        chosen, weights, examples = _filled(batches, reduction, full)
    if not chosen:
        return None
    columns = list(zip(*chosen, strict=True))
    if any(len({(a.shape, a.dtype) for a in column}) > 1 for column in columns):
        return None
    size = 1 << (len(chosen) - 1).bit_length()
    arrays = [_one_array(column, size) for column in columns]
    if any(a is None for a in arrays):
        return None
    tree = jax.tree.structure(batches[0])
    weighted = np.zeros(size)
    weighted[: len(weights)] = weights
    return Stacked(tree.unflatten(arrays), weighted, len(weights), examples)


def _filled(
    batches: Sequence[PyTree], reduction: str, full: int
) -> tuple[list[list[Array | np.ndarray]], list[float], int]:
    """Return the arrays and weights of batches of one size, and count the examples."""
    chosen: list[list[Array | np.ndarray]] = []
    weights: list[float] = []
    examples = 0
    for batch in batches:
        rows = row_count(batch)
        examples += rows
        if not rows:
            continue
        # as in a pass batch by batch
        share = rows if reduction == "mean" else rows / max(rows, full)
        for filled, weight in padded(batch, rows, full):
            chosen.append(jax.tree.leaves(filled))
            weights.append(share * weight)
    return chosen, weights, examples


def _one_array(
    column: Sequence[Array | np.ndarray], size: int
) -> Array | np.ndarray | None:
    rest = size - len(column)
    if not isinstance(column[0], np.ndarray):
        return jnp.stack([*column, *[jnp.zeros_like(column[0])] * rest])
    array = _aligned((size, *column[0].shape), column[0].dtype)
    np.stack(column, out=array[: len(column)])
    array[len(column) :] = 0
    # integers that JAX has no room for are refused, not cut
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 4
    return array if not wide or as_input(array) is not None else None


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Make an array whose memory JAX takes as it is, where others are copied."""
    bytes_ = math.prod(shape) * dtype.itemsize
    memory = np.empty(bytes_ + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + bytes_].view(dtype).reshape(shape)
