"""`Eigenpairs`: eigenvalues with their vectors, as they were found."""

from typing import ClassVar, Generic, final

from jaxtyping import Array, Bool, Float, Int

from hotk._core import AbstractReport, V

from ._solution import Method


@final
class Eigenpairs(AbstractReport, Generic[V]):
    """Some eigenvalues of a symmetric operator, with vectors and residuals.

    It is a pytree of arrays, and prints as a table.

    Attributes:
        values: The eigenvalues, in ascending order: the Rayleigh quotients of the
            vectors.
        vectors: The eigenvectors, of norm 1: a tree like the space with one leading
            axis.
        residuals: The norms of `A v - lambda v`, computed anew at the end. Each
            interval `lambda +- residual` holds an eigenvalue.
        converged: Whether each residual is below the tolerance.
        complete: Whether a search from a random direction, orthogonal to these vectors,
            found no eigenvalue that belongs among them: then a copy of a multiple one
            is hardly ever missing.
        products: The number of products with the operator, residuals included.
        restarts: The number of restarts.
        method: How they were computed, a member of `hotk.linop.Method`: by Lanczos
            iteration, or from the matrix.
    """

    values: Float[Array, " k"]
    vectors: V
    residuals: Float[Array, " k"]
    converged: Bool[Array, " k"]
    complete: Bool[Array, ""]
    products: Int[Array, ""]
    restarts: Int[Array, ""]
    method: Method

    _header: ClassVar[tuple[str, ...]] = ("eigenvalue", "residual", "converged")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{float(v):.6g}", f"{float(r):.2g}", "yes" if bool(c) else "no")
            for v, r, c in zip(self.values, self.residuals, self.converged, strict=True)
        ]

    def _lines(self) -> list[str]:
        search = "complete" if bool(self.complete) else "copies may be missing"
        counts = f"{int(self.products)} products, {int(self.restarts)} restarts"
        return [f"{counts}, {search}", f"by {self.method}"]
