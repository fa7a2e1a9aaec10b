"""The search for eigenvalues that a Krylov space misses: copies of multiple ones.

A Lanczos basis, re-orthogonalized, is below: the search and both methods grow one. The
numbers in brackets are those of the references of `eigh`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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


class MissedSearch(NamedTuple):
    """The search for eigenvalues that are missed, from a random direction.

    Attributes:
        found: The values that it looks for others among; NaN before the first search.
        begin: The number of products at its begin.
        length: How many products it takes at least; 0 before the first one.
        begins: Whether it begins with the next window.
        complete: Whether it has ended without another value.
    """

    found: Float[Array | np.ndarray, " k"]
    begin: Any  # numbers of JAX in a trace, of NumPy on the host
    length: Any
    begins: Any
    complete: Any

    @staticmethod
    def none(k: int, dtype: jnp.dtype) -> "MissedSearch":
        """Return the state before anything has converged."""
        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return MissedSearch(jnp.full(k, jnp.nan, dtype), zero, zero, no, no)

    @staticmethod
    def none_on_host(k: int) -> "MissedSearch":
        """Return the state before anything has converged, in numbers of NumPy."""
        return MissedSearch(np.full(k, np.nan), 0, 0, False, False)

    def after_window(
        self,
        values: Float[Array | np.ndarray, " m"],
        residuals: Float[Array | np.ndarray, " m"],
        products: Int[Array, ""] | int,
        tol: Scalar | float,
        n: int,
    ) -> "MissedSearch":
        """Go on after a window of the iteration, in a trace or in numbers of NumPy.

        Args:
            values: The Ritz values of the window, the best first.
            residuals: Their residuals.
            products: The number of products so far.
            tol: The largest residual over the largest magnitude of a value.
            n: The dimension of the space.
        """
        k, m = len(self.found), len(values)
        xp: Any = np if isinstance(values, np.ndarray) else jnp
        largest = tol * xp.max(abs(values))
        converged = xp.all(residuals[:k] <= largest)
        # Values that changed by more than the tolerance are others.
        same = xp.max(abs(values[:k] - self.found)) <= 2 * largest
        # The best value beside them shows how far the search has come.
        far = residuals[min(k, m - 1)] <= largest
        ended = same & far & (products - self.begin >= self.length)
        complete = converged & (ended | (m == n))
        begins = converged & ~same & ~complete
        first = begins & (self.length == 0)
        return MissedSearch(
            found=xp.where(begins, values[:k], self.found),
            begin=xp.where(begins, products, self.begin),
            # That of the first one: later ones have fewer vectors to look for.
            length=xp.where(first, _length(products, n, tol, xp), self.length),
            begins=begins,
            complete=complete,
        )


def _length(
    products: Int[Array, ""] | int, n: int, tol: Scalar | float, xp: Any
) -> Any:
    """Return how many products a search takes at least [3].

    A Krylov space of p products raises the share of an eigenspace in its vectors by
    exp(4 p sqrt(gap)), beginning at 1/n: it takes ln(n) / (4 sqrt(gap)) of them until
    the eigenvalue comes up, and (ln(n) + 2 ln(1/tol)) / (4 sqrt(gap)) until it has
    converged, as the first ones have.
    """
    rare = math.log(n) + 2 * math.log(100)  # that the share at the begin is 100 x less
    share = rare / (math.log(n) - 2 * xp.log(xp.minimum(tol, 0.01)))
    dtype = getattr(tol, "dtype", None)
    return xp.ceil(xp.asarray(products, dtype) * share).astype(xp.int32)


def renewed(begins: Bool[Array, ""], basis: PyTree, key: RandomKey, k: int) -> PyTree:
    """Where a search begins, keep `k` vectors, and go on with a random direction."""

    def with_random(basis: PyTree) -> PyTree:
        basis = jax.tree.map(lambda b: b.at[k:].set(jnp.zeros((), b.dtype)), basis)
        v = random_orthogonal(space.take(basis, 0), basis, key)
        return space.put(basis, k, v)

    return cond(begins, with_random, lambda basis: basis, basis)
