"""Arguments of an operator at another point: they must be like those it was made of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._capture import Closure
from hotk._core import StructureError, describe_tree, message
from hotk._dense import cast_leaf

from ._frozen import WithStatics


def static_parts(f: Closure, arrays: PyTree) -> PyTree:
    """Return what the arguments of a frozen function have besides their arrays."""
    template = f.skeleton.template
    if isinstance(template, WithStatics):
        return template.original.parts
    return jax.tree.map(lambda a: None, arrays)


def matching_arrays(name: str, new: PyTree, old: PyTree, statics: PyTree) -> PyTree:
    """Return the arrays of a tree that must be like another one.

    Args:
        name: The argument, for the message.
        new: The tree. NumPy arrays and Python numbers get the dtype of the old ones.
        old: The arrays of the other tree, `None` elsewhere.
        statics: The parts that cannot change, `None` elsewhere; they may be left out in
            `new`.

    Raises:
        StructureError: If it is not like the other.
    """
    old_leaves, treedef = jax.tree.flatten(old, is_leaf=lambda a: a is None)
    static_leaves = treedef.flatten_up_to(statics)
    try:
        new_leaves = treedef.flatten_up_to(new)
    except (ValueError, TypeError, KeyError):
        new_leaves = [StructureError] * len(old_leaves)  # a leaf that matches nothing
    cast = [
        b if a is None else _cast_with_weak_type(b, a)
        for a, b in zip(old_leaves, new_leaves, strict=True)
    ]
    matches = [
        b is not None if a is not None else b is None or is_same(static, b)
        for a, b, static in zip(old_leaves, cast, static_leaves, strict=True)
    ]
    if all(matches):
        pairs = zip(old_leaves, cast, strict=True)
        return treedef.unflatten([None if a is None else b for a, b in pairs])
    expected, got = describe_tree(eqx.combine(old, statics)), describe_tree(new)
    if expected == got:  # the same types but other values: show the first of these
        i = matches.index(False)
        expected, got = f"{static_leaves[i]!r:.200}", f"{cast[i]!r:.200}"
    raise StructureError(
        message(
            "H.at(x, *args)",
            f"`{name}` is not like that of the operator.",
            expected=expected,
            got=got,
            fix="Keep shapes, dtypes, what is not an array, and values that the "
            "function needs in Python; or make a new operator.",
        )
    )


def _cast_with_weak_type(new: object, old: Array) -> Array | None:
    """Cast a leaf as `cast_leaf` does, and keep the weak type of a Python number."""
    cast = cast_leaf(new, old)
    kind = getattr(old.dtype, "kind", "")  # the dtype of a random key has none
    python_type = {"b": bool, "i": int, "f": float, "c": complex}.get(kind)
    weak = jax.typeof(old).weak_type and isinstance(new, (int, float, complex))
    if cast is not None and weak and python_type is not None:
        # The operator of `f` at 2.0 moves to 3: a strong type would be another program,
        # see `test_python_numbers_as_points_compile_nothing`.
        same = jnp.asarray(python_type(new))
        return same if same.dtype == old.dtype else cast
    return cast


def is_same(old: object, new: object) -> bool:
    """Whether a static part of an argument is what it was."""
    if new is old:
        return True
    if eqx.is_array_like(old) or eqx.is_array_like(new):
        a, b = np.asarray(old), np.asarray(new)
        # A NaN is what it was: a rate that is not set, for instance.
        return a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))
    # A method of a module is another object each time it is read.
    if callable(old) and callable(new):
        a, b = Closure.of(old), Closure.of(new)
        return a.skeleton == b.skeleton and not a.leaves and not b.leaves
    return type(old) is type(new) and bool(old == new)
