"""Factors of a sparse matrix: by SuperLU, or a Schur complement if it is an arrow."""

from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from hotk._core import extra

from ._conversion import in_csc
from ._fill import arrow
from ._pattern import Pattern
from ._schur import SchurFactors
from ._superlu import Factors, symmetric_factors


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
        limit = most * float(np.abs(values).max(initial=0.0))
        if found is not None and found.largest <= limit:
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
    if arrow(pattern) is not None:
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
    how = arrow(pattern)
    try:
        return None if how is None else SchurFactors(how, values, shift)
    except np.linalg.LinAlgError:
        return None
