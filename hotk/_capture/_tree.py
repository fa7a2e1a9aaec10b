"""The static side of an argument's tree: which of its nodes must be walked anew."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import tree_flatten
from jaxtyping import PyTree

from hotk._core import ARRAY, JITTED, Function, PyTreeDef

from ._callables import WRAPPED_PARTIAL
from ._cause import OpaqueCause
from ._description import Description
from ._dispatch import is_faithful_node
from ._library import is_library_class
from ._nodes import describe_node_data
from ._walk import Walk


NodeData: TypeAlias = tuple[type, Any]
"""The class of a node of a tree, and the static data that it keeps."""

Orders: TypeAlias = tuple[Any, ...] | None
"""The insertion orders of the dicts in a tree, nested as the tree is."""


_CONTAINERS = (tuple, list, dict, type(None))
_SIMPLE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.dtype,
    type(...),
    JITTED,
)
_INERT: dict[PyTreeDef, bool] = {}
_LIMIT = 4096


def is_inert(treedef: PyTreeDef) -> bool:
    """Whether a tree's structure says all there is to know of its static side."""
    known = _INERT.get(treedef)
    if known is None:
        known = all(_is_inert_node(*data) for data in node_data(treedef))
        if len(_INERT) >= _LIMIT:
            _INERT.clear()
        if known:  # the others may hold functions of the user: not kept alive
            _INERT[treedef] = known
    return known


def moving_nodes(treedef: PyTreeDef | None) -> Sequence[NodeData]:
    """List the nodes of a tree that have to be looked at anew in each call."""
    return () if treedef is None or is_inert(treedef) else node_data(treedef)


def walk_all(
    walk: Walk,
    f: Function,
    nodes: Sequence[NodeData],
    static_args: Sequence[object],
) -> None:
    """Walk through one call, to its end; the arguments are those of `describe_call`."""
    describe_call(walk, f, nodes, static_args)
    walk.close()


def describe_call(
    d: Description,
    f: Function,
    nodes: Sequence[NodeData],
    static_args: Sequence[object],
) -> None:
    """Describe all that one call holds and that is not an array of its arguments.

    Args:
        d: The description.
        f: The callable.
        nodes: Class and static data of each node of the arguments' tree.
        static_args: What is static among the arguments.
    """
    if nodes or static_args:
        counts = len(nodes), len(static_args)
        d.ask("len(nodes) == {1} and len(static_args) == {2}", "", *counts)
    else:
        d.ask("not (nodes or static_args)", "")
    for i, thing in enumerate(static_args):
        d.part(thing, "", "", "static_args", at=i)
    d.part(f, read="f")
    for i, node in enumerate(nodes):
        describe_node_data(d, *node, d.let(node, "nodes[{1}]", "", i))


def check_faithful(treedef: PyTreeDef) -> None:
    """Refuse to build a further argument anew that may come out as something else.

    Raises:
        Opaque: If a node is of a class of the user that may not survive it.
    """
    for cls, _ in node_data(treedef):
        if not is_faithful_node(cls):
            raise OpaqueCause.PYTREE.opaque(
                f"an argument of the registered class `{cls.__qualname__}`"
            )


def node_data(treedef: PyTreeDef) -> list[NodeData]:
    """List the class and the static data of each node that is no plain container."""
    found: list[NodeData] = []
    waiting: list[Any] = [treedef]
    while waiting:
        here = waiting.pop()
        data = here.node_data()
        if data is not None:
            if data[0] not in _CONTAINERS:
                found.append(data)
            waiting.extend(here.children())
    return found


def _is_inert_node(cls: type, data: object) -> bool:
    return is_library_class(cls) and _is_inert_data(data)


def _is_inert_data(data: object) -> bool:
    if type(data) is tuple or type(data) is list:
        return all(map(_is_inert_data, data))
    if isinstance(data, type):
        return is_library_class(data)
    # JAX has compared it by `==` when it compared the structures.
    if isinstance(data, _SIMPLE):
        return True
    of_user = (jax.custom_jvp, jax.custom_vjp, WRAPPED_PARTIAL, eqx.Module)
    if isinstance(data, of_user):
        return False  # or may hold what is, whatever module its class is of
    return type(data).__module__.partition(".")[0] in ("jax", "equinox", "jaxlib")


def dict_orders(tree: PyTree) -> Orders:
    """Return the insertion orders of all dicts in a tree, `None` where there is none.

    JAX sorts the keys of a dict; a function that iterates over it sees the difference.
    """
    cls = type(tree)
    if cls is dict:
        inner = tuple(dict_orders(value) for value in tree.values())
        return (tuple(tree), inner)
    # Before it is flattened: most arguments are one array, in each direct call.
    if cls is ARRAY or isinstance(tree, (np.ndarray, np.generic, *_SIMPLE)):
        return None
    children = tree if cls in (list, tuple) else _children(tree)
    if children and _forgets_order(cls):
        return (tuple(tree), tuple(dict_orders(tree[name]) for name in tree))
    inner = tuple(map(dict_orders, children))
    return inner if any(item is not None for item in inner) else None


def in_orders(tree: PyTree, orders: Orders) -> PyTree:
    """Put the dicts of a tree into the orders that `dict_orders` found."""
    if orders is None:
        return tree
    cls = type(tree)
    if cls is dict or _forgets_order(cls):
        names, inner = orders
        pairs = zip(names, inner, strict=True)
        made = {name: in_orders(tree[name], order) for name, order in pairs}
        if cls is collections.defaultdict:
            return cls(tree.default_factory, made)
        return made if cls is dict else cls(made)
    if type(tree) in (list, tuple):
        return type(tree)(map(in_orders, tree, orders))
    children, treedef = tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return treedef.unflatten(map(in_orders, children, orders))


def _forgets_order(cls: type) -> bool:
    """Whether JAX may sort the keys of a mapping of a class, as those of flax."""
    return issubclass(cls, Mapping) and not issubclass(cls, collections.OrderedDict)


def _children(tree: PyTree) -> Sequence[Any]:
    children, _ = tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return () if len(children) == 1 and children[0] is tree else children
