"""What the point of a dense derivative must be."""

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    DtypeError,
    Point,
    StructureError,
    describe_tree,
    float_scalar,
    message,
)
from hotk._dense import is_complex


def refuse_complex(call: str, x: PyTree, instead: str, name: str = "x") -> None:
    """Refuse complex leaves, for which a dense derivative is not one array.

    Args:
        call: The call, for messages.
        x: The point.
        instead: The operator to use for complex points.
        name: What is refused.
    """
    if is_complex(x):
        raise DtypeError(
            message(
                call,
                f"`{name}` has complex leaves.",
                expected="real floating leaves",
                got=describe_tree(x),
                fix=f"Use `hotk.{instead}`, or split `{name}` into its real "
                "and imaginary parts.",
            )
        )


def check_scalar_point(call: str, x: Point) -> None:
    """Refuse a point that is not one real number."""
    instead = "`hotk.jacobian`"
    if call.startswith("second_derivative"):
        instead = "`hotk.hessian` or `hotk.hessian_diagonal`"
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or np.shape(leaves[0]) != ():
        raise StructureError(
            message(
                call,
                "`x` must be one real number.",
                expected=float_scalar(),
                got=describe_tree(x),
                fix=f"Use {instead} for arrays and trees.",
            )
        )
    refuse_complex(call, x, "jvp")
