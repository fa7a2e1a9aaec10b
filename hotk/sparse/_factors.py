"""Factors of a sparse matrix: by SuperLU, or a Schur complement if it is an arrow."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from hotk._core import extra

from ._conversion import in_csc
from ._elimination import elimination
from ._pattern import Pattern
from ._schur import SchurFactors
from ._superlu import Factors, envelope_work, symmetric_factors


AnyFactors: TypeAlias = Factors | SchurFactors

_DOUBLE = 64  # bits


def most_growth(dtype: DTypeLike) -> float:
    """Return by how much entries may grow where pivots stand on the diagonal.

    Tiny pivots of an indefinite matrix lose the digits of the others, all the more if
    its entries have few.

    Args:
        dtype: That of the entries.
    """
    return 1e6 if jnp.finfo(dtype).bits == _DOUBLE else 1e3


def factors(pattern: Pattern, values: np.ndarray, call: str) -> AnyFactors:
    """Factorize a square matrix, in double precision.

    A symmetric one has pivots on its diagonal, if that is stable.

    Args:
        pattern: Its pattern.
        values: Its entries, of any dtype.
        call: The call, for the message.

    Raises:
        RuntimeError: If it is singular.
    """
    # In double precision: it costs the host hardly more, and pivots on the diagonal of
    # an indefinite matrix may be small.
    most = most_growth(values.dtype)
    values = values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
    if pattern.symmetric:
        found = None if np.iscomplexobj(values) else schur_factors(pattern, values)
        if found is not None:
            return found
        try:
            found = symmetric_factors(pattern, values)
        except RuntimeError:  # a zero on the diagonal: only other pivots are left
            found = None
        # of a definite matrix nothing grows
        if found is not None and (
            found.is_definite or found.growth(pattern, values) <= most
        ):
            return found
    try:
        return Factors(extra("scipy.sparse.linalg").splu(in_csc(pattern, values)))
    except RuntimeError as error:
        raise RuntimeError(
            f"`{call}`: the matrix is singular. Add a multiple of "
            "`hotk.sparse.identity(A)`."
        ) from error


def definite_factors(
    pattern: Pattern, values: Float[np.ndarray, " nnz"], shift: float = 0.0
) -> AnyFactors | None:
    """Factorize a symmetric matrix, `None` if it is not positive definite.

    Args:
        pattern: Its pattern.
        values: Its entries, real.
        shift: A number that is added to the diagonal.
    """
    if elimination(pattern) is not None:
        return schur_factors(pattern, values, shift)
    try:
        found = symmetric_factors(pattern, values, shift)
    except RuntimeError:  # a pivot of zero
        return None
    return found if found.is_definite else None


def schur_factors(
    pattern: Pattern, values: Float[np.ndarray, " nnz"], shift: float = 0.0
) -> SchurFactors | None:
    r"""Factorize a positive definite matrix that is an arrow of small blocks.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries, real.
        shift: A number that is added to the diagonal.

    Returns:
        The factors; `None` if the pattern is no arrow, or the matrix not definite.
    """
    how = elimination(pattern)
    try:
        return None if how is None else SchurFactors(how, values, shift)
    except np.linalg.LinAlgError:
        return None


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
    how = elimination(pattern)
    return envelope_work(pattern) if how is None else how.work


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
