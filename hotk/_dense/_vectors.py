"""What a user gives for a vector of a space of trees, checked and cast."""

from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from hotk._core import StructureError, Vector, describe_tree, message

from ._flat import dimension, promoted, unflattened


def is_flat(v: object, like: Vector) -> TypeGuard[Num[Array | np.ndarray, " n"]]:
    """Whether a vector is given as one array although the space has another form."""
    if like is None or not isinstance(v, (jax.Array, np.ndarray)):
        return False
    if isinstance(like, jax.Array) and (like.shape, like.dtype) == (v.shape, v.dtype):
        return False
    if v.shape != (dimension(like),):
        return False
    leaves, treedef = jax.tree.flatten(like)
    one_axis = treedef == jax.tree.structure(0) and leaves[0].ndim == 1
    # A space of one real array with one axis: its vectors are what they are. If that
    # array is complex, `n` real numbers are a flat vector and complex ones are not.
    return not one_axis or (jnp.iscomplexobj(leaves[0]) and not np.iscomplexobj(v))


def from_flat(call: str, v: Array | np.ndarray, like: Vector) -> Vector:
    """Return one flat array as a vector of the space.

    It is cast as a leaf is: if it is of NumPy, and to no narrower class of numbers.

    Raises:
        StructureError: If the dtype is not that of the flat vectors of the space.
    """
    dtypes = [jnp.finfo(a.dtype).dtype for a in jax.tree.leaves(like)]
    flat = cast_leaf(v, jax.ShapeDtypeStruct(v.shape, promoted(*dtypes)))
    if flat is None:
        raise _not_of_the_space(call, v, like)
    return unflattened(flat, like)


def as_vector(call: str, v: object, like: Vector) -> Vector:
    """Check that a tree is a vector of the space, and cast it.

    Entries at leaves that are not differentiated are dropped; NumPy arrays and Python
    numbers get the dtype of their leaf.

    Raises:
        StructureError: If structure, shapes or dtypes are others.
    """
    is_none = lambda leaf: leaf is None
    expected, treedef = jax.tree.flatten(like, is_leaf=is_none)
    try:
        leaves = treedef.flatten_up_to(v)
    except (ValueError, TypeError, KeyError):
        leaves = None
    if leaves is not None:
        pairs = zip(expected, leaves, strict=True)
        cast = [None if a is None else cast_leaf(b, a) for a, b in pairs]
        pairs = zip(expected, cast, strict=True)
        if not any(a is not None and b is None for a, b in pairs):
            return treedef.unflatten(cast)
    raise _not_of_the_space(call, v, like)


def _not_of_the_space(call: str, v: object, like: Vector) -> StructureError:
    return StructureError(
        message(
            call,
            "this is not a vector of the space.",
            expected=describe_tree(like),
            got=describe_tree(v),
            fix="Give it the structure, shapes and dtypes of the point, or one array "
            f"of {dimension(like)} real numbers.{_of_several(like, v)}",
        )
    )


def _of_several(like: Vector, v: object) -> str:
    """Return what to write for several vectors, if these are."""
    shape = np.shape(v) if isinstance(v, (jax.Array, np.ndarray)) else ()
    if len(shape) != 2 or dimension(like) not in shape:
        return ""
    return (
        " Of several vectors, the rows of an array, `A.many(rows)` are the products, "
        "and `solve(rows, batched=True)` the solutions."
    )


def cast_leaf(leaf: object, like: Array | jax.ShapeDtypeStruct) -> Array | None:
    """Return a leaf in the dtype of another one, `None` if it cannot stand for it.

    NumPy arrays and Python numbers are cast, to a wider class of numbers only. Arrays
    of JAX have the dtype that the user gave them, so another one is a mistake.
    """
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        narrower = _number_class(np.asarray(leaf)) <= _number_class(like)
        if np.shape(leaf) != like.shape or not narrower:
            return None
        # A copy: JAX may use the memory of a NumPy array, which the user may change.
        return jnp.asarray(np.array(leaf), like.dtype)
    if not isinstance(leaf, jax.Array):
        return None
    same = leaf.shape == like.shape and leaf.dtype == like.dtype
    return leaf if same else None


def _number_class(a: Array | np.ndarray | jax.ShapeDtypeStruct) -> int:
    """Rank booleans, integers, real and complex numbers; any other dtype is last."""
    classes = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    ranks = [i for i, each in enumerate(classes) if jnp.issubdtype(a.dtype, each)]
    return ranks[0] if ranks else len(classes)
