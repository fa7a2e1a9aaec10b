"""A Lanczos basis, re-orthogonalized, that grows by one vector a step.

The numbers in brackets are those of the references of `eigh`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, Vector, cond
from hotk._prepared import jitted

from . import space


@jitted(quickly="always")
def appended(
    basis: PyTree, j: Int[Array, ""] | int, before: Scalar, image: Vector
) -> tuple[Vector, Float[Array, " count"], Scalar, Bool[Array, ""]]:
    """Return the vector that the image of the last vector of a basis adds to it.

    Args:
        basis: The vectors; zero beyond the last.
        j: The number of the last vector.
        before: The norm of what the product before added.
        image: The product with the last vector.

    Returns:
        The vector, zero where the image adds nothing; the inner products of the image
        with the basis; the norm of what it adds; and whether that is rounding alone.
    """
    last, last_but_one = space.take(basis, j), space.take(basis, jnp.maximum(j - 1, 0))
    # the recurrence of three terms takes away nearly all that lies in the span, so that
    # one pass over the basis is a second one; another where it still took away much [2]
    alpha, length = space.settled(
        image, space.inner(last, image), space.scaled_norm(image)
    )
    w = space.plus(space.plus(image, last, -alpha), last_but_one, -before)
    size = space.scaled_norm(w)
    w, column = space.orthogonal(basis, w)
    column = column.at[j].add(alpha).at[jnp.maximum(j - 1, 0)].add(before)
    cancelled = space.scaled_norm(w) < size / 2**0.5
    w, more = cond(cancelled, space.orthogonal, _unchanged, basis, w)
    (beta,) = space.settled(w, space.scaled_norm(w))
    # a vector in the span of the basis leaves rounding errors, not a new direction
    exhausted = beta <= 10 * jnp.finfo(beta.dtype).eps * length
    v = space.times(jnp.where(exhausted, 0, 1 / jnp.where(exhausted, 1, beta)), w)
    return v, column + more, jnp.where(exhausted, 0, beta), exhausted


def _unchanged(basis: PyTree, w: Vector) -> tuple[Vector, Float[Array, " count"]]:
    return w, jnp.zeros(len(jax.tree.leaves(basis)[0]), space.scalar_dtype(w))


def random_orthogonal(like: Vector, basis: PyTree, key: RandomKey) -> Vector:
    """Return a random direction of norm 1 that is orthogonal to a basis, if any is."""
    w = space.random(key, like)
    for _ in range(2):  # one pass leaves rounding errors of the first one's size
        w, _ = space.orthogonal(basis, w)
    size = space.scaled_norm(w)
    return space.times(1 / jnp.where(size > 0, size, 1), w)


@jitted(quickly="always")
def quotient(v: Vector, image: Vector) -> Float[Array, " 2"]:
    """Return the Rayleigh quotient of a vector with a product, and the residual.

    Of all numbers the Rayleigh quotient is the one with the smallest residual.
    """
    value = space.inner(v, image) / space.inner(v, v)
    return jnp.stack([value, space.scaled_norm(space.plus(image, v, -value))])
