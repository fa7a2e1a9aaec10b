"""Sums and products of local series."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._core import JaxprEqn, bound

from ._collapse import One
from ._frame import Frame
from ._local import (
    Local,
    Value,
    added,
    aligned,
    dense,
    frame_of,
    if_few,
    is_few,
)
from ._series import Coefficient, Series, total
from ._support import Support, along, level, matches, without


Values: TypeAlias = list[Value]


def summed(
    a: Local, axes: Sequence[int], value: Array, top: Coefficient, frame: Frame
) -> Values | None:
    """Return the sum along axes.

    Where directions do not change along an axis, coefficients are added. Where they do,
    its entries become slots, and nothing is computed.

    Args:
        a: The array.
        axes: Its axes.
        value: The value of the sum.
        top: Its top coefficient.
        frame: All directions.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for j in range(a.support.slots):
        slot = a.support.part([j])
        varying = tuple(axis for axis in axes if slot.varies(axis))
        groups.setdefault(varying, []).append(j)
    parts: list[Value] = []
    for varying, slots in groups.items():
        part = _part(a, slots, axes, varying, frame)
        if part is None:
            return None
        parts.append(part)
    if len(parts) == 1:
        [part] = parts
        terms = part.series.terms if isinstance(part, Local) else part.terms
        made = Series(value, (*terms[:-1], top))
        return [Local(made, part.support) if isinstance(part, Local) else made]
    return [added(parts, value, top, frame)]


def _part(
    a: Local,
    slots: list[int],
    axes: Sequence[int],
    varying: Sequence[int],
    frame: Frame,
) -> Value | None:
    """Return the lower coefficients of a sum of some slots, whose axes change alike."""
    of = a.support.part(slots)
    level = [axis for axis in axes if axis not in varying]
    turned, distinct = along(of, varying)
    rest = [axis for axis in range(jnp.ndim(a.primal)) if axis not in varying]
    turned = without(turned, [rest.index(axis) for axis in level])
    if not distinct and turned.of.size > turned.slots:
        return None  # entries of one direction, others for each result
    chosen = slice(slots[0], slots[-1] + 1)
    if slots != list(range(chosen.start, chosen.stop)):
        chosen = np.array(slots)

    def added_up(c: Array) -> Array:
        c = jnp.sum(c[chosen], axis=tuple(axis + 1 for axis in level))
        kept = [axis for axis in range(jnp.ndim(a.primal)) if axis not in level]
        places = [kept.index(axis) + 1 for axis in varying]
        c = jnp.moveaxis(c, places, range(1, len(places) + 1))
        return c.reshape(-1, *c.shape[len(places) + 1 :])

    terms = (None if c is None else added_up(c) for c in a.series.terms[:-1])
    made = Local(Series(None, (*terms, None)), turned)
    return made if distinct and is_few(turned.slots, frame) else dense(made, frame)


def _turned(
    a: Support, contract: Sequence[int], batch: Sequence[int], place: int, others: int
) -> Support:
    """Return the support of a product with an array that does not move.

    Args:
        a: The support of the operand that moves.
        contract: Its axes that are summed over: directions do not change along them.
        batch: Its axes that the other operand has as well.
        place: Which operand it is.
        others: How many axes the other one has by itself.
    """
    a = without(a, contract)
    axes = [
        axis for axis in range(a.of.ndim - 1 + len(contract)) if axis not in contract
    ]
    free = [axis for axis in axes if axis not in batch]
    order = [0, *(axes.index(axis) + 1 for axis in (*batch, *free))]
    at = 1 + len(batch) + (0 if place else len(free))
    new = tuple(range(at, at + others))
    turned = lambda b: np.expand_dims(np.transpose(b, order), new)
    return Support(turned(a.of), turned(a.live))


def product(
    equation: JaxprEqn, inputs: Values, frame: Frame, one: One
) -> Values | None:
    """Multiply two arrays of which one or both are local."""
    value = bound(equation, [s.primal for s in inputs])[0]
    moving = [i for i, s in enumerate(inputs) if s.moves]
    if any(not isinstance(inputs[i], Local) for i in moving):
        return None
    if len(moving) == 2 and frame.order > 2:
        return None
    if equation.params.get("out_sharding") is not None:
        return None
    if len(moving) == 2:
        inputs = _leveled(equation, inputs, frame)
    parts = []
    for i in moving:
        part = _with_constant(equation, inputs, i, frame)
        if part is None:
            return None
        parts.append(part)
    tops = []
    for i in moving:
        top = inputs[i].top  # type: ignore[union-attr]
        pair = [s.primal for s in inputs]
        pair[i] = top
        tops.append(None if top is None else bound(equation, pair)[0])
    if len(moving) == 2:
        crossed = _crossed(equation, inputs, frame)
        if crossed is None:
            return None
        tops += crossed
    return [added(parts, value, total(tops), frame)]


def _leveled(equation: JaxprEqn, inputs: Values, frame: Frame) -> Values:
    """Let directions not change along the axes that are summed over, if that is cheap.

    Then the products of first coefficients are products of the same kind.
    """
    made: Values = []
    contract, _ = equation.params["dimension_numbers"]
    for a, axes in zip(inputs, contract, strict=True):
        assert isinstance(a, Local)
        whole = a.support
        for axis in map(int, axes):
            whole = level(whole, axis)
        made.append(aligned(a, whole) if is_few(whole.slots, frame) else a)
    return made


def _with_constant(
    equation: JaxprEqn, inputs: Values, place: int, frame: Frame
) -> Value | None:
    """Multiply the lower coefficients of one operand with the value of the other."""
    a, other = inputs[place], inputs[1 - place].primal
    assert isinstance(a, Local)
    numbers: Any = equation.params["dimension_numbers"]
    contract, batch = (list(map(int, side[place])) for side in numbers)
    varying = sorted(axis for axis in contract if a.support.varies(axis))
    slots, distinct = along(a.support, varying)
    if not distinct:
        return None
    # Each entry along these axes has directions of its own: it becomes a slot, and
    # nothing is added.
    parameters = {
        **equation.params,
        "dimension_numbers": _batched(numbers, place, varying),
    }
    rest = [axis for axis in range(jnp.ndim(a.primal)) if axis not in varying]
    made = _turned(
        slots,
        [rest.index(axis) for axis in contract if axis in rest],
        [rest.index(axis) for axis in batch],
        place,
        jnp.ndim(other) - len(contract) - len(batch),
    )

    def multiplied(c: Array) -> Array:
        pair = (c, other) if place == 0 else (other, c)
        of_one = lambda *pair: _bound(equation, pair, parameters)
        c = jax.vmap(of_one, (0, None) if place == 0 else (None, 0))(*pair)
        first = len(batch) + 1
        places = list(range(first, first + len(varying)))
        c = jnp.moveaxis(c, places, range(1, len(varying) + 1))
        return c.reshape(-1, *c.shape[len(varying) + 1 :])

    terms = (None if c is None else multiplied(c) for c in a.series.terms[:-1])
    return if_few(Local(Series(None, (*terms, None)), made), frame)


def _bound(
    equation: JaxprEqn, pair: Sequence[Array], parameters: dict[str, Any]
) -> Array:
    """Multiply two arrays; with nothing to sum over XLA is faster entry by entry."""
    (contract, _), axes = parameters["dimension_numbers"]
    if contract:
        return bound(equation, pair, parameters)[0]
    many = len(axes[0])
    a, b = (
        jnp.moveaxis(c, own, range(many)) for c, own in zip(pair, axes, strict=True)
    )
    a = a.reshape(*a.shape, *(1,) * (b.ndim - many))
    b = b.reshape(*b.shape[:many], *(1,) * (a.ndim - b.ndim), *b.shape[many:])
    dtype = parameters.get("preferred_element_type") or a.dtype
    return a.astype(dtype) * b.astype(dtype)


def _batched(numbers: Any, place: int, varying: Sequence[int]) -> Any:
    """Return the axes of a product with some that are not summed over."""
    contract, batch = numbers
    pairs = list(zip(contract[place], contract[1 - place], strict=True))
    summed = [pair for pair in pairs if pair[0] not in varying]
    kept = sorted(pair for pair in pairs if pair[0] in varying)
    sides = [[pair[s] for pair in summed] for s in (0, 1)]
    more = [[pair[s] for pair in kept] for s in (0, 1)]
    if place:
        sides.reverse()
        more.reverse()
    return (
        (tuple(sides[0]), tuple(sides[1])),
        ((*batch[0], *more[0]), (*batch[1], *more[1])),
    )


def _crossed(
    equation: JaxprEqn, inputs: Values, frame: Frame
) -> list[Coefficient] | None:
    """Return the sum over directions of products of first coefficients, if cheap."""
    a, b = inputs
    assert isinstance(a, Local)
    assert isinstance(b, Local)
    p, q = a.series.terms[0], b.series.terms[0]
    if p is None or q is None:
        return [None]
    contract, batch = equation.params["dimension_numbers"]
    if any(
        a.support.varies(i) or b.support.varies(j)
        for i, j in zip(*contract, strict=True)
    ):
        return None
    ranks = [jnp.ndim(s.primal) - len(contract[0]) - len(batch[0]) for s in inputs]
    one = _turned(a.support, contract[0], batch[0], 0, ranks[1])
    two = _turned(b.support, contract[1], batch[1], 1, ranks[0])
    pairs, masks = [], []
    for i in range(one.slots):
        for j in range(two.slots):
            mask = matches(one, i, two, j)
            if mask.any():
                pairs.append((i, j))
                masks.append(mask)
    if not is_few(len(pairs), frame):
        return None
    if not pairs:
        return [None]
    rows, columns = np.array(pairs).T
    products = jax.vmap(lambda p, q: bound(equation, [p, q])[0])(p[rows], q[columns])
    mask = np.stack(np.broadcast_arrays(*masks))
    if not mask.all():
        products = jnp.where(mask, products, jnp.zeros((), products.dtype))
    weights = frame_of(one, frame).weights
    if weights is not None:
        weights = weights[rows]
    return [Frame(frame.order, len(pairs), weights).summed(products)]
