"""Random vectors of a space, their products, and bases of what these span."""

from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import StructureError
from hotk.dense import choose_block, unit
from hotk.linop import AbstractOperator, Diagonal, space, space_of
from hotk.prepared import jitted


def checked(call: str, operator: Any, key: Any, **counts: int | None) -> Any:
    """Check what all estimates need, and return the key as JAX has it.

    Raises:
        StructureError: If the space has no dimension.
        TypeError: If it is no operator, or one that does not know its space.
        ValueError: If a count is not positive.
    """
    if not isinstance(operator, AbstractOperator):
        kind = type(operator).__name__
        raise TypeError(f"`{call}`: an operator of `hotk` is needed, not a `{kind}`.")
    if not space.dimension(space_of(operator)):
        raise StructureError(f"`{call}`: the space of the operator has no dimension.")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"`{call}`: `{name}` is {count}, not positive.")
    return key if isinstance(key, jax.Array) else jnp.asarray(key)


@jitted(static_argnames=("count", "signs"))
def drawn(key: Any, like: Any, *, count: int, signs: bool) -> Any:
    """Draw independent vectors: a tree with one leading axis."""
    vectors = space.basis(like, count)
    return space.narrowed(space.random(key, vectors, signs=signs), vectors)


@jitted
def units(like: Any) -> Any:
    """Return all unit vectors: a tree with one leading axis."""
    arrays = space.parts(like)
    numbers = jnp.arange(sum(a.size for a in arrays), dtype=jnp.int32)
    return jax.vmap(lambda i: space.whole(unit(arrays, i), like))(numbers)


def products(operator: Any, vectors: Any, block_size: int | None) -> Any:
    """Return the products with several vectors, in at least single precision.

    Those of an operator on the host are taken one by one, unless it knows better.
    """
    like = operator.like
    vectors = space.narrowed(vectors, like)
    count = len(jax.tree.leaves(vectors)[0])
    if not getattr(operator, "on_host", False):
        if block_size is None:
            block_size = choose_block(operator.mv, like)
        found = operator.many(vectors, None if block_size >= count else block_size)
    elif type(operator).many is AbstractOperator.many:
        each = [operator.mv(space.take(vectors, i)) for i in range(count)]
        found = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
    else:
        found = operator.many(vectors, block_size)
    return space.widened(found)


def entrywise(u: Any, v: Any) -> Any:
    """Return the entrywise product in the real embedding."""
    return Diagonal(u).mv(v)


def gram(u: Any, v: Any) -> Any:
    """Return the inner products of the vectors of one basis with those of another."""
    return jax.lax.map(lambda one: space.coefficients(u, one), v).T


def orthogonalized(basis: Any, v: Any) -> tuple[Any, Any]:
    """Subtract from a vector its part in the span of a basis, twice; return both.

    The two passes are a loop, which halves the program.
    """

    def again(_: Any, made: Any) -> Any:
        w, found = made
        w, more = space.orthogonal(basis, w)
        return w, found + more

    zero = jnp.zeros(len(jax.tree.leaves(basis)[0]), space.scalar_dtype(v))
    return jax.lax.fori_loop(0, 2, again, (v, zero))


@jitted
def orthonormal(vectors: Any) -> tuple[Any, Any]:
    """Factorize vectors as Q R by Gram-Schmidt in two passes.

    Returns:
        A basis Q whose vectors are orthonormal, or zero where a vector is in the span
        of those before it up to rounding, and the triangle R, with zero on its diagonal
        there.
    """
    like = jax.tree.map(lambda a: a[0], vectors)
    count, dtype = len(jax.tree.leaves(vectors)[0]), space.scalar_dtype(like)
    rounding = 10 * jnp.finfo(dtype).eps

    def step(j: Any, made: Any) -> Any:
        q, r = made
        v = space.take(vectors, j)
        w, column = orthogonalized(q, v)
        size = space.norm(w)
        inside = size <= rounding * space.norm(v)
        w = space.times(jnp.where(inside, 0, 1 / jnp.where(inside, 1, size)), w)
        column = column.at[j].set(jnp.where(inside, 0, size))
        return space.put(q, j, w), r.at[:, j].set(column)

    start = jax.tree.map(jnp.zeros_like, vectors), jnp.zeros((count, count), dtype)
    return jax.lax.fori_loop(0, count, step, start)
