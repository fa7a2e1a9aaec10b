r"""The algebra: an array whose entries are linear in `v`, as a sum of pieces.

A piece is `y[rows[s]] += values[s] * v[columns[s]]` for all `s`: `rows` and `columns`
are known now, `values` is traced. Operations that move entries change `rows` alone and
cost nothing at run time; products multiply `values`; broadcasts repeat a piece.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from hotk._core import ClosedJaxpr, JaxprEqn, ShapedArray, Tracer

from ._coefficients import Coefficient
from ._positions import Positions, Shape, every


class TooDense(Exception):
    """The algebra would take more entries than its budget."""


class TooLong(Exception):
    """The algebra would take more operations than its budget: it is long to compile."""


class Budget:
    """How many entries the algebra may still make, and how many operations.

    Attributes:
        left: How many entries.
        steps: How many operations on pieces: each is a few to compile.
        many: Of more entries of a pattern it is worth to look for those that repeat.
    """

    def __init__(self, entries: int, steps: float = math.inf) -> None:
        self.left = entries
        self.steps = steps
        self.many = 4_000_000

    def spend(self, entries: int) -> None:
        """Count entries.

        Raises:
            TooDense: If they are more than what is left.
        """
        self.left -= entries
        if self.left < 0:
            raise TooDense

    def take_steps(self, steps: int) -> None:
        """Count operations on pieces.

        Raises:
            TooLong: If they are more than what is left.
        """
        self.steps -= steps
        if self.steps < 0:
            raise TooLong


class Piece(NamedTuple):
    """Some entries of a linear map.

    Attributes:
        values: The coefficients.
        rows: The entry of the result that each is added to, as a flat position; `None`
            if the piece has the shape of the result, and entry `s` adds to entry `s`.
        columns: The entry of `v` that each multiplies.
    """

    values: Coefficient
    rows: Positions | None
    columns: Positions

    @property
    def shape(self) -> Shape:
        """The shape of its entries."""
        return self.columns.shape

    @property
    def size(self) -> int:
        """The number of its entries."""
        return self.columns.size

    def all_rows(self) -> Positions:
        """Return the row of each entry."""
        return every(self.shape) if self.rows is None else self.rows


class Linear(NamedTuple):
    """An array whose entries are linear in `v`.

    Attributes:
        shape: Its shape.
        pieces: What it is the sum of; none for zero.
    """

    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def entries(self) -> int:
        """The number of entries of all pieces."""
        return sum(piece.size for piece in self.pieces)


def zero(shape: Sequence[int]) -> Linear:
    """Return the array that does not depend on `v`."""
    return Linear(tuple(shape), ())


def variable(shape: Sequence[int], first: int, *, valued: bool) -> Linear:
    """Return a part of `v` itself, whose entries begin at a position."""
    whole = every(shape) + first
    return Linear(tuple(shape), (Piece(1.0 if valued else None, None, whole),))


def with_values(a: Linear, change: Callable[[Coefficient], Coefficient]) -> Linear:
    """Change the coefficients of an array."""
    return Linear(
        a.shape,
        tuple(
            p if p.values is None else Piece(change(p.values), p.rows, p.columns)
            for p in a.pieces
        ),
    )


Operand: TypeAlias = Any
"""A `Linear`, or what does not depend on `v`: a traced or a known array."""


class AbstractWatch(Protocol):
    """What looks at the operations of a program, to explain its pattern."""

    def saw(
        self,
        equation: JaxprEqn,
        operands: Sequence["Operand"],
        results: Sequence["Operand"],
    ) -> None:
        """Look at an operation that was evaluated."""

    def gave_up(self, equation: JaxprEqn, numbers: int) -> None:
        """Look at an operation that would take too many entries."""

    def inside(self, equation: JaxprEqn) -> AbstractContextManager[None]:
        """Note that operations are those of a call or a loop."""
        ...


class Context(NamedTuple):
    """What a rule may use.

    Attributes:
        budget: What entries are paid from.
        columns: The number of entries of `v`.
        run: Runs a program inside on operands.
        watch: What looks at each operation, if something does.
        sources: What indices that are not known are computed from, if that may be.
    """

    budget: Budget
    columns: int
    run: Callable[[ClosedJaxpr, Sequence[Operand], "Context"], list[Operand]]
    watch: AbstractWatch | None = None
    sources: Sequence[Tracer] = ()


Rule: TypeAlias = Callable[[JaxprEqn, list[Operand], Context], Sequence[Operand] | None]
"""From an operation and its operands, at least one of them a `Linear`, to its results;
`None` if it cannot tell, as for indices that are not known."""


def result_type(equation: JaxprEqn, k: int = 0) -> tuple[Shape, np.dtype]:
    """Return shape and dtype of a result of an operation."""
    aval = equation.outvars[k].aval
    assert isinstance(aval, ShapedArray)
    return tuple(aval.shape), aval.dtype


def operand_type(equation: JaxprEqn, k: int) -> tuple[Shape, np.dtype]:
    """Return shape and dtype of an operand of an operation."""
    aval = equation.invars[k].aval
    assert isinstance(aval, ShapedArray)
    return tuple(aval.shape), aval.dtype
