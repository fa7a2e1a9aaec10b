"""Determinants of local series."""

import jax.numpy as jnp

from hotk._core import JaxprEqn, bound

from ._frame import Frame
from ._local import Local, Value, frame_of, if_few
from ._series import Series, total
from ._support import along, without


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
