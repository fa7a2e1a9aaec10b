"""Loops and branches in a program: the same on series."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from hotk._core import (
    Arrays,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Leaf,
    ProgramKind,
    bound,
    is_type,
    jaxpr_as_fun,
    mapped_aval,
    output_types,
    scan_counts,
)

from ._frame import Frame
from ._series import Series, total


# Which of the coefficients 1 to K there are.
Mask: TypeAlias = tuple[bool, ...]
# The evaluation of a program on series.
Run: TypeAlias = Callable[[ClosedJaxpr, list[Series]], list[Series]]


def _checkpoint(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    del frame
    closed = _closed(equation.params["jaxpr"])
    pack, unpack = _packing(inputs)
    masks: list[Mask] = []

    def body(*arrays: Leaf) -> list[Leaf]:
        results = run(closed, unpack(arrays))
        masks[:] = [_mask(s) for s in results]
        return [a for s in results for a in _present(s)]

    options = {k: equation.params[k] for k in ("prevent_cse", "policy")}
    outputs = iter(jax.checkpoint(body, **options)(*pack))
    return [_from_mask(mask, outputs) for mask in masks]


def _cond(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    index, *operands = inputs
    pack, unpack = _packing(operands)
    branches = [_closed(branch) for branch in equation.params["branches"]]
    masks = [_traced_masks(branch, operands, run) for branch in branches]
    joint = _either(*masks)

    def branch(closed: ClosedJaxpr, *arrays: Leaf) -> list[Leaf]:
        return _filled_up(run(closed, unpack(arrays)), joint, frame)

    functions = [functools.partial(branch, closed) for closed in branches]
    outputs = iter(jax.lax.switch(index.primal, functions, *pack))
    return [_from_mask(mask, outputs) for mask in joint]


def _scan(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    parameters = equation.params
    closed = _closed(parameters["jaxpr"])
    consts, carries = scan_counts(parameters)
    fixed, carry = inputs[:consts], inputs[consts : consts + carries]
    mapped = list(map(frame.swapped, inputs[consts + carries :]))
    rows = [_row(series, parameters["length"]) for series in mapped]
    start, masks, out_masks = _settled(closed, fixed, carry, rows, frame, run)
    carry_in, carry_out = _packing(start)
    rows_in, rows_out = _packing(mapped)

    def step(state: Arrays, row: Arrays) -> tuple[Arrays, Arrays]:
        results = run(closed, [*fixed, *carry_out(state), *rows_out(row)])
        after = _filled_up(results[:carries], masks, frame)
        return after, [a for s in results[carries:] for a in _present(s)]

    last, columns = jax.lax.scan(
        step,
        carry_in,
        rows_in,
        length=parameters["length"],
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )
    last, columns = iter(last), iter(columns)
    carried = [_from_mask(mask, last) for mask in masks]
    stacked = [_from_mask(mask, columns) for mask in out_masks[carries:]]
    return carried + list(map(frame.swapped, stacked))


def _while(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    parameters = equation.params
    test, body = (_closed(parameters[n]) for n in ("cond_jaxpr", "body_jaxpr"))
    ahead, inside = parameters["cond_nconsts"], parameters["body_nconsts"]
    asked, fixed = inputs[:ahead], inputs[ahead : ahead + inside]
    carry = inputs[ahead + inside :]
    start, masks, _ = _settled(body, fixed, carry, [], frame, run)
    carry_in, carry_out = _packing(start)

    def tested(state: Arrays) -> Array:
        values = [series.primal for series in (*asked, *carry_out(state))]
        return jaxpr_as_fun(test)(*values)[0]

    def step(state: Arrays) -> Arrays:
        after = _filled_up(run(body, [*fixed, *carry_out(state)]), masks, frame)
        running = tested(state)
        if running.ndim == 0:
            return after
        # a loop that was mapped has a test for each: those that are done stay
        rows = zip(_lower_ones(masks, frame), after, state, strict=True)
        spread = lambda is_lower, a: jnp.expand_dims(
            running[None] if is_lower else running,
            tuple(range(running.ndim + is_lower, a.ndim)),
        )
        return [jnp.where(spread(lower, a), a, b) for lower, a, b in rows]

    def go_on(state: Arrays) -> Bool[Array, ""]:
        return jnp.any(tested(state))

    last = iter(jax.lax.while_loop(go_on, step, carry_in))
    return [_from_mask(mask, last) for mask in masks]


def linear_solve(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    r"""Solve $\sum_j A_j x_{k - j} = b_k$ for one coefficient after the other.

    Each is a solution with the matrix at hand, $A_0$; nothing that the solver has made
    of it, such as its factors, is differentiated.
    """
    lengths, programs = equation.params["const_lengths"], equation.params["jaxprs"]
    ends = list(itertools.accumulate(lengths, initial=0))
    matrix, right = inputs[: ends[1]], inputs[ends[-1] :]
    matvec = _closed(programs.matvec)
    held = [series.primal for series in inputs[: ends[-1]]]
    solve = lambda b: bound(equation, [*held, *b])
    values = [s.primal for s in right]
    zero = any(value is None for value in values)
    solved = values if zero else solve(values)
    solution = list(map(frame.constant, solved[: len(right)]))
    aux = list(map(frame.constant, solved[len(right) :]))
    for k in range(1, frame.order + 1):
        still = zero and not any(x.moves for x in solution)
        product = solution if still else run(matvec, [*matrix, *solution])
        parts = [
            total([b[k], None if m[k] is None else -m[k]])
            for b, m in zip(right, product, strict=True)
        ]
        if all(part is None for part in parts):
            continue
        pairs = zip(parts, right, strict=True)
        filled = [frame.zero(b.primal, k) if p is None else p for p, b in pairs]
        many = frame.many is not None and k < frame.order
        solved = jax.vmap(solve)(filled) if many else solve(filled)
        pairs = zip(solution, solved[: len(right)], strict=True)
        solution = [s.replaced(k, x) for s, x in pairs]
    return [*solution, *aux]


def _settled(
    closed: ClosedJaxpr,
    fixed: list[Series],
    carry: list[Series],
    rows: list[Series],
    frame: Frame,
    run: Run,
) -> tuple[list[Series], list[Mask], list[Mask]]:
    """Find which coefficients a carry has: what moves may make more of it move.

    Returns:
        The carry with all of these, which they are, and those of what the body returns.
    """
    masks = [_mask(series) for series in carry]
    while True:
        start = [_with(s, mask, frame) for s, mask in zip(carry, masks, strict=True)]
        out_masks = _traced_masks(closed, [*fixed, *start, *rows], run)
        joint = _either(masks, out_masks[: len(carry)])
        if joint == masks:
            return start, masks, out_masks
        masks = joint


# ---- which coefficients there are


def _mask(series: Series) -> Mask:
    return tuple(term is not None for term in series.terms)


def _either(*masks: list[Mask]) -> list[Mask]:
    """Return for each value which coefficients it has in any of several lists."""
    columns = zip(*masks, strict=True)
    return [tuple(map(any, zip(*column, strict=True))) for column in columns]


def _with(series: Series, mask: Mask, frame: Frame) -> Series:
    """Fill in zeros where a mask says that there is a coefficient."""
    terms = tuple(
        frame.zero(series.primal, k) if term is None and there else term
        for k, (term, there) in enumerate(zip(series.terms, mask, strict=True), 1)
    )
    return Series(series.primal, terms)


def _filled_up(values: list[Series], masks: list[Mask], frame: Frame) -> Arrays:
    """Return the arrays of series that have the coefficients of these masks."""
    pairs = zip(values, masks, strict=True)
    return [a for series, mask in pairs for a in _present(_with(series, mask, frame))]


def _present(series: Series) -> list[Any]:
    return [series.primal, *(t for t in series.terms if t is not None)]


def _lower_ones(masks: list[Mask], frame: Frame) -> list[bool]:
    """Return which arrays of series have an axis over the directions."""
    many = frame.many is not None
    return [
        many and 0 < k < frame.order
        for mask in masks
        for k, there in enumerate((True, *mask))
        if there
    ]


def _from_mask(mask: Mask, arrays: Iterator[Leaf]) -> Series:
    primal = next(arrays)
    return Series(primal, tuple(next(arrays) if there else None for there in mask))


def _packing(
    inputs: list[Series],
) -> tuple[list[Any], Callable[[Iterable[Any]], list[Series]]]:
    """Return the arrays of series, or the types of these, and the way back."""
    masks = [_mask(series) for series in inputs]

    def unpack(arrays: Iterable[Any]) -> list[Series]:
        rest = iter(arrays)
        return [_from_mask(mask, rest) for mask in masks]

    return [a for series in inputs for a in _present(series)], unpack


def _traced_masks(closed: ClosedJaxpr, inputs: list[Series], run: Run) -> list[Mask]:
    """Find out which coefficients the outputs of a program have.

    Args:
        closed: The program.
        inputs: What it is applied to, or the types of that.
        run: The evaluation on series.
    """
    arrays, unpack = _packing(inputs)
    masks: list[Mask] = []

    def body(arrays: Arrays) -> Arrays:
        outputs = run(closed, unpack(arrays))
        masks[:] = [_mask(series) for series in outputs]
        return [series.primal for series in outputs]

    types: list[Any] = [a if is_type(a) else jax.typeof(a) for a in arrays]
    output_types(body, types)
    return masks


def _row(series: Series, length: int) -> Series:
    """Return the types of one row of a mapped series."""
    first = lambda a: None if a is None else mapped_aval(length, 0, jax.typeof(a))
    return Series(first(series.primal), tuple(map(first, series.terms)))


def _closed(program: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    if isinstance(program, ClosedJaxpr):
        return program
    return ClosedJaxpr(program, ())


# By what an operation does with the program inside.
STRUCTURAL: dict[ProgramKind | None, Callable[..., list[Series]]] = {
    ProgramKind.CHECKPOINT: _checkpoint,
    ProgramKind.COND: _cond,
    ProgramKind.SCAN: _scan,
    ProgramKind.SOLVE: linear_solve,
    ProgramKind.WHILE: _while,
}
