"""Bounds of variables or constraints, as the flat vectors that a solver takes."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float, PyTree

from hotk._core import StructureError, describe_tree, message


def flat_bound(
    call: str,
    name: str,
    value: PyTree,
    missing: float,
    like: PyTree,
    flat_like: Callable[[PyTree, PyTree], np.ndarray],
    size: int,
) -> Float[np.ndarray, "size"] | None:
    """Return a bound as a flat vector; `None` stays `None`.

    Args:
        call: The call, for messages.
        name: The argument, for messages.
        value: One number for all; a tree with an array, a number or `None` for each
            leaf; or a flat vector.
        missing: What `None` in a tree stands for.
        like: The tree of what is bounded.
        flat_like: From that tree, and one of numbers and arrays for its leaves, to a
            flat vector.
        size: Its size.

    Raises:
        StructureError: If it is none of these.
    """
    if value is None:
        return None
    leaves, structure = jax.tree.flatten(like)
    try:
        given = structure.flatten_up_to(value)
        pairs = zip(given, leaves, strict=True)
        bounds = [_of_leaf(missing if b is None else b, leaf) for b, leaf in pairs]
        return flat_like(like, structure.unflatten(bounds))
    except (ValueError, TypeError, KeyError):
        pass  # a number or a vector, and there are several leaves
    try:
        flat = np.asarray(value, dtype=np.float64)
    except (ValueError, TypeError):
        flat = np.empty((0, 0))
    if flat.shape not in ((), (1,), (size,)):
        raise StructureError(
            message(
                call,
                f"`{name}` fits neither the tree nor the flat vector.",
                expected=f"a number, {size} numbers, or {describe_tree(like)}",
                got=describe_tree(value),
                fix="Give a tree with a number or an array for each leaf.",
            )
        )
    return np.broadcast_to(flat, (size,)).copy()


def _of_leaf(bound: object, leaf: object) -> object:
    if not hasattr(leaf, "shape") and not isinstance(leaf, (float, complex)):
        return leaf  # no variable, such as a name
    array = np.asarray(bound, np.float64)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return np.broadcast_to(array, np.shape(leaf))  # pyright: ignore[reportArgumentType, reportCallIssue]
