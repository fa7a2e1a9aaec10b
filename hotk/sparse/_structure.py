"""Rules of operations that move entries: nothing is done at run time."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from hotk._core import JaxprEqn

from ._coefficients import is_concrete, reshaped
from ._elementwise import broadcast_in_dim
from ._linear import (
    Context,
    Linear,
    Operand,
    Piece,
    Rule,
    operand_type,
    result_type,
    zero,
)
from ._pieces import kept, moved, read
from ._positions import Positions, Shape, at_steps, every, ravel, strides, unravel


def reshape(a: Linear, shape: Sequence[int]) -> Linear:
    """Return `a.reshape(shape)`."""
    shape = tuple(int(k) for k in shape)
    pieces = []
    for piece in a.pieces:
        if piece.rows is None:
            values = reshaped(piece.values, piece.shape, lambda v: v.reshape(shape))
            piece = Piece(values, None, piece.columns.reshape(shape))
        pieces.append(piece)
    return Linear(shape, tuple(pieces))


def transpose(a: Linear, permutation: Sequence[int]) -> Linear:
    """Return `lax.transpose(a, permutation)`."""
    shape = tuple(a.shape[d] for d in permutation)
    steps = strides(shape)
    own = [steps[list(permutation).index(d)] for d in range(len(shape))]
    pieces = []
    for piece in a.pieces:
        if piece.rows is None:
            turn = lambda v: jnp.transpose(v, permutation)
            values = reshaped(piece.values, piece.shape, turn)
            columns = np.asarray(piece.columns.transpose(permutation), order="C")
            pieces.append(Piece(values, None, columns))
        else:
            rows = at_steps(piece.rows, a.shape, own)
            pieces.append(Piece(piece.values, rows, piece.columns))
    return Linear(shape, tuple(pieces))


def window(
    a: Linear, shape: Sequence[int], start: Sequence[int], steps: Sequence[int]
) -> Linear:
    """Return the entries of a window, of a shape, that begins at `start`."""
    shape = tuple(shape)
    axes = list(zip(start, shape, steps, strict=True))
    pieces = []
    for piece in a.pieces:
        if piece.rows is None:
            box = tuple(
                slice(first, first + (count - 1) * step + 1, step)
                if count
                else slice(0)
                for first, count, step in axes
            )
            values = reshaped(piece.values, piece.shape, lambda v, box=box: v[box])
            pieces.append(Piece(values, None, piece.columns[box]))
            continue
        inside = np.ones(piece.shape, bool)
        places = []
        index = unravel(piece.rows, a.shape)
        for i, (first, count, step) in zip(index, axes, strict=True):
            place = i - first
            inside &= (place >= 0) & (place < (count - 1) * step + 1)
            if step != 1:
                inside &= place % step == 0
                place = place // step
            places.append(place)
        rows = ravel(places, strides(shape), piece.rows)
        piece = kept(Piece(piece.values, rows, piece.columns), inside)
        if piece.size:
            pieces.append(piece)
    return Linear(shape, tuple(pieces))


def row_of(a: Linear, t: int) -> Linear:
    """Return `a[t]`."""
    part = window(
        a, (1, *a.shape[1:]), (t,) + (0,) * (len(a.shape) - 1), (1,) * len(a.shape)
    )
    return reshape(part, a.shape[1:])


def _reshape(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    a = operands[0]
    dimensions = equation.params.get("dimensions")
    if equation.primitive.name == "reshape" and dimensions is not None:
        a = transpose(a, dimensions)
    return [reshape(a, result_type(equation)[0])]


def _transpose(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    return [transpose(operands[0], equation.params["permutation"])]


def _rev(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    a, dimensions = operands[0], equation.params["dimensions"]
    steps = strides(a.shape)
    pieces = []
    for piece in a.pieces:
        if piece.rows is None:
            flip = lambda v: lax.rev(v, dimensions)
            values = reshaped(piece.values, piece.shape, flip)
            pieces.append(Piece(values, None, np.flip(piece.columns, dimensions)))
            continue
        index = unravel(piece.rows, a.shape)
        for d in dimensions:
            index[d] = a.shape[d] - 1 - index[d]
        pieces.append(
            Piece(piece.values, ravel(index, steps, piece.rows), piece.columns)
        )
    return [Linear(a.shape, tuple(pieces))]


def _slice(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, _ = result_type(equation)
    steps = equation.params["strides"] or (1,) * len(shape)
    return [window(operands[0], shape, equation.params["start_indices"], steps)]


def known_start(
    starts: Sequence[Operand], whole: Shape, part: Shape
) -> list[int] | None:
    """Return where a dynamic slice begins, `None` if it is not known."""
    if not all(map(is_concrete, starts)):
        return None
    last = [n - k for n, k in zip(whole, part, strict=True)]
    return [int(np.clip(int(i), 0, m)) for i, m in zip(starts, last, strict=True)]


def _dynamic_slice(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, *starts = operands
    shape, _ = result_type(equation)
    start = known_start(starts, operand_type(equation, 0)[0], shape)
    if start is None or not isinstance(a, Linear):
        return None
    return [window(a, shape, start, (1,) * len(shape))]


def _pad(equation: JaxprEqn, operands: list[Operand], context: Context) -> list | None:
    a, filling = operands
    if isinstance(filling, Linear) and filling.pieces:
        return None
    shape, _ = result_type(equation)
    if not isinstance(a, Linear):
        return [zero(shape)]
    margins, steps = equation.params["padding_config"], strides(shape)

    def to(rows: Positions) -> Positions:
        places, outside = [], np.zeros(rows.shape, bool)
        axes = zip(unravel(rows, a.shape), margins, shape, strict=True)
        for i, (low, high, inner), length in axes:
            place = i * (int(inner) + 1) + int(low)
            if low < 0 or high < 0:
                outside |= (place < 0) | (place >= length)
            places.append(place)
        return np.where(outside, -1, ravel(places, steps, rows))

    return [moved(a, shape, to)]


def _concatenate(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, _ = result_type(equation)
    dimension = equation.params["dimension"]
    steps, offset = strides(shape), 0
    pieces: list[Piece] = []
    for k, operand in enumerate(operands):
        own, _ = operand_type(equation, k)
        if isinstance(operand, Linear):
            shift = offset * steps[dimension]
            to = lambda rows, own=own, shift=shift: at_steps(rows, own, steps) + shift
            pieces += moved(operand, shape, to).pieces
        offset += own[dimension]
    return [Linear(shape, tuple(pieces))]


def _stack(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, _ = result_type(equation)
    axis = equation.params["axis"]
    steps = strides(shape)
    inner = [*steps[:axis], *steps[axis + 1 :]]
    pieces: list[Piece] = []
    for k, operand in enumerate(operands):
        if isinstance(operand, Linear):
            own, shift = operand.shape, k * steps[axis]
            to = lambda rows, own=own, shift=shift: at_steps(rows, own, inner) + shift
            pieces += moved(operand, shape, to).pieces
    return [Linear(shape, tuple(pieces))]


def _split(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    a, axis = operands[0], equation.params["axis"]
    ones = (1,) * len(a.shape)
    results, offset = [], 0
    for k in range(len(equation.outvars)):
        shape, _ = result_type(equation, k)
        part = shape
        if equation.primitive.name == "unstack":
            part = (*shape[:axis], 1, *shape[axis:])
        start = [0] * len(part)
        start[axis] = offset
        offset += part[axis]
        results.append(reshape(window(a, part, start, ones), shape))
    return results


def _tile(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, _ = result_type(equation)
    positions = np.tile(every(operands[0].shape), equation.params["reps"])
    return [read(operands[0], positions.reshape(shape), context.budget)]


RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "rev": _rev,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "unstack": _split,
    "tile": _tile,
    "broadcast_in_dim": broadcast_in_dim,
}
