"""A Kronecker factor, and the nearest Kronecker product of a sum of products."""

import functools
import operator
from collections.abc import Sequence
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


def nearest(terms: Sequence[tuple[Factor, Factor]]) -> tuple[Factor, Factor]:
    r"""Return the Kronecker product nearest to a sum, in the Frobenius norm.

    For a matrix that is used in two ways, as an embedding and transposed as the last
    layer, the curvature is a sum $\sum_i R_i \otimes C_i$. Its nearest product is
    $(\sum_i x_i R_i) \otimes (\sum_i y_i C_i)$ with the leading singular vectors of the
    rearranged sum, which has at most as many columns as there are terms. All inner
    products of positive semidefinite matrices are nonnegative, so x and y are, and the
    factors are positive semidefinite.

    Args:
        terms: The factors of rows and of columns.

    References:
        Van Loan and Pitsianis (1993). Approximation with Kronecker products. In Linear
            Algebra for Large Scale and Real-Time Applications. Theorem 11.
    """
    if len(terms) == 1:
        return terms[0]
    rows, columns = zip(*terms, strict=True)
    r, c = _gram(rows), _gram(columns)
    # The rearranged sum is R C^T with the terms as columns. Its singular vectors are
    # R x and C y, and x is an eigenvector of C^T C R^T R: by powers, as that is a small
    # matrix of nonnegative entries, in front of which axes may stand.
    scale = jnp.trace(r, axis1=-2, axis2=-1) * jnp.trace(c, axis1=-2, axis2=-1)
    product = c @ r / jnp.where(scale > 0, scale, 1)[..., None, None]
    x = jnp.ones_like(product[..., :1])
    for _ in range(30):  # the power 2^30
        product = product @ product
        size = jnp.max(jnp.abs(product), axis=(-2, -1), keepdims=True)
        product = product / jnp.where(size > 0, size, 1)
    x = product @ x
    # The best y for this x: the sum of <R x, R_i> C_i over |R x|^2.
    square = jnp.swapaxes(x, -1, -2) @ r @ x
    y = r @ x / jnp.where(square > 0, square, 1)
    return _combined(rows, x[..., 0]), _combined(columns, y[..., 0])


def _gram(factors: Sequence[Factor]) -> Float[Array, "*heads k k"]:
    entries = [[_inner(a, b) for b in factors] for a in factors]
    return jnp.stack([jnp.stack(row, axis=-1) for row in entries], axis=-2)


def _inner(a: Factor, b: Factor) -> Float[Array, "*heads"]:
    if a.diagonal or b.diagonal:
        return jnp.sum(a.diagonal_values * b.diagonal_values, axis=-1)
    return jnp.sum(a.values * b.values, axis=(-2, -1))


def _combined(factors: Sequence[Factor], weights: Float[Array, "*heads k"]) -> Factor:
    dense = any(not factor.diagonal for factor in factors)

    def one(k: int, factor: Factor) -> Array:
        weight = weights[..., k, None]
        if not dense:
            return weight * factor.values
        if not factor.diagonal:
            return weight[..., None] * factor.values
        eye = jnp.eye(factor.size, dtype=factor.values.dtype)
        return (weight * factor.values)[..., None] * eye

    parts = [one(k, factor) for k, factor in enumerate(factors)]
    return Factor(functools.reduce(operator.add, parts), not dense)
