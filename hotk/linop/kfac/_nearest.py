r"""The nearest Kronecker product of a sum of Kronecker products."""

import functools
import operator
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._factor import Factor


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
