"""Loops whose carry keeps one pattern, run as loops of its values."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from hotk._core import ClosedJaxpr, JaxprEqn, Var, bound, evaluate, varying_as

from ._carry import Loop, shape_of
from ._fixed_carry import (
    MOST_PASSES,
    CarriedEntries,
    Carry,
    any_step,
    array_of,
    entries_of,
    fixed_carry,
)
from ._linear import Context, Linear, Operand, Piece, TooDense, zero
from ._positions import size_of
from ._sums import coalesced


def _values(
    a: Operand, on: CarriedEntries, columns: int, dtype: np.dtype, steps: int = 1
) -> Array:
    """Return the values of an array on positions that hold all of its entries.

    Args:
        a: The array.
        on: The positions.
        columns: The number of entries of `v`.
        dtype: The dtype of the values.
        steps: How many slices the array has along its first axis; the positions are
            those in a slice, and the values come slice after slice.
    """
    count = on.rows.size
    total = jnp.zeros(steps * count, dtype)
    if not isinstance(a, Linear):
        return total
    for piece in coalesced(a, columns, dtype).pieces:
        step, row = np.divmod(piece.all_rows().reshape(-1), max(size_of(on.shape), 1))
        keys, known = row * columns + piece.columns.reshape(-1), on.keys(columns)
        if not np.isin(keys, known).all():
            raise TooDense  # with values a rule found entries that it had not before
        at = step * count + np.searchsorted(known, keys)
        values = jnp.broadcast_to(jnp.asarray(piece.values, dtype), piece.shape)
        if np.array_equal(at, np.arange(total.size)):
            return values.reshape(-1)
        total = total.at[at].set(values.reshape(-1), unique_indices=True)
    return total


class _Values(NamedTuple):
    """A loop at run time, whose carry are the values of the linear parts."""

    loop: Loop
    carry: Carry
    context: Context

    def start(self) -> list[Any]:
        """Return the first carry."""
        return [self._entered(i, a) for i, a in enumerate(self.loop.carry)]

    def rows(self) -> list[Any]:
        """Return what is sliced, with a leading axis of steps."""
        rows, steps, columns = [], self.loop.length, self.context.columns
        types = self.loop.body.jaxpr.invars[len(self.loop.constants) :]
        of_rows = types[len(self.loop.carry) :]
        for a, own, v in zip(self.loop.rows, self.carry.rows, of_rows, strict=True):
            if own is not None:
                a = _values(a, own, columns, v.aval.dtype, steps)  # type: ignore[attr-defined]
                a = a.reshape(steps, own.rows.size)
            rows.append(a)
        return rows

    def step(self, state: Sequence[Any], rows: Sequence[Any]) -> list[Operand]:
        """Run the body."""
        patterns = (*self.carry.patterns, *self.carry.rows)
        inputs = [
            a if own is None else array_of(own, a)
            for own, a in zip(patterns, (*state, *rows), strict=True)
        ]
        return self.context.run(
            self.loop.body, [*self.loop.constants, *inputs], self.context
        )

    def after(self, results: Sequence[Operand]) -> list[Any]:
        """Return the carry that a step makes."""
        count = len(self.loop.carry)
        return [self._entered(i, a) for i, a in enumerate(results[:count])]

    def finished(self, state: Sequence[Any]) -> list[Operand]:
        """Return the last carry as arrays."""
        pairs = zip(self.carry.patterns, state, strict=True)
        return [a if own is None else array_of(own, a) for own, a in pairs]

    def _entered(self, i: int, a: Operand) -> Any:
        own, dtype = self.carry.patterns[i], self.loop.types[i].dtype
        if own is None:
            value = jnp.asarray(a, dtype)
        else:
            value = _values(a, own, self.context.columns, dtype)
        return varying_as([self.loop.types[i]], [value])[0]


def is_bare(loop: Loop) -> bool:
    """Whether patterns alone are asked for."""
    operands = (*loop.constants, *loop.carry, *loop.rows)
    pieces = (p for a in operands if isinstance(a, Linear) for p in a.pieces)
    return any(p.values is None for p in pieces)


def scan_by_pattern(
    loop: Loop, carry: Carry, equation: JaxprEqn, context: Context
) -> list[Operand]:
    """Evaluate a `scan` by one of the values of its carry.

    Args:
        loop: The loop.
        carry: The entries of its carry.
        equation: The operation.
        context: What each step is paid from.
    """
    count, stacked = len(loop.carry), equation.outvars[len(loop.carry) :]
    if is_bare(loop):
        results = any_step(loop, carry, context)
        last = [
            result if own is None else array_of(own, None)
            for own, result in zip(carry.patterns, results, strict=False)
        ]
        rows = [
            _in_each_step(entries_of(a, context.columns), None, loop.length)
            if isinstance(a, Linear)
            else jnp.zeros(shape_of(v), v.aval.dtype)  # type: ignore[attr-defined]
            for a, v in zip(results[count:], stacked, strict=True)
        ]
        return [*last, *rows]
    run = _Values(loop, carry, context)
    patterns: dict[int, CarriedEntries] = {}
    left = context.budget.left

    def step(state: list[Any], now: list[Any]) -> tuple[list[Any], list[Any]]:
        results = run.step(state, now)
        outputs = []
        for j, a in enumerate(results[count:]):
            dtype = stacked[j].aval.dtype  # type: ignore[attr-defined]
            if isinstance(a, Linear):
                patterns[j] = own = entries_of(a, context.columns)
                a = _values(a, own, context.columns, dtype)
            outputs.append(jnp.asarray(a, dtype))
        return run.after(results), outputs

    state, outputs = lax.scan(step, run.start(), run.rows(), loop.length, loop.reverse)
    context.budget.spend((left - context.budget.left) * (loop.length - 1))
    every = [
        _in_each_step(patterns[j], a, loop.length) if j in patterns else a
        for j, a in enumerate(outputs)
    ]
    return [*run.finished(state), *every]


def _in_each_step(own: CarriedEntries, values: Array | None, length: int) -> Linear:
    """Return what all steps give, stacked, where each has the same entries."""
    shape = (length, *own.shape)
    if not own.rows.size:
        return zero(shape)
    steps = np.arange(length, dtype=np.int64)[:, None] * size_of(own.shape)
    rows = own.rows.reshape(-1) + steps
    columns = np.broadcast_to(own.columns.reshape(-1), rows.shape)
    return Linear(shape, (Piece(values, rows, columns),))


def while_by_pattern(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Evaluate a `while_loop` by one of the values of its carry."""
    parameters = equation.params
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
    held, carry = operands[:first], operands[first + second :]
    types = [v.aval for v in body.jaxpr.invars[second:]]
    constants = operands[first : first + second]
    loop = Loop(body, 1, False, constants, carry, [], types)
    found = fixed_carry(loop, context, MOST_PASSES)
    if found is None:
        raise TooDense
    goes_on = _condition(condition, held, found, loop)
    if goes_on is None:
        raise TooDense  # when it ends would depend on `v`
    if is_bare(loop):
        results = any_step(loop, found, context)
        return [
            a if own is None else array_of(own, None)
            for own, a in zip(found.patterns, results, strict=True)
        ]
    run = _Values(loop, found, context)

    def step(state: list[Any]) -> list[Any]:
        after = run.after(run.step(state, []))
        going = goes_on(state)
        if not going.ndim:
            return after
        # Under `vmap` those examples stand still that are finished.
        pairs = zip(found.patterns, state, after, strict=True)
        return [_where(going, own, a, b) for own, a, b in pairs]

    state = lax.while_loop(lambda state: jnp.any(goes_on(state)), step, run.start())
    return run.finished(state)


def _where(
    going: Array, own: CarriedEntries | None, before: Array, after: Array
) -> Array:
    """Take the later of two parts of a carry for the examples that go on."""
    if own is not None:
        inner = max(size_of(own.shape[going.ndim :]), 1)
        return jnp.where(going.reshape(-1)[own.rows // inner], after, before)
    wide = going.reshape(going.shape + (1,) * (after.ndim - going.ndim))
    return jnp.where(wide, after, before)


def _condition(
    condition: ClosedJaxpr, held: list[Operand], carry: Carry, loop: Loop
) -> Callable[[Sequence[Any]], Any] | None:
    """Return the condition of a loop, `None` if it reads what depends on `v`."""
    if any(isinstance(a, Linear) and a.pieces for a in held):
        return None
    every = (v for e in condition.jaxpr.eqns for v in e.invars)
    read = {v for v in every if isinstance(v, Var)}
    own = condition.jaxpr.invars[len(held) :]
    if any(
        is_linear and v in read for is_linear, v in zip(carry.linear, own, strict=True)
    ):
        return None

    def run(state: Sequence[Any]) -> Any:
        full = [
            jnp.zeros(t.shape, t.dtype) if is_linear else a
            for a, t, is_linear in zip(state, loop.types, carry.linear, strict=True)
        ]
        return evaluate(condition, condition.consts, [*held, *full], bound)[0]

    return run
