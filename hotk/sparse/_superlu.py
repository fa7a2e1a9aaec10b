"""Factors of a sparse matrix by SuperLU, their order kept, and bounds of the work."""

from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Int32

from hotk._core import extra

from ._conversion import in_csc
from ._pattern import Pattern
from ._positions import distinct
from ._scalings import alike, alike_by_largest


def full_rows(pattern: Pattern) -> np.ndarray:
    """Return for each row whether it has so many entries that it comes last.

    One row with an entry in each column made the search for an order of minimum degree
    take 4 seconds for 100 000 rows. The limit is that of AMD.
    """
    return np.diff(pattern.starts) > max(16.0, 10 * pattern.shape[0] ** 0.5)


def envelope_work(pattern: Pattern) -> float:
    r"""Bound the multiplications of a Cholesky factorization from above.

    The rows are put in the order of reverse Cuthill and McKee [1], which keeps entries
    near the diagonal: a row that begins $b_i$ places before the diagonal takes
    $b_i^2$ multiplications at most. Rows with very many entries come last, and count as
    dense.

    Args:
        pattern: The pattern of a symmetric matrix.

    References:
        [1] George and Liu (1981). Computer Solution of Large Sparse Positive Definite
            Systems. Prentice-Hall. Chapter 4.
    """
    return pattern.derived("work", lambda: (_work(pattern),))[0]


def _work(pattern: Pattern) -> float:
    sparse, graph = extra("scipy.sparse"), extra("scipy.sparse.csgraph")
    full = full_rows(pattern)
    last, others = int(full.sum()), int((~full).sum())
    dense = float(last) ** 3
    if not others:
        return dense
    place = np.cumsum(~full) - 1
    among = ~full[pattern.rows] & ~full[pattern.cols]
    rows, cols = place[pattern.rows[among]], place[pattern.cols[among]]
    ones = np.ones(rows.size, np.int8)
    rest = sparse.csr_array((ones, (rows, cols)), shape=(others, others))
    order = np.asarray(graph.reverse_cuthill_mckee(rest, symmetric_mode=True))
    new = np.empty(others, np.int64)
    new[order] = np.arange(others)
    width = np.zeros(others, np.int64)
    np.maximum.at(width, new[rows], new[rows] - new[cols])
    beside = np.zeros(others, np.int64)
    if last:
        # An eliminated part couples all full rows that it has an entry with.
        count, part = graph.connected_components(rest, directed=False)
        across = ~full[pattern.rows] & full[pattern.cols]
        number = np.cumsum(full) - 1
        key = part[place[pattern.rows[across]]].astype(np.int64) * last
        met = distinct(key + number[pattern.cols[across]]) // last
        beside = np.bincount(met, minlength=count)[part[order]]
    return dense + float(((width + 1.0 + beside) ** 2).sum())


@final
class Factors:
    """The factors of a matrix, of its rows and columns in some order.

    Attributes:
        pivots: The diagonal of U.
        on_diagonal: Whether all pivots stand on the diagonal of the matrix.
        largest: The largest absolute value in U.
        nnz: The number of entries in both.
    """

    __slots__ = ("_lu", "_order", "largest", "nnz", "on_diagonal", "pivots")

    def __init__(self, lu: Any, order: np.ndarray | None = None) -> None:
        upper = lu.U  # made anew at each access
        self._lu, self._order, self.nnz = lu, order, lu.nnz
        self.pivots = np.array(upper.diagonal())
        self.largest = float(np.abs(upper.data).max(initial=0.0))
        self.on_diagonal = bool(np.array_equal(lu.perm_r, lu.perm_c))

    @property
    def lower(self) -> Any:
        """The factor L, a matrix of SciPy."""
        return self._lu.L

    @property
    def terms(self) -> np.ndarray:
        """The sum of absolute values that each pivot is the difference of."""
        lower, upper = abs(self._lu.L), abs(self._lu.U)
        return np.asarray(lower.multiply(upper.T).sum(axis=1)).reshape(-1)

    def growth(self, pattern: Pattern, values: np.ndarray) -> float:
        """Return the largest entry of U, of rows and columns that are scaled alike.

        A large entry elsewhere, in a unit of its own, must not hide what a tiny pivot
        does to the entries beside it.

        Args:
            pattern: The pattern of the matrix.
            values: Its entries.
        """
        scale = alike_by_largest(pattern, values)
        upper = self._lu.U.tocsc()
        scale = scale if self._order is None else scale[self._order]
        rows = scale[np.argsort(self._lu.perm_r)][upper.indices]
        columns = scale[np.argsort(self._lu.perm_c)]
        columns = np.repeat(columns, np.diff(upper.indptr))
        return float((np.abs(upper.data) * rows * columns).max(initial=0.0))

    @property
    def is_definite(self) -> bool:
        """Whether all pivots of a symmetric matrix are positive."""
        return self.on_diagonal and bool(np.all(self.pivots > 0))

    @property
    def order(self) -> np.ndarray:
        """Which row of the matrix each pivot of a symmetric matrix stands in."""
        first = np.argsort(self._lu.perm_r)
        return first if self._order is None else self._order[first]

    def solve(self, b: np.ndarray, trans: str = "N") -> np.ndarray:
        """Solve a system with the matrix, or with its transpose (`"T"`)."""
        if np.iscomplexobj(b) and not np.iscomplexobj(self.pivots):
            parts = [self.solve(part, trans) for part in (np.real(b), np.imag(b))]
            return parts[0] + 1j * parts[1]
        b = np.ascontiguousarray(b, dtype=self.pivots.dtype)
        if self._order is None:
            return self._lu.solve(b, trans)
        x = np.empty_like(b)
        x[self._order] = self._lu.solve(b[self._order], trans)
        return x

    def inverse_root(self, b: np.ndarray, transposed: bool) -> np.ndarray:
        """Multiply with $R$ or $R^T$, where $R R^T$ is the inverse of the matrix.

        With $A = L D L^T$, of rows in some order, it is $L^{-T} D^{-1/2}$.
        """
        triangular = extra("scipy.sparse.linalg").spsolve_triangular
        roots = np.sqrt(self.pivots).reshape(-1, *[1] * (b.ndim - 1))
        lower = self._lu.L
        if transposed:
            right = np.ascontiguousarray(b[self.order])
            return triangular(lower.tocsr(), right, unit_diagonal=True) / roots
        x = np.empty_like(b, self.pivots.dtype)
        upper = lower.T.tocsr()
        x[self.order] = triangular(upper, b / roots, lower=False, unit_diagonal=True)
        return x

    def direction(self, k: int) -> np.ndarray:
        """Return a vector along which the quadratic form is the k-th pivot.

        With A = L D L' it is the solution of L' p = e_k, of a symmetric matrix whose
        pivots stand on its diagonal.
        """
        triangular = extra("scipy.sparse.linalg").spsolve_triangular
        upper = self._lu.L.T.tocsr()
        unit = np.zeros(self.pivots.size, self.pivots.dtype)
        unit[k] = 1
        p = np.empty_like(unit)
        p[self.order] = triangular(upper, unit, lower=False, unit_diagonal=True)
        return p


class Ordered(NamedTuple):
    """A symmetric pattern with its diagonal, in an order with few entries in L.

    SuperLU analyses a matrix anew for each factorization; given one in this order, it
    needs to look for none.

    Attributes:
        order: Which row of the matrix each row of the ordered one is.
        source: Which entry of the matrix each entry is; after the last if it has none,
            as on the diagonal.
        rows: Row of each entry, column after column.
        starts: Where each column starts.
        diagonal: Which entries are on the diagonal, row after row.
    """

    order: Int32[np.ndarray, " n"]
    source: Int32[np.ndarray, " nnz"]
    rows: Int32[np.ndarray, " nnz"]
    starts: Int32[np.ndarray, " n+1"]
    diagonal: Int32[np.ndarray, " n"]

    def matrix(self, values: np.ndarray, shift: float = 0.0) -> Any:
        """Return the matrix of these values plus a multiple of the identity."""
        data = np.append(values, values.dtype.type(0))[self.source]
        data[self.diagonal] += shift
        parts = (data, self.rows, self.starts)
        return extra("scipy.sparse").csc_array(parts, shape=(self.order.size,) * 2)


def symmetric_factors(
    pattern: Pattern, values: np.ndarray, shift: float = 0.0
) -> Factors:
    """Factorize a symmetric matrix with pivots on its diagonal, however small.

    Args:
        pattern: Its pattern.
        values: Its entries, in one of the four dtypes that SuperLU knows.
        shift: A number that is added to the diagonal.

    Raises:
        RuntimeError: If a pivot is zero.
    """
    ordered = pattern.derived("ordered", lambda: _ordered(pattern))
    lu = extra("scipy.sparse.linalg").splu(
        ordered.matrix(values, shift),
        permc_spec="NATURAL",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return Factors(lu, ordered.order)


def _ordered(pattern: Pattern) -> Ordered:
    """Find an order of minimum degree, the fullest rows last."""
    full = full_rows(pattern)
    others = np.flatnonzero(~full)
    place = np.cumsum(~full) - 1
    among = ~full[pattern.rows] & ~full[pattern.cols]
    rows, cols = place[pattern.rows[among]], place[pattern.cols[among]]
    first = _minimum_degree(rows, cols, others.size)
    order = np.concatenate([others[first], np.flatnonzero(full)])
    return _in_order(pattern.rows, pattern.cols, order)


def _minimum_degree(rows: np.ndarray, cols: np.ndarray, n: int) -> np.ndarray:
    if not n:
        return np.arange(0)
    # SuperLU tells its order only with factors. Those of an incomplete factorization
    # that drops all it may are cheap, and exist if the diagonal is dominant.
    plain = _in_order(rows, cols, np.arange(n))
    largest = 1.0 + np.bincount(rows, minlength=n).max(initial=0)
    incomplete = extra("scipy.sparse.linalg").spilu(
        plain.matrix(np.full(rows.size, -1.0), 2 * largest),
        drop_tol=1.0,
        fill_factor=1.0,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return np.argsort(incomplete.perm_c)


def _in_order(rows: np.ndarray, cols: np.ndarray, order: np.ndarray) -> Ordered:
    """Bring the rows and columns of a symmetric pattern in an order."""
    n, nnz = order.size, rows.size
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    missing = np.ones(n, bool)
    missing[rows[rows == cols]] = False
    added = np.flatnonzero(missing)
    rows = place[np.concatenate([rows, added])]
    cols = place[np.concatenate([cols, added])]
    source = np.concatenate([np.arange(nnz), np.full(added.size, nnz)])
    by_column = np.lexsort((rows, cols))
    rows, cols = rows[by_column], cols[by_column]
    starts = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(cols, minlength=n), out=starts[1:])
    return Ordered(
        np.asarray(order, np.int32),
        source[by_column].astype(np.int32),
        rows.astype(np.int32),
        starts,
        np.flatnonzero(rows == cols).astype(np.int32),
    )


# ----- Matrices with zeros on the diagonal


def congruent_factors(
    pattern: Pattern, values: np.ndarray, most_growth: float
) -> Factors | None:
    """Factorize a matrix with the inertia of a symmetric one, on its diagonal.

    A row with a small number on the diagonal is paired with another one in which it has
    a large entry, and both are rotated by 45 degrees: from `[[a, c], [c, b]]` with a
    small `b` to a matrix with `(a + b) / 2 + c` and `(a + b) / 2 - c` on the diagonal.
    With pairs of pivots, as in [1], these are those of the matrix of conditions of a
    minimum under constraints. By Sylvester's law the signs stay what they are.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries, in double precision.
        most_growth: By how much entries may grow. A number on the diagonal is small if
            a pivot on it makes them grow by more; if more numbers count as small, fewer
            matrices find stable pivots.

    Returns:
        The factors, `None` if pivots on the diagonal are not stable.

    References:
        [1] Duff and Pralet (2005). Strategies for scaling and pivoting for sparse
            symmetric indefinite problems. SIAM Journal on Matrix Analysis and
            Applications 27(2), 313-340. Section 4.
    """
    sparse = extra("scipy.sparse")
    matrix, n = in_csc(pattern, values), pattern.shape[0]
    scale = sparse.diags_array(alike(pattern, values))
    matrix = scale @ matrix @ scale
    pairs = _pairs(matrix, 1 / most_growth)
    alone = np.ones(n, bool)
    alone[pairs.reshape(-1)] = False
    rest, (i, j), half = np.flatnonzero(alone), pairs.T, np.full(len(pairs), 0.5**0.5)
    data = np.concatenate([np.ones(rest.size), half, half, half, -half])
    rows, cols = np.concatenate([rest, i, i, j, j]), np.concatenate([rest, i, j, i, j])
    rotation = sparse.csc_array((data, (rows, cols)), shape=(n, n))
    turned = rotation @ matrix @ rotation
    turned = ((turned + turned.T) / 2).tocoo()  # a half may be zero by rounding
    order = np.lexsort((turned.col, turned.row))
    own = Pattern(turned.row[order], turned.col[order], (n, n), symmetric=True)
    try:
        found = symmetric_factors(own, turned.data[order])
    except RuntimeError:  # a pivot is zero
        return None
    stable = found.on_diagonal and found.largest <= most_growth
    return found if stable else None


def _pairs(matrix: Any, least: float) -> Int32[np.ndarray, "k 2"]:
    """Pair rows with small numbers on the diagonal with rows that they are large in."""
    small = abs(matrix.diagonal()) < least
    weak, strong = np.flatnonzero(small), np.flatnonzero(~small)
    among = abs(matrix.tocsr()[weak])
    rows, cols = _matching(among[:, strong].tocsr())
    pairs = [*zip(weak[rows].tolist(), strong[cols].tolist(), strict=True)]
    # What is left is paired with each other, the largest entries first.
    left = np.setdiff1d(weak, weak[rows])
    rest = among[np.isin(weak, left)][:, left].tocoo()
    free = np.ones(left.size, bool)
    for k in np.argsort(-rest.data, kind="stable").tolist():
        i, j = rest.row[k], rest.col[k]
        if rest.data[k] > 0 and i != j and free[i] and free[j]:
            free[i] = free[j] = False
            pairs.append((int(left[i]), int(left[j])))
    return np.asarray(pairs, np.int32).reshape(-1, 2)


def _matching(between: Any) -> tuple[np.ndarray, np.ndarray]:
    """Match rows with columns so that the product of their entries is large."""
    graph = extra("scipy.sparse.csgraph")
    between.eliminate_zeros()
    if not between.nnz:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    costs = between.copy()
    costs.data = 1.0 + np.log(between.data.max() / between.data)
    try:
        return graph.min_weight_full_bipartite_matching(costs)
    except ValueError:  # not all can be matched
        cols = graph.maximum_bipartite_matching(between, perm_type="column")
        rows = np.flatnonzero(cols >= 0)
        return rows, cols[rows]
