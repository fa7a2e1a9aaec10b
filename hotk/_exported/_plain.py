"""Trees of dicts, lists and tuples alone, which a process without hotk can make."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, default_registry, keystr
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
    children = _children(tree)
    if children is None:
        return leaf(tree)
    values = [plain(child, leaf) for _, child in children]
    if type(tree) in (list, tuple):
        return type(tree)(values)
    names = [name for name, _ in children]
    return tuple(values) if names[:1] == [0] else dict(zip(names, values, strict=True))


def nodes(tree: PyTree, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return what `plain` leaves out: the class of each other node, and its statics.

    Args:
        tree: The tree.
        path: Where it stands in a plain tree.

    Yields:
        The place of the node in the plain tree as a text, then the name of its class
        and what it has besides its children.
    """
    children = None if tree is None else _children(tree)
    if children is None:
        return
    if type(tree) not in (dict, list, tuple):
        statics = default_registry.flatten_one_level(tree)[1]
        yield keystr(path), (type(tree).__qualname__, statics)
    for name, child in children:
        key = DictKey(name) if isinstance(name, str) else SequenceKey(name)
        yield from nodes(child, (*path, key))


def _children(tree: PyTree) -> list[tuple[str | int, Any]] | None:
    """Return the children of a node by name or by number, `None` of a leaf."""
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    if len(paths) == 1 and not paths[0][0]:
        return None
    children = [child for _, child in paths]
    names = [_name(path[0]) for path, _ in paths]
    numbered = type(tree) in (list, tuple) or None in names
    if numbered or len({*names}) < len(names):
        return list(enumerate(children))
    return list(zip(map(str, names), children, strict=True))


def _name(key: Any) -> str | None:
    if isinstance(key, GetAttrKey):
        return key.name
    return key.key if isinstance(key, DictKey) and isinstance(key.key, str) else None
