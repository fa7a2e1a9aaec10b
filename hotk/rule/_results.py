"""What a rule returns, checked and flattened."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import (
    DtypeError,
    StructureError,
    describe,
    describe_tree,
    dtype_name,
    function_name,
    function_place,
    is_inexact,
    message,
)

from ._shape import Shape


Arrays = list[Any]


def tangents_of(
    rule: Callable[..., Any], made: Any, tree: Any, types: tuple[Any, ...]
) -> Arrays:
    """Flatten what a forward rule returned: tangents of the inexact outputs."""
    if made is None and tree.node_data() is None:
        raise _structure(rule, "the tangent of the value", types[0], made)
    try:
        leaves = _expanded(tree, made)
    except ValueError as error:
        value = tree.unflatten(types)
        raise _structure(rule, "a tree like the value", value, made) from error
    return [
        _checked(rule, f"output {i}", leaf, kind)
        for i, (leaf, kind) in enumerate(zip(leaves, types, strict=True))
        if is_inexact(kind)
    ]


def cotangents_of(
    rule: Callable[..., Any], made: Any, shape: Shape, arrays: Arrays
) -> Arrays:
    """Flatten what a reverse rule returned: one entry for each array of the call.

    Entries of arrays that were captured or built are `None`.
    """
    children = shape.given.tree.children()
    if isinstance(made, list):
        made = tuple(made)
    if not isinstance(made, tuple) and len(children) == 1 and made is not None:
        made = (made,)
    args = shape.given.join(arrays[shape.start :])
    if not isinstance(made, tuple) or len(made) != len(children):
        expected = f"a tuple with {len(children)} entries, one for each argument"
        raise _structure(rule, expected, args, made)
    leaves: Arrays = []
    for child, arg, entry in zip(children, args, made, strict=True):
        try:
            leaves += _expanded(child, entry)
        except ValueError as error:
            raise _structure(rule, "a tree like the argument", arg, entry) from error
    moving = [
        leaf for leaf, k in zip(leaves, shape.given.kept, strict=True) if k is None
    ]
    own = arrays[shape.start :]
    checked = [
        _checked(rule, f"argument array {i}", leaf, jax.typeof(a).to_tangent_aval())
        if is_inexact(a)
        else None
        for i, (leaf, a) in enumerate(zip(moving, own, strict=True))
    ]
    return [*([None] * shape.start), *checked]


def _expanded(tree: Any, made: Any) -> Arrays:
    """Return the leaves of a tree in which `None` may stand for any part."""
    if made is None:
        return [None] * tree.num_leaves
    if tree.node_data() is None:
        return [made]
    parts, own = jax.tree.flatten(made, is_leaf=lambda node: node is not made)
    children = tree.children()
    if own.node_data() != tree.node_data() or len(parts) != len(children):
        raise ValueError("another structure")
    return [
        leaf for c, p in zip(children, parts, strict=True) for leaf in _expanded(c, p)
    ]


def _checked(rule: Callable[..., Any], what: str, leaf: Any, kind: Any) -> Any:
    if leaf is None:
        return jnp.zeros(kind.shape, kind.dtype)
    try:
        found = jax.typeof(leaf)
    except TypeError as error:
        raise _structure(rule, f"the derivative of {what}", kind, leaf) from error
    if found.shape != kind.shape:
        raise StructureError(_text(rule, what, kind, leaf, "shape"))
    if found.dtype != kind.dtype:
        if not found.weak_type:
            raise DtypeError(_text(rule, what, kind, leaf, "dtype"))
    elif not found.weak_type:
        return leaf
    return jnp.asarray(leaf, kind.dtype)


def _text(rule: Any, what: str, kind: Any, leaf: Any, which: str) -> str:
    shape = ",".join(map(str, kind.shape))
    return message(
        _name(rule),
        f"the derivative of {what} has another {which} than it.",
        expected=f"{dtype_name(kind.dtype)}[{shape}]",
        got=describe(leaf),
        fix="Return derivatives with the shapes and dtypes of what they belong to.",
    )


def _structure(rule: Any, expected: str, like: Any, made: Any) -> StructureError:
    return StructureError(
        message(
            _name(rule),
            "the rule returns another structure than it must.",
            expected=f"{expected}: {_described(like)}",
            got=_described(made),
            fix="Does it end with a `return`?"
            if made is None
            else "A rule returns derivatives alone, never the value; `None` is zero.",
        )
    )


def _described(tree: Any) -> str:
    """Describe a tree whose leaves may be `None`."""
    if tree is None:
        return "None"
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: node is None)
    if any(leaf is None for leaf in leaves):
        return f"{type(tree).__name__} of {', '.join(map(describe, leaves))}"
    return describe_tree(tree)


def _name(rule: Any) -> str:
    return f"rule {function_name(rule)}{function_place(rule)}"
