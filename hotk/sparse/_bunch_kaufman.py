"""The signs of eigenvalues of a symmetric matrix, by Bunch and Kaufman's pivots."""

import numpy as np
from jaxtyping import Float

from hotk._core import extra

from ._conversion import in_csc
from ._pattern import Pattern
from ._scalings import alike


# A factorization of so many rows takes two seconds, all eigenvalues of so many ten.
_MOST_FACTORIZED, _MOST_EIGENVALUES = 4000, 2000
# Smaller ones are measured with all eigenvalues: pivots of a singular matrix may all be
# larger than its rounding.
_CLEAR = 1e-8


def inertia_by_pairs(
    pattern: Pattern, values: Float[np.ndarray, " nnz"], rounding: float
) -> tuple[int, int, int] | None:
    r"""Count the positive, zero and negative eigenvalues of a symmetric matrix.

    The dense matrix $S A S$, with a diagonal S that makes its rows alike, is factorized
    to $P L D L^T P^T$, where D has blocks of one or two rows [1]. By Sylvester's law
    the signs of the eigenvalues of D are those of A. It is stable for each matrix,
    whatever stands on its diagonal.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries, in double precision.
        rounding: That of the entries.

    Returns:
        The three numbers, `None` if it would take too long.

    References:
        [1] Bunch and Kaufman (1977). Some stable methods for calculating inertia and
            solving symmetric linear systems. Mathematics of Computation 31, 163-179.
    """
    n = pattern.shape[0]
    if n > _MOST_FACTORIZED:
        return None
    linalg = extra("scipy.linalg")
    a = in_csc(pattern, values).toarray(order="F")
    scale = alike(pattern, values)
    a *= scale
    a *= scale[:, None]
    found, limit = _of_blocks(a), n * np.finfo(np.float64).eps + rounding
    if np.abs(found).min(initial=1.0) < max(_CLEAR, limit):
        if n > _MOST_EIGENVALUES:
            return None
        found = linalg.eigvalsh(a, check_finite=False)
        limit *= np.abs(found).max()
    zero = np.abs(found) <= limit
    positive = int(((found > 0) & ~zero).sum())
    return positive, int(zero.sum()), int(n - positive - zero.sum())


def _of_blocks(a: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Return the eigenvalues of the blocks of D."""
    lapack = extra("scipy.linalg").lapack
    work = int(lapack.dsytrf_lwork(len(a), lower=1)[0])
    factors, rows, _ = lapack.dsytrf(a, lower=1, lwork=work)
    # Both rows of a block have the same negative number.
    first, k = np.zeros(len(a), bool), 0
    while k < len(a):
        first[k] = rows[k] < 0
        k += 2 if first[k] else 1
    one, other = factors.diagonal(), np.roll(factors.diagonal(), -1)
    mean, half = (one + other)[first] / 2, (one - other)[first] / 2
    away = np.hypot(half, np.append(factors.diagonal(-1), 0.0)[first])
    alone = one[~first & ~np.roll(first, 1)]
    return np.concatenate([alone, mean - away, mean + away])
