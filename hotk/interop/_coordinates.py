"""`Coordinates`: a tree as one flat vector, and functions of the tree as of it."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hotk._core import nothing_inexact
from hotk.linop import space

from ._layout import Layout, as_flat


_MOVING = ("real", "complex")


@final
class Embedded(eqx.Module):
    """A function of a tree as one of the real arrays in it.

    Attributes:
        func: The function.
        args: Its further arguments.
        rest: The leaves of the tree that are not differentiated, `None` elsewhere.
        kinds: For each leaf whether it is `"real"`, `"complex"` or `"rest"`.
        treedef: The structure of the tree.
    """

    func: Any
    args: tuple[Any, ...]
    rest: tuple[Any, ...]
    kinds: tuple[str, ...] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)

    def __call__(self, parts: list[Any]) -> Any:
        """Put the tree together and call the function."""
        x = self.treedef.unflatten(whole(parts, self.kinds, self.rest))
        return self.func(x, *self.args)


class Coordinates:
    """The real numbers in a tree, as one flat vector in float64.

    The leaves stand one after the other in the order of the tree; a complex leaf has
    its real parts first, then its imaginary parts. What is not differentiated is held
    as it is now.

    Attributes:
        layout: Where each real array stands.
        start: The tree as a vector.
    """

    def __init__(self, call: str, tree: Any) -> None:
        leaves, self.treedef = jax.tree.flatten(tree)
        self.kinds = tuple(map(kind_of, leaves))
        pairs = list(zip(leaves, self.kinds, strict=True))
        moving = [leaf for leaf, kind in pairs if kind in _MOVING]
        if not moving:
            raise nothing_inexact(call, tree, name="x0")
        self.rest = tuple(None if k in _MOVING else _kept(leaf) for leaf, k in pairs)
        self.layout = Layout(moving)
        self.start = self.layout.join(space.parts(moving))
        self.call = call

    def embed(self, f: Callable[..., Any], args: tuple[Any, ...]) -> Embedded:
        """Return a function of the tree as one of its real arrays."""
        args = jax.tree.map(_as_leaf, args)
        return Embedded(f, args, self.rest, self.kinds, self.treedef)

    def vector(self, name: str, z: Any) -> Float[np.ndarray, "n"]:
        """Copy what a solver gives for a vector."""
        return as_flat(self.call, name, z, self.layout.size)

    def point(self, z: np.ndarray) -> list[Any]:
        """Return a vector as the real arrays of a point."""
        return self.layout.split(z, numbers=True)

    def tree(self, z: np.ndarray) -> Any:
        """Return a vector as a tree: JAX arrays, and what is not differentiated."""
        parts = [jnp.asarray(part) for part in self.point(z)]
        rest = tuple(map(_kept, self.rest))
        return self.treedef.unflatten(whole(parts, self.kinds, rest))


def kind_of(leaf: Any) -> str:
    """Return `"real"` or `"complex"` for a leaf that is differentiated, or `"rest"`."""
    array = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
    inexact = array and jnp.issubdtype(leaf.dtype, jnp.inexact)
    if not inexact and not isinstance(leaf, (float, complex)):
        return "rest"
    return "complex" if jnp.iscomplexobj(leaf) else "real"


def whole(parts: Any, kinds: tuple[str, ...], rest: tuple[Any, ...]) -> list[Any]:
    """Put real arrays and what is not differentiated together to leaves."""
    remaining, leaves = iter(parts), list(rest)
    for i, kind in enumerate(kinds):
        if kind == "real":
            leaves[i] = next(remaining)
        elif kind == "complex":
            leaves[i] = jax.lax.complex(next(remaining), next(remaining))
    return leaves


def _as_leaf(leaf: Any) -> Any:
    """Make a Python float an array, so that another value needs no other program."""
    if isinstance(leaf, (float, complex)) and not isinstance(leaf, np.generic):
        return jnp.asarray(leaf)
    return _kept(leaf)


def _kept(leaf: Any) -> Any:
    """Hold a leaf as it is: a NumPy array can change in place."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
