"""Numbers for each entry of a point: bounds and sizes, as users give them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    Point,
    StructureError,
    Tracer,
    describe,
    describe_tree,
    leaf_name,
    message,
)


def is_none(node: object) -> bool:
    """Whether a node is `None`, which is not a leaf of a tree."""
    return node is None


def leaves_like(
    call: str, what: str, given: Any, x: Point, root: str, missing: float
) -> list[Any]:
    """Return one array for each leaf, of NumPy where the values are known.

    Args:
        call: The call, for messages.
        what: What one number of them is called.
        given: A number, `None`, or a tree like the point or the head of one.
        x: The point, `None` in place of what does not move, as in the result.
        root: Its name.
        missing: What `None` stands for.

    Raises:
        TypeError: If something is not a real number.
        StructureError: If the tree or a shape does not fit.
    """
    # `None` is not a leaf of a tree
    full = jax.tree.map(lambda a: _NoLeaf if a is None else a, x, is_leaf=is_none)
    named, _ = jax.tree_util.tree_flatten_with_path(full)
    try:
        spread = jax.tree.broadcast(given, full, is_leaf=is_none)
        limits = jax.tree.leaves(spread, is_leaf=is_none)
        assert len(limits) == len(named)
    except (ValueError, TypeError, AssertionError) as error:
        raise StructureError(
            message(
                call,
                f"the {what}s are another tree than `{root}`.",
                expected=f"a number, `None`, or a tree like `{root}`: "
                + describe_tree(x),
                got=describe_tree(given),
                fix=_fix_of_tree(what, given, x, root),
            )
        ) from error
    return [
        None
        if leaf is _NoLeaf
        else _filling(call, what, leaf_name(root, path), leaf, limit, missing)
        for (path, leaf), limit in zip(named, limits, strict=True)
    ]


def _fix_of_tree(what: str, given: Any, x: Point, root: str) -> str:
    if isinstance(given, dict) and isinstance(x, dict) and given.keys() < x.keys():
        return f"`None` is no {what}: write `{{**dict.fromkeys({root}), ...}}`."
    return (
        "A list of numbers is a tree: write an array for a leaf that is one, as in "
        "`jnp.array([0.0, 1.0])`."
    )


class _NoLeaf:
    """Stands for what does not move."""


def _filling(
    call: str, what: str, name: str, leaf: Any, given: Any, missing: float
) -> Any:
    """Return what is given for a leaf as an array like it."""
    given = missing if given is None else given
    known = not isinstance(given, Tracer)
    array = given
    if known:
        try:
            array = np.asarray(given)
        except (TypeError, ValueError):
            array = np.asarray(None)
    shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
    real = (jnp.floating, jnp.integer)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in real):
        raise TypeError(
            message(
                call,
                f"the {what} of `{name}` is not a real number.",
                expected="a number or an array of them, or `None`",
                got=describe(given),
                fix="Give `None` for a leaf without one.",
            )
        )
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise StructureError(
            message(
                call,
                f"the {what} of `{name}` has another shape.",
                expected=f"{describe(leaf)}, or a number",
                got=describe(given),
                fix="Give one for each entry, or one for all.",
            )
        )
    if not known:
        return jnp.broadcast_to(array.astype(dtype), shape)
    with np.errstate(over="ignore"):  # beyond the largest number there is no bound
        return np.broadcast_to(array.astype(dtype), shape)
