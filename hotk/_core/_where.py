"""Which leaves of a point are differentiated: a filter, and what a module says."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ._compat import Tracer
from ._describe import describe, describe_tree
from ._errors import DtypeError, StructureError, message
from ._types import PyTreeDef, is_inexact, is_inexact_or_shape


class Selection:
    """A filter by the places of leaves: no tree, as a node may change its booleans.

    Attributes:
        flags: For each leaf whether it is selected.
    """

    __slots__ = ("flags",)

    def __init__(self, flags: Sequence[bool]) -> None:
        self.flags = tuple(flags)


Where: TypeAlias = Callable[[Any], bool] | type | PyTree[bool] | Selection | None
"""Which leaves of a point to differentiate.

A predicate on the floating and complex leaves, such as `lambda a: a.ndim == 2`; a
class, such as `nnx.Param` or `eqx.nn.Linear`, for all leaves inside of its instances; a
tree of booleans, with the structure of the point or of its upper part; `H.where` of an
operator, for what that one differentiates; `None` for all.
Leaves that are neither floating nor complex are never differentiated.
"""

_NUMBERS = (bool, int, float, complex)


class PointLeaves(NamedTuple):
    """What a trace makes of each leaf of a point.

    Attributes:
        moves: For each leaf whether it is differentiated.
        fixed: Places of the numbers that stay what they are: see `configuration`.
    """

    moves: list[bool]
    fixed: frozenset[int]

    @staticmethod
    def of(
        leaves: Sequence[object], tree: PyTreeDef, selected: Sequence[bool] | None
    ) -> "PointLeaves":
        """Sort the leaves of a point; see `differentiated`."""
        moves = differentiated(leaves, tree, selected)
        return PointLeaves(moves, configuration(leaves, tree))


def differentiated(
    leaves: Sequence[object],
    tree: PyTreeDef,
    selected: Sequence[bool] | None = None,
    *,
    shapes: bool = False,
) -> list[bool]:
    """Return for each leaf of a point whether it is differentiated.

    Floating and complex arrays are, and floating and complex numbers of Python as well
    unless they are configuration.

    Args:
        leaves: The leaves.
        tree: The structure.
        selected: Which leaves a filter selects; all by default.
        shapes: Whether a `jax.ShapeDtypeStruct` stands for an array.
    """
    found = list(map(is_inexact_or_shape if shapes else is_inexact, leaves))
    if selected is not None:
        found = [a and b for a, b in zip(found, selected, strict=True)]
    fixed = configuration(leaves, tree)
    return [a and i not in fixed for i, a in enumerate(found)] if fixed else found


def configuration(leaves: Sequence[object], tree: PyTreeDef) -> frozenset[int]:
    """Return the places of numbers that belong to a module's configuration.

    These are numbers of Python inside of a dataclass: the probability of a dropout
    layer, the epsilon of a normalization. `eqx.filter_grad` and `eqx.filter_jit` treat
    them so. In dicts, lists, tuples and other nodes they are data, as for `jax.grad`.
    """
    numbers = [i for i, leaf in enumerate(leaves) if _is_python_number(leaf)]
    if not numbers:  # as nearly always
        return frozenset()
    inside = list(_inside_dataclass(tree, False))
    return frozenset(i for i in numbers if inside[i])


def map_free(function: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """Apply a function to the leaves of a tree that are no configuration."""
    leaves, treedef = jax.tree.flatten(tree)
    fixed = configuration(leaves, treedef)
    pairs = enumerate(leaves)
    return treedef.unflatten([a if i in fixed else function(a) for i, a in pairs])


def split_point(
    tree: PyTree, selected: Sequence[bool] | None = None, *, shapes: bool = False
) -> tuple[PyTree, PyTree]:
    """Split a point into what is differentiated and what is not, `None` elsewhere.

    `eqx.combine` puts them together. No tree of booleans is made on the way: a class
    may make arrays of them (`test_a_class_that_converts_its_fields`).
    """
    leaves, treedef = jax.tree.flatten(tree)
    moves = differentiated(leaves, treedef, selected, shapes=shapes)
    pairs = list(zip(leaves, moves, strict=True))
    moving = treedef.unflatten([leaf if yes else None for leaf, yes in pairs])
    return moving, treedef.unflatten([None if yes else leaf for leaf, yes in pairs])


def _is_python_number(leaf: object) -> bool:
    # `np.float64` is a subclass of `float`, and an array for this purpose.
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic)


def _inside_dataclass(tree: PyTreeDef, inside: bool) -> Iterator[bool]:
    node = tree.node_data()
    if node is None:
        yield inside
        return
    inside = inside or dataclasses.is_dataclass(node[0])
    for child in tree.children():
        yield from _inside_dataclass(child, inside)


def selection(call: str, x: PyTree, where: Where) -> tuple[bool, ...] | None:
    """Return for each leaf of a point whether a filter selects it.

    Args:
        call: The call, for messages.
        x: The point.
        where: The filter.

    Raises:
        StructureError: If a tree of booleans does not have the structure of the point.
        TypeError: If it is no filter.
    """
    if where is None:
        return None
    if isinstance(where, Selection):
        return where.flags
    leaves, tree = jax.tree.flatten(x)
    could = tuple(differentiated(leaves, tree, shapes=True))
    chosen = _flags(call, x, where, leaves, could)
    flags = tuple(a and b for a, b in zip(could, chosen, strict=True))
    # All that could be selected: the same program as without a filter.
    return None if flags == could else flags


def _flags(
    call: str,
    x: PyTree,
    where: Where,
    leaves: Sequence[object],
    could: Sequence[bool],
) -> list[bool]:
    marks = jax.tree.leaves(where)
    if marks and all(map(_is_mark, marks)):
        return _by_tree(call, x, where)
    if isinstance(where, type):
        is_instance = lambda node: isinstance(node, where)
        nodes = jax.tree.leaves(x, is_leaf=is_instance)
        counts = [(is_instance(node), len(jax.tree.leaves(node))) for node in nodes]
        return [yes for yes, count in counts for _ in range(count)]
    if callable(where):
        # It is asked only of what could be differentiated, so it may read `a.ndim`.
        pairs = zip(leaves, could, strict=True)
        answers = [_asked(call, where, leaf) if yes else False for leaf, yes in pairs]
        for answer in answers:
            if np.ndim(answer) > 0:
                raise TypeError(
                    message(
                        call,
                        "`where` is asked whether to select a whole leaf.",
                        expected="`True` or `False`",
                        got=describe(answer),
                        fix="Return one of them, as in `lambda a: a.ndim == 2`.",
                    )
                )
        return list(map(bool, answers))
    fix = "Write `where=eqx.is_inexact_array`, or build the tree with `jax.tree.map` "
    fix += "over `x`."
    if isinstance(where, str):
        fix = "By their paths: `where=jax.tree_util.tree_map_with_path(lambda path, _: "
        fix += f"{where!r} in jax.tree_util.keystr(path), x)`."
    if any(isinstance(mark, (jax.Array, np.ndarray)) for mark in marks):
        fix = "It selects whole leaves. For entries of a leaf: "
        fix += "`hotk.HessianOperator(f, x).restrict(mask)`."
    raise TypeError(
        message(
            call,
            "`where` is not a leaf filter.",
            expected="a function of a leaf, a class, or a tree of `True` and `False`",
            got=describe(where) if len(marks) < 2 else describe_tree(where),
            fix=fix,
        )
    )


def _asked(call: str, where: Callable[..., Any], leaf: object) -> Any:
    try:
        return where(leaf)
    except Exception as error:
        # `where=` of `eqx.tree_at` is given the model, a filter of nnx a path as well:
        # `test_an_error_in_a_predicate_says_what_a_predicate_is_given`.
        by_place = "To select leaves by their place, pass a tree of `True` and `False`."
        if type(where).__module__.startswith("flax."):
            by_place = "Select by a filter of nnx that takes a path with `graphdef, "
            by_place += "params, rest = nnx.split(model, filter, ...)`: take `params`."
        error.add_note(
            f"`{call}`: `where` is called with one leaf of `x` at a time, here with "
            f"{describe(leaf)}. {by_place}"
        )
        raise


def _is_mark(leaf: object) -> bool:
    """Whether a leaf is true or false; a class may have made an array of it."""
    if isinstance(leaf, (jax.Array, np.ndarray)) and not isinstance(leaf, Tracer):
        return leaf.shape == () and leaf.dtype == bool
    return isinstance(leaf, (bool, np.bool_))


def _by_tree(call: str, x: PyTree, where: PyTree[bool]) -> list[bool]:
    try:
        marks, tree = jax.tree.flatten(where)
        parts = map(jax.tree.leaves, tree.flatten_up_to(x))
        pairs = zip(marks, parts, strict=True)
        return [bool(mark) for mark, part in pairs for _ in part]
    except (ValueError, TypeError, KeyError) as error:
        raise StructureError(
            message(
                call,
                "`where` must have the structure of `x`, or of its upper part.",
                expected=describe_tree(x),
                got=describe_tree(where),
                fix="Build it with `jax.tree.map` over `x`.",
            )
        ) from error


def nothing_inexact(
    call: str,
    x: PyTree,
    *,
    name: str = "x",
    kinds: str = "floating or complex",
    got: str | None = None,
    selected: Sequence[bool] | None = None,
) -> DtypeError:
    """Return the error for a point in which there is nothing to differentiate.

    Args:
        call: The call, as the user knows it.
        x: The point.
        name: What the user calls it.
        kinds: What can be differentiated here.
        got: What the point is, in words; a description of it by default.
        selected: For each leaf whether a filter selects it, if there is one.
    """
    leaves, treedef = jax.tree.flatten(x)
    fix = f"Convert the leaf to a float, as in `{name}.astype(float)` or `3.0`."
    if any(isinstance(leaves[i], float) for i in configuration(leaves, treedef)):
        fix = "Numbers inside of a dataclass are configuration: make one that is to be "
        fix += "differentiated an array, as in `jnp.asarray(3.0)`."
    if any(isinstance(leaf, jax.Ref) for leaf in leaves):
        fix = f"A reference is not differentiated: read it first, as in `{name}[...]`."
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        fix = "A shape has no numbers: give an array. Shapes are for `.prepare`."
    if callable(x) and not dataclasses.is_dataclass(x):
        fix = "It is a function: write the function first, then the point."
    if selected is not None and any(differentiated(leaves, treedef)):
        got, fix = "`where=` selects none of them", "Select at least one floating leaf."
    return DtypeError(
        message(
            call,
            f"`{name}` has no leaf that can be differentiated.",
            expected=f"at least one {kinds} array or Python float",
            got=describe_tree(x) if got is None else got,
            fix=fix,
        )
    )
