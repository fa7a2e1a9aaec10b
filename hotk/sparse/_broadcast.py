"""Broadcasts, and the operands of elementwise operations brought to one shape."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from hotk._core import JaxprEqn

from ._coefficients import is_concrete, is_number, reshaped
from ._context import Context, Operand, result_type
from ._linear import Budget, Linear, Piece
from ._pieces import repeated
from ._positions import Positions, Shape, at_steps, grid, size_of, strides


def broadcast(
    a: Linear, shape: Sequence[int], dimensions: Sequence[int], budget: Budget
) -> Linear:
    """Return `lax.broadcast_in_dim(a, shape, dimensions)`."""
    shape = tuple(int(k) for k in shape)
    lengths = dict(zip(dimensions, a.shape, strict=True))
    grown = [d for d in range(len(shape)) if lengths.get(d) != shape[d]]
    whole = tuple(p for p in a.pieces if p.rows is None)
    pieces = [_whole(p, shape, dimensions, budget) for p in whole]
    parts = Linear(a.shape, tuple(p for p in a.pieces if p.rows is not None))
    steps = strides(shape)
    own = [0 if d in grown else steps[d] for d in dimensions]
    offsets = grid([shape[d] for d in grown], [steps[d] for d in grown])

    def first(rows: Positions) -> Positions:
        return at_steps(rows, a.shape, own)

    if parts.pieces:
        pieces += repeated(parts, shape, first, offsets, budget).pieces
    return Linear(shape, tuple(pieces))


def _whole(
    piece: Piece, shape: Shape, dimensions: Sequence[int], budget: Budget
) -> Piece:
    """Broadcast a piece that has the shape of the array."""
    budget.spend(size_of(shape))
    axes = [1] * len(shape)
    for d, length in zip(dimensions, piece.shape, strict=True):
        axes[d] = length
    values = reshaped(
        piece.values,
        piece.shape,
        lambda v: lax.broadcast_in_dim(v, shape, tuple(dimensions)),
    )
    return Piece(values, None, np.broadcast_to(piece.columns.reshape(axes), shape))


def fitted(a: Operand, shape: Shape, budget: Budget) -> Operand:
    """Stretch the axes of length one of an operand of an elementwise operation.

    Differentiation leaves such operands in programs, and numbers without axes.
    """
    if isinstance(a, Linear):
        if a.shape == shape:
            return a
        ahead = len(shape) - len(a.shape)
        return broadcast(a, shape, range(ahead, len(shape)), budget)
    if is_number(a) or a.shape == shape:
        return a
    return (np if is_concrete(a) else jnp).broadcast_to(a, shape)


def broadcast_in_dim(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand]:
    """Repeat the entries along new axes."""
    shape, _ = result_type(equation)
    dimensions = equation.params["broadcast_dimensions"]
    return [broadcast(operands[0], shape, dimensions, context.budget)]
