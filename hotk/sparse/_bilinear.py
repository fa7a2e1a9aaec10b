"""Rules of products with a held array: `dot_general` and convolutions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotk._core import JaxprEqn

from ._coefficients import Coefficient, is_concrete, taken, times
from ._linear import (
    Context,
    Linear,
    Operand,
    Piece,
    Rule,
    TooDense,
    operand_type,
    result_type,
)
from ._pieces import kept, repeated
from ._positions import Positions, Shape, at_steps, grid, size_of, strides, unravel


# An intermediate result that depends on half of all variables is multiplied as a dense
# matrix, many times faster than entry by entry. Below this many entries both are quick.
_DENSE_PART, _MANY = 0.5, 100_000


class _Side(NamedTuple):
    """The axes of an operand of `dot_general`, and where its free ones go."""

    shape: Shape
    contracted: Sequence[int]
    batch: Sequence[int]
    free: list[int]
    steps: list[int]


def _sides(equation: JaxprEqn) -> list[_Side]:
    contracted, batch = equation.params["dimension_numbers"]
    steps = strides(result_type(equation)[0])[len(batch[0]) :]
    sides = []
    for k in (0, 1):
        shape, _ = operand_type(equation, k)
        held = (*contracted[k], *batch[k])
        free = [d for d in range(len(shape)) if d not in held]
        own, steps = steps[: len(free)], steps[len(free) :]
        sides.append(_Side(shape, contracted[k], batch[k], free, own))
    return sides


def _dot_general(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    linear = [isinstance(operand, Linear) for operand in operands]
    if all(linear):
        return None
    k = linear.index(True)
    a, held = operands[k], operands[1 - k]
    sides = _sides(equation)
    mine, other = sides[k], sides[1 - k]
    shape, _ = result_type(equation)
    own, theirs = strides(shape), strides(other.shape)
    lengths = [other.shape[d] for d in other.free]
    offsets = grid(lengths, other.steps)
    _refuse_dense(a, offsets.size, context.columns)
    into = dict(zip(mine.batch, own, strict=False))
    into |= dict(zip(mine.free, mine.steps, strict=True))
    pairs = [*zip(mine.batch, other.batch, strict=True)]
    pairs += zip(mine.contracted, other.contracted, strict=True)
    at = {d: theirs[e] for d, e in pairs}
    across = grid(lengths, [theirs[d] for d in other.free])
    axes = range(len(mine.shape))

    def first(rows: Positions) -> Positions:
        return at_steps(rows, mine.shape, [into.get(d, 0) for d in axes])

    def positions(rows: Positions, copies: Shape) -> Positions:
        place = at_steps(rows, mine.shape, [at.get(d, 0) for d in axes])
        apart = across.reshape(across.shape + (1,) * (rows.ndim - across.ndim))
        return np.broadcast_to(place + apart, copies)

    def factor(rows: Positions, copies: Shape) -> Coefficient:
        return taken(held, positions(rows, copies))

    nonzero = None
    if is_concrete(held) and not np.all(held):
        known = np.asarray(held).reshape(-1) != 0
        nonzero = lambda rows, copies: known[positions(rows, copies)]
    return [repeated(a, shape, first, offsets, context.budget, factor, nonzero)]


def _refuse_dense(a: Linear, copies: int, columns: int) -> None:
    """Leave the algebra where a matrix product would do the same faster."""
    entries = a.entries
    if entries * copies > _MANY and entries > _DENSE_PART * columns * size_of(a.shape):
        raise TooDense


def _convolution(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, kernel = operands
    parameters = equation.params
    if not isinstance(a, Linear) or isinstance(kernel, Linear):
        return None
    if parameters["batch_group_count"] != 1:
        return None
    numbers = parameters["dimension_numbers"]
    into, of, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    shape, _ = result_type(equation)
    kernel_shape, _ = operand_type(equation, 1)
    own, steps = strides(kernel_shape), strides(shape)
    space = range(2, len(into))
    # The features of a group make features of the same group.
    features = kernel_shape[of[0]] // parameters["feature_group_count"]
    lengths = [features, *(kernel_shape[of[i]] for i in space)]
    pieces: list[Piece] = []
    for piece in a.pieces:
        context.budget.spend(piece.size * size_of(lengths))
        index = unravel(piece.all_rows(), a.shape)
        # A piece for each entry of the kernel: each of them is a shift.
        group, within = np.divmod(index[into[1]], kernel_shape[of[1]])
        for feature, *place in np.ndindex(*lengths):
            to_feature = group * features + feature
            rows = index[into[0]] * steps[out[0]] + to_feature * steps[out[1]]
            at = within * own[of[1]] + to_feature * own[of[0]]
            inside = np.ones(piece.shape, bool)
            for i, w in zip(space, place, strict=True):
                p = i - 2
                to = index[into[i]] * parameters["lhs_dilation"][p]
                to = to + parameters["padding"][p][0]
                to = to - w * parameters["rhs_dilation"][p]
                step = parameters["window_strides"][p]
                inside &= to % step == 0
                to = to // step
                inside &= (to >= 0) & (to < shape[out[i]])
                rows = rows + to * steps[out[i]]
                at = at + w * own[of[i]]
            values = piece.values
            if values is not None:
                values = times(values, taken(kernel, at))
            made = kept(Piece(values, rows, piece.columns), inside)
            if made.size:
                pieces.append(made)
    return [Linear(shape, tuple(pieces))]


RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
}
