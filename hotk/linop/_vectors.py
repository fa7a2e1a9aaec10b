"""What a user gives for a vector of a space, and vectors as lists of real arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import StructureError, describe, describe_tree, message

from . import space


def space_of(operator: Any) -> Any:
    """Return a vector of the space of an operator.

    Args:
        operator: An operator.

    Returns:
        A tree of arrays: the floating leaves of the point, `None` for the others.

    Raises:
        TypeError: If any space will do, or it is no operator.

    Example:
        >>> f = lambda p: p["n"] * jnp.sum(p["w"] ** 2)
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(2), "n": 3})
        >>> jax.tree.map(jnp.shape, hotk.linop.space_of(H))
        {'n': None, 'w': (2,)}
    """
    if not hasattr(operator, "like"):
        raise TypeError(
            f"{describe(operator)} is no operator: make one of a function at a point, "
            "`hotk.HessianOperator(f, x)`."
        )
    if operator.like is None:
        raise TypeError(
            "an operator made of identities alone acts on any space, so it has no size "
            "and no matrix: add it to another one, as in `H + 0.1 * hotk.Identity()`."
        )
    return operator.like


def is_flat(v: Any, like: Any) -> bool:
    """Whether a vector is given as one array although the space has another form."""
    array = isinstance(v, (jax.Array, np.ndarray)) and v.ndim == 1
    if like is None or not array or v.shape != (space.dimension(like),):
        return False
    leaves, treedef = jax.tree.flatten(like)
    one = treedef == jax.tree.structure(0) and leaves[0].ndim == 1
    return not one or jnp.iscomplexobj(leaves[0]) != np.iscomplexobj(v)


def as_vector(call: str, v: Any, like: Any) -> Any:
    """Return what was given as a vector of the space.

    Entries at leaves that are not differentiated are dropped; NumPy arrays and Python
    numbers get the dtype of their leaf.

    Raises:
        StructureError: If structure, shapes or dtypes are others.
    """
    is_none = lambda leaf: leaf is None
    want, treedef = jax.tree.flatten(like, is_leaf=is_none)
    found: list[Any] = []
    try:
        given = treedef.flatten_up_to(v)
    except (ValueError, TypeError, KeyError):
        given = None
    if given is not None:
        pairs = zip(want, given, strict=True)
        found = [None if a is None else fitted(b, a) for a, b in pairs]
        pairs = zip(want, found, strict=True)
        if not any(a is not None and b is None for a, b in pairs):
            return treedef.unflatten(found)
    raise StructureError(
        message(
            call,
            "this is not a vector of the space.",
            expected=describe_tree(like),
            got=describe_tree(v),
            fix="Give it the structure, shapes and dtypes of the point, or one array "
            f"of {space.dimension(like)} numbers.",
        )
    )


def fitted(b: Any, a: Any) -> Any:
    """Return a leaf of a vector as a leaf of the space, `None` if it is none."""
    if isinstance(b, (np.ndarray, np.generic, bool, int, float, complex)):
        fits = np.shape(b) == a.shape and _kind(np.asarray(b)) <= _kind(a)
        return jnp.asarray(np.array(b), a.dtype) if fits else None
    same = isinstance(b, jax.Array) and b.shape == a.shape and b.dtype == a.dtype
    return b if same else None


def _kind(a: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    found = [i for i, kind in enumerate(kinds) if jnp.issubdtype(a.dtype, kind)]
    return found[0] if found else len(kinds)
