"""`Identity` and `Diagonal`."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import RealNumber, Tracer, Vector, describe_tree
from hotk.sparse import SparseMatrix, diagonal

from ._operator import AbstractOperator
from ._symmetric import AbstractSymmetricOperator
from ._vectors import is_known_positive


@final
class Identity(AbstractSymmetricOperator):
    """The identity operator, on the space of what it is added to or multiplied with.

    Alone it has no size and no matrix. A multiple of it is damping: `H + 0.1 *
    Identity()`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**3), jnp.ones(2))
        >>> (H + 0.5 * hotk.Identity()).matrix().tolist()
        [[6.5, 0.0], [0.0, 6.5]]
    """

    @property
    def like(self) -> None:
        """No vector: the identity acts on any space."""
        return

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True

    def sparse_or_none(self, like: Vector) -> SparseMatrix:
        """Return the identity matrix."""
        return diagonal(jax.tree.map(jnp.ones_like, like))

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector: the vector itself."""
        return v


@final
class Symmetric(AbstractSymmetricOperator):
    """An operator that its user knows to be symmetric, such as a product that commutes.

    Nothing is checked: solvers and factorizations then read one half of the matrix, the
    mean of it and its transpose.

    Attributes:
        inner: The operator.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x @ x, jnp.ones(2))
        >>> A = H @ (H + hotk.Identity())
        >>> A.symmetric, hotk.linop.Symmetric(A).eigh(1).values.tolist()
        (False, [6.0])
    """

    inner: AbstractOperator

    @property
    def like(self) -> Vector:
        """A vector of the space: of the operator."""
        return self.inner.like

    def __repr__(self) -> str:
        """Show the operator."""
        return f"Symmetric({self.inner!r})"

    @property
    def on_host(self) -> bool:
        """Whether a product runs on the host."""
        return self.inner.on_host

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        return self.inner.mv(v)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""
        return self.inner.many(vectors, block_size)


def _arrays(tree: PyTree) -> Vector:
    return jax.tree.map(jnp.asarray, tree)


@final
class Diagonal(AbstractSymmetricOperator):
    """A diagonal operator: the entrywise product with a vector.

    Attributes:
        entries: The diagonal: a tree of real or complex arrays. The real part of a
            complex entry multiplies the real part of a vector's entry, its imaginary
            part the imaginary part.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x @ x, jnp.ones(2))
        >>> (H + hotk.Diagonal(jnp.array([1.0, 3.0]))).matrix().tolist()
        [[3.0, 0.0], [0.0, 5.0]]
    """

    entries: Vector = eqx.field(converter=_arrays)

    @property
    def like(self) -> Vector:
        """A vector of the space: the diagonal itself."""
        return self.entries

    def __repr__(self) -> str:
        """Show shapes and size."""
        return f"Diagonal({describe_tree(self.entries, 4)}, n={self.size})"

    @property
    def positive_semidefinite(self) -> bool:
        """Whether no entry is negative; not known of entries that are traced."""
        return all(map(is_known_positive, jax.tree.leaves(self.entries)))

    def sparse_or_none(self, like: Vector) -> SparseMatrix:
        """Return the diagonal matrix."""
        del like
        return diagonal(self.entries)

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector, entry by entry."""
        return jax.tree.map(_entrywise, self.entries, v)

    def inverse_or_none(self, damping: RealNumber) -> "Diagonal | None":
        r"""Return $1 / (d + \lambda)$; `None` if it is known to be singular.

        Args:
            damping: The number $\lambda$.
        """
        inverse = jax.tree.map(lambda d: _inverse(d, damping), self.entries)
        known = [d for d in jax.tree.leaves(inverse) if not isinstance(d, Tracer)]
        if not all(np.isfinite(d).all() for d in known):
            return None
        return Diagonal(inverse)


def _inverse(d: Inexact[Array, "..."], damping: RealNumber) -> Array:
    if not jnp.iscomplexobj(d):
        return 1 / (d + jnp.asarray(damping, d.dtype))
    return jax.lax.complex(_inverse(d.real, damping), _inverse(d.imag, damping))


def _entrywise(a: Inexact[Array, "..."], b: Inexact[Array, "..."]) -> Array:
    if not jnp.iscomplexobj(a):
        return a * b
    return jax.lax.complex(a.real * b.real, a.imag * b.imag)
