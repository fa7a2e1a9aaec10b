"""Rules of sums: over axes, over windows, cumulative."""

import math
from collections.abc import Sequence

import numpy as np

from hotk._core import JaxprEqn

from ._linear import Context, Linear, Operand, Rule, result_type, zero
from ._merge import added
from ._pieces import moved, repeated
from ._positions import Positions, Shape, at_steps, ravel, strides, unravel


# A window of more entries is taken as an operation of unknown kind.
_MOST_SHIFTS = 64


def _reduce_sum(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    return [sum_along(operands[0], equation.params["axes"], result_type(equation)[0])]


def sum_along(a: Linear, axes: Sequence[int], shape: Shape) -> Linear:
    """Add over some axes; what is left has a shape."""
    steps = iter(strides(shape))
    own = [0 if d in axes else next(steps) for d in range(len(a.shape))]
    if len(axes) == len(a.shape):
        return moved(a, shape, np.zeros_like)
    return moved(a, shape, lambda rows: at_steps(rows, a.shape, own))


def _window_sum(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    a, parameters = operands[0], equation.params
    shape, dtype = result_type(equation)
    lengths = parameters["window_dimensions"]
    if math.prod(lengths) > _MOST_SHIFTS:
        return None
    axes = list(
        zip(
            parameters["base_dilation"],
            parameters["padding"],
            parameters["window_dilation"],
            parameters["window_strides"],
            shape,
            strict=True,
        )
    )
    total = zero(shape)
    for place in np.ndindex(*lengths):

        def to(rows: Positions, place: tuple[int, ...] = place) -> Positions:
            places, outside = [], np.zeros(rows.shape, bool)
            index = zip(unravel(rows, a.shape), place, axes, strict=True)
            for i, w, (spread, margin, dilation, step, length) in index:
                at = i * spread + margin[0] - w * dilation
                outside |= at % step != 0
                at = at // step
                outside |= (at < 0) | (at >= length)
                places.append(at)
            return np.where(outside, -1, ravel(places, strides(shape), rows))

        context.budget.spend(a.entries)
        total = added(total, moved(a, shape, to), dtype)
    return [total]


def _cumsum(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    a, axis = operands[0], equation.params["axis"]
    shape: Shape = a.shape
    step, length = strides(shape)[axis], shape[axis]
    along = lambda rows: rows // step % length
    offsets = np.arange(length, dtype=np.int64) * step
    sign = -1 if equation.params["reverse"] else 1

    def first(rows: Positions) -> Positions:
        return rows - along(rows) * step

    def later(rows: Positions, copies: Shape) -> np.ndarray:
        to = np.arange(length).reshape((length,) + (1,) * (len(copies) - 1))
        return np.broadcast_to(sign * to >= sign * along(rows), copies)

    return [repeated(a, shape, first, offsets, context.budget, None, later)]


RULES: dict[str, Rule] = {
    "reduce_sum": _reduce_sum,
    "reduce_window_sum": _window_sum,
    "cumsum": _cumsum,
}
