"""Kronecker products, dense and diagonal matrices as blocks of a curvature matrix."""

import math
from typing import final

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._factor import Factor, inverse, shifted
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


@final
class KroneckerBlock(AbstractBlock):
    r"""A Kronecker product $A \otimes G$ for the matrices of one or more operations.

    Its entries are matrices with inputs as rows and outputs as columns; a bias is one
    more row. The product with such a matrix X is $A X G$.

    Attributes:
        layout: The entries of the weights, and those of a bias.
        origin: Where it comes from.
        A: The second moment of the inputs, one for each step of a scan and each group.
        G: The second moment of the gradients by the outputs.
    """

    A: Factor
    G: Factor

    @property
    def kind(self) -> str:
        """What it is, in words."""
        count = math.prod(self.A.values.shape[: -1 if self.A.diagonal else -2])
        inputs, outputs = (
            f"diagonal {f.size}" if f.diagonal else str(f.size)
            for f in (self.A, self.G)
        )
        several = f"{count} of " if count > 1 else ""
        return f"{several}Kronecker {inputs} x {outputs}"

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype in which it is multiplied."""
        return self.A.values.dtype

    def mv(self, x: Array) -> Array:
        """Return `A x G`."""
        return self.G.columns(self.A.rows(x))

    def diagonal_entries(self) -> Array:
        """Return the outer product of the diagonals of the factors."""
        a, g = self.A.diagonal_values, self.G.diagonal_values
        return a[..., :, None] * g[..., None, :]

    def inverse(self, damping: Float[Array, ""]) -> "KroneckerBlock":
        r"""Return the product of the inverses of both factors, damped.

        It is $(A + \pi \sqrt\lambda I)^{-1} \otimes (G + \sqrt\lambda / \pi I)^{-1}$
        with $\pi$ the root of the ratio of the mean eigenvalues of A and G.
        """
        tiny = jnp.finfo(self.A.values.dtype).tiny
        ratio = jnp.maximum(self.A.mean, tiny) / jnp.maximum(self.G.mean, tiny)
        known = (self.A.mean > 0) & (self.G.mean > 0)
        pi = jnp.sqrt(jnp.where(known, ratio, 1))
        root = jnp.sqrt(damping.astype(pi.dtype))
        A = self.A.shifted_inverse(root * pi)
        G = self.G.shifted_inverse(root / pi)
        return KroneckerBlock(self.layout, self.origin, A, G)

    def times(self, number: Float[Array, ""]) -> "KroneckerBlock":
        """Return a multiple of the block."""
        G = self.G.times(number)
        return KroneckerBlock(self.layout, self.origin, self.A, G)

    def eigh(self) -> "EigenBlock":
        """Return the block by its eigenvalues, the products of those of the factors."""
        (a, left), (g, right) = self.A.eigh(), self.G.eigh()
        values = a[..., :, None] * g[..., None, :]
        return EigenBlock(self.layout, self.origin, left, right, values)


@final
class DenseBlock(AbstractBlock):
    """A matrix for each step of a scan.

    Attributes:
        layout: The entries.
        origin: Where it comes from.
        matrix: The matrices.
    """

    matrix: Float[Array, "*heads m m"]

    @property
    def kind(self) -> str:
        """What it is, in words."""
        count, several = math.prod(self.matrix.shape[:-2]), ""
        several = f"{count} of " if count > 1 else ""
        return f"{several}dense {self.matrix.shape[-1]}"

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype in which it is multiplied."""
        return self.matrix.dtype

    def mv(self, x: Array) -> Array:
        """Return the product with its entries."""
        return (self.matrix @ x[..., None])[..., 0]

    def diagonal_entries(self) -> Array:
        """Return the diagonal."""
        return jnp.diagonal(self.matrix, axis1=-2, axis2=-1)

    def inverse(self, damping: Float[Array, ""]) -> "DenseBlock":
        """Return the inverse of the block plus a multiple of the identity."""
        matrix = inverse(shifted(self.matrix, damping))
        return DenseBlock(self.layout, self.origin, matrix)

    def times(self, number: Float[Array, ""]) -> "DenseBlock":
        """Return a multiple of the block."""
        matrix = self.matrix * number.astype(self.matrix.dtype)
        return DenseBlock(self.layout, self.origin, matrix)

    def eigh(self) -> "EigenBlock":
        """Return the block by its eigenvalues."""
        values, vectors = Factor(self.matrix, False).eigh()
        return EigenBlock(self.layout, self.origin, vectors, None, values)


@final
class DiagonalBlock(AbstractBlock):
    """A diagonal matrix.

    Attributes:
        layout: The entries.
        origin: Where it comes from.
        diagonal: Its diagonal.
    """

    diagonal: Float[Array, "*heads m"]

    @property
    def kind(self) -> str:
        """What it is, in words."""
        name = "diagonal" if self.origin.operations else "zero"
        return f"{name} {self.diagonal.size}"

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype in which it is multiplied."""
        return self.diagonal.dtype

    def mv(self, x: Array) -> Array:
        """Return the product with its entries."""
        return self.diagonal * x

    def diagonal_entries(self) -> Array:
        """Return the diagonal."""
        return self.diagonal

    def inverse(self, damping: Float[Array, ""]) -> "DiagonalBlock":
        """Return the inverse of the block plus a multiple of the identity."""
        values = 1 / (self.diagonal + damping.astype(self.diagonal.dtype))
        return DiagonalBlock(self.layout, self.origin, values)

    def times(self, number: Float[Array, ""]) -> "DiagonalBlock":
        """Return a multiple of the block."""
        values = self.diagonal * number.astype(self.diagonal.dtype)
        return DiagonalBlock(self.layout, self.origin, values)

    def eigh(self) -> "EigenBlock":
        """Return the block by its eigenvalues: its entries."""
        return EigenBlock(self.layout, self.origin, None, None, self.diagonal)
