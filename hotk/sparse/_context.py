"""What the rules of the algebra are given besides an operation and its operands."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from hotk._core import ClosedJaxpr, JaxprEqn, ShapedArray, Tracer

from ._linear import Budget
from ._positions import Shape


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
