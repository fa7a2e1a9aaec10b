"""`inertia`: how many eigenvalues of a symmetric operator have which sign."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hotk._core import Tracer, from_host, not_finite, number_name

from . import _direct
from ._linear_map import AbstractLinearMap
from ._sparse import inertia_by_factors
from ._vectors import check_symmetric


class Inertia(NamedTuple):
    """The inertia of a symmetric matrix: the number of eigenvalues of each sign.

    Attributes:
        positive: The number of positive eigenvalues.
        zero: The number that are zero up to rounding: at most `n eps` times the largest
            magnitude.
        negative: The number of negative eigenvalues.
    """

    positive: Int[Array, ""]
    zero: Int[Array, ""]
    negative: Int[Array, ""]

    def __repr__(self) -> str:
        """Show the three numbers."""
        numbers = zip(self._fields, map(number_name, self), strict=True)
        return f"Inertia({', '.join(f'{name}: {n}' for name, n in numbers)})"


def inertia(operator: AbstractLinearMap) -> Inertia:
    """Count the positive, zero and negative eigenvalues of a symmetric operator.

    It forms the matrix and computes all eigenvalues: `n^2` numbers and about `n^3`
    operations. Of a sparse matrix of 2000 rows or more it factorizes instead, where
    that shows them, and counts a pivot of at most `n eps` times the largest as zero.

    Args:
        operator: A symmetric operator.

    Returns:
        An `Inertia`: the numbers of positive, zero and negative eigenvalues.

    Raises:
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.
        TypeError: If the operator is not known to be symmetric.
        ValueError: If the matrix is not finite; inside of a transformation, where
            nothing can be raised, all three numbers are -1.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(3))
        >>> hotk.linop.inertia(H)
        Inertia(positive: 1, zero: 1, negative: 1)
    """
    check_symmetric(call := "inertia(A)", operator)
    counts = inertia_by_factors(operator)
    if counts is not None:
        return Inertia(*map(from_host, counts))
    a = operator.matrix()
    if isinstance(a, Tracer):
        values = jnp.linalg.eigvalsh(a)
        finite = jnp.all(jnp.isfinite(values))
        return Inertia(*(jnp.where(finite, n, -1) for n in _signs(jnp, values)))
    on_host = _direct.is_on_host(a)
    values = _direct.eigenvalues(a) if on_host else np.asarray(jnp.linalg.eigvalsh(a))
    if not np.isfinite(values).all():
        raise ValueError(not_finite(call))
    return Inertia(*map(from_host, _signs(np, values)))


def _signs(xp: Any, values: Float[Array | np.ndarray, " n"]) -> tuple[Any, ...]:
    """Count positive, zero and negative eigenvalues, with NumPy or in a trace."""
    limit = jnp.finfo(values.dtype).eps * values.size * xp.max(abs(values), initial=0)
    signs = values > limit, abs(values) <= limit, values < -limit
    return tuple(xp.sum(sign, dtype=int) for sign in signs)
