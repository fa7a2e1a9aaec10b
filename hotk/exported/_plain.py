"""Trees of dicts, lists and tuples alone, which a process without hotk can make."""

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey
from jaxtyping import PyTree


def plain(tree: PyTree, leaf: Callable[[object], object]) -> PyTree:
    """Return a tree with dicts, lists and tuples in place of all other nodes.

    A node whose children have names becomes a dict of these names: the fields of a
    module, a dataclass or a named tuple. Any other becomes a tuple.

    Args:
        tree: The tree.
        leaf: What stands for a leaf; called in the order of `jax.tree.leaves`.
    """
    if tree is None:
        return None
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    if len(paths) == 1 and not paths[0][0]:
        return leaf(tree)
    children = [plain(child, leaf) for _, child in paths]
    if type(tree) in (list, tuple):
        return type(tree)(children)
    names = [_name(path[0]) for path, _ in paths]
    if None in names or len({*names}) < len(names):
        return tuple(children)
    return dict(zip(names, children, strict=True))


def _name(key: Any) -> str | None:
    if isinstance(key, GetAttrKey):
        return key.name
    return key.key if isinstance(key, DictKey) and isinstance(key.key, str) else None
