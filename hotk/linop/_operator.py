"""`AbstractOperator`: a linear map of a space of trees into itself, and arithmetic."""

import abc
import functools
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from hotk._core import StructureError, describe_tree, message, number_name

from . import _dense, space
from ._index import Index
from ._lanczos import Eigenpairs, eigh
from ._shown import shown_in_notebook
from ._solution import Solution
from ._solve import Inertia, cholesky, inertia, solve
from ._vectors import as_vector, is_flat, space_of
from .space import flattened, unflattened


class AbstractOperator(eqx.Module):
    """A linear map of a space of trees into itself.

    A subclass says what its vectors look like (`like`) and how it acts on one (`mv`).
    Arithmetic makes new operators: `A + B`, `A - B`, `-A`, `c * A`, `A / c`, `A @ B`.
    An operator is a pytree: it goes through `jit`, `vmap`, `scan` and `while_loop`.
    Complex leaves stand for their real and imaginary parts, in which the map is real.
    """

    __array_ufunc__ = None  # so that NumPy's numbers leave `c * A` to the operator

    # Whether a product runs on the host, as one over batches of data does.
    on_host = False

    @property
    @abc.abstractmethod
    def like(self) -> Any:
        """A vector of the space, whose values do not matter; `None` if any will do."""

    @property
    @abc.abstractmethod
    def symmetric(self) -> bool:
        """Whether the map is symmetric."""

    @abc.abstractmethod
    def mv(self, v: Any) -> Any:
        """Return the product with one vector."""

    # ----- Products

    def __matmul__(self, other: Any) -> Any:
        """Return the product with a vector or with another operator.

        Args:
            other: A tree with the structure and shapes of the space (entries at leaves
                that are not differentiated are ignored), one flat vector, or an
                operator.

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

    def vector(self, v: Any, call: str = "A @ v") -> Any:
        """Return a vector of the space: NumPy's leaves are cast, others are dropped.

        One flat vector, in the order of `index`, becomes a tree; `flat` turns back.

        Args:
            v: What is given for a vector.
            call: What it is given to, for the message.

        Raises:
            StructureError: If it is not one.
        """
        if self.like is None:
            return jax.tree.map(jnp.asarray, v)
        if is_flat(v, self.like):
            return unflattened(jnp.asarray(v), self.like)
        return as_vector(call, v, self.like)

    def flat(self, v: Any) -> Inexact[Array, " n"]:
        """Return a vector of the space as one array, in the order of `index`."""
        return flattened(self.vector(v, "A.flat(v)"))

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
        """Return the products with several vectors, which share what they can.

        Args:
            vectors: A tree like the space with one leading axis.
            block_size: How many at once; all if left out.

        Returns:
            The products, with the same leading axis.
        """
        return _dense.many(self, vectors, block_size)

    def quadratic_form(self, v: Any) -> Array:
        r"""Return $v^T A v$, for complex leaves $\mathrm{Re}(\bar v^T A v)$."""
        like = self.like
        flat = is_flat(v, like)
        v = unflattened(jnp.asarray(v), like) if flat else self.vector(v)
        return space.inner(v, self.mv(v))

    # ----- Dense things

    @property
    def size(self) -> int:
        """The dimension of the space: real numbers, two for each complex one."""
        return space.dimension(space_of(self))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return (self.size, self.size)

    @property
    def index(self) -> Index:
        """Where each leaf stands in the matrix: from its path to a range."""
        return Index.of(space_of(self))

    def matrix(self, block_size: int | None = None) -> Inexact[Array, "n n"]:
        """Return the matrix, in the order of `index`.

        Args:
            block_size: How many columns at once; chosen from the program if left out.

        Returns:
            A real array of shape `(n, n)`, with the dtype that those of all leaves
            promote to. That of a symmetric operator is symmetric to the last bit: the
            mean of what was computed and its transpose.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        return _dense.matrix(self, block_size)

    def block(
        self, row: str, column: str, block_size: int | None = None
    ) -> Inexact[Array, "rows columns"]:
        """Return the part of the matrix between two leaves or subtrees.

        Only its columns are computed, or its rows where they are fewer and the operator
        is symmetric.

        Args:
            row: Path of a leaf or subtree, as `index` prints it.
            column: Path of a leaf or subtree.
            block_size: How many columns at once; chosen from the program if left out.

        Returns:
            A real array.

        Raises:
            KeyError: If there is no such path.
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        return _dense.block(self, row, column, block_size)

    def diagonal(self, block_size: int | None = None) -> Any:
        """Return the exact diagonal of the matrix as a vector of the space.

        It takes one product for each number, `block_size` at once, or a single one
        where the program proves that no entry depends on another one's direction. A
        complex leaf holds the entry of the real part in its real part, that of the
        imaginary part in its imaginary part.

        Args:
            block_size: How many entries at once; chosen from the program if left out.
        """
        return _dense.diagonal(self, block_size)

    def _repr_html_(self) -> str:
        return shown_in_notebook(self)

    # ----- Krylov

    def solve(self, b: Any, **options: Any) -> Solution:
        """Solve `A x = b`; see `hotk.linop.solve`."""
        return solve(self, b, **options)

    def eigh(self, k: int = 6, which: str = "LA", **options: Any) -> Eigenpairs:
        """Compute `k` extreme eigenvalues with vectors; see `hotk.linop.eigh`."""
        return eigh(self, k, which, **options)

    def cholesky(self, damping: float = 0.0) -> Float[Array, "n n"]:
        """Factorize the matrix, or refuse; see `hotk.linop.cholesky`."""
        return cholesky(self, damping)

    def inertia(self) -> Inertia:
        """Count positive, zero and negative eigenvalues, by the dense matrix."""
        return inertia(self)

    # ----- Arithmetic

    def __add__(self, other: Any) -> "AbstractOperator":
        """Return the sum of two operators."""
        if not isinstance(other, AbstractOperator):
            return NotImplemented
        return Sum((self, other))

    def __sub__(self, other: Any) -> "AbstractOperator":
        """Return the difference of two operators."""
        if not isinstance(other, AbstractOperator):
            return NotImplemented
        return Sum((self, -other))

    def __neg__(self) -> "AbstractOperator":
        """Return the negative of the operator."""
        return Scaled(self, jnp.asarray(-1.0))

    def __mul__(self, factor: Any) -> "AbstractOperator":
        """Return the operator times a real number, which may be an array of no axes."""
        if isinstance(factor, AbstractOperator) or np.ndim(factor) or factor is None:
            return NotImplemented
        if np.iscomplexobj(factor):
            raise TypeError("an operator is multiplied by real numbers only")
        exact = isinstance(factor, (bool, int))  # one program for 2 and for 2.5
        return Scaled(self, jnp.asarray(float(factor) if exact else factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> "AbstractOperator":
        """Return the operator divided by a real number."""
        if isinstance(divisor, AbstractOperator) or np.ndim(divisor) or divisor is None:
            return NotImplemented
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
    def like(self) -> Any:
        """A vector of the first term that knows its space."""
        return _first_like(self.terms)

    @property
    def symmetric(self) -> bool:
        """Whether all terms are."""
        return all(term.symmetric for term in self.terms)

    def __repr__(self) -> str:
        """Show the terms."""
        return " + ".join(map(repr, self.terms))

    @property
    def on_host(self) -> bool:
        """Whether a product with any term runs on the host."""
        return any(term.on_host for term in self.terms)

    def mv(self, v: Any) -> Any:
        """Return the sum of the products."""
        return functools.reduce(space.plus, (term.mv(v) for term in self.terms))

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
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
    def like(self) -> Any:
        """A vector of the first factor that knows its space."""
        return _first_like(self.factors)

    @property
    def symmetric(self) -> bool:
        """It is not known to be, unless there is but one factor besides identities."""
        others = [f for f in self.factors if f.like is not None]
        return len(others) <= 1 and all(f.symmetric for f in others)

    def __repr__(self) -> str:
        """Show the factors."""
        return " @ ".join(f"({factor!r})" for factor in self.factors)

    @property
    def on_host(self) -> bool:
        """Whether a product with any factor runs on the host."""
        return any(factor.on_host for factor in self.factors)

    def mv(self, v: Any) -> Any:
        """Apply one factor after the other."""
        for factor in reversed(self.factors):
            v = factor.mv(v)
        return v

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
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
    factor: Any

    @property
    def like(self) -> Any:
        """A vector of the operator."""
        return self.inner.like

    @property
    def symmetric(self) -> bool:
        """Whether the operator is."""
        return self.inner.symmetric

    def __repr__(self) -> str:
        """Show the number and the operator."""
        return f"{number_name(self.factor)} * ({self.inner!r})"

    @property
    def on_host(self) -> bool:
        """Whether a product with the operator runs on the host."""
        return self.inner.on_host

    def mv(self, v: Any) -> Any:
        """Return the multiple of the product."""
        return space.times(self.factor, self.inner.mv(v))

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
        """Return the multiples of the products with several vectors."""
        return space.times(self.factor, self.inner.many(vectors, block_size))


def _first_like(operators: Any) -> Any:
    return next((o.like for o in operators if o.like is not None), None)


def check_same_space(operators: Any, symbol: str) -> None:
    """Refuse operators of different spaces."""
    found = [o.like for o in operators if o.like is not None]
    for other in found[1:]:
        same = jax.tree.structure(found[0]) == jax.tree.structure(other) and all(
            a.shape == b.shape and a.dtype == b.dtype
            for a, b in zip(
                jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True
            )
        )
        if not same:
            raise StructureError(
                message(
                    f"A {symbol} B",
                    "the operators act on different spaces.",
                    expected=describe_tree(found[0]),
                    got=describe_tree(other),
                    fix="Make both at points of the same structure, shapes and dtypes.",
                )
            )
