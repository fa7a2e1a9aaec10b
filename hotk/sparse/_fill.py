"""How much work a factorization is, bounded without one."""

import numpy as np

from hotk._core import extra

from ._pattern import Pattern
from ._positions import distinct


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
