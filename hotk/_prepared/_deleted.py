"""Which of the arrays that went into a program had been deleted."""

from collections.abc import Sequence

import jax
from jaxtyping import PyTree

from hotk._core import Leaf, Point, Tracer, describe, leaf_name

from ._options import Definition


def note_deleted(
    error: Exception,
    definition: Definition,
    x: Point,
    rest: tuple[PyTree, ...],
    captured: Sequence[Leaf] = (),
) -> None:
    """Add to an error of JAX the name of the first array that was deleted.

    JAX tells its shape alone.

    Args:
        error: What JAX raised when it ran a program.
        definition: The operator.
        x: The point.
        rest: What follows it.
        captured: The captured arrays.
    """
    roots = definition.roots(1 + len(rest))
    for root, tree in zip(roots, (x, *rest), strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if _is_deleted(leaf):
                error.add_note(_note(f"`{leaf_name(root, path)}`", leaf))
                return
    for leaf in captured:
        if _is_deleted(leaf):
            error.add_note(_note("an array that `f` captures", leaf))
            return


def _is_deleted(leaf: object) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    return leaf.is_deleted()


def _note(name: str, leaf: object) -> str:
    return (
        f"{name}, {describe(leaf)}, was deleted or donated before this call. Use the "
        "array that the function with `donate_argnums` returned, or donate nothing."
    )
