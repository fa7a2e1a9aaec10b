"""A `scan` with its operands, as its rules see it."""

from typing import Any, NamedTuple

from hotk._core import ClosedJaxpr

from ._context import Operand


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
