"""Loops whose carry keeps one pattern: which entries it has in any step."""

from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._carry import Loop, held_parts, linear_parts
from ._coefficients import is_concrete
from ._linear import Budget, Context, Linear, Operand, Piece, TooDense, zero
from ._pieces import moved
from ._positions import Positions, Shape, size_of
from ._sums import coalesced


# After so many steps the carry must have the entries of any step: where an entry moves
# on in each step, it is everywhere in the end.
MOST_PASSES = 16
# Entries for finding out which ones the carry has.
_TRIAL = 4_000_000


class CarriedEntries(NamedTuple):
    """Where the entries of an array stand, sorted by row, then column."""

    shape: Shape
    rows: Positions
    columns: Positions

    def keys(self, count: int) -> Positions:
        """Return one number for each position."""
        return self.rows * count + self.columns


def array_of(own: CarriedEntries, values: Array | None) -> Linear:
    """Return an array with some values, `None` for its entries alone."""
    if not own.rows.size:
        return zero(own.shape)
    return Linear(own.shape, (Piece(values, own.rows, own.columns),))


# By its number, each part of the carry and each slice that is known in a step.
Known: TypeAlias = tuple[dict[int, np.ndarray], dict[int, np.ndarray]]


class Carry(NamedTuple):
    """The carry of a loop.

    Attributes:
        linear: Which parts depend on `v`.
        patterns: The entries of these parts in any step; of the others none.
        rows: The entries of what a step is given of what is sliced.
    """

    linear: list[bool]
    patterns: list[CarriedEntries | None]
    rows: list[CarriedEntries | None]


def fixed_carry(loop: Loop, context: Context, passes: int) -> Carry | None:
    """Find the entries that the carry has in any step, from the first carry on.

    Args:
        loop: The loop.
        context: What entries are paid from.
        passes: After so many steps the entries must no longer change.

    Returns:
        The carry, `None` if its entries still change.
    """
    context = context._replace(budget=Budget(min(context.budget.left, _TRIAL)))
    try:
        return _found(loop, context, passes)
    except TooDense:
        return None


def _found(loop: Loop, context: Context, passes: int) -> Carry | None:
    linear = linear_parts(loop, context)
    found = _entered(loop, linear, context.columns)
    rows = [
        _of_any_step(a, context) if isinstance(a, Linear) else None for a in loop.rows
    ]
    for _ in range(passes + 1):
        results = any_step(loop, Carry(linear, found, rows), context)
        after = [
            None if own is None else _union(own, result, context.columns)
            for own, result in zip(found, results, strict=False)
        ]
        if all(_are_as_many(a, b) for a, b in zip(found, after, strict=True)):
            return Carry(linear, found, rows)
        found = after
    return None


def _entered(
    loop: Loop, linear: list[bool], columns: int
) -> list[CarriedEntries | None]:
    """Return the entries of the first carry."""
    return [
        entries_of(a if isinstance(a, Linear) else zero(t.shape), columns)
        if is_linear
        else None
        for a, t, is_linear in zip(loop.carry, loop.types, linear, strict=True)
    ]


def _of_any_step(a: Linear, context: Context) -> CarriedEntries:
    """Return the entries that slices along the first axis have together."""
    shape = a.shape[1:]
    count = max(size_of(shape), 1)
    bare = moved(_bare(a), shape, lambda rows: rows % count)
    found = entries_of(bare, context.columns)
    context.budget.spend(found.rows.size * a.shape[0])
    return found


def any_step(
    loop: Loop, carry: Carry, context: Context, known: Known | None = None
) -> list[Operand]:
    """Run one step, any of them, on the entries alone.

    Args:
        loop: The loop.
        carry: The entries of its carry.
        context: What entries are paid from.
        known: What else the step is given and is known, for a step that is known.
    """
    held, sliced = known or ({}, {})
    bare = lambda a: _bare(a) if isinstance(a, Linear) else a
    inputs: list[Operand] = list(map(bare, loop.constants))
    pairs = enumerate(zip(carry.patterns, loop.carry, loop.types, strict=True))
    for i, (own, first, type_) in pairs:
        # What a step counts is another number in each: no known one.
        number = None if own is not None else jnp.asarray(first, type_.dtype)
        inputs.append(held.get(i, number) if own is None else array_of(own, None))
    for i, (own, row) in enumerate(zip(carry.rows, loop.rows, strict=True)):
        if own is not None:
            inputs.append(array_of(own, None))
        else:
            inputs.append(sliced[i] if i in sliced else jnp.asarray(row)[0])
    return context.run(loop.body, inputs, context)


def depends_on_step(loop: Loop, carry: Carry, context: Context) -> bool:
    """Whether a step that is known has fewer entries than any step.

    So it is where a step reads or writes `x[i]`, for the number `i` of the step: of
    any step only that it may be each entry is known.
    """
    held = held_parts(loop, carry.linear)[0] if loop.length else {}
    counters = {i: a for i, a in held.items() if _counts(a)}
    sliced = {i: a for i, a in enumerate(loop.rows) if _counts(a)}
    if not counters and not sliced:
        return False
    at = loop.length // 2
    of_step = lambda all_steps: {i: a[at] for i, a in all_steps.items()}
    known = of_step(counters), of_step(sliced)
    trial = context._replace(budget=Budget(_TRIAL), watch=None)

    def sizes(carry: Carry, known: Known | None) -> list[int]:
        results = any_step(loop, carry, trial, known)
        linear = (a for a in results if isinstance(a, Linear))
        return [entries_of(a, context.columns).rows.size for a in linear]

    # From all of its entries a carry may get no others, from the first ones it may.
    first = _entered(loop, carry.linear, context.columns)
    starts = (carry._replace(patterns=first), carry)
    try:
        return any(sizes(start, known) != sizes(start, None) for start in starts)
    except TooDense:
        return True


def _counts(a: Operand) -> bool:
    """Whether an array of all steps is known, and may be their indices."""
    return is_concrete(a) and a.dtype.kind in "iu" and bool((a != a[:1]).any())


def _bare(a: Linear) -> Linear:
    return Linear(a.shape, tuple(Piece(None, p.rows, p.columns) for p in a.pieces))


def entries_of(a: Linear, columns: int) -> CarriedEntries:
    one = coalesced(_bare(a), columns, np.dtype(float))
    if not one.pieces:
        nothing = np.zeros(0, np.int64)
        return CarriedEntries(a.shape, nothing, nothing)
    [piece] = one.pieces
    return CarriedEntries(a.shape, piece.all_rows(), piece.columns)


def _union(own: CarriedEntries, result: Operand, columns: int) -> CarriedEntries:
    if not isinstance(result, Linear):
        return own
    pieces = (*array_of(own, None).pieces, *result.pieces)
    return entries_of(Linear(own.shape, pieces), columns)


def _are_as_many(a: CarriedEntries | None, b: CarriedEntries | None) -> bool:
    return a is None or b is None or a.rows.size == b.rows.size
