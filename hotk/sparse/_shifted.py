"""`Shifted`: a symmetric matrix plus multiples of the identity, on the host."""

import functools
from typing import Any, final

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from ._conversion import in_csr
from ._factors import AnyFactors, definite_factors
from ._pattern import Pattern
from ._superlu import Factors, symmetric_factors


@final
class Shifted:
    r"""A symmetric matrix A whose $A + \lambda I$ is factorized for several $\lambda$.

    It is stored on the host, in double precision, and uses only NumPy and SciPy, so it
    can be made in a callback. All factorizations share one order of the rows.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([-2.0, 4.0], [0, 1], [0, 1], symmetric=True)
        >>> shifted = hotk.sparse.Shifted(A.pattern, A.values)
        >>> shifted.definite(1.0) is None
        True
        >>> shifted.definite(3.0).solve(np.array([1.0, 14.0])).round(6).tolist()
        [1.0, 2.0]
    """

    def __init__(self, pattern: Pattern, values: npt.ArrayLike) -> None:
        self._pattern, self._values = pattern, np.array(values, np.float64)

    # Each is made when it is asked for: of millions of entries they take as long as a
    # third of the factors.

    @functools.cached_property
    def matrix(self) -> Any:
        """The matrix, a sparse array of SciPy."""
        return in_csr(self._pattern, self._values)

    @functools.cached_property
    def diagonal(self) -> Float[np.ndarray, " n"]:
        """The diagonal of A."""
        return self.matrix.diagonal()

    @functools.cached_property
    def norm(self) -> float:
        """The largest sum of absolute values in a row: no eigenvalue is larger."""
        rows, n = self._pattern.rows, self._pattern.shape[0]
        return float(np.bincount(rows, abs(self._values), n).max(initial=0.0))

    def factors(self, shift: float) -> Factors | None:
        r"""Factorize $A + \lambda I$ with pivots on its diagonal.

        Args:
            shift: The number $\lambda$.

        Returns:
            Factors, with `solve`, `pivots` and `is_definite`; `None` if a pivot is
            zero.
        """
        try:
            return symmetric_factors(self._pattern, self._values, shift)
        except RuntimeError:
            return None

    def definite(self, shift: float) -> AnyFactors | None:
        r"""Factorize $A + \lambda I$ if it is positive definite.

        Args:
            shift: The number $\lambda$.

        Returns:
            Factors, with `solve` and `pivots`; `None` if the matrix is not positive
            definite.
        """
        return definite_factors(self._pattern, self._values, shift)
