"""The search for eigenvalues that a Krylov space misses: copies of multiple ones.

The numbers in brackets are those of the references of `eigh`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, cond

from . import space
from ._lanczos_basis import random_orthogonal


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
