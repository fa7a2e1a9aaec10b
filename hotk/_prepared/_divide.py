"""The keywords `split` and `mesh_axis` of operators with a dense result."""

import jax
from jaxtyping import PyTree

from hotk._capture import Closure
from hotk._core import Function, ModeError, message
from hotk._dense import Block, By, Division, split_over
from hotk._mode import AbstractMode, Auto, Forward, Reverse

from ._options import Definition


def divide(
    definition: Definition,
    keywords: tuple[By | None, str | None],
    mode: AbstractMode,
    block: Block,
    f: Function,
    arguments: PyTree,
) -> tuple[AbstractMode, Block]:
    """Return the mode of a call, and how its result is divided among devices.

    Args:
        definition: The operator.
        keywords: `split` and `mesh_axis`.
        mode: The mode that is asked for.
        block: How many directions at once, and how the result is divided already, as
            for a `Prepared` that traces itself again.
        f: The function.
        arguments: What goes in besides.

    Raises:
        TypeError: If the result of the operator is not a matrix.
        ValueError: If `split` is neither of the two, or `mesh_axis` comes alone.
        StructureError: If there is no mesh, or no such axis of it.
        ModeError: If the mode computes the other of rows and columns.
    """
    by, axis = keywords
    call = definition.call()
    if (by is None and axis is None) or isinstance(block, Division):
        return mode, block
    if not definition.divides:
        raise TypeError(
            f"`{call}` has no dense result: `split` and `mesh_axis` are not for it."
        )
    closure = Closure.of(f)
    arrays = [*closure.leaves, *jax.tree.leaves(arguments)]
    known = closure.skeleton.opaque is None
    split = split_over(call, by, axis, block, arrays, all_known=known)
    if Forward not in definition.modes:
        return mode, split
    # Of first order: columns by forward mode, rows by reverse mode.
    wanted = Forward() if by == "columns" else Reverse()
    if not isinstance(mode, Auto) and mode != wanted:
        raise ModeError(
            message(
                call,
                f"this mode does not compute {by}.",
                expected=f"`mode=hotk.{wanted!r}` for `split={by!r}`",
                got=repr(mode),
                fix="Leave `mode` out, or ask for the other split.",
            )
        )
    return wanted, split
