"""A Lanczos basis, re-orthogonalized, that grows by one vector a step.

The numbers in brackets are those of the references of `eigh`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, Vector, WhileLoop
from hotk.prepared import jitted

from . import space


class Basis(NamedTuple):
    """A Lanczos basis that grows by one vector a step.

    Attributes:
        j: The number of the last vector.
        basis: The vectors; zero beyond the last.
        t: The projected matrix.
        beta: The norm of what the last product added to the span.
    """

    j: Int[Array, ""]
    basis: PyTree
    t: Float[Array, "m m"]
    beta: Scalar


def extend(
    while_loop: WhileLoop,
    mv: Callable[[Vector], Vector],
    basis: PyTree,
    t: Float[Array, "m m"],
    start: Int[Array, ""],
    m: int,
    key: RandomKey,
) -> Basis:
    """Go on with a Lanczos basis from its vector number `start` to number `m`.

    Args:
        while_loop: The loop to use.
        mv: The product.
        basis: A basis of `m + 1` vectors, of which the first `start + 1` are there.
        t: The projected matrix, of which the first `start` columns are there.
        start: The number of the first vector to be multiplied.
        m: The number of vectors in the end.
        key: A random key for new directions.

    Returns:
        The state of the loop: `basis`, `t`, and `beta`, the norm of what is left.
    """

    def step(s: Basis) -> Basis:
        image = mv(space.take(s.basis, s.j))
        return _grown(s, image, jax.random.fold_in(key, s.j + 1))

    state = Basis(j=start, basis=basis, t=t, beta=jnp.zeros((), t.dtype))
    return while_loop(lambda s: s.j < m, step, state)


@jitted
def _grown(s: Basis, image: Vector, key: RandomKey) -> Basis:
    """Append the image of the last vector of a basis, orthogonalized, as the next."""
    j, basis, before = s.j, s.basis, s.beta
    last, last_but_one = space.take(basis, j), space.take(basis, jnp.maximum(j - 1, 0))
    length = space.norm(image)
    # the recurrence of three terms takes away nearly all that lies in the span, so that
    # one pass over the basis is a second one; another where it still took away much [2]
    alpha = space.inner(last, image)
    w = space.plus(space.plus(image, last, -alpha), last_but_one, -before)
    size = space.norm(w)
    w, column = space.orthogonal(basis, w)
    m = len(s.t)
    column = column[:m].at[j].add(alpha).at[jnp.maximum(j - 1, 0)].add(before)
    cancelled = space.norm(w) < size / 2**0.5
    w, more = jax.lax.cond(cancelled, space.orthogonal, _unchanged, basis, w)
    beta = space.norm(w)
    # a vector in the span of the basis leaves rounding errors, not a new direction
    exhausted = beta <= 10 * jnp.finfo(beta.dtype).eps * length
    v = jax.lax.cond(exhausted, random_orthogonal, _normalized, w, beta, basis, key)
    return Basis(
        j=j + 1,
        basis=space.put(basis, j + 1, v),
        t=s.t.at[:, j].set(column + more[:m]).at[j, :].set(column + more[:m]),
        beta=jnp.where(exhausted, 0, beta),
    )


def _unchanged(basis: PyTree, w: Vector) -> tuple[Vector, Float[Array, " count"]]:
    return w, jnp.zeros(len(jax.tree.leaves(basis)[0]), space.scalar_dtype(w))


def _normalized(w: Vector, size: Scalar, *_: PyTree) -> Vector:
    return space.times(1 / jnp.where(size > 0, size, 1), w)


def random_orthogonal(w: Vector, size: Scalar, basis: PyTree, key: RandomKey) -> Vector:
    """Return a random direction of norm 1 that is orthogonal to a basis, if any is."""
    del size
    w = space.random(key, w)
    for _ in range(2):  # one pass leaves rounding errors of the first one's size
        w, _ = space.orthogonal(basis, w)
    return _normalized(w, space.norm(w))
