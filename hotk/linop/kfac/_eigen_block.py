"""A block by its eigenvalues and vectors."""

from typing import final

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._layout import AbstractBlock


@final
class EigenBlock(AbstractBlock):
    r"""The block $Q \Lambda Q^T$, where Q may be a Kronecker product.

    Attributes:
        layout: The entries.
        origin: Where it comes from.
        left: The vectors of the factor of the inputs, or of a dense block; `None` for a
            diagonal one.
        right: The vectors of the factor of the outputs; `None` if there is none, or if
            it is diagonal.
        values: The eigenvalues, as many as entries.
    """

    left: Float[Array, "*heads i i"] | None
    right: Float[Array, "*heads o o"] | None
    values: Float[Array, "..."]

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return f"eigenvalues {self.values.size}"

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype in which it is multiplied."""
        return self.values.dtype

    def mv(self, x: Array) -> Array:
        """Return the product with its entries."""
        w = self.values
        if self.layout.sizes is None:
            x, w = x[..., None], w[..., None]
        x = x if self.right is None else x @ self.right
        x = x if self.left is None else jnp.swapaxes(self.left, -1, -2) @ x
        x = w * x
        x = x if self.left is None else self.left @ x
        x = x if self.right is None else x @ jnp.swapaxes(self.right, -1, -2)
        return x if self.layout.sizes is not None else x[..., 0]

    def diagonal_entries(self) -> Array:
        """Return the diagonal, by the squares of the vectors."""
        flat, d = self.layout.sizes is None, self.values
        d = d[..., None] if flat else d
        d = d if self.left is None else self.left**2 @ d
        d = d if self.right is None else d @ jnp.swapaxes(self.right, -1, -2) ** 2
        return d[..., 0] if flat else d

    def inverse(self, damping: Float[Array, ""]) -> "EigenBlock":
        """Return the inverse of the block plus a multiple of the identity."""
        return self.with_values(1 / (self.values + damping.astype(self.dtype)))

    def times(self, number: Float[Array, ""]) -> "EigenBlock":
        """Return a multiple of the block."""
        return self.with_values(self.values * number.astype(self.dtype))

    def eigh(self) -> "EigenBlock":
        """Return itself."""
        return self

    def with_values(self, values: Array) -> "EigenBlock":
        """Return the block with other eigenvalues."""
        return EigenBlock(self.layout, self.origin, self.left, self.right, values)
