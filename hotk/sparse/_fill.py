"""How much work a factorization is, bounded without one."""

import numpy as np

from hotk._core import extra

from ._elimination import Elimination, elimination
from ._pattern import Pattern


def factorization_work(pattern: Pattern) -> float:
    r"""Bound the multiplications of a Cholesky factorization from above.

    The rows are put in the order of reverse Cuthill and McKee [1], which keeps entries
    near the diagonal: a row that begins $b_i$ places before the diagonal takes
    $b_i^2$ multiplications at most. Rows with very many entries come last, and count as
    dense. It takes milliseconds for 100 000 rows; an order of minimum degree, which
    `A.factorize()` uses, needs less work than this, often much less. Where small blocks
    are eliminated first, all together, it is the work of that.

    Args:
        pattern: The pattern of a symmetric matrix.

    Returns:
        The bound.

    Example:
        >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 4)
        >>> pattern = hotk.sparsity(f, jnp.ones(50))
        >>> hotk.sparse.factorization_work(pattern) <= 4 * 50
        True

    References:
        [1] George and Liu (1981). Computer Solution of Large Sparse Positive Definite
            Systems. Prentice-Hall. Chapter 4.
    """
    how = arrow(pattern)
    return _envelope(pattern) if how is None else how.work


def arrow(pattern: Pattern) -> Elimination | None:
    """Return how small blocks of a matrix are eliminated first, all together.

    Args:
        pattern: The pattern of a symmetric matrix.

    Returns:
        Where its entries are; `None` if it has no such blocks, or if the work may be
        more than that of factors that know nothing of them.
    """
    how = elimination(pattern)
    return how if how is not None and how.work <= _envelope(pattern) else None


def _envelope(pattern: Pattern) -> float:
    return pattern.derived("work", lambda: (_work(pattern),))[0]


def is_worth_factors(pattern: Pattern) -> bool:
    """Whether factors take less work than as many products as there are rows.

    An iteration takes about this many if nothing is known about the eigenvalues.

    Args:
        pattern: The pattern of a matrix.

    Returns:
        Whether the bound of `factorization_work` is so small; never for a matrix that
        is not known to be symmetric.

    Example:
        >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 4)
        >>> hotk.sparse.is_worth_factors(hotk.sparsity(f, jnp.ones(50)))
        True
    """
    if not pattern.symmetric:
        return False
    return factorization_work(pattern) <= 2.0 * pattern.shape[0] * pattern.nnz


def full_rows(pattern: Pattern) -> np.ndarray:
    """Return for each row whether it has so many entries that it comes last.

    One row with an entry in each column made the search for an order of minimum degree
    take 4 seconds for 100 000 rows. The limit is that of AMD.
    """
    return np.diff(pattern.starts) > max(16.0, 10 * pattern.shape[0] ** 0.5)


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
        met = np.unique(key + number[pattern.cols[across]]) // last
        beside = np.bincount(met, minlength=count)[part[order]]
    return dense + float(((width + 1.0 + beside) ** 2).sum())
