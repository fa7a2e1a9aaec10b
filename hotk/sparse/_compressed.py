"""A sparse matrix from few products, by a coloring of its pattern."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

from hotk._core import whole
from hotk.dense import choose_block, dimension, flattened, unflattened

from ._coloring import Coloring, color
from ._pattern import Pattern


# With more products than this part of all of them, the entries are read off a dense
# matrix, without a search among them.
_WORTHWHILE = 0.5

Product = Callable[[PyTree], PyTree]


def coloring_worth(pattern: Pattern) -> Coloring | None:
    """Return a coloring of a pattern, `None` if it saves too few products."""
    full = min(pattern.shape)
    # No fewer products than entries in the fullest row or column of the other kind.
    coloring = color(pattern)
    return coloring if coloring.count <= _WORTHWHILE * full else None


def compressed_values(
    coloring: Coloring, product: Product, transposed: Product
) -> Inexact[Array, " nnz"]:
    """Compute the values of a matrix on a colored pattern.

    Args:
        coloring: The coloring.
        product: From a tree that the matrix multiplies to the product.
        transposed: The same for the transpose.
    """
    pattern = coloring.pattern
    columns = _products(product, coloring.directions, pattern.input)
    rows = None
    if coloring.row_count:
        rows = _products(transposed, coloring.row_directions, pattern.output)
    return coloring.entries(columns, rows)


def _products(
    product: Product, directions: Callable[..., Array], like: PyTree
) -> Inexact[Array, "colors m"]:
    """Multiply all directions, as many at once as fill the cache."""
    dtype = jax.eval_shape(flattened, like).dtype
    block = choose_block(product, like)
    one = lambda direction: flattened(product(unflattened(direction, like)))
    along = directions(dtype)
    if not along.shape[0]:
        rows = dimension(jax.eval_shape(product, like))
        return jnp.zeros((0, rows), dtype)
    return whole(jax.lax.map(one, along, batch_size=min(block, along.shape[0])))
