"""`Coordinates`: a tree as one flat vector, functions of it, and bounds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Float, PyTree, PyTreeDef

from hotk._core import (
    Function,
    Leaf,
    Point,
    StructureError,
    describe_tree,
    differentiated,
    message,
    nothing_inexact,
)

from ._layout import Layout, as_flat


LeafRole: TypeAlias = Literal["real", "complex", "constant"]
"""What a leaf is to a solver: one array of variables, two of them, or none."""


@final
class Embedded(eqx.Module):
    """A function of a tree as one of the real arrays in it.

    Attributes:
        func: The function.
        args: Its further arguments.
        constants: The leaves that are not differentiated, `None` at the others.
        roles: The role of each leaf.
        treedef: The structure of the tree.
    """

    func: Function
    args: tuple[PyTree, ...]
    constants: tuple[object, ...]
    roles: tuple[LeafRole, ...] = eqx.field(static=True)
    treedef: PyTreeDef = eqx.field(static=True)  # pyright: ignore[reportInvalidTypeForm]

    def __call__(self, parts: Sequence[Leaf]) -> PyTree:
        """Assemble the tree and call the function."""
        x = self.treedef.unflatten(assembled(parts, self.roles, self.constants))
        return self.func(x, *self.args)


class Coordinates:
    """The real numbers in a tree, as one flat vector in float64.

    The leaves stand one after the other in the order of the tree; a complex leaf has
    its real parts first, then its imaginary parts. Leaves that are not differentiated
    are no part of the vector; they keep the values that they have now.

    Attributes:
        layout: Where each real array stands.
        start: The tree as a vector.
    """

    def __init__(self, call: str, tree: Point) -> None:
        leaves, self._treedef = jax.tree.flatten(tree)
        moves = zip(leaves, differentiated(leaves, self._treedef), strict=True)
        self._roles: tuple[LeafRole, ...] = tuple(
            leaf_role(leaf) if yes else "constant" for leaf, yes in moves
        )
        pairs = list(zip(leaves, self._roles, strict=True))
        variables = [leaf for leaf, role in pairs if role != "constant"]
        if not variables:
            raise nothing_inexact(call, tree, name="x0")
        self._constants = tuple(
            _copied(leaf) if role == "constant" else None for leaf, role in pairs
        )
        self.layout = Layout(variables)
        self.start = self.layout.join(_real_arrays(variables))
        self._call = call

    def embed(self, f: Function, args: tuple[PyTree, ...]) -> Embedded:
        """Return a function of the tree as one of its real arrays."""
        args = jax.tree.map(_as_array, args)
        return Embedded(f, args, self._constants, self._roles, self._treedef)

    def vector(self, name: str, z: npt.ArrayLike) -> Float[np.ndarray, "n"]:
        """Copy an argument `name` of a solver as a vector."""
        return as_flat(self._call, name, z, self.layout.size)

    def flat_like(self, like: PyTree, tree: PyTree) -> Float[np.ndarray, "n"]:
        """Return a tree of numbers or arrays, for each leaf of another, as a vector."""
        leaves = zip(jax.tree.leaves(like), jax.tree.leaves(tree), strict=True)
        of_role = zip(self._roles, leaves, strict=True)
        return self.layout.join(
            _real_arrays(
                np.broadcast_to(np.asarray(b), np.shape(a))
                for role, (a, b) in of_role
                if role != "constant"
            )
        )

    def parts(self, z: Float[np.ndarray, "n"]) -> list[Leaf]:
        """Return a vector as the real arrays of a point."""
        return self.layout.point(z)

    def tree(self, z: Float[np.ndarray, "n"]) -> Point:
        """Return a vector as a tree: JAX arrays, and what is not differentiated."""
        parts = [jnp.asarray(part) for part in self.parts(z)]
        # A copy for each tree: a user may write to one that was returned.
        constants = tuple(map(_copied, self._constants))
        return self._treedef.unflatten(assembled(parts, self._roles, constants))


def leaf_role(leaf: object) -> LeafRole:
    """Return the role of a leaf: floats and complex numbers are variables."""
    array = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
    inexact = array and jnp.issubdtype(leaf.dtype, jnp.inexact)
    if not inexact and not isinstance(leaf, (float, complex)):
        return "constant"
    return "complex" if jnp.iscomplexobj(leaf) else "real"


def assembled(
    parts: Iterable[Leaf], roles: Sequence[LeafRole], constants: Sequence[object]
) -> list[object]:
    """Assemble the leaves of a tree from real arrays and constants."""
    remaining, leaves = iter(parts), list(constants)
    for i, role in enumerate(roles):
        if role == "real":
            leaves[i] = next(remaining)
        elif role == "complex":
            leaves[i] = jax.lax.complex(next(remaining), next(remaining))
    return leaves


def _real_arrays(leaves: Iterable[Leaf]) -> list[Leaf]:
    # Not as JAX arrays: float64 would be cut to float32 where x64 is off.
    arrays: list[Leaf] = []
    for leaf in leaves:
        arrays += [np.real(leaf), np.imag(leaf)] if jnp.iscomplexobj(leaf) else [leaf]
    return arrays


def _as_array(leaf: object) -> object:
    """Return a Python float as an array, so that another value compiles nothing."""
    if isinstance(leaf, (float, complex)) and not isinstance(leaf, np.generic):
        return jnp.asarray(leaf)
    return _copied(leaf)


def _copied(leaf: object) -> object:
    """Copy a NumPy array, which the user may change in place."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def flat_bound(
    call: str,
    name: str,
    value: PyTree,
    missing: float,
    like: PyTree,
    flat_like: Callable[[PyTree, PyTree], np.ndarray],
    size: int,
) -> Float[np.ndarray, "size"] | None:
    """Return a bound as a flat vector; `None` stays `None`.

    Args:
        call: The call, for messages.
        name: The argument, for messages.
        value: One number for all; a tree with an array, a number or `None` for each
            leaf; or a flat vector.
        missing: What `None` in a tree stands for.
        like: The tree of what is bounded.
        flat_like: From that tree, and one of numbers and arrays for its leaves, to a
            flat vector.
        size: Its size.

    Raises:
        StructureError: If it is none of these.
    """
    if value is None:
        return None
    leaves, structure = jax.tree.flatten(like)
    try:
        given = structure.flatten_up_to(value)
        pairs = zip(given, leaves, strict=True)
        bounds = [_of_leaf(missing if b is None else b, leaf) for b, leaf in pairs]
        return flat_like(like, structure.unflatten(bounds))
    except (ValueError, TypeError, KeyError):
        pass  # a number or a vector, and there are several leaves
    try:
        flat = np.asarray(value, dtype=np.float64)
    except (ValueError, TypeError):
        flat = np.empty((0, 0))
    if flat.shape not in ((), (1,), (size,)):
        raise StructureError(
            message(
                call,
                f"`{name}` fits neither the tree nor the flat vector.",
                expected=f"a number, {size} numbers, or {describe_tree(like)}",
                got=describe_tree(value),
                fix="Give a tree with a number or an array for each leaf.",
            )
        )
    return np.broadcast_to(flat, (size,)).copy()


def _of_leaf(bound: object, leaf: object) -> object:
    if not hasattr(leaf, "shape") and not isinstance(leaf, (float, complex)):
        return leaf  # no variable, such as a name
    array = np.asarray(bound, np.float64)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return np.broadcast_to(array, np.shape(leaf))  # pyright: ignore[reportArgumentType, reportCallIssue]
