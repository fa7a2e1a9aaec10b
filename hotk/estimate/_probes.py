"""Random vectors of a space, their products, and bases of what these span."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, StructureError, Vector, fori_loop
from hotk._dense import choose_block, unit
from hotk._prepared import jitted
from hotk.linop import AbstractOperator, Diagonal, space, space_of
from hotk.sparse import SparseMatrix


def check_arguments(call: str, operator: object, key: RandomKey) -> RandomKey:
    """Check what all estimates need, and return the key as an array of JAX.

    Raises:
        StructureError: If the space has no dimension.
        TypeError: If it is not an operator, or one that acts on any space.
    """
    if isinstance(operator, SparseMatrix):
        raise TypeError(
            f"`{call}`: this is a `SparseMatrix`. Write `hotk.linop.SparseOperator(A)`."
        )
    if not isinstance(operator, AbstractOperator):
        got = type(operator).__name__
        raise TypeError(f"`{call}`: expected an operator of `hotk`, got `{got}`.")
    if not space.dimension(space_of(operator)):
        raise StructureError(f"`{call}`: the operator has size 0.")
    return key if isinstance(key, jax.Array) else jnp.asarray(key)


@jitted(quickly="if small", static_argnames=("count", "signs"))
def draw_probes(key: RandomKey, like: Vector, *, count: int, signs: bool) -> PyTree:
    """Draw independent vectors, normal or of signs: a tree with one leading axis."""
    vectors = space.basis(like, count)
    return space.narrowed(space.random(key, vectors, signs=signs), vectors)


@jitted(quickly="if small")
def units(like: Vector) -> PyTree:
    """Return all unit vectors: a tree with one leading axis."""
    arrays = space.parts(like)
    numbers = jnp.arange(sum(a.size for a in arrays), dtype=jnp.int32)
    return jax.vmap(lambda i: space.whole(unit(arrays, i), like))(numbers)


def products(
    operator: AbstractOperator, vectors: PyTree, block_size: int | None
) -> PyTree:
    """Return the products with several vectors, in at least single precision.

    Products on the host are taken one by one, unless the operator has its own way: the
    default compiles the product, which cannot contain a pass over data.
    """
    like = operator.like
    # an operator gets vectors in the dtypes of its point, whatever they are summed in
    vectors = space.narrowed(vectors, like)
    count = len(jax.tree.leaves(vectors)[0])
    if not getattr(operator, "on_host", False):
        if block_size is None:
            block_size = choose_block(operator.mv, like)
        images = operator.many(vectors, None if block_size >= count else block_size)
    elif type(operator).many is AbstractOperator.many:
        each = [operator.mv(space.take(vectors, i)) for i in range(count)]
        images = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
    else:
        images = operator.many(vectors, block_size)
    return space.widened(images)


class ProductSpan(NamedTuple):
    """The span of the products of an operator A with vectors V.

    Attributes:
        q: An orthonormal basis Q, with A V = u Q R.
        r: The triangle R.
        z: The products A Q / u.
        images: The products A V / u.
        unit: The number u.
    """

    q: PyTree
    r: Float[Array, "count count"]
    z: PyTree
    images: PyTree
    unit: Scalar


def range_of(
    operator: AbstractOperator,
    probes: PyTree,
    block_size: int | None,
    spare: PyTree = None,
) -> ProductSpan:
    """Find an orthonormal basis of the products with some vectors.

    The unit is a power of two: derivatives of R and of its inverse have the third
    powers of what they are derived of.

    Args:
        operator: The operator A.
        probes: The vectors V.
        block_size: The number of products at once.
        spare: What is multiplied in place of the vectors of Q that are zero.
    """
    images = products(operator, probes, block_size)
    unit = space.power_of_size(images)
    images = space.times(1 / unit, images)
    q, r = orthonormal(images)
    empty = jnp.diag(r) == 0
    # The range was found, and is held fixed: see `with_derivative_of`.
    q = space.choose(jnp.any(empty), jax.lax.stop_gradient(q), q)
    rows = q
    if spare is not None:
        rows = jax.vmap(space.choose)(empty, space.widened(spare), q)
    z = space.times(1 / unit, products(operator, rows, block_size))
    return ProductSpan(q, r, z, images, unit)


def entrywise(u: Vector, v: Vector) -> Vector:
    """Return the entrywise product in the real embedding."""
    return Diagonal(u).mv(v)


def gram(u: PyTree, v: PyTree) -> Float[Array, "count_u count_v"]:
    """Return the inner products of the vectors of one basis with those of another."""
    return jax.lax.map(lambda row: space.coefficients(u, row), v).T


def orthogonalized(basis: PyTree, v: Vector) -> tuple[Vector, Float[Array, " count"]]:
    """Subtract from a vector its part in the span of a basis, twice; return both.

    One pass leaves a part as large as the rounding errors of `v`, which is much where
    `v` is nearly in the span. The two passes are a loop, which halves the program.
    """

    def step(
        _: int | Int[Array, ""], state: tuple[Vector, Float[Array, " count"]]
    ) -> tuple[Vector, Float[Array, " count"]]:
        w, total = state
        w, part = space.orthogonal(basis, w)
        return w, total + part

    zero = jnp.zeros(len(jax.tree.leaves(basis)[0]), space.scalar_dtype(v))
    return fori_loop(0, 2, step, (v, zero))


@jitted(quickly="if small")
def orthonormal(vectors: PyTree) -> tuple[PyTree, Float[Array, "count count"]]:
    """Factorize vectors as Q R by Gram-Schmidt in two passes.

    Returns:
        A basis Q whose vectors are orthonormal, or zero where a vector is in the span
        of those before it up to rounding, and the triangle R, with zero on its diagonal
        there.
    """
    like = jax.tree.map(lambda a: a[0], vectors)
    count, dtype = len(jax.tree.leaves(vectors)[0]), space.scalar_dtype(like)
    rounding = 10 * jnp.finfo(dtype).eps

    def step(
        j: Int[Array, ""], state: tuple[PyTree, Float[Array, "count count"]]
    ) -> tuple[PyTree, Float[Array, "count count"]]:
        q, r = state
        v = space.take(vectors, j)
        w, column = orthogonalized(q, v)
        # rounding errors alone are left of a vector in the span of those before it
        inside = space.norm(w) <= rounding * space.norm(v)
        # a norm has no derivative at zero, nor has what is multiplied by zero then
        size = space.norm(space.choose(inside, jax.tree.map(jnp.ones_like, w), w))
        w = space.times(jnp.where(inside, 0, 1 / jnp.where(inside, 1, size)), w)
        column = column.at[j].set(jnp.where(inside, 0, size))
        return space.put(q, j, w), r.at[:, j].set(column)

    start = jax.tree.map(jnp.zeros_like, vectors), jnp.zeros((count, count), dtype)
    return fori_loop(0, count, step, start)
