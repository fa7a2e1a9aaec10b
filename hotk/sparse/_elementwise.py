"""Rules of operations that act on each entry: sums, products with what is held."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hotk._core import JaxprEqn

from ._coefficients import (
    Coefficient,
    is_concrete,
    is_number,
    masked,
    number_of,
    reshaped,
    taken,
)
from ._linear import (
    Budget,
    Context,
    Linear,
    Operand,
    Piece,
    Rule,
    result_type,
    with_values,
    zero,
)
from ._merge import added
from ._pieces import kept, repeated, scaled
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


def _neg(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    return [scaled(operands[0], -1.0)]


def _mul(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    shape, _ = result_type(equation)
    a, b = (fitted(operand, shape, context.budget) for operand in operands)
    if isinstance(a, Linear) and isinstance(b, Linear):
        return None
    return [
        scaled(a, number_of(b)) if isinstance(a, Linear) else scaled(b, number_of(a))
    ]


def _div(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    if isinstance(operands[1], Linear):
        return None
    shape, _ = result_type(equation)
    a, b = (fitted(operand, shape, context.budget) for operand in operands)
    b = number_of(b)
    if isinstance(b, (float, complex)):
        b = np.asarray(b)[()]  # in Python division by zero is an error, not infinity
    with np.errstate(divide="ignore", invalid="ignore"):
        return [scaled(a, number_of(1.0 / b))]


def _add(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, dtype = result_type(equation)
    total = zero(shape)
    signs = (1.0, -1.0 if equation.primitive.name == "sub" else 1.0)
    for operand, sign in zip(operands, signs, strict=True):
        if isinstance(operand, Linear):
            term = fitted(operand, shape, context.budget)
            total = added(total, scaled(term, sign), dtype)
    return [total]


def _same(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    return list(operands)


def _convert(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, dtype = result_type(equation)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return [zero(shape)]  # integers have no derivative
    return [with_values(operands[0], lambda v: _cast(v, dtype))]


def _cast(values: Coefficient, dtype: np.dtype) -> Coefficient:
    """Return coefficients in another dtype; of complex ones the real part."""
    if np.iscomplexobj(values) and not jnp.issubdtype(dtype, jnp.complexfloating):
        values = values.real
    return values if isinstance(values, (float, complex)) else values.astype(dtype)


def _select_n(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    which, *cases = operands
    if isinstance(which, Linear):
        return None
    shape, dtype = result_type(equation)
    which = fitted(which, shape, context.budget)
    total = zero(shape)
    for k, case in enumerate(cases):
        if isinstance(case, Linear):
            case = fitted(case, shape, context.budget)
            total = added(total, _where(which, k, case, dtype), dtype)
    return [total]


def _where(which: Operand, k: int, case: Linear, dtype: np.dtype) -> Linear:
    """Return the entries of a case where it is the one that is selected."""
    known = is_concrete(which)
    mask: Any
    if known:
        mask = np.broadcast_to(np.asarray(which) == k, case.shape)
    elif which.dtype == bool:
        mask = which if k else ~which
    else:
        mask = which == k
    pieces = []
    for piece in case.pieces:
        if known:
            here = mask if piece.rows is None else mask.reshape(-1)[piece.rows]
            piece = kept(piece, here)
        elif piece.values is not None:
            here = mask if piece.rows is None else taken(mask, piece.rows)
            values = masked(piece.values, here, dtype)
            piece = Piece(values, piece.rows, piece.columns)
        if piece.size:
            pieces.append(piece)
    return Linear(case.shape, tuple(pieces))


def _part(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    part = {"real": jnp.real, "imag": jnp.imag, "conj": jnp.conj}
    take = part[equation.primitive.name]
    # A coefficient that is one number may be a Python number of either kind.
    return [with_values(operands[0], lambda v: take(jnp.asarray(v)))]


def _complex(equation: JaxprEqn, operands: list[Operand], context: Context) -> list:
    shape, dtype = result_type(equation)
    total = zero(shape)
    for operand, unit in zip(operands, (1.0 + 0.0j, 1.0j), strict=True):
        if isinstance(operand, Linear):
            term = fitted(operand, shape, context.budget)
            turned = with_values(term, lambda v, u=unit: jnp.asarray(v, dtype) * u)
            total = added(total, turned, dtype)
    return [total]


RULES: dict[str, Rule] = {
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "add": _add,
    "add_any": _add,
    "sub": _add,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "optimization_barrier": _same,
    "pvary": _same,
    "reduce_precision": _same,
    "sharding_constraint": _same,
    "select_n": _select_n,
    "real": _part,
    "imag": _part,
    "conj": _part,
    "complex": _complex,
}
