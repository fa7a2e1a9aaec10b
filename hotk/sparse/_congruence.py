r"""The Hessian of a loss of a model, $K^T M K$, from the rows of K.

The algebra goes back through the model, and each operation on the way carries all
columns that a residual depends on. Of a short model that is cheaper than to form its
Jacobian; of a long one this is: K has the rows of the Jacobian, and those of the
identity where the loss depends on the point itself, and M is the Hessian of the loss by
outputs and point. Each entry of M adds the product of two rows of K.

Rows with the same columns, as the coordinates of one observation, are one matrix; and
columns with the same rows, as the parameters of one camera, are one block of it. So
the sums are sums of small blocks, and index arrays are as long as there are blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import ClosedJaxpr, Point
from hotk._dense import dimension, is_complex
from hotk._mode import Forward, Nested
from hotk.curvature import composition

from ._block_sums import BlockRows, BlockSums
from ._coefficients import read_at
from ._entries import Entries, entries, real_dtype
from ._linear import Budget
from ._linear_program import LinearProgram, linear_program
from ._positions import Positions
from ._work import most_entries


# Products of rows of so many different lengths are compiled one by one.
_MOST_KINDS = 24


class Congruence(NamedTuple):
    """A Hessian as that of a loss of a model.

    Attributes:
        model: The program of the Jacobian of the model.
        loss: That of the Hessian of the loss, by outputs and point.
    """

    model: LinearProgram
    loss: LinearProgram


def congruence(
    closed: ClosedJaxpr, x: Point, mode: Nested, *, valued: bool
) -> Congruence | None:
    """Find a loss of a model in the program of a function, `None` if it is none."""
    found = composition(closed, x)
    if found is None:
        return None
    z = found.outputs(x)
    if is_complex(z) or any(a.dtype.kind in "biu" for a in z):
        return None

    def gradient(at: tuple[list[Array], Point]) -> tuple[PyTree, None]:
        return mode.inner.gradient(lambda at: (found.loss(*at), None), at)[1], None

    jacobian = linear_program(lambda x: (found.model(x), None), x, Forward())
    return Congruence(
        jacobian, linear_program(gradient, (z, x), mode.outer, valued=valued)
    )


class CongruenceProduct(NamedTuple):
    """The entries of a Hessian, before they are computed.

    Attributes:
        work: How many products of two numbers they take, and what K takes.
        compute: Computes them.
    """

    work: int
    compute: Callable[[], Entries]


def as_product(
    found: Congruence, budget: Budget, *, valued: bool, symmetric: bool
) -> CongruenceProduct | None:
    """Compute the rows of K, and what is left to do.

    Args:
        found: The model and the loss.
        budget: What the entries of K are paid from.
        valued: Whether values are asked for, or the pattern alone.
        symmetric: Whether M is: the lower half is taken alone, and mirrored.

    Returns:
        The product, `None` if rows differ too much, or give too many numbers.

    Raises:
        TooDense: If the budget does not suffice.
        TooLong: If the rows of K take more operations than the budget has.
    """
    before = budget.left
    jacobian = entries(found.model, budget, valued=valued)
    weights = entries(found.loss, budget, valued=valued, symmetric=symmetric)
    m, n = dimension(found.model.outputs), dimension(found.model.inputs)
    rows, cols, values = jacobian.rows, jacobian.cols, jacobian.values
    if weights.rows.max(initial=-1) >= m:  # the loss depends on the point itself
        rows = np.concatenate([rows, m + np.arange(n)])
        cols = np.concatenate([cols, np.arange(n)])
        if values is not None:
            values = jnp.concatenate([values, jnp.ones(n, values.dtype)])
    of_k = BlockRows.of(rows, cols, (m + n, n))
    kinds = of_k.kinds(weights.rows, weights.cols)
    if len(kinds) > _MOST_KINDS or sum(map(of_k.numbers, kinds)) > most_entries():
        return None
    work = sum(kind.left.shape[1] * of_k.numbers(kind) for kind in kinds)
    dtype = real_dtype(found.model.inputs)

    def compute() -> Entries:
        sums = BlockSums(of_k, symmetric=symmetric)
        for kind in kinds:
            parts = None
            if values is not None and weights.values is not None:
                parts = [
                    _read(array.astype(dtype), places)
                    for array, places in (
                        (weights.values, kind.entries),
                        (values, of_k.places(kind.left)),
                        (values, of_k.places(kind.right)),
                    )
                ]
            sums.add(kind, parts)
        return sums.entries(dtype, valued=valued)

    return CongruenceProduct(before - budget.left + work, compute)


def _read(values: Array, places: Positions) -> Array:
    """Read numbers at places, by a slice where these follow each other."""
    flat = places.reshape(-1)
    if flat.size and (np.diff(flat) == 1).all():
        return values[int(flat[0]) : int(flat[-1]) + 1].reshape(places.shape)
    return read_at(values, flat).reshape(places.shape)
