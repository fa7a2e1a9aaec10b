"""`AbstractOperator`: a linear map of a space of trees into itself, and arithmetic."""

import functools
import operator
from typing import Any, TypeVar, final, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Num, PyTree

from hotk._core import RealNumber, V, Vector, names_ours, number_name
from hotk._dense import from_flat, is_flat
from hotk.sparse import SparseMatrix

from . import space
from ._entries import Part, VectorEntries
from ._inverse import AbstractInverse, InverseMethod, inverse_fields
from ._linear_map import (
    AbstractLinearMap,
    as_factor,
    check_same_space,
    common_like,
    refuse_number,
)
from ._numerics import AbstractNumerics
from ._restricted import AbstractRestricted
from ._vectors import is_known_positive, space_of
from .space import flattened


X = TypeVar("X")


class AbstractOperator(AbstractNumerics[V]):
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

    @overload
    def __matmul__(self, other: "AbstractOperator[V]") -> "AbstractOperator[V]": ...
    @overload
    def __matmul__(self, other: ArrayLike) -> Array: ...
    @overload
    def __matmul__(self, other: X) -> X: ...

    def __matmul__(self, other: PyTree) -> PyTree:
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
            return Product(*product_fields(Product, self, other))
        like = self.like
        if is_flat(other, like):
            return flattened(self.mv(from_flat("A @ v", other, like)))
        return self.mv(self.vector(other))

    def restrict(self, part: Part) -> "AbstractOperator":
        r"""Return the operator on some entries, the others held at zero.

        With the matrix $P$ that takes these entries of a vector, it is $P A P^T$: the
        rows and columns of the matrix that belong to them.

        Args:
            part: The path of a leaf or subtree, as `index` prints it; a leaf filter, as
                `where=` takes it; or a tree of boolean arrays with the shapes of the
                leaves, or of their first axes. One boolean array stands for all entries
                in the order of `index`.

        Returns:
            An operator. A vector of its space has `leaf[mask]` in the place of a leaf,
            and `None` where nothing is selected.

        Raises:
            KeyError: If there is no such path.
            StructureError: If a mask does not fit, or nothing is selected.

        Example:
            >>> H = hotk.HessianOperator(lambda x: jnp.sum(x) ** 2, jnp.ones(3))
            >>> R = H.restrict(np.array([True, False, True]))
            >>> R.matrix().tolist()
            [[2.0, 2.0], [2.0, 2.0]]
            >>> R.embed(jnp.array([1.0, 5.0])).tolist()
            [1.0, 0.0, 5.0]
        """
        return Restricted(
            self, VectorEntries.of("A.restrict(part)", space_of(self), part)
        )

    @names_ours
    def inverse(
        self,
        damping: RealNumber = 0.0,
        method: InverseMethod | None = None,
        *,
        tol: RealNumber | None = None,
        max_steps: int | None = None,
    ) -> "AbstractOperator":
        r"""Return the inverse $(A + \lambda I)^{-1}$ of a symmetric operator.

        Inside of a transformation there is no error if it has none: products are NaN.

        Args:
            damping: The number $\lambda$.
            method: `"cholesky"`, by a factor of the matrix, which must be positive
                definite; `"solve"`, by an iteration for each product, which raises when
                it runs if it does not converge. If left out the closed form of
                `Diagonal`, `LowRank` and `LeafBlocks`, else a factor up to n = 2048.
            tol: The relative tolerance of an iteration; about 1e-8 in double precision.
            max_steps: The most products of an iteration; `10 n` if left out.

        Raises:
            NotPositiveDefiniteError: If there is no Cholesky factor.
            TypeError: If the operator is not known to be symmetric.
            ValueError: If there is no such method.

        Example:
            >>> H = hotk.HessianOperator(lambda x: jnp.sum(x) + x @ x, jnp.ones(2))
            >>> print((H.inverse() @ jnp.array([3.0, 4.0])).round(2))
            [1.5 2. ]
        """
        found = self.inverse_or_none(damping) if method is None else None
        if isinstance(found, AbstractOperator):
            return found
        return Inverse(*inverse_fields(self, damping, method, tol, max_steps))

    # ----- Arithmetic

    def __add__(self, other: object) -> "AbstractOperator[V]":
        """Return the sum of two operators."""
        if not isinstance(other, AbstractOperator):
            return refuse_number(other, "+")
        return Sum((self, other))

    def __radd__(self, other: object) -> "AbstractOperator[V]":
        """Return the operator itself for `0 + A`, with which Python's `sum` begins."""
        return self if isinstance(other, int) and other == 0 else self + other

    def __sub__(self, other: object) -> "AbstractOperator[V]":
        """Return the difference of two operators."""
        if not isinstance(other, AbstractOperator):
            return refuse_number(other, "-")
        return Sum((self, -other))

    def __neg__(self) -> "AbstractOperator[V]":
        """Return the negative of the operator."""
        return Scaled(self, jnp.asarray(-1.0))

    def __mul__(self, factor: PyTree) -> "AbstractOperator[V]":
        """Return the operator times a real number: of Python, NumPy or JAX."""
        known = as_factor(factor)
        return NotImplemented if known is None else Scaled(self, known)

    __rmul__ = __mul__

    def __truediv__(self, divisor: PyTree) -> "AbstractOperator[V]":
        """Return the operator divided by a real number."""
        if as_factor(divisor) is None:
            return NotImplemented
        # known under `jit`; the dtype of one of NumPy would be forced on the vectors
        if isinstance(divisor, (int, float, np.generic, np.ndarray)):
            return self * (1 / float(divisor))
        return self * (1 / jnp.asarray(divisor))


@final
class Inverse(AbstractInverse, AbstractOperator):
    """The inverse of a symmetric operator; see `AbstractOperator.inverse`."""


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
    def positive_semidefinite(self) -> bool:
        """Whether all terms are known to be positive semidefinite."""
        return all(term.positive_semidefinite for term in self.terms)

    @property
    def on_host(self) -> bool:
        """Whether a product with any term runs on the host."""
        return any(term.on_host for term in self.terms)

    def sparse_or_none(self, like: Vector) -> SparseMatrix | None:
        """Return the sum of the matrices if all are sparse."""
        found = [term.sparse_or_none(like) for term in self.terms]
        matrices = [matrix for matrix in found if matrix is not None]
        every = len(matrices) == len(found)
        return functools.reduce(operator.add, matrices) if every else None

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
        congruent: Whether it is $L^T A L$ with a symmetric operator A, or $L^T L$; it
            is found where the product is made, as later the factors may be traced.
    """

    factors: tuple[AbstractOperator, ...]
    congruent: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        """Refuse factors of different spaces."""
        check_same_space(self.factors, "@")

    @property
    def like(self) -> Vector:
        """A vector of the space: of the first factor that is not the identity."""
        return common_like(self.factors)

    @property
    def symmetric(self) -> bool:
        """Whether it is known to be symmetric: a congruence, as `D @ A @ D`."""
        return self.congruent

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is a congruence of an operator that is known to be."""
        middle = middle_of(self.factors)
        return self.congruent and (middle is None or middle.positive_semidefinite)

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

    @property
    def positive_semidefinite(self) -> bool:
        """Whether the operator is known to be, and the number is not negative."""
        return self.inner.positive_semidefinite and is_known_positive(self.factor)

    def __repr__(self) -> str:
        """Show the number and the operator."""
        return f"{number_name(self.factor)} * ({self.inner!r})"

    @property
    def on_host(self) -> bool:
        """Whether a product with the operator runs on the host."""
        return self.inner.on_host

    def sparse_or_none(self, like: Vector) -> SparseMatrix | None:
        """Return the multiple of the matrix if it is sparse."""
        matrix = self.inner.sparse_or_none(like)
        return None if matrix is None else matrix * self.factor.astype(matrix.dtype)

    def mv(self, v: Vector) -> Vector:
        """Return the multiple of the product."""
        return space.times(self.factor, self.inner.mv(v))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the multiples of the products with several vectors."""
        return space.times(self.factor, self.inner.many(vectors, block_size))


@final
class Restricted(AbstractRestricted, AbstractOperator):
    """An operator on some entries of the vectors of its space; see `restrict`."""


M = TypeVar("M", bound=AbstractLinearMap)


def product_fields(product: type[Any], a: M, b: M) -> tuple[tuple[M, ...], bool]:
    """Return the factors of a product, side by side, and whether it is a congruence.

    It reads the same from both ends, each factor being the transpose of its mirror
    image: the one in the middle, if there is one, has to be symmetric.

    Args:
        product: The class of products.
        a: An operator, or a product of them.
        b: Another one.
    """
    each: Any = [c.factors if isinstance(c, product) else (c,) for c in (a, b)]
    factors = (*each[0], *each[1])
    others = _without_identities(factors)
    half = others[: (len(others) + 1) // 2]
    pairs = zip(half, reversed(others), strict=False)
    return factors, all(left.is_transpose_of(right) for left, right in pairs)


def middle_of(factors: tuple[M, ...]) -> M | None:
    """Return the factor in the middle of a product, `None` if their number is even."""
    others = _without_identities(factors)
    return others[len(others) // 2] if len(others) % 2 else None


def _without_identities(factors: tuple[M, ...]) -> tuple[M, ...]:
    return tuple(f for f in factors if f.like is not None)
