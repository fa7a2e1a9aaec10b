"""The first node in which two trees differ, for messages."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath
from jaxtyping import PyTree

from ._describe import describe, describe_tree, leaf_name


def difference(
    name: str, ours: PyTree, theirs: PyTree, *, partial: bool = False
) -> dict[str, str]:
    """Return `expected` and `got` of a message: the first node that differs.

    It is the type of a node, a child that only one has, the shape of a leaf, or what a
    node holds beside its children. A dtype counts where nothing else differs.

    Args:
        name: What the second tree is called.
        ours: What was expected.
        theirs: What was given.
        partial: Whether `None` in the second tree may stand for anything.
    """
    found = None
    for of_leaf in (np.shape, describe):
        found = found or _search(ours, theirs, (), of_leaf, partial)
    path, expected, got = found or ((), describe_tree(ours), describe_tree(theirs))
    return {"expected": f"{expected} at `{leaf_name(name, path)}`", "got": got}


def _search(
    ours: PyTree,
    theirs: PyTree,
    path: KeyPath,
    of_leaf: Callable[[Any], object],
    partial: bool,
) -> tuple[KeyPath, str, str] | None:
    """Return the path of the first difference, and what both trees have there."""
    if partial and theirs is None:
        return None
    both = describe_tree(ours), describe_tree(theirs)
    is_leaf, other = (jax.tree_util.all_leaves([tree]) for tree in (ours, theirs))
    if is_leaf and other:
        return None if of_leaf(ours) == of_leaf(theirs) else (path, *both)
    if is_leaf or other or type(ours) is not type(theirs):
        return path, *both
    (children, node), (others, other_node) = map(_one_level, (ours, theirs))
    for key in {**children, **others}:
        below = (*path, key)
        if key not in others:
            return below, describe_tree(children[key]), "nothing"
        if key not in children:
            return below, "nothing", describe_tree(others[key])
        found = _search(children[key], others[key], below, of_leaf, partial)
        if found is not None:
            return found
    return None if node == other_node else (path, *_parted(str(node), str(other_node)))


def _one_level(tree: PyTree) -> tuple[dict[Any, PyTree], Any]:
    """Return the children of a node by their keys, and the node without them."""
    pairs, node = jax.tree_util.tree_flatten_with_path(tree, lambda a: a is not tree)
    return {path[0]: child for path, child in pairs}, node


def _parted(*texts: str) -> tuple[str, str]:
    """Return where two texts differ, with a little of what is before."""
    a, b = texts
    pairs = zip(a, b, strict=False)
    same = next((i for i, (p, q) in enumerate(pairs) if p != q), min(len(a), len(b)))
    start = max(same - 30, 0)
    cut = lambda text: ("... " if start else "") + text[start : same + 50]
    return cut(a), cut(b)
