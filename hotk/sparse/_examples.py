"""Along which axes an operation without a rule treats its examples one by one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hotk._core import JaxprEqn, ProgramKind, equations, traits_of

from ._linear import (
    Budget,
    Context,
    Operand,
    TooDense,
    operand_type,
    result_type,
    variable,
)
from ._positions import Positions, Shape, at_steps, grid, size_of, strides, unravel


_INTO_FIRST = ("scatter", "scatter-add", "dynamic_update_slice")
_STEPS = (ProgramKind.SCAN, ProgramKind.WHILE, ProgramKind.COND, ProgramKind.SOLVE)

Pairs = list[tuple[int, int]]
"""Axes of an operand, each with the axis of the result that it is."""


class ExampleMap(NamedTuple):
    """How an operation maps the examples of an operand to those of a result.

    Entry `i` of the result depends on those entries of the operand that have its index
    along all paired axes. The other axes are those within an example.

    Attributes:
        pairs: The paired axes.
        shape: The shape of the operand.
        result: The shape of the result.
    """

    pairs: Pairs
    shape: Shape
    result: Shape

    @property
    def inner(self) -> Shape:
        """The shape of an example of the operand."""
        paired = {d for d, _ in self.pairs}
        return tuple(n for d, n in enumerate(self.shape) if d not in paired)

    @property
    def offsets(self) -> Positions:
        """The flat positions of the first example of the result."""
        paired = {e for _, e in self.pairs}
        rest = [e for e in range(len(self.result)) if e not in paired]
        steps = strides(self.result)
        return grid([self.result[e] for e in rest], [steps[e] for e in rest])

    def first(self, rows: Positions) -> Positions:
        """Return where the example begins in the result that positions belong to."""
        steps, to = strides(self.result), dict(self.pairs)
        own = [steps[to[d]] if d in to else 0 for d in range(len(self.shape))]
        return at_steps(rows, self.shape, own)

    def within(self, rows: Positions) -> Positions:
        """Return the positions of entries of the operand within their example."""
        paired, inner = {d for d, _ in self.pairs}, iter(strides(self.inner))
        own = [0 if d in paired else next(inner) for d in range(len(self.shape))]
        return at_steps(rows, self.shape, own)

    def stretched(self, example: Any) -> Any:
        """Give an array of the shape of an example an axis of one for each pair."""
        paired = {d for d, _ in self.pairs}
        shape = [1 if d in paired else n for d, n in enumerate(self.shape)]
        return example.reshape(shape)


def examples(
    equation: JaxprEqn, operands: Sequence[Operand], k: int, j: int, context: Context
) -> ExampleMap:
    """Return the examples of an operand and of a result of an operation."""
    shape, result = operand_type(equation, k)[0], result_type(equation, j)[0]
    solves = traits_of(equation).program is ProgramKind.SOLVE
    pairs = _solved(equation, operands, context) if solves else _pairs(equation, k)
    kept = [(d, e) for d, e in pairs if shape[d] == result[e]]
    return ExampleMap(kept, shape, result)


def _pairs(equation: JaxprEqn, k: int) -> Pairs:
    name, parameters = equation.primitive.name, equation.params
    rank = len(operand_type(equation, k)[0])
    leading = lambda count: [(d, d) for d in range(count)]
    if name in _INTO_FIRST and k == 0:  # each entry is kept where it is, or replaced
        return leading(rank)
    if name == "triangular_solve" and k == 1:
        column = rank - 1 if parameters["left_side"] else rank - 2
        return [*leading(rank - 2), (column, column)]
    if name == "tridiagonal_solve" and k == 3:
        return [*leading(rank - 2), (rank - 1, rank - 1)]
    if name == "fft":
        return leading(rank - len(parameters["fft_lengths"]))
    if name in ("gather", "scatter-add", "scatter"):
        return _at_indices(equation, k)
    if name == "dynamic_slice" and k == 0:
        return _whole_axes(operand_type(equation, 0)[0], result_type(equation)[0])
    if name == "dynamic_update_slice" and k == 1:
        part, whole = operand_type(equation, 1)[0], operand_type(equation, 0)[0]
        return _whole_axes(part, whole)
    if name == "conv_general_dilated" and k == 0:
        numbers = parameters["dimension_numbers"]
        if parameters["batch_group_count"] == 1:
            return [(numbers.lhs_spec[0], numbers.out_spec[0])]
    return []


def _whole_axes(part: Shape, whole: Shape) -> Pairs:
    """Return the axes along which a window is as long as the array: it begins at 0."""
    axes = enumerate(zip(part, whole, strict=True))
    return [(d, d) for d, (n, m) in axes if n == m]


def _at_indices(equation: JaxprEqn, k: int) -> Pairs:
    """Return the axes of an array, read or written at indices, that have no index."""
    numbers, gathers = equation.params["dimension_numbers"], k == 0
    if gathers != (equation.primitive.name == "gather"):
        return []  # what a scatter adds to
    of_array = operand_type(equation, 0)[0]
    if gathers:
        of_windows, windows = result_type(equation)[0], numbers.offset_dims
        dropped, batch = numbers.collapsed_slice_dims, numbers.operand_batching_dims
        of_indices = numbers.start_indices_batching_dims
    elif k == 2:
        of_windows, windows = operand_type(equation, 2)[0], numbers.update_window_dims
        dropped, batch = numbers.inserted_window_dims, numbers.operand_batching_dims
        of_indices = numbers.scatter_indices_batching_dims
    else:
        return []
    others = [e for e in range(len(of_windows)) if e not in windows]
    pairs = [(int(d), others[int(b)]) for d, b in zip(batch, of_indices, strict=True)]
    rest = [d for d in range(len(of_array)) if d not in (*dropped, *batch)]
    for d, e in zip(rest, sorted(windows), strict=True):
        if of_array[d] == of_windows[e]:  # a whole window begins at the first entry
            pairs.append((d, int(e)))
    return pairs if gathers else [(e, d) for d, e in pairs]


def _solved(equation: JaxprEqn, operands: Sequence[Operand], context: Context) -> Pairs:
    """Return the axes along which a direct solver solves apart, by its own program.

    That gives the solution, so it tells the pattern; not the derivatives of the values:
    JAX's holds the factors of the matrix fixed. The steps of an iterative solver mix.
    """
    lengths, program = (
        equation.params["const_lengths"],
        equation.params["jaxprs"].solve,
    )
    first = lengths.matvec + lengths.vecmat
    constants = operands[first : first + lengths.solve]
    steps = any(traits_of(e).program in _STEPS for e in equations(program.jaxpr))
    if steps or len(program.jaxpr.invars) != lengths.solve + 1:
        return []
    shape = operand_type(equation, len(operands) - 1)[0]
    trial = context._replace(
        budget=Budget(context.budget.left), columns=size_of(shape), watch=None
    )
    try:
        [found] = context.run(
            program, [*constants, variable(shape, 0, valued=False)], trial
        )
    except TooDense:
        return []
    kept = range(len(shape))
    for piece in found.pieces:
        ends = (
            unravel(p.reshape(-1), shape) for p in (piece.all_rows(), piece.columns)
        )
        pairs = list(zip(*ends, strict=True))
        kept = [d for d in kept if np.array_equal(*pairs[d])]
    return [(d, d) for d in kept]
