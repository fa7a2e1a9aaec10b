r"""Diagonals S for which the rows of a symmetric $S A S$ are alike."""

import numpy as np
from jaxtyping import Float

from hotk._core import extra

from ._pattern import Pattern


# Each round halves the digits that are left.
_ROUNDS = 12
# Of conjugate gradients: what is left of the units then is less than a digit.
_ITERATIONS = 200


def alike_by_largest(
    pattern: Pattern,
    values: np.ndarray,
    *,
    start: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " n"]:
    """Return the diagonal for which the largest entry of each row is about one.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries.
        start: A diagonal to begin with.
    """
    scale = np.ones(pattern.shape[0]) if start is None else start
    rows, cols, sizes = pattern.rows, pattern.cols, np.abs(values)
    for _ in range(_ROUNDS):
        largest = np.zeros_like(scale)
        np.maximum.at(largest, rows, sizes * scale[rows] * scale[cols])
        largest = np.where(largest > 0, largest, 1.0)
        scale = scale / np.sqrt(largest)
        if np.all((largest > 0.5) & (largest < 2)):
            break
    return scale


def alike(pattern: Pattern, values: np.ndarray) -> Float[np.ndarray, " n"]:
    r"""Return a diagonal that is the same in whatever units the variables are.

    Its logarithms minimize $\sum_{ij} (\log |a_{ij}| + s_i + s_j)^2$ over the entries
    [1]. A scaling by the largest entry of each row alone may leave a regular matrix
    singular up to rounding. It follows.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries.

    References:
        [1] Curtis and Reid (1972). On the automatic scaling of matrices for Gaussian
            elimination. IMA Journal of Applied Mathematics 10(1), 118-124.
    """
    sparse, n = extra("scipy.sparse"), pattern.shape[0]
    there = values != 0
    rows, cols, sizes = pattern.rows[there], pattern.cols[there], np.abs(values[there])
    ones = sparse.csr_array((np.ones(rows.size), (rows, cols)), shape=(n, n))
    counts = np.bincount(rows, minlength=n)
    normal = ones + sparse.diags_array(np.where(counts > 0, counts, 1.0))
    right = -np.bincount(rows, np.log(sizes), minlength=n)
    solve = extra("scipy.sparse.linalg").cg
    found = np.exp(solve(normal, right, rtol=1e-6, maxiter=_ITERATIONS)[0])
    return alike_by_largest(pattern, values, start=found)
