r"""The Hessian of a loss of a model, $K^T M K$, from the rows of K.

The algebra goes back through the model, and each operation on the way carries all
columns that a residual depends on. Of a short model that is cheaper than to form its
Jacobian; of a long one this is: K has the rows of the Jacobian, and those of the
identity where the loss depends on the point itself, and M is the Hessian of the loss by
outputs and point. Each entry of M adds the product of two rows of K. Rows with the same
columns, as those of the coordinates of one observation, are multiplied as matrices.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import ClosedJaxpr, Point
from hotk.curvature import composition
from hotk.dense import dimension, is_complex
from hotk.mode import Forward, Nested

from ._assemble import Entries, assemble
from ._coefficients import read_at
from ._entries import entries, real_dtype
from ._linear import Budget, Linear, Piece
from ._linear_program import LinearProgram, linear_program
from ._positions import Positions


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


class _Rows(NamedTuple):
    """Rows of a sparse matrix, those with the same columns together.

    Attributes:
        starts: Where each row begins among the entries, and their number.
        cols: The column of each entry.
        group: For each row the number of the first one with its columns.
    """

    starts: Positions
    cols: Positions
    group: Positions

    def lengths(self, rows: Positions) -> Positions:
        """Return how many entries rows have."""
        return self.starts[rows + 1] - self.starts[rows]

    def places(self, rows: Positions, length: int) -> Positions:
        """Return where the entries of rows of one length stand."""
        return self.starts[rows][..., None] + np.arange(length)


class Product(NamedTuple):
    """The entries of a Hessian, before they are computed.

    Attributes:
        work: How many products of two numbers they take, and what K takes.
        compute: Computes them.
    """

    work: int
    compute: Callable[[], Entries]


def as_product(
    found: Congruence, budget: Budget, *, valued: bool, symmetric: bool
) -> Product | None:
    """Compute the rows of K, and what is left to do.

    Args:
        found: The model and the loss.
        budget: What entries are paid from.
        valued: Whether values are asked for, or the pattern alone.
        symmetric: Whether to take the lower half alone, and mirror it.

    Returns:
        The product, `None` if rows differ too much.

    Raises:
        TooDense: If the budget does not suffice.
        TooLong: If the rows of K take more operations than the budget has.
    """
    before = budget.left
    jacobian = entries(found.model, budget, valued=valued)
    weights = entries(found.loss, budget, valued=valued, symmetric=symmetric)
    m, n = dimension(found.model.outputs), dimension(found.model.inputs)
    dtype = real_dtype(found.model.inputs)
    rows, cols, values = jacobian.rows, jacobian.cols, jacobian.values
    if weights.rows.max(initial=-1) >= m:  # the loss depends on the point itself
        rows = np.concatenate([rows, m + np.arange(n)])
        cols = np.concatenate([cols, np.arange(n)])
        if values is not None:
            values = jnp.concatenate([values, jnp.ones(n, values.dtype)])
    starts = np.searchsorted(rows, np.arange(m + n + 1))
    of_k = _Rows(starts, cols, _grouped(starts, cols))
    kinds = _kinds(of_k, weights)
    if len(kinds) > _MOST_KINDS:
        return None
    for left, right, _ in kinds:
        lengths = of_k.lengths(left[:, 0]) * of_k.lengths(right[:, 0])
        budget.spend(int(lengths.sum()))

    def compute() -> Linear:
        pieces = [
            _products(of_k, values, weights.values, kind, dtype) for kind in kinds
        ]
        return Linear((n,), tuple(pieces))

    finish = lambda: assemble(compute, n, dtype, valued=valued, symmetric=symmetric)
    return Product(before - budget.left, finish)


def _grouped(starts: Positions, cols: Positions) -> Positions:
    """Return for each row the number of the first one with the same columns."""
    lengths = np.diff(starts)
    group = np.arange(lengths.size)
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        columns = cols[starts[rows][:, None] + np.arange(length)]
        # Sorting rows takes long: rows are told apart by a number, which is checked.
        odd = np.random.default_rng(0).integers(2**62, size=length, dtype=np.uint64)
        numbers = (columns.astype(np.uint64) * (2 * odd + 1)).sum(1, dtype=np.uint64)
        _, first, of = np.unique(numbers, return_index=True, return_inverse=True)
        if (columns[first][of] == columns).all():
            group[rows] = rows[first][of]
    return group


_Kind = tuple[Positions, Positions, Positions]


def _kinds(of_k: _Rows, weights: Entries) -> list[_Kind]:
    """Sort the entries of M by what they multiply.

    Returns:
        For each kind the first rows, the second rows and the entries of M, each of
        shape `(blocks, entries of a block)`.
    """
    left, right = np.asarray(weights.rows), np.asarray(weights.cols)
    lengths = of_k.lengths(left), of_k.lengths(right)
    kept = np.flatnonzero((lengths[0] > 0) & (lengths[1] > 0))
    left, right = left[kept], right[kept]
    block = of_k.group[left] * of_k.group.size + of_k.group[right]
    order = np.argsort(block, kind="stable")
    kept, left, right, block = kept[order], left[order], right[order], block[order]
    first = np.flatnonzero(np.append(True, block[1:] != block[:-1])[: block.size])
    counts = np.diff(np.append(first, block.size))
    same = of_k.group[left[first]] == of_k.group[right[first]]
    a, b = of_k.lengths(left[first]), of_k.lengths(right[first])
    kinds = []
    for code in np.unique(np.stack([counts, a, b, same], 1), axis=0):
        here = (counts == code[0]) & (a == code[1]) & (b == code[2]) & (same == code[3])
        at = first[here][:, None] + np.arange(code[0])
        kinds.append((left[at], right[at], kept[at]))
    return kinds


def _products(
    of_k: _Rows,
    values: Array | None,
    weights: Array | None,
    kind: _Kind,
    dtype: np.dtype,
) -> Piece:
    """Return the entries that blocks of M add, each of the same shape."""
    left, right, at = kind
    count_left, count_right = (
        int(of_k.lengths(rows[:1, 0])[0]) for rows in (left, right)
    )
    rows = of_k.cols[of_k.places(left[:, 0], count_left)]
    cols = of_k.cols[of_k.places(right[:, 0], count_right)]
    shape = (*rows.shape, count_right)
    rows = np.broadcast_to(rows[:, :, None], shape)
    cols = np.broadcast_to(cols[:, None, :], shape)
    if values is None or weights is None:
        return Piece(None, rows.reshape(-1), cols.reshape(-1))
    m = _read(weights, at).astype(dtype)
    u = _read(values, of_k.places(left, count_left)).astype(dtype) * m[..., None]
    v = _read(values, of_k.places(right, count_right)).astype(dtype)
    if at.shape[1] == 1:
        blocks = u[:, 0, :, None] * v[:, 0, None, :]
    else:
        blocks = jnp.einsum("kea,keb->kab", u, v, precision="highest")
    return Piece(blocks.reshape(-1), rows.reshape(-1), cols.reshape(-1))


def _read(values: Array, places: Positions) -> Array:
    """Read numbers at places, by a slice where these follow each other."""
    flat = places.reshape(-1)
    if flat.size and (np.diff(flat) == 1).all():
        return values[int(flat[0]) : int(flat[-1]) + 1].reshape(places.shape)
    return read_at(values, flat).reshape(places.shape)
