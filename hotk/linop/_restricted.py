"""Operators on some entries of the vectors of their space."""

import jax
from jaxtyping import PyTree

from hotk._core import Vector

from . import space
from ._entries import VectorEntries
from ._linear_map import AbstractLinearMap


class AbstractRestricted(AbstractLinearMap):
    """A linear map on some entries of the vectors of its space.

    Attributes:
        inner: The operator on the whole space.
        entries: Which entries.
    """

    inner: AbstractLinearMap
    entries: VectorEntries

    @property
    def like(self) -> Vector:
        """A vector of the space: these entries of a vector of the whole space."""
        return self.entries.take(self.inner.like)

    @property
    def symmetric(self) -> bool:
        """Whether the operator on the whole space is symmetric."""
        return self.inner.symmetric

    @property
    def positive_semidefinite(self) -> bool:
        """Whether the operator on the whole space is known to be."""
        return self.inner.positive_semidefinite

    def __repr__(self) -> str:
        """Show the operator and the number of entries."""
        return f"Restricted({self.inner!r}, n={space.dimension(self.like)})"

    @property
    def on_host(self) -> bool:
        """Whether a product with the operator runs on the host."""
        return self.inner.on_host

    def take(self, v: PyTree) -> Vector:
        """Return these entries of a vector of the whole space.

        Args:
            v: A vector of the whole space, such as the gradient.

        Returns:
            A vector of this space.

        Raises:
            StructureError: If it is not a vector of the whole space.
        """
        return self.entries.take(self.inner.vector(v, "R.take(v)"))

    def embed(self, v: PyTree) -> Vector:
        """Return a vector of the whole space: these entries, and zeros elsewhere.

        Args:
            v: A vector of this space.

        Returns:
            A vector of the whole space.

        Raises:
            StructureError: If it is not a vector of this space.
        """
        return self.entries.put(self.vector(v, "R.embed(v)"), self.inner.like)

    def mv(self, v: Vector) -> Vector:
        """Return these entries of the product, all other entries being zero."""
        return self.entries.take(self.entries.within(self.inner)(v))

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""
        put = lambda v: self.entries.put(v, self.inner.like)
        products = self.inner.many(jax.vmap(put)(vectors), block_size)
        return jax.vmap(self.entries.take)(products)
