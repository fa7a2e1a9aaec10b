"""Operations on local series: entry by entry, or such that only move entries."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from hotk._core import (
    MOVES,
    JaxprEqn,
    Literal,
    ProgramKind,
    bound,
    called_program,
    operation_name,
    shape_of,
    traits_of,
)

from ._collapse import One
from ._frame import Frame
from ._local import Local, Value, aligned, frame_of, if_few, is_few
from ._local_products import product, summed
from ._series import Series, total
from ._support import Support, along, level, moved, nowhere, padded, union, without


Values: TypeAlias = list[Value]


def local_rule(
    equation: JaxprEqn, inputs: Values, frame: Frame, one: One
) -> Values | None:
    """Apply an operation to series of which some are local.

    Args:
        equation: Its equation.
        inputs: What it is applied to.
        frame: All directions.
        one: The rule for series of a frame.

    Returns:
        `None` if it needs the coefficients along all directions.
    """
    name = operation_name(equation)
    if name in MOVES or name == "pad":
        return _moved(equation, inputs, frame, one)
    if name == "reduce_sum":
        return _reduced(equation, inputs, frame)
    if name == "dot_general":
        return product(equation, inputs, frame, one)
    if name == "slogdet":
        return determinant(equation, inputs, frame)
    if is_entrywise(equation) and all(_fits(equation, s) for s in inputs if s.moves):
        return _entrywise(equation, inputs, frame, one)
    return None


def is_entrywise(equation: JaxprEqn) -> bool:
    """Whether each entry of a result depends on the same entry of the operands."""
    traits = traits_of(equation)
    if traits.elementwise:
        return True
    if (
        traits.program is not ProgramKind.RULED
        or equation.primitive.name == "hotk_ruled"
    ):
        return False
    program = called_program(equation)
    shapes = {tuple(v.aval.shape) for v in equation.outvars}  # type: ignore[attr-defined]
    return program is not None and all(
        _is_filled(e)
        or (
            {tuple(v.aval.shape) for v in e.outvars} <= shapes  # type: ignore[attr-defined]
            and (_is_call_entrywise(e) or is_entrywise(e))
        )
        for e in program.jaxpr.eqns
    )


def _is_call_entrywise(equation: JaxprEqn) -> bool:
    if traits_of(equation).program is not ProgramKind.CALL:
        return False
    program = called_program(equation)
    return program is not None and all(
        _is_filled(e) or is_entrywise(e) or _is_call_entrywise(e)
        for e in program.jaxpr.eqns
    )


def _is_filled(equation: JaxprEqn) -> bool:
    """Whether an array is made of one number of the program."""
    fills = equation.primitive.name == "broadcast_in_dim"
    return fills and isinstance(equation.invars[0], Literal)


def _fits(equation: JaxprEqn, a: Value) -> bool:
    """Whether an operand has the axes of the results; one of length 1 is stretched."""
    own = jnp.shape(a.primal)
    shapes = [shape_of(v.aval).shape for v in equation.outvars]
    return all(
        len(own) == len(shape)
        and all(k in (1, m) for k, m in zip(own, shape, strict=True))
        for shape in shapes
    )


def _entrywise(
    equation: JaxprEqn, inputs: Values, frame: Frame, one: One
) -> Values | None:
    moving = [a for a in inputs if a.moves]
    local = [a for a in moving if isinstance(a, Local)]
    if len(local) < len(moving):
        return None
    whole = union([a.support for a in local])
    if not is_few(whole.slots, frame):
        return None
    rows = [aligned(a, whole).series if isinstance(a, Local) else a for a in inputs]
    outputs = one(equation, rows, frame_of(whole, frame))
    return [Local(s, whole) if s.moves else s for s in outputs]


def _moved(equation: JaxprEqn, inputs: Values, frame: Frame, one: One) -> Values | None:
    joined = _alike(equation, inputs, frame)
    if joined is None:
        return None
    rows, supports = joined
    shapes = [jnp.shape(row.primal) for row in rows]
    supports = moved(supports, shapes, _move(equation))
    if supports is None:
        return None
    slots = supports[0].slots
    outputs = one(equation, rows, Frame(frame.order, slots))
    pairs = zip(outputs, supports, strict=True)
    return [Local(s, of) if s.moves else s for s, of in pairs]


def _alike(
    equation: JaxprEqn, inputs: Values, frame: Frame
) -> tuple[list[Series], list[Support]] | None:
    """Return operands that have as many slots, and the supports of these."""
    if equation.primitive.name == "pad":
        a, filling = inputs
        if not isinstance(a, Local) or filling.moves:
            return None
        return [a.series, filling], [a.support, nowhere(a.support.slots, 0)]  # type: ignore[list-item]
    local = [a for a in inputs if isinstance(a, Local)]
    if any(a.moves and not isinstance(a, Local) for a in inputs):
        return None
    if len(inputs) == 1:
        return [local[0].series], [local[0].support]
    inputs = _of_one_support(int(equation.params["dimension"]), inputs, frame)
    slots = max(a.support.slots for a in inputs if isinstance(a, Local))
    rows, supports = [], []
    for a in inputs:
        if isinstance(a, Local):
            rows.append(_padded(a, slots))
            supports.append(padded(a.support, slots))
        else:
            rows.append(a)
            supports.append(nowhere(slots, jnp.ndim(a.primal)))
    return rows, supports


def _of_one_support(axis: int, inputs: Values, frame: Frame) -> Values:
    """Let arrays that are joined along an axis have one support, if that is small.

    Features of a particle that are joined with its coordinates have its directions,
    the same ones for each feature: so a layer that acts on them is a product. Arrays of
    other particles keep directions of their own.
    """
    local = [a for a in inputs if isinstance(a, Local)]
    whole = union([level(a.support, axis) for a in local])
    most = max(a.support.slots for a in local)
    if whole.slots > 3 * most or not is_few(whole.slots, frame):
        return inputs
    return [aligned(a, whole) if isinstance(a, Local) else a for a in inputs]


def _padded(a: Local, slots: int) -> Series:
    more = slots - a.support.slots
    if not more:
        return a.series
    *lower, top = a.series.terms
    margins = [(0, more)] + [(0, 0)] * jnp.ndim(a.primal)
    terms = (None if c is None else jnp.pad(c, margins) for c in lower)
    return Series(a.primal, (*terms, top))


def _move(equation: JaxprEqn) -> Callable[..., Any]:
    """Return an operation that moves entries, by NumPy."""
    parameters = equation.params
    name = equation.primitive.name
    if name == "pad":
        margins = [tuple(map(int, m)) for m in parameters["padding_config"]]
        return lambda a, filling: _with_margins(a, filling, margins)
    return lambda *arrays: MOVES[name](*arrays, **parameters)


def _with_margins(
    a: np.ndarray, filling: np.ndarray, margins: Sequence[tuple[int, ...]]
) -> np.ndarray:
    for axis, (low, high, inner) in enumerate(margins):
        length = a.shape[axis]
        spread = length + max(length - 1, 0) * inner
        shape = list(a.shape)
        shape[axis] = max(spread + low + high, 0)
        made = np.full(shape, filling, a.dtype)
        places = low + np.arange(length) * (inner + 1)
        inside = (places >= 0) & (places < shape[axis])
        to = [slice(None)] * a.ndim
        to[axis] = places[inside]
        made[tuple(to)] = a.compress(inside, axis)
        a = made
    return a


def _reduced(equation: JaxprEqn, inputs: Values, frame: Frame) -> Values | None:
    [a] = inputs
    assert isinstance(a, Local)
    axes = [int(axis) for axis in equation.params["axes"]]
    value = bound(equation, [a.primal])[0]
    top = None if a.top is None else bound(equation, [a.top])[0]
    return summed(a, axes, value, top, frame)


def determinant(
    equation: JaxprEqn, inputs: list[Value], frame: Frame
) -> list[Value] | None:
    r"""Return the series of $\log|\det A|$ where a direction moves one row of A.

    The derivative along a direction is then one number, $t = \sum_j (A^{-1})_{ji}
    A'_{ij}$, and the second one lacks $\mathrm{tr}(A^{-1} A' A^{-1} A') = t^2$.
    """
    [a] = inputs
    assert isinstance(a, Local)
    if frame.order != 2 or jnp.iscomplexobj(a.primal):
        return None
    rank = jnp.ndim(a.primal)
    held = [axis for axis in (rank - 2, rank - 1) if a.support.varies(axis)]
    if len(held) != 1:
        return None
    turned, distinct = along(a.support, held)
    if not distinct:
        return None
    [axis], first = held, a.series.terms[0]
    sign, value = bound(equation, [a.primal])
    factor = jnp.swapaxes(jnp.linalg.inv(a.primal), -1, -2)
    top = None if a.top is None else jnp.sum(factor * a.top, axis=(-1, -2))
    if first is None:
        return [frame.constant(sign), Series(value, (None, top))]
    other = rank - 1 if axis == rank - 2 else rank - 2
    slopes = jnp.sum(factor[None] * first, axis=other + 1)
    curved = frame_of(without(a.support, [other]), frame).summed(slopes * slopes)
    curved = jnp.sum(curved, axis=-1)
    slots = without(turned, [rank - 2])
    slopes = jnp.moveaxis(slopes, -1, 1)
    slopes = slopes.reshape(-1, *slopes.shape[2:])
    top = total([top, -0.5 * curved])
    made = Local(Series(value, (slopes, top)), slots)
    return [frame.constant(sign), if_few(made, frame)]
