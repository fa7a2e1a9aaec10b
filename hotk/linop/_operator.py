"""`AbstractOperator`: a linear map of a space of trees into itself, and arithmetic."""

import functools
from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Num, PyTree

from hotk._core import (
    RealNumber,
    Scalar,
    Vector,
    number_name,
)

from . import _dense, space
from ._index import Index
from ._lanczos import Eigenpairs, Which, eigh
from ._linear_map import AbstractLinearMap, check_same_space, common_like
from ._shown import shown_in_notebook
from ._solution import Solution
from ._solve import Inertia, cholesky, inertia, solve
from ._vectors import is_flat, space_of
from .space import flattened, unflattened


class AbstractOperator(AbstractLinearMap):
    """A linear operator: a linear map of a space of trees into itself.

    A subclass defines what its vectors look like (`like`), how it acts on one (`mv`),
    and whether it is `symmetric`. Arithmetic makes new operators: `A + B`, `A - B`,
    `-A`, `c * A`, `A / c`, `A @ B`. An operator is a pytree: it goes through `jit`,
    `vmap`, `scan` and `while_loop`. Complex leaves stand for their real and imaginary
    parts, in which the map is real.

    Example:
        >>> class Shift(hotk.linop.AbstractOperator):
        ...     like, symmetric = np.zeros(3, np.float32), False
        ...     mv = lambda self, v: jnp.roll(v, 1)
        >>> (Shift() @ jnp.array([1.0, 2.0, 3.0])).tolist()
        [3.0, 1.0, 2.0]
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave `c * A` to the operator

    # ----- Products

    # `Any`: a vector gives a vector, an operator an operator
    def __matmul__(self, other: PyTree) -> Any:
        """Return the product with a vector or with another operator.

        Args:
            other: A tree with the structure and shapes of the space (entries at leaves
                that are not differentiated are ignored), one flat vector in the order
                of `index`, or an operator.

        Returns:
            The product: a tree, a flat vector or an operator.

        Raises:
            StructureError: If the vector is not one of the space.
        """
        if isinstance(other, AbstractOperator):
            return Product((self, other))
        like = self.like
        if is_flat(other, like):
            return flattened(self.mv(unflattened(jnp.asarray(other), like)))
        return self.mv(self.vector(other))

    def flat(self, v: PyTree) -> Float[Array, " n"]:
        """Return a vector of the space as one flat array, in the order of `index`.

        Args:
            v: A vector of the space. A complex leaf gives its real parts first, then
                its imaginary parts.

        Raises:
            StructureError: If it is not a vector of the space.
        """
        return flattened(self.vector(v, "A.flat(v)"))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors.

        Args:
            vectors: A tree like the space with one leading axis.
            block_size: The number of vectors at once; all if left out.

        Returns:
            The products, with the same leading axis.
        """
        return _dense.many(self, vectors, block_size)

    def quadratic_form(self, v: PyTree) -> Scalar:
        r"""Return $v^T A v$, for complex leaves $\mathrm{Re}(\bar v^T A v)$.

        Args:
            v: A vector of the space.

        Raises:
            StructureError: If it is not a vector of the space.
        """
        v = self.vector(v)
        return space.inner(v, self.mv(v))

    # ----- Dense results

    @property
    def size(self) -> int:
        """The dimension of the space: its real numbers, two for each complex one."""
        return space.dimension(space_of(self))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return (self.size, self.size)

    @property
    def index(self) -> Index:
        """The rows of each leaf in the matrix, by its path: `H.index["w"]`."""
        return Index.of(space_of(self))

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix, in the order of `index`.

        It takes `n` products, several at once.

        Args:
            block_size: The number of columns at once; chosen from the program if left
                out.

        Returns:
            A real array of shape `(n, n)`, in the dtype that the dtypes of all leaves
            promote to. The matrix of a symmetric operator is symmetric to the last bit:
            it is the mean of what was computed and its transpose.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        return _dense.matrix(self, block_size)

    def block(
        self, row: str, column: str, block_size: int | None = None
    ) -> Inexact[Array, "rows columns"]:
        """Return the block of the matrix between two leaves or subtrees.

        Only the columns of the block are computed, or only its rows where these are
        fewer and the operator is symmetric.

        Args:
            row: Path of a leaf or subtree, as `index` prints it.
            column: Path of a leaf or subtree.
            block_size: The number of columns at once; chosen from the program if left
                out.

        Returns:
            A real array.

        Raises:
            KeyError: If there is no such path.
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        return _dense.block(self, row, column, block_size)

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the exact diagonal of the matrix as a vector of the space.

        It takes `n` products, `block_size` at once, or a single one if the program
        shows that the matrix is diagonal. For an estimate from fewer products see
        `hotk.estimate.diagonal`.

        Args:
            block_size: The number of entries at once; chosen from the program if left
                out.

        Returns:
            A tree like the space. A complex leaf has the diagonal entries of the real
            parts in its real part, those of the imaginary parts in its imaginary part.
        """
        return _dense.diagonal(self, block_size)

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)

    # ----- Krylov

    # `Any`: the keywords of the functions, which check them
    def solve(self, b: PyTree, **options: Any) -> Solution:
        """Solve `A x = b` by conjugate gradients or minimal residuals.

        Args:
            b: The right-hand side: a vector of the space.
            **options: The keywords of `hotk.linop.solve`: `batched`, `x0`,
                `preconditioner`, `tol`, `max_steps`.
        """
        return solve(self, b, **options)

    def eigh(self, k: int = 6, which: Which = "LA", **options: Any) -> Eigenpairs:
        """Compute `k` extreme eigenvalues and their vectors by Lanczos iteration.

        Args:
            k: The number of eigenvalues.
            which: `"LA"`, the largest; `"SA"`, the smallest; `"LM"`, those of largest
                magnitude; `"BE"`, from both ends.
            **options: The keywords of `hotk.linop.eigh`: `key`, `tol`, `window`,
                `max_restarts`, `progress`.
        """
        return eigh(self, k, which, **options)

    def cholesky(self, damping: RealNumber = 0.0) -> Float[Array, "n n"]:
        """Compute the Cholesky factor of the matrix; see `hotk.linop.cholesky`.

        Args:
            damping: A number that is added to the diagonal.
        """
        return cholesky(self, damping)

    def inertia(self) -> Inertia:
        """Count the eigenvalues of each sign; see `hotk.linop.inertia`."""
        return inertia(self)

    # ----- Arithmetic

    def __add__(self, other: object) -> "AbstractOperator":
        """Return the sum of two operators."""
        if not isinstance(other, AbstractOperator):
            return NotImplemented
        return Sum((self, other))

    def __sub__(self, other: object) -> "AbstractOperator":
        """Return the difference of two operators."""
        if not isinstance(other, AbstractOperator):
            return NotImplemented
        return Sum((self, -other))

    def __neg__(self) -> "AbstractOperator":
        """Return the negative of the operator."""
        return Scaled(self, jnp.asarray(-1.0))

    def __mul__(self, factor: PyTree) -> "AbstractOperator":
        """Return the operator times a real number: of Python, NumPy or JAX."""
        if isinstance(factor, AbstractOperator) or np.ndim(factor) or factor is None:
            return NotImplemented
        if np.iscomplexobj(factor):
            raise TypeError("an operator is multiplied by real numbers only")
        exact = isinstance(factor, (bool, int))  # one program for 2 and for 2.5
        return Scaled(self, jnp.asarray(float(factor) if exact else factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: PyTree) -> "AbstractOperator":
        """Return the operator divided by a real number."""
        if isinstance(divisor, AbstractOperator) or np.ndim(divisor) or divisor is None:
            return NotImplemented
        # a number of NumPy has a dtype, which the quotient would force on the vectors
        if isinstance(divisor, (bool, int, np.generic, np.ndarray)):
            divisor = float(divisor)
        return self * (1 / jnp.asarray(divisor))


@final
class Sum(AbstractOperator):
    """The sum of operators.

    Attributes:
        terms: The operators.
    """

    terms: tuple[AbstractOperator, ...]

    def __check_init__(self) -> None:
        """Refuse terms of different spaces."""
        check_same_space(self.terms, "+")

    @property
    def like(self) -> Vector:
        """A vector of the space: of the first term that is not the identity."""
        return common_like(self.terms)

    @property
    def symmetric(self) -> bool:
        """Whether all terms are symmetric."""
        return all(term.symmetric for term in self.terms)

    def __repr__(self) -> str:
        """Show the terms."""
        return " + ".join(map(repr, self.terms))

    @property
    def on_host(self) -> bool:
        """Whether a product with any term runs on the host."""
        return any(term.on_host for term in self.terms)

    def mv(self, v: Vector) -> Vector:
        """Return the sum of the products."""
        return functools.reduce(space.plus, (term.mv(v) for term in self.terms))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the sum of the products with several vectors."""
        products = (term.many(vectors, block_size) for term in self.terms)
        return functools.reduce(space.plus, products)


@final
class Product(AbstractOperator):
    """The product of operators: the last one acts first.

    Attributes:
        factors: The operators.
    """

    factors: tuple[AbstractOperator, ...]

    def __check_init__(self) -> None:
        """Refuse factors of different spaces."""
        check_same_space(self.factors, "@")

    @property
    def like(self) -> Vector:
        """A vector of the space: of the first factor that is not the identity."""
        return common_like(self.factors)

    @property
    def symmetric(self) -> bool:
        """Whether it is known to be symmetric: one factor, besides identities, is."""
        others = [f for f in self.factors if f.like is not None]
        return len(others) <= 1 and all(f.symmetric for f in others)

    def __repr__(self) -> str:
        """Show the factors."""
        return " @ ".join(f"({factor!r})" for factor in self.factors)

    @property
    def on_host(self) -> bool:
        """Whether a product with any factor runs on the host."""
        return any(factor.on_host for factor in self.factors)

    def mv(self, v: Vector) -> Vector:
        """Apply one factor after the other, the last one first."""
        for factor in reversed(self.factors):
            v = factor.mv(v)
        return v

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Apply one factor after the other to several vectors."""
        for factor in reversed(self.factors):
            vectors = factor.many(vectors, block_size)
        return vectors


@final
class Scaled(AbstractOperator):
    """An operator times a real number.

    Attributes:
        inner: The operator.
        factor: The number: a leaf, so that it may change freely.
    """

    inner: AbstractOperator
    factor: Num[Array, ""]

    @property
    def like(self) -> Vector:
        """A vector of the space: of the operator."""
        return self.inner.like

    @property
    def symmetric(self) -> bool:
        """Whether the operator is symmetric."""
        return self.inner.symmetric

    def __repr__(self) -> str:
        """Show the number and the operator."""
        return f"{number_name(self.factor)} * ({self.inner!r})"

    @property
    def on_host(self) -> bool:
        """Whether a product with the operator runs on the host."""
        return self.inner.on_host

    def mv(self, v: Vector) -> Vector:
        """Return the multiple of the product."""
        return space.times(self.factor, self.inner.mv(v))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the multiples of the products with several vectors."""
        return space.times(self.factor, self.inner.many(vectors, block_size))
