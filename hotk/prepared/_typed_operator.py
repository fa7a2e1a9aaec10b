"""`TypedOperator`: an operator as type checkers and editors see it."""

from typing import ParamSpec, Protocol, TypeVar

from jaxtyping import PyTree

from hotk._core import Function, Point
from hotk.mode import AUTO, AbstractMode

from ._prepared import Prepared


Parameters = ParamSpec("Parameters")
Results = TypeVar("Results", covariant=True)


class TypedOperator(Protocol[Parameters, Results]):
    """An operator with the parameters and results of one formula.

    `Operator.__call__` takes what any operator may take and sorts it itself, as a call
    must cost little; its annotations would show every keyword for every operator.
    """

    def __call__(
        self, *args: Parameters.args, **keywords: Parameters.kwargs
    ) -> Results:
        """Evaluate the operator at a point."""
        ...

    def prepare(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        on_mismatch: str = "raise",
        **named: PyTree,
    ) -> Prepared:
        """Trace and compile the operator once, for this function and signature."""
        ...
