"""Rules of gathers and scatters whose indices are known."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hotk._core import JaxprEqn, bound

from ._coefficients import is_concrete
from ._linear import Context, Linear, Operand, Rule, operand_type, result_type, zero
from ._merge import added
from ._pieces import kept, moved, read, scaled
from ._positions import Positions, Shape, distinct, grid, strides
from ._structure import known_start


def _gather(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, indices = operands
    if not isinstance(a, Linear) or not is_concrete(indices):
        return None
    parameters = equation.params
    numbers, sizes = parameters["dimension_numbers"], parameters["slice_sizes"]
    windowed = [
        d
        for d in range(len(a.shape))
        if d not in numbers.collapsed_slice_dims
        and d not in numbers.operand_batching_dims
    ]
    positions = _windows(
        a.shape,
        np.asarray(indices),
        numbers.start_index_map,
        zip(
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            strict=True,
        ),
        {d: sizes[d] for d in windowed},
        # XLA clips what JAX promises it, as of `x[i]`, to lie inside.
        clipped=not _drops(parameters["mode"]),
    )
    offsets = sorted(numbers.offset_dims)
    shape, _ = result_type(equation)
    return [read(a, _arranged(positions, shape, offsets), context.budget)]


def _clips(mode: Any) -> bool:
    return "clip" in str(mode).lower()


def _drops(mode: Any) -> bool:
    return any(word in str(mode).lower() for word in ("fill", "one_hot"))


def _windows(
    shape: Shape,
    indices: np.ndarray,
    index_map: Sequence[int],
    batching: Any,
    windowed: dict[int, int],
    *,
    clipped: bool,
) -> Positions:
    """Return where each window of an array lies: axes of indices, then of the window.

    Args:
        shape: The shape of the array.
        indices: Where windows start; an index along the last axis.
        index_map: Which axis of the array each part of an index is for.
        batching: Pairs of an axis of the array and one of the indices that run along
            with it.
        windowed: The axes of the array that a window has, and its length in each.
        clipped: Whether an index outside is moved inside; else its window is -1.
    """
    batch = indices.shape[:-1]
    starts: list[Any] = [np.zeros((1,) * len(batch), np.int64)] * len(shape)
    for k, d in enumerate(index_map):
        starts[d] = indices[..., k].astype(np.int64)
    for d, b in batching:
        axis = [1] * len(batch)
        axis[b] = batch[b]
        starts[d] = np.arange(batch[b], dtype=np.int64).reshape(axis)
    outside = np.zeros(batch, bool)
    for d in index_map:
        last = shape[d] - windowed.get(d, 1)
        if clipped:
            starts[d] = np.clip(starts[d], 0, last)
        else:
            outside = outside | (starts[d] < 0) | (starts[d] > last)
    steps = strides(shape)
    base = np.zeros(batch, np.int64)
    for start, step in zip(starts, steps, strict=True):
        base = base + start * step
    own = grid(list(windowed.values()), [steps[d] for d in windowed])
    wide = batch + (1,) * own.ndim
    positions = base.reshape(wide) + own
    if outside.any():
        positions = np.where(outside.reshape(wide), -1, positions)
    return positions


def _arranged(
    positions: Positions, shape: Shape, window_axes: Sequence[int]
) -> Positions:
    """Put the axes of windows where they are in the array of all windows."""
    others = [d for d in range(len(shape)) if d not in window_axes]
    order = [0] * len(shape)
    for i, d in enumerate((*others, *window_axes)):
        order[d] = i
    return np.asarray(positions.transpose(order), order="C")


def _scatter(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, indices, updates = operands
    if not is_concrete(indices):
        return None
    (shape, _), (update_shape, _) = (operand_type(equation, k) for k in (0, 2))
    numbers = equation.params["dimension_numbers"]
    axes = sorted(numbers.update_window_dims)
    windowed = [
        d
        for d in range(len(shape))
        if d not in numbers.inserted_window_dims
        and d not in numbers.operand_batching_dims
    ]
    positions = _windows(
        shape,
        np.asarray(indices),
        numbers.scatter_dims_to_operand_dims,
        zip(
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            strict=True,
        ),
        {d: update_shape[k] for d, k in zip(windowed, axes, strict=True)},
        clipped=_clips(equation.params["mode"]),
    )
    to = _arranged(positions, update_shape, axes)
    adds = equation.primitive.name == "scatter-add"
    inside = to[to >= 0]
    # Which of two updates of one entry wins is not said.
    if not adds and distinct(inside).size != inside.size:
        return None
    return [_updated(equation, a, updates, to, adds=adds)]


def _scatter_mul(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Multiply entries by held updates: by the array that these make of ones."""
    a, indices, updates = operands
    if isinstance(updates, Linear):
        return None
    ones = jnp.ones(*operand_type(equation, 0))
    return [scaled(a, bound(equation, [ones, indices, updates])[0])]


def _updated(
    equation: JaxprEqn, a: Operand, updates: Operand, to: Positions, *, adds: bool
) -> Linear:
    """Add updates to an array at positions, or put them in its place."""
    shape, dtype = result_type(equation)
    total = a if isinstance(a, Linear) else zero(shape)
    if not adds:
        written = distinct(to)
        pieces = (kept(p, ~np.isin(p.all_rows(), written)) for p in total.pieces)
        total = Linear(shape, tuple(p for p in pieces if p.size))
    if isinstance(updates, Linear):
        flat = to.reshape(-1)
        total = added(total, moved(updates, shape, lambda rows: flat[rows]), dtype)
    return total


def _dynamic_update_slice(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, updates, *starts = operands
    (shape, _), (part, _) = (operand_type(equation, k) for k in (0, 1))
    start = known_start(starts, shape, part)
    if start is None:
        return None
    steps = strides(shape)
    base = sum(i * s for i, s in zip(start, steps, strict=True))
    return [_updated(equation, a, updates, grid(part, steps, base), adds=False)]


RULES: dict[str, Rule] = {
    "gather": _gather,
    "scatter-add": _scatter,
    "scatter": _scatter,
    "scatter-mul": _scatter_mul,
    "dynamic_update_slice": _dynamic_update_slice,
}
