"""Names of single entries of a vector, for tables and messages."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from hotk._core import Vector


def leaf_names(like: Vector) -> list[str]:
    """Return the paths of the leaves as words, `"x"` for a single array."""
    paths = [path for path, _ in tree_flatten_with_path(like)[0]]
    return [keystr(path, simple=True, separator="/") or "x" for path in paths]


def entry_name(leaf: str, shape: tuple[int, ...], place: int) -> str:
    """Return the name of an entry of a leaf by its place in the flat leaf: `w[2,0]`."""
    if not shape:
        return leaf
    return f"{leaf}[{','.join(map(str, np.unravel_index(place, shape)))}]"


def name_of(like: Vector, place: int) -> str:
    """Return the name of an entry by its place in the flat vector."""
    for leaf, array in zip(leaf_names(like), jax.tree.leaves(like), strict=True):
        size = jnp.size(array)
        if place < size:
            return entry_name(leaf, jnp.shape(array), place)
        place -= size
    raise IndexError(place)


def direction_name(
    like: Vector,
    direction: np.ndarray,
    units: np.ndarray | float = 1.0,
    most: int = 4,
) -> str:
    """Describe a direction by its largest entries: `0.89 w[1] - 0.45 b`.

    Args:
        like: A vector of the space.
        direction: The direction, of length one.
        units: What the entries are multiplied with where their sizes are compared.
        most: The most entries.
    """
    sizes = np.abs(direction * units)
    order = np.argsort(-sizes)[:most]
    # An entry of a tenth of the largest one does not tell where the direction points.
    kept = [i for i in order if sizes[i] > 0.1 * sizes[order[0]]]
    sign = np.sign(direction[order[0]])
    text = ""
    for i in kept:
        number = float(sign * direction[i])
        joint = (" + " if number > 0 else " - ") if text else ""
        text += f"{joint}{abs(number):.2g} {name_of(like, int(i))}"
    rest = np.linalg.norm(np.delete(sizes, kept)) > 0.1 * np.linalg.norm(sizes)
    return text + (" + ..." if rest else "")
