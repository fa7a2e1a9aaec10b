"""`Shifted`: a symmetric matrix plus multiples of the identity, on the host."""

from typing import Any, final

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from ._conversion import in_csr
from ._pattern import Pattern
from ._superlu import Factors, symmetric_factors


@final
class Shifted:
    r"""A symmetric matrix A whose $A + \lambda I$ is factorized for several $\lambda$.

    It is stored on the host, in double precision, and uses only NumPy and SciPy, so it
    can be made in a callback. All factorizations share one order of the rows.

    Attributes:
        diagonal: The diagonal of A.
        norm: The largest sum of absolute values in a row: no eigenvalue is larger.

    Args:
        pattern: The pattern of a symmetric matrix.
        values: Its entries.

    Example:
        >>> A = hotk.SparseMatrix.from_coo([-2.0, 4.0], [0, 1], [0, 1], symmetric=True)
        >>> shifted = hotk.sparse.Shifted(A.pattern, A.values)
        >>> shifted.definite(1.0) is None
        True
        >>> shifted.definite(3.0).solve(np.array([1.0, 14.0])).tolist()
        [1.0, 2.0]
    """

    __slots__ = ("_pattern", "_values", "diagonal", "matrix", "norm")

    def __init__(self, pattern: Pattern, values: npt.ArrayLike) -> None:
        self._pattern, self._values = pattern, np.array(values, np.float64)
        self.matrix: Any = in_csr(pattern, self._values)
        self.diagonal: Float[np.ndarray, " n"] = self.matrix.diagonal()
        sizes = np.bincount(pattern.rows, abs(self._values), pattern.shape[0])
        self.norm = float(sizes.max(initial=0.0))

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

    def definite(self, shift: float) -> Factors | None:
        r"""Factorize $A + \lambda I$ if it is positive definite.

        Args:
            shift: The number $\lambda$.

        Returns:
            Factors, or `None` if the matrix is not positive definite.
        """
        found = self.factors(shift)
        return found if found is not None and found.is_definite else None
