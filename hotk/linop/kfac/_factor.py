"""A Kronecker factor: a positive semidefinite matrix, or the diagonal of one."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@final
class Factor(eqx.Module):
    """One factor of a Kronecker product, with any axes in front.

    Attributes:
        values: The matrix, or its diagonal.
        diagonal: Whether it is the diagonal.
    """

    values: Float[Array, "..."]
    diagonal: bool = eqx.field(static=True)

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.values.shape[-1]

    def rows(self, x: Float[Array, "*heads i o"]) -> Float[Array, "*heads i o"]:
        """Return the product with the rows of a matrix, `F x`."""
        return self.values[..., None] * x if self.diagonal else self.values @ x

    def columns(self, x: Float[Array, "*heads i o"]) -> Float[Array, "*heads i o"]:
        """Return the product with its columns, `x F`."""
        return x * self.values[..., None, :] if self.diagonal else x @ self.values

    @property
    def mean(self) -> Float[Array, "*heads"]:
        """The mean of the eigenvalues."""
        return jnp.mean(self.diagonal_values, axis=-1)

    @property
    def diagonal_values(self) -> Float[Array, "*heads size"]:
        """The diagonal."""
        if self.diagonal:
            return self.values
        return jnp.diagonal(self.values, axis1=-2, axis2=-1)

    def shifted_inverse(self, shift: Float[Array, "*heads"]) -> "Factor":
        r"""Return the inverse of the factor plus a multiple of the identity."""
        if self.diagonal:
            return Factor(1 / (self.values + shift[..., None]), True)
        return Factor(inverse(shifted(self.values, shift)), False)

    def eigh(self) -> tuple[Float[Array, "*heads size"], Array | None]:
        """Return eigenvalues and vectors, `None` for the vectors of a diagonal."""
        if self.diagonal:
            return jnp.maximum(self.values, 0), None
        values, vectors = jnp.linalg.eigh(self.values)
        return jnp.maximum(values, 0), vectors

    def without_groups(self) -> "Factor":
        """Return the factor without the axis of its only group."""
        axis = -2 if self.diagonal else -3
        return Factor(jnp.squeeze(self.values, axis), self.diagonal)

    def times(self, number: Array) -> "Factor":
        """Return a multiple."""
        return Factor(self.values * number.astype(self.values.dtype), self.diagonal)


def shifted(matrix: Float[Array, "*heads m m"], shift: Array) -> Array:
    """Return matrices plus multiples of the identity."""
    eye = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    return matrix + jnp.asarray(shift, matrix.dtype)[..., None, None] * eye


def inverse(matrix: Float[Array, "*heads m m"]) -> Float[Array, "*heads m m"]:
    """Return the inverses of positive definite matrices, NaN where one is not."""
    half = _inverse_root(matrix)
    return jnp.swapaxes(half, -1, -2) @ half


# Cholesky factors and triangular systems up to this size are left to LAPACK. All else
# is products of matrices: half of the time for 1000 rows, on two cores.
_LEAF = 256


def _inverse_root(matrix: Float[Array, "*heads m m"]) -> Float[Array, "*heads m m"]:
    """Return the inverse of the Cholesky factor, by halves."""
    m = matrix.shape[-1]
    if m <= _LEAF:
        factor = jnp.linalg.cholesky(matrix)
        eye = jnp.broadcast_to(jnp.eye(m, dtype=matrix.dtype), matrix.shape)
        return jax.lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)
    k = m // 2
    first = _inverse_root(matrix[..., :k, :k])
    below = matrix[..., k:, :k] @ jnp.swapaxes(first, -1, -2)
    rest = matrix[..., k:, k:] - below @ jnp.swapaxes(below, -1, -2)
    second = _inverse_root(rest)
    corner = -second @ (below @ first)
    zeros = jnp.zeros((*matrix.shape[:-2], k, m - k), matrix.dtype)
    top = jnp.concatenate([first, zeros], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([corner, second], axis=-1)], axis=-2)
