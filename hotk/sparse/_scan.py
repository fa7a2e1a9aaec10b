"""The rule of `scan`: all steps at once, one after the other, or a loop of values."""

import contextlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun, scan_counts, unmapped_aval

from ._carried_values import is_bare, scan_by_pattern
from ._carry import Loop, carry_kinds, held_parts, linear_parts
from ._fixed_carry import MOST_PASSES, Carry, depends_on_step, fixed_carry
from ._linear import Context, Linear, Operand, Piece, TooDense, result_type, zero
from ._merge import added, same_entries
from ._pieces import kept, moved
from ._positions import Positions, size_of
from ._structure import row_of


# So many steps are taken one after the other where they cannot be taken at once: each
# is compiled. Of patterns, where nothing is, more are.
_MOST_UNROLLED, _MOST_OF_PATTERNS = 64, 1000


def scan(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Evaluate a loop in the first way that serves; a later one takes more work."""
    constants, carries = scan_counts(equation.params)
    body = equation.params["jaxpr"]
    loop = Loop(
        body,
        equation.params["length"],
        equation.params["reverse"],
        operands[:constants],
        operands[constants : constants + carries],
        operands[constants + carries :],
        [v.aval for v in body.jaxpr.invars[constants : constants + carries]],
    )
    if not loop.length:
        stacked = [v.aval for v in equation.outvars[carries:]]
        return [*loop.carry, *(jnp.zeros(a.shape, a.dtype) for a in stacked)]  # type: ignore[attr-defined]
    ways = (_at_once, _soon_by_pattern, _one_by_one, _patterns_one_by_one, _by_pattern)
    left = context.budget.left
    for way in ways:
        with contextlib.suppress(TooDense):
            return way(loop, equation, context)
        context.budget.left = left
    raise TooDense


def _soon_by_pattern(loop: Loop, equation: JaxprEqn, context: Context) -> list[Operand]:
    """Run the loop on values, where its carry has all of its entries at once."""
    return _by_pattern(loop, equation, context, passes=1)


def _by_pattern(
    loop: Loop, equation: JaxprEqn, context: Context, passes: int = MOST_PASSES
) -> list[Operand]:
    """Run the loop on values; every step has the entries that any of them has."""
    carry = fixed_carry(loop, context, passes)
    if carry is None or _has_own_entries(loop, carry, context):
        raise TooDense
    return scan_by_pattern(loop, carry, equation, context)


def _one_by_one(
    loop: Loop, equation: JaxprEqn, context: Context, most: int = _MOST_UNROLLED
) -> list[Operand]:
    """Take the steps one after the other, each with entries of its own."""
    if loop.length > most:
        raise TooDense
    return one_by_one(loop, equation, context)


def _patterns_one_by_one(
    loop: Loop, equation: JaxprEqn, context: Context
) -> list[Operand]:
    """Take more steps of patterns, if each has few of the entries that any may have.

    Values are then computed by products along the directions of a coloring.
    """
    carry = fixed_carry(loop, context, MOST_PASSES) if is_bare(loop) else None
    if carry is None or not _has_own_entries(loop, carry, context):
        raise TooDense
    return _one_by_one(loop, equation, context, _MOST_OF_PATTERNS)


def _has_own_entries(loop: Loop, carry: Carry, context: Context) -> bool:
    few = loop.length <= _MOST_OF_PATTERNS
    return few and depends_on_step(loop, carry, context)


def _at_once(loop: Loop, equation: JaxprEqn, context: Context) -> list[Operand]:
    """Run the body once, with a leading axis of steps on all that changes.

    The carry of each step is that of the step before, moved by one; from the first
    carry on it is put in until it does not change: as often as it reaches back. That
    it has the entries of the pass before does not tell: their values may differ.
    """
    linear = linear_parts(loop, context)
    kinds = carry_kinds(loop, linear, context)
    body = _vectorized(loop)
    held, last = held_parts(loop, linear)
    state = [
        held[i]
        if i in held
        else zero((loop.length, *t.shape))
        if kinds.sums[i]
        else _entered(loop, i)
        for i, t in enumerate(loop.types)
    ]
    moving = [i for i in range(len(state)) if linear[i] and not kinds.sums[i]]
    results: list[Operand] = []
    first: dict[int, Linear] = {}
    for step in range(kinds.passes + 1):
        inputs = [*loop.constants, *state, *loop.rows]
        results = context.run(body, inputs, context)
        added_now = {i: _moved_on(loop, i, results[i]) for i in moving}
        first = first or added_now
        if not moving or (kinds.ends and step == kinds.passes):
            break
        after = list(state)
        for i, part in added_now.items():
            after[i] = added(_entered(loop, i), part, loop.types[i].dtype)
        same = step and all(same_entries(state[i], after[i]) for i in moving)
        if (
            same
            and not kinds.ends
            and _is_gone(loop, body, state, first, step, context)
        ):
            break
        state = after
    else:
        raise TooDense
    for i, value in last.items():
        results[i] = value
    return _finished(loop, linear, kinds.sums, results)


def _vectorized(loop: Loop) -> ClosedJaxpr:
    """Return the body for all steps: what changes has a leading axis."""
    constants = len(loop.constants)
    types, axes = [], []
    for i, v in enumerate(loop.body.jaxpr.invars):
        axis = None if i < constants else 0
        types.append(unmapped_aval(loop.length, axis, v.aval))
        axes.append(axis)
    mapped = jax.vmap(
        jaxpr_as_fun(loop.body), in_axes=axes, out_axes=0, axis_size=loop.length
    )
    return jax.make_jaxpr(mapped)(*types)


def _entered(loop: Loop, i: int) -> Linear:
    """Return the carry of all steps of which only the first has one."""
    carry, shape = loop.carry[i], loop.types[i].shape
    whole = (loop.length, *shape)
    if not isinstance(carry, Linear):
        return zero(whole)
    first = (loop.length - 1) * size_of(shape) if loop.reverse else 0
    return moved(carry, whole, lambda rows: rows + first)


def _moved_on(loop: Loop, i: int, result: Operand) -> Linear:
    """Return the carry of all steps but the first, given what the steps return."""
    whole = (loop.length, *loop.types[i].shape)
    if not isinstance(result, Linear):
        return zero(whole)
    count = size_of(loop.types[i].shape)
    shift = -1 if loop.reverse else 1

    def to(rows: Positions) -> Positions:
        step = rows // count + shift
        return np.where((step >= 0) & (step < loop.length), rows + shift * count, -1)

    return moved(result, whole, to)


def _is_gone(
    loop: Loop,
    body: ClosedJaxpr,
    state: list[Operand],
    parts: dict[int, Linear],
    passes: int,
    context: Context,
) -> bool:
    """Whether nothing of some parts of the carry is left after so many steps more.

    It is asked of their patterns alone: of what enters now, nothing enters later.
    """
    without = lambda a: zero(a.shape) if isinstance(a, Linear) else a
    held = [list(map(without, each)) for each in (loop.constants, state, loop.rows)]
    for _ in range(passes):
        carry = list(held[1])
        for i, part in parts.items():
            pieces = (Piece(None, p.rows, p.columns) for p in part.pieces)
            carry[i] = Linear(part.shape, tuple(pieces))
        results = context.run(body, [*held[0], *carry, *held[2]], context)
        parts = {i: _moved_on(loop, i, results[i]) for i in parts}
    return not any(part.pieces for part in parts.values())


def _finished(
    loop: Loop,
    linear: list[bool],
    sums: list[bool],
    results: list[Operand],
) -> list[Operand]:
    """Return the last carry and the results of all steps."""
    finished: list[Operand] = []
    count = len(loop.carry)
    for i, type_ in enumerate(loop.types):
        result, shape, k = results[i], tuple(type_.shape), size_of(type_.shape)
        if not linear[i]:
            finished.append(result)
            continue
        if not isinstance(result, Linear):
            result = zero((loop.length, *shape))
        if sums[i]:
            start = loop.carry[i] if isinstance(loop.carry[i], Linear) else zero(shape)
            total = moved(result, shape, lambda rows, k=k: rows % k)
            finished.append(added(start, total, type_.dtype))
            continue
        last = 0 if loop.reverse else loop.length - 1
        pieces = []
        for piece in result.pieces:
            rows = piece.all_rows()
            left = Piece(piece.values, rows - last * k, piece.columns)
            pieces.append(kept(left, rows // max(k, 1) == last))
        finished.append(Linear(shape, tuple(p for p in pieces if p.size)))
    return [*finished, *results[count:]]


def one_by_one(loop: Loop, equation: JaxprEqn, context: Context) -> list[Operand]:
    """Unroll a loop."""
    carry, count = list(loop.carry), len(loop.carry)
    stacked: list[dict[int, Operand]] = [{} for _ in equation.outvars[count:]]
    steps: Sequence[int] = range(loop.length)
    for t in reversed(steps) if loop.reverse else steps:
        rows = [row_of(a, t) if isinstance(a, Linear) else a[t] for a in loop.rows]
        results = context.run(loop.body, [*loop.constants, *carry, *rows], context)
        carry = results[:count]
        for all_steps, result in zip(stacked, results[count:], strict=True):
            all_steps[t] = result
    return [*carry, *(_stacked(s, equation, count + j) for j, s in enumerate(stacked))]


def _stacked(steps: dict[int, Operand], equation: JaxprEqn, j: int) -> Operand:
    """Stack the results of all steps along a leading axis."""
    shape, dtype = result_type(equation, j)
    if not any(isinstance(a, Linear) for a in steps.values()):
        return jnp.stack([jnp.asarray(steps[t], dtype) for t in sorted(steps)])
    total, k = zero(shape), size_of(shape[1:])
    for t, result in steps.items():
        if isinstance(result, Linear):
            to = lambda rows, t=t: rows + t * k
            total = added(total, moved(result, shape, to), dtype)
    return total
