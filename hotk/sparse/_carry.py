"""A `scan` as its rules see it, and which parts of its carry depend on `v`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import ClosedJaxpr, bound, evaluate

from ._coefficients import is_concrete
from ._linear import Budget, Context, Linear, Operand, Piece, TooDense, variable, zero
from ._positions import every, size_of


class Loop(NamedTuple):
    """A `scan` with its operands.

    Attributes:
        body: The program of a step.
        length: The number of steps.
        reverse: Whether the last step is taken first.
        constants: What each step is given.
        carry: What the first step is given.
        rows: What is sliced, one slice for each step.
        types: Shapes and dtypes of the carry.
    """

    body: ClosedJaxpr
    length: int
    reverse: bool
    constants: list[Operand]
    carry: list[Operand]
    rows: list[Operand]
    types: list[Any]


def shape_of(variable: Any) -> tuple[int, ...]:
    """Return the shape of a variable of a program."""
    return tuple(variable.aval.shape)


# Entries for finding out how one step depends on the one before it.
_TRIAL = 1_000_000
# A carry of `k` parts, each of which moves on by a step, reaches back `k` steps; one
# that reaches back further than this remembers all of its past.
_MOST_PASSES = 6
# A carry of more numbers is followed from step to step itself.
_MOST_MULTIPLIED = 1000


def linear_parts(loop: Loop, context: Context) -> list[bool]:
    """Return which parts of the carry depend on `v`, in any step."""
    linear = [isinstance(a, Linear) for a in loop.carry]
    while True:
        inputs = _trial_inputs(loop, linear, None)
        results = context.run(loop.body, inputs, context)[: len(linear)]
        now = [
            known or isinstance(a, Linear)
            for known, a in zip(linear, results, strict=True)
        ]
        if now == linear:
            return linear
        linear = now


def held_parts(loop: Loop, linear: list[bool]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the other parts of the carry: before each step, and after the last."""
    places = [i for i, is_linear in enumerate(linear) if not is_linear]
    if not places:
        return {}, {}
    constants, types = len(loop.constants), loop.body.jaxpr.invars
    zeros = [jnp.zeros(shape_of(v), v.aval.dtype) for v in types]
    rows = [None if isinstance(a, Linear) else a for a in loop.rows]

    def step(carry: list[Any], now: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = list(zeros)
        for k, a in enumerate(loop.constants):
            inputs[k] = inputs[k] if isinstance(a, Linear) else a
        for i, a in zip(places, carry, strict=True):
            inputs[constants + i] = a
        for k, a in enumerate(now):
            place = constants + len(linear) + k
            inputs[place] = inputs[place] if a is None else a
        after = evaluate(loop.body, loop.body.consts, inputs, bound)
        return [after[i] for i in places], carry

    def run() -> tuple[list[Any], list[Any]]:
        first = [jnp.asarray(loop.carry[i], loop.types[i].dtype) for i in places]
        return jax.lax.scan(step, first, rows, loop.length, loop.reverse)

    held = [a for a in (*loop.constants, *rows) if not isinstance(a, Linear)]
    known = [a for a in held if a is not None] + [loop.carry[i] for i in places]
    if all(map(is_concrete, known)):  # a counter: the pattern may depend on it
        with jax.ensure_compile_time_eval():
            last, before = jax.tree.map(np.asarray, run())
    else:
        last, before = run()
    return dict(zip(places, before, strict=True)), dict(zip(places, last, strict=True))


class Kinds(NamedTuple):
    """How the parts of a carry depend on each other.

    Attributes:
        sums: Which ones only add up: `c + ...`, where no step reads `c`.
        passes: After how many passes the carry no longer changes, at most.
        ends: Whether that is certain.
    """

    sums: list[bool]
    passes: int
    ends: bool


def carry_kinds(loop: Loop, linear: list[bool], context: Context) -> Kinds:
    """Run one step with each part of the carry as the variable."""
    count = len(linear)
    sums, read = [False] * count, [False] * count
    uses = np.zeros((count, count), bool)
    edges: list[tuple[Piece, int, int]] = []
    for i, type_ in enumerate(loop.types):
        if not linear[i]:
            continue
        trial = context._replace(budget=Budget(_TRIAL), watch=None)
        results = context.run(loop.body, _trial_inputs(loop, linear, i), trial)
        for j, result in enumerate(results):
            pieces = result.pieces if isinstance(result, Linear) else ()
            if j == i:
                passed = [p for p in pieces if _is_identity(p, type_.shape)]
                sums[i] = len(passed) == 1
                pieces = tuple(p for p in pieces if not (sums[i] and p is passed[0]))
            if pieces and j < count:
                uses[j, i] = True
                edges += [(p, j, i) for p in pieces]
            elif pieces:
                read[i] = True
    for i in range(count):
        if sums[i] and (uses[:, i].any() or read[i]):
            raise TooDense  # each step reads the sum of all before it
    passes, reach = 1, uses.copy()
    while reach.any() and passes <= count:
        reach = (reach.astype(int) @ uses.astype(int)) > 0
        passes += 1
    ends = not reach.any()
    if not ends and _stays(loop, linear, edges):
        raise TooDense
    return Kinds(sums, passes if ends else _MOST_PASSES, ends)


def _stays(loop: Loop, linear: list[bool], edges: list[tuple[Piece, int, int]]) -> bool:
    """Whether it is certain that something of a carry is left after many steps.

    Args:
        loop: The loop.
        linear: Which parts of the carry depend on `v`.
        edges: The entries of a step between parts of the carry, with the numbers of the
            part that it makes and of the one that it reads.
    """
    others = [a for a in loop.rows if not isinstance(a, Linear)]
    others += [a for a, moves in zip(loop.carry, linear, strict=True) if not moves]
    if any(jnp.issubdtype(jnp.result_type(a), jnp.integer) for a in others):
        return False  # a counter: of any step only that it may have an entry is known
    first = np.cumsum([0, *(size_of(t.shape) for t in loop.types)])
    if first[-1] > _MOST_MULTIPLIED:
        return False
    step = np.zeros((first[-1], first[-1]), np.float32)
    for p, j, i in edges:
        step[p.all_rows() + first[j], p.columns + first[i]] = 1.0
    reach = step
    for _ in range(_MOST_PASSES):
        reach = np.minimum(reach @ step, 1.0)
    return bool(reach.any())


def _trial_inputs(loop: Loop, linear: list[bool], place: int | None) -> list[Any]:
    """Return the inputs of a step, of any step: what changes with it is not known.

    A known counter would choose the branch of the first step alone.

    Args:
        loop: The loop.
        linear: Which parts of the carry depend on `v`.
        place: Which part of the carry is the variable.
    """
    inputs: list[Operand] = []
    types = loop.body.jaxpr.invars
    for constant, v in zip(loop.constants, types, strict=False):
        inputs.append(zero(shape_of(v)) if isinstance(constant, Linear) else constant)
    for k, (type_, carry) in enumerate(zip(loop.types, loop.carry, strict=True)):
        if k == place:
            inputs.append(variable(type_.shape, 0, valued=True))
        else:
            held = zero(type_.shape) if linear[k] else jnp.asarray(carry, type_.dtype)
            inputs.append(held)
    for row, v in zip(loop.rows, types[len(inputs) :], strict=True):
        is_linear = isinstance(row, Linear)
        inputs.append(zero(shape_of(v)) if is_linear else jnp.asarray(row)[0])
    return inputs


def _is_identity(piece: Piece, shape: tuple[int, ...]) -> bool:
    same = piece.rows is None and isinstance(piece.values, float)
    return same and piece.values == 1.0 and np.array_equal(piece.columns, every(shape))
