"""Colorings: few products from which all entries of a sparse matrix are read.

Columns of one color are added to one direction. An entry can be read off the product
where no other column of its color has an entry in its row; in a symmetric matrix, its
mirror image may be read instead. Rows that are nearly full would need a color for each
of their entries, so they are read off products of the transpose, in a symmetric matrix
off the products of their own columns.
"""

from typing import final

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Inexact, Int32

from hotk._core import extra

from ._pattern import Pattern


# SciPy's search takes a pass over all entries for each color. Beyond this many steps,
# some seconds, each column gets a color of its own: that many products are never worth
# their cost.
_MOST_STEPS = 500_000_000


@final
class Coloring:
    """Which columns share a direction, and where the products hold each entry.

    Attributes:
        pattern: What is colored.
        colors: The color of each column, -1 for one that no product needs.
        row_colors: The color of each row whose entries are read off products of the
            transpose, -1 for the others.

    Example:
        >>> pattern = hotk.sparse.Pattern([0, 0, 1, 2], [0, 2, 1, 2], (3, 3))
        >>> coloring = hotk.sparse.color(pattern)
        >>> coloring.count, coloring.directions().tolist()
        (2, [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """

    __slots__ = ("_read_at", "_read_from", "colors", "pattern", "row_colors")

    pattern: Pattern
    colors: Int32[np.ndarray, " n"]
    row_colors: Int32[np.ndarray, " m"]

    def __init__(
        self,
        pattern: Pattern,
        colors: Int32[np.ndarray, " n"],
        row_colors: Int32[np.ndarray, " m"],
    ) -> None:
        self.pattern, self.colors, self.row_colors = pattern, colors, row_colors
        self._read_from, self._read_at = _reading(pattern, colors, row_colors)

    @property
    def count(self) -> int:
        """The number of products, those of the transpose included."""
        return self.column_count + self.row_count

    @property
    def column_count(self) -> int:
        """The number of products of the matrix."""
        return int(self.colors.max(initial=-1)) + 1

    @property
    def row_count(self) -> int:
        """The number of products of the transpose."""
        return int(self.row_colors.max(initial=-1)) + 1

    def __repr__(self) -> str:
        """Show how many products of either kind there are."""
        rows = f" and {self.row_count} of the transpose" if self.row_count else ""
        return f"Coloring({self.column_count} products{rows}, {self.pattern!r})"

    def directions(self, dtype: DTypeLike = float) -> Inexact[Array, "columns n"]:
        """Return the directions to multiply with: a row for each color of columns.

        Args:
            dtype: Their dtype.
        """
        return _one_hot(self.colors, self.column_count, dtype)

    def row_directions(self, dtype: DTypeLike = float) -> Inexact[Array, "rows m"]:
        """Return the directions to multiply the transpose with.

        Args:
            dtype: Their dtype.
        """
        return _one_hot(self.row_colors, self.row_count, dtype)

    def entries(
        self,
        compressed: Inexact[Array, "columns m"],
        row_compressed: Inexact[Array, "rows n"] | None = None,
    ) -> Inexact[Array, " nnz"]:
        """Read the entries off the products.

        Args:
            compressed: The products with `directions()`, a row each.
            row_compressed: The products of the transpose with `row_directions()`;
                needed if `row_count` is not zero.

        Returns:
            The entries in the order of the pattern.
        """
        values = [compressed.reshape(-1)]
        if row_compressed is not None:
            values.append(row_compressed.reshape(-1))
        elif self.row_count:
            raise TypeError(
                f"`coloring.entries(compressed)`: {self.row_count} products of the "
                "transpose are missing; give `row_compressed`."
            )
        m, n = self.pattern.shape
        from_rows = self._read_from < 0
        place = self._read_from.astype(np.int64) * m + self._read_at
        row_place = self.column_count * m + (-1 - self._read_from.astype(np.int64)) * n
        place = np.where(from_rows, row_place + self._read_at, place)
        flat = values[0] if len(values) == 1 else jnp.concatenate(values)
        return flat.at[jnp.asarray(place)].get(mode="promise_in_bounds")


def color(pattern: Pattern) -> Coloring:
    """Find few products from which all entries of a sparse matrix can be read.

    A symmetric pattern gets a star coloring [1], where that has fewer colors than one
    in which columns of a color share no row. Another one gets the latter by columns
    or by rows, with the fullest rows, or columns, read the other way [2].

    Args:
        pattern: What to color.

    Returns:
        A `Coloring`.

    Example:
        >>> n = np.arange(100)
        >>> rows = np.r_[0 * n, n[1:], n[1:]]  # an arrow: a full row and column
        >>> cols = np.r_[n, 0 * n[1:], n[1:]]
        >>> arrow = hotk.SparseMatrix.from_coo(np.ones(298), rows, cols, symmetric=True)
        >>> hotk.sparse.color(arrow.pattern).count
        2

    References:
        [1] Gebremedhin, Manne and Pothen (2005). What color is your Jacobian? Graph
            coloring for computing derivatives. SIAM Review 47(4), 629-705.
        [2] Coleman and Verma (1998). The efficient computation of sparse Jacobian
            matrices using automatic differentiation. SIAM Journal on Scientific
            Computing 19(4), 1210-1233.
    """
    return pattern.derived("coloring", lambda: _color(pattern))


def _color(pattern: Pattern) -> Coloring:
    if pattern.symmetric:
        return _symmetric(pattern)
    by_columns = _bicolored(pattern)
    turned = _bicolored(pattern.T)
    if sum(c.max(initial=-1) + 1 for c in turned) < sum(
        c.max(initial=-1) + 1 for c in by_columns
    ):
        by_columns = turned[::-1]
    return Coloring(pattern, *by_columns)


def _bicolored(
    pattern: Pattern,
) -> tuple[Int32[np.ndarray, " n"], Int32[np.ndarray, " m"]]:
    """Color columns, but rows where they are the fullest."""
    (m, n), rows, cols = pattern.shape, pattern.rows, pattern.cols
    full = _fullest(np.bincount(rows, minlength=m))
    rest = ~full[rows]
    colors = _orthogonal(rows[rest], cols[rest], m, n)
    row_colors = _orthogonal(cols[~rest], rows[~rest], n, m)
    return colors, row_colors


def _symmetric(pattern: Pattern) -> Coloring:
    (m, n), rows, cols = pattern.shape, pattern.rows, pattern.cols
    full = _fullest(np.bincount(rows, minlength=m))
    inner = ~full[rows] & ~full[cols]
    rows, cols = rows[inner], cols[inner]
    colors = _orthogonal(rows, cols, m, n)
    star = star_colors(rows, cols, colors)
    if star is not None and star.max(initial=-1) < colors.max(initial=-1):
        colors = star
    # a full column is alone with its color
    hubs = np.flatnonzero(full)
    colors[hubs] = colors.max(initial=-1) + 1 + np.arange(hubs.size)
    return Coloring(pattern, colors, np.full(m, -1, np.int32))


def _fullest(degrees: np.ndarray) -> np.ndarray:
    """Choose the rows to be read the other way, each of which is a product.

    All others are read off at least as many products as the fullest of them has
    entries.
    """
    order = np.argsort(-degrees, kind="stable")
    bound = np.append(degrees[order], 0) + np.arange(degrees.size + 1)
    full = np.zeros(degrees.size, bool)
    full[order[: int(np.argmin(bound))]] = True
    return full


def _orthogonal(
    rows: np.ndarray, cols: np.ndarray, m: int, n: int
) -> Int32[np.ndarray, " n"]:
    """Color columns so that those of one color share no row; -1 for an empty one."""
    colors = np.full(n, -1, np.int32)
    filled, cols = np.unique(cols, return_inverse=True)
    if not filled.size:
        return colors
    k = filled.size
    fewest = int(np.bincount(rows).max())
    if fewest * (rows.size + k) > _MOST_STEPS:
        colors[filled] = np.arange(k)
        return colors

    matrix = extra("scipy.sparse").csc_array(
        (np.ones(rows.size, np.int32), (rows, cols)), shape=(m, k)
    )
    # As they stand suits bands, the fullest first suits graphs.
    orders = [np.arange(k), np.argsort(-np.bincount(cols), kind="stable")]
    found = None
    for order in orders:
        groups = extra("scipy.optimize._numdiff").group_columns(matrix, order)
        if found is None or groups.max() < found.max():
            found = groups
        if found.max() + 1 == fewest:
            break
    assert found is not None
    colors[filled] = found
    return colors


def _reading(
    pattern: Pattern, colors: np.ndarray, row_colors: np.ndarray
) -> tuple[Int32[np.ndarray, " nnz"], Int32[np.ndarray, " nnz"]]:
    """Return which product holds each entry, and where.

    A product of the transpose has the number `-1 - color`.
    """
    rows, cols = pattern.rows, pattern.cols
    alone = _alone(rows, colors[cols])
    read_from = np.where(alone, colors[cols], 0).astype(np.int32)
    read_at = np.where(alone, rows, 0).astype(np.int32)
    if pattern.symmetric:
        mirrored = ~alone & _alone(cols, colors[rows])
        read_from[mirrored], read_at[mirrored] = colors[rows][mirrored], cols[mirrored]
        alone |= mirrored
    turned = ~alone & (row_colors[rows] >= 0)
    turned &= _alone(cols, row_colors[rows])
    read_from[turned], read_at[turned] = -1 - row_colors[rows][turned], cols[turned]
    alone |= turned
    if not alone.all():
        raise AssertionError(f"{int((~alone).sum())} entries cannot be read")
    return read_from, read_at


def _alone(place: np.ndarray, color: np.ndarray) -> np.ndarray:
    """Whether no other entry falls on the same place of the same product."""
    count = int(color.max(initial=-1)) + 2
    key = place.astype(np.int64) * count + color + 1
    _, inverse, number = np.unique(key, return_inverse=True, return_counts=True)
    return (number[inverse] == 1) & (color >= 0)


def _one_hot(
    colors: np.ndarray, count: int, dtype: DTypeLike
) -> Inexact[Array, "count size"]:
    return jnp.asarray(colors == np.arange(count)[:, None]).astype(dtype)


# The paths of length two that are looked at: a second at most.
_MOST_PATHS = 30_000_000


def star_colors(
    rows: np.ndarray, cols: np.ndarray, classes: Int32[np.ndarray, " n"]
) -> Int32[np.ndarray, " n"] | None:
    """Color a symmetric pattern so that each entry or its mirror image can be read.

    A vertex gets the smallest color that no neighbor has, nor a neighbor x of a
    neighbor w that has no color yet or a larger one than x [1]. That depends on what
    is at most two edges away, so vertices that are further from each other are
    colored at once, as if one by one.

    Args:
        rows: Rows of the entries, both halves.
        cols: Their columns.
        classes: Classes of vertices that are more than two edges from each other;
            -1 for vertices without entries.

    Returns:
        The colors, -1 where the class is, or `None` if that takes too long.

    References:
        [1] Gebremedhin, Tarafdar, Manne and Pothen (2007). New acyclic and star
            coloring algorithms with application to computing Hessians. SIAM Journal
            on Scientific Computing 29(3), 1042-1072.
    """
    n = classes.size
    off = rows != cols
    graph = extra("scipy.sparse").csr_array(
        (np.ones(int(off.sum()), np.int8), (rows[off], cols[off])), shape=(n, n)
    )
    starts, neighbors = graph.indptr, graph.indices
    degrees = np.diff(starts)
    if int(degrees[neighbors].sum()) > _MOST_PATHS:
        return None
    colors = np.full(n, -1, np.int32)
    for k in range(int(classes.max(initial=-1)) + 1):
        vertices = np.flatnonzero(classes == k)
        which, near = _spread(starts, neighbors, vertices)
        among, far = _spread(starts, neighbors, near)
        of, by = colors[far], colors[near][among]
        # all neighbors of a neighbor without a color, `by` being -1
        forbidden = (of >= 0) & ((by < 0) | (of < by))
        taken = np.zeros((vertices.size, int(colors.max(initial=-1)) + 3), bool)
        # the last column stands for no color
        taken[which, colors[near]] = True
        taken[which[among][forbidden], of[forbidden]] = True
        colors[vertices] = np.argmin(taken[:, :-1], axis=1)
    return colors


def _spread(
    starts: np.ndarray, neighbors: np.ndarray, vertices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """List the neighbors of vertices: the number of the vertex, and the neighbor."""
    counts = starts[vertices + 1] - starts[vertices]
    which = np.repeat(np.arange(vertices.size), counts)
    within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, neighbors[starts[vertices][which] + within]
