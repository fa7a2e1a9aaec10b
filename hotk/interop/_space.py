"""The space of an operator that is handed to another library."""

from typing import Any

from hotk._core import StructureError, message
from hotk.linop import AbstractOperator


def known_space(call: str, operator: AbstractOperator) -> Any:
    """Return a vector of an operator's space.

    Raises:
        StructureError: If the operator acts on any space.
    """
    if operator.like is None:
        raise StructureError(
            message(
                call,
                "the operator knows no space: it acts on vectors of any.",
                expected="an operator at a point, or a sum with one",
                got=repr(operator),
                fix="Use it in a sum or product, as in `H + hotk.Identity()`.",
            )
        )
    return operator.like
