"""What a rule returns, checked and flattened."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    DtypeError,
    StructureError,
    axes_beyond,
    describe,
    describe_tree,
    dtype_name,
    function_name,
    function_place,
    is_inexact,
    message,
    shared_as,
)

from ._shape import Arrays, ArrayType, Rule, Shape


def tangents_of(
    rule: Rule, result: PyTree, tree: Any, types: tuple[ArrayType, ...]
) -> Arrays:
    """Flatten what a forward rule returned: tangents of the inexact outputs.

    Args:
        rule: The rule, for messages.
        result: What it returned.
        tree: The structure of the value.
        types: The types of the tangents of all outputs.
    """
    # `None` is zero for a part of a value. For all of it, the rule has forgotten its
    # `return`, which would silently make every derivative zero.
    if result is None and tree.node_data() is None:
        raise _structure(rule, "the tangent of the value", types[0], result)
    try:
        leaves = _expanded(tree, result)
    except ValueError as error:
        value = tree.unflatten(types)
        raise _structure(rule, "a tree like the value", value, result) from error
    return [
        _along(rule, f"output {i}", _checked(rule, f"output {i}", leaf, aval), aval)
        for i, (leaf, aval) in enumerate(zip(leaves, types, strict=True))
        if is_inexact(aval)
    ]


def cotangents_of(rule: Rule, result: PyTree, shape: Shape, arrays: Arrays) -> Arrays:
    """Flatten what a reverse rule returned: one entry for each array of the call.

    Entries of arrays that were captured or built are `None`.
    """
    children = shape.arguments.tree.children()
    if isinstance(result, list):
        result = tuple(result)
    # A function of one argument may return its cotangent without a tuple around it.
    if not isinstance(result, tuple) and len(children) == 1 and result is not None:
        result = (result,)
    args = shape.arguments.join(arrays[shape.start :])
    if not isinstance(result, tuple) or len(result) != len(children):
        expected = f"a tuple with {len(children)} entries, one for each argument"
        raise _structure(rule, expected, args, result)
    leaves: Arrays = []
    for child, arg, entry in zip(children, args, result, strict=True):
        try:
            leaves += _expanded(child, entry)
        except ValueError as error:
            raise _structure(rule, "a tree like the argument", arg, entry) from error
    static = shape.arguments.static
    cotangents = [leaf for leaf, s in zip(leaves, static, strict=True) if s is None]
    own = arrays[shape.start :]
    checked = [
        shared_as(
            t := jax.typeof(a).to_tangent_aval(),
            _checked(rule, f"argument array {i}", leaf, t),
        )
        if is_inexact(a)
        else None
        for i, (leaf, a) in enumerate(zip(cotangents, own, strict=True))
    ]
    return [*([None] * shape.start), *checked]


def _expanded(tree: Any, result: PyTree) -> Arrays:
    """Return the leaves of a tree in which `None` may stand for any part.

    `flatten_up_to` would not do: it takes `None` for a node of its own.
    """
    if result is None:
        return [None] * tree.num_leaves
    if tree.node_data() is None:
        return [result]
    parts, own = jax.tree.flatten(result, is_leaf=lambda node: node is not result)
    children = tree.children()
    if own.node_data() != tree.node_data() or len(parts) != len(children):
        raise ValueError("another structure")
    return [
        leaf for c, p in zip(children, parts, strict=True) for leaf in _expanded(c, p)
    ]


def _checked(rule: Rule, what: str, leaf: PyTree, aval: ArrayType) -> Array:
    if leaf is None:
        return jnp.zeros(aval.shape, aval.dtype)
    try:
        given = jax.typeof(leaf)
    except TypeError as error:
        raise _structure(rule, f"the derivative of {what}", aval, leaf) from error
    if given.shape != aval.shape:
        raise StructureError(_text(rule, what, aval, leaf, "shape"))
    # A Python number has no dtype of its own and takes the one it must have; so does
    # what was computed from such numbers alone.
    if given.dtype != aval.dtype:
        if not given.weak_type:
            raise DtypeError(_text(rule, what, aval, leaf, "dtype"))
    elif not given.weak_type:
        return leaf
    return jnp.asarray(leaf, aval.dtype)


def _along(rule: Rule, what: str, leaf: Array, aval: ArrayType) -> Array:
    """Let a tangent vary over devices as its output does, and no further."""
    if axes := axes_beyond(aval, jax.typeof(leaf)):
        raise StructureError(
            message(
                _name(rule),
                f"the derivative of {what} differs from one device to another along "
                f"{', '.join(map(repr, axes))}, and {what} does not.",
                expected=str(aval),
                got=str(jax.typeof(leaf)),
                fix="Reduce it as the function does, such as by `jax.lax.psum`.",
            )
        )
    return shared_as(aval, leaf)


def _text(rule: Rule, what: str, aval: ArrayType, leaf: PyTree, which: str) -> str:
    shape = ",".join(map(str, aval.shape))
    return message(
        _name(rule),
        f"the derivative of {what} has another {which} than {what}.",
        expected=f"{dtype_name(aval.dtype)}[{shape}]",
        got=describe(leaf),
        fix="Return each derivative with the shape and dtype of its argument.",
    )


def _structure(
    rule: Rule, expected: str, like: PyTree, result: PyTree
) -> StructureError:
    return StructureError(
        message(
            _name(rule),
            "the rule returns another structure than it must.",
            expected=f"{expected}: {_described(like)}",
            got=_described(result),
            fix="Does it end with a `return`?"
            if result is None
            else "A rule returns derivatives alone, never the value; `None` is zero.",
        )
    )


def _described(tree: PyTree) -> str:
    """Describe a tree whose leaves may be `None`."""
    if tree is None:
        return "None"
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: node is None)
    if any(leaf is None for leaf in leaves):
        return f"{type(tree).__name__} of {', '.join(map(describe, leaves))}"
    return describe_tree(tree)


def _name(rule: Rule) -> str:
    return f"rule {function_name(rule)}{function_place(rule)}"
