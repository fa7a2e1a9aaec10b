"""Dense results of an operator: its matrix, blocks of it, its diagonal."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import Scalar, StructureError, Vector, manual_axes, message
from hotk._dense import (
    By,
    Division,
    choose_block,
    columns,
    is_entrywise,
    over_basis,
    split_over,
    split_rows,
    unit,
)
from hotk._prepared import check_bytes, jitted
from hotk._primitive import divided_as

from . import space
from ._entries import Part, VectorEntries
from ._linear_map import AbstractLinearMap
from ._sparse import LEAST, dense_of, diagonal_of, sparse_if_large
from ._vectors import space_of
from .space import flattened, unflattened


_ALTERNATIVES = (
    "`H @ v` for products, `H.diagonal()`, `H.block(row, column)` for a part, "
    "`H.eigh(k)` for extreme eigenvalues, `hotk.estimate` for trace and spectrum"
)


def product_of_parts(
    operator: AbstractLinearMap, like: Vector
) -> Callable[[list[Array]], list[Array]]:
    """Return the product as a map of lists of real arrays.

    Columns and rows of a matrix are real: a complex leaf has two of each.
    """
    return lambda arrays: _gathered_parts(operator.mv(space.whole(arrays, like)))


def _gathered_parts(v: Vector) -> list[Array]:
    # A column is reshaped to one axis, which JAX refuses for arrays that are split
    # explicitly (tests/linop/test_sharding.py).
    return [space.gathered(a) for a in space.parts(v)]


def _check_size(operator: AbstractLinearMap, call: str, rows: int, count: int) -> None:
    dtype = space.promoted(*[a.dtype for a in space.parts(operator.like)])
    check_bytes(call, count, rows * count * dtype.itemsize, _ALTERNATIVES)


@jitted(static_argnames="block")
def many(operator: AbstractLinearMap, vectors: PyTree, block: int | None) -> PyTree:
    """Return the products with several vectors, `block` at once."""
    return in_rows(operator, vectors, lambda trees: _many(operator, trees, block))


def in_rows(
    operator: AbstractLinearMap, vectors: PyTree, multiply: Callable[[PyTree], PyTree]
) -> PyTree:
    """Multiply several vectors, which may be the rows of a matrix.

    Args:
        operator: The operator.
        vectors: A tree like the space with one leading axis; or flat vectors, rows of
            an array of shape `(k, n)`.
        multiply: From a tree of several vectors to one of their products.
    """
    like = operator.like
    rows = isinstance(vectors, (jax.Array, np.ndarray)) and vectors.ndim == 2
    if not rows or like is None or vectors.shape[1] != space.dimension(like):
        return multiply(vectors)
    leaves, treedef = jax.tree.flatten(like)
    one_axis = treedef == jax.tree.structure(0) and leaves[0].ndim == 1
    if one_axis and jnp.iscomplexobj(vectors) == jnp.iscomplexobj(leaves[0]):
        return multiply(vectors)  # they are vectors of the space as they are
    trees = jax.vmap(lambda v: unflattened(v, like))(jnp.asarray(vectors))
    return jax.vmap(flattened)(multiply(trees))


def _many(operator: AbstractLinearMap, vectors: PyTree, block: int | None) -> PyTree:
    leaves, tree = jax.tree.flatten(vectors)
    full = [a for a in leaves if a.size]
    if block is None or not full:
        return jax.vmap(operator.mv)(vectors)

    # `jax.lax.map` divides by the sizes of leaves, and an empty one has none.
    def product(some: list[Array]) -> list[Array]:
        rest = iter(some)
        every = [next(rest) if a.size else a[0] for a in leaves]
        return [
            a for a in jax.tree.leaves(operator.mv(tree.unflatten(every))) if a.size
        ]

    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), vectors)
    images, images_tree = jax.tree.flatten(jax.eval_shape(operator.mv, one))
    found = iter(jax.lax.map(product, full, batch_size=block))
    empty = lambda a: jnp.zeros((len(full[0]), *a.shape), a.dtype)
    return images_tree.unflatten(next(found) if a.size else empty(a) for a in images)


def matrix(
    operator: AbstractLinearMap,
    block: int | None,
    by: By | None = None,
    axis: str | None = None,
) -> Float[Array, "n n"]:
    """Return the matrix of an operator, divided among devices if that is asked for."""
    n = space.dimension(space_of(operator))
    divided = by is not None or axis is not None
    arrays = jax.tree.leaves(operator) if divided else []
    split = split_over("H.matrix()", by, axis, block, arrays)
    if isinstance(split, Division):
        call = f"H.matrix(split={split.by!r})"
        _check_division(operator, call, n, n, split)
        return _divided_matrix(operator, split)
    _check_size(operator, "H.matrix()", n, n)
    sparse = sparse_if_large(operator) if block is None and n >= LEAST else None
    if sparse is not None:
        return dense_of(sparse)
    return _matrix_on_host(operator) if operator.on_host else _matrix(operator, block)


def _check_division(
    operator: AbstractLinearMap, call: str, n: int, others: int, split: Division
) -> None:
    """Refuse a matrix that cannot be divided, or whose parts do not fit.

    Args:
        operator: The operator.
        call: The call, for messages.
        n: How many columns, or rows, are shared out.
        others: How many numbers each of them has.
        split: Among which devices.
    """
    if operator.on_host:
        raise StructureError(
            message(
                call,
                "a matrix over batches of data is not divided among devices.",
                expected="an operator of one function",
                got="a sum over batches that the host reads",
                fix="Place each batch on the mesh, and leave out `split`.",
            )
        )
    if n % split.parts:
        raise StructureError(
            message(
                call,
                f"{n} {split.by} cannot be divided evenly.",
                expected=f"a multiple of {split.parts}, the devices of {split.axis!r}",
                got=f"{n}",
                fix="`hotk.hessian(f, x, split=...)` divides leaf by leaf.",
            )
        )
    if split.by == "rows" and not operator.symmetric:
        raise StructureError(
            message(
                call,
                "the rows are products with the transpose, which is not known.",
                expected="a symmetric operator",
                got="one that is not known to be symmetric",
                fix="Divide it by columns.",
            )
        )
    _check_size(operator, call, others, n // split.parts)


def _check_parts(
    call: str, rows: VectorEntries, cols: VectorEntries, split: Division
) -> None:
    """Refuse masks where JAX does not know how what they select is divided."""
    masked = [index for part in (rows, cols) for index in part.indices if index]
    if split.is_explicit and masked:
        raise StructureError(
            message(
                call,
                "entries that a mask selects are not divided along an explicit axis.",
                expected="whole leaves, by their paths or a filter",
                got="a mask",
                fix="Divide the matrix, `H.matrix(split=...)`, or make the mesh with "
                "`AxisType.Auto`.",
            )
        )


def _divided_matrix(
    operator: AbstractLinearMap, split: Division
) -> Float[Array, "n n"]:
    every = VectorEntries.of("H.matrix()", operator.like, "")
    a = _divided_block(operator, every, every, split)
    return a.T if split.by == "rows" else a


@jitted(static_argnums=3)
def _divided_block(
    operator: AbstractLinearMap,
    rows: VectorEntries,
    cols: VectorEntries,
    split: Division,
) -> Float[Array, "rows columns"]:
    """Return the columns of a block, divided among devices."""
    like = operator.like
    some = cols.take(like)
    both = (*space.parts(rows.take(like)), *space.parts(some))
    dtype = space.promoted(*[a.dtype for a in both])

    within = cols.within(operator)

    def product(v: Float[Array, " n"]) -> Float[Array, " m"]:
        return flattened(rows.take(within(unflattened(v, some)))).astype(dtype)

    with space.mesh_of(like):
        [[a]] = columns(product, jnp.zeros(space.dimension(some), dtype), split)
    return a


def _matrix_on_host(operator: AbstractLinearMap) -> Float[Array, "n n"]:
    everything = VectorEntries.of("H.matrix()", operator.like, "")
    a = _block_on_host(operator, everything, everything, None)
    return (a + a.T) / 2 if operator.symmetric else a


def _block_on_host(
    operator: AbstractLinearMap,
    rows: VectorEntries,
    cols: VectorEntries,
    size: int | None,
) -> Float[Array, "rows columns"]:
    """Multiply all unit vectors at once, as each product is a pass over the data."""
    del size
    like = operator.like
    some = cols.take(like)
    dtype = space.promoted(*[a.dtype for a in space.parts(some)])
    units = jnp.eye(space.dimension(some), dtype=dtype)
    directions = jax.vmap(lambda unit: cols.put(unflattened(unit, some), like))(units)
    products = operator.many(directions)
    return jax.vmap(lambda v: flattened(rows.take(v)))(products).T


@jitted(static_argnames="block")
def _matrix(operator: AbstractLinearMap, block: int | None) -> Float[Array, "n n"]:
    like = operator.like
    # the unit vectors have the mesh of the point, or JAX refuses the product
    with space.mesh_of(like):
        parts = _held_alike(space.parts(like))
        blocks = columns(product_of_parts(operator, like), parts, block)
    a = _assembled(blocks, space.parts(like), space.parts(like))
    # rounding differs between the two halves; `eigh` and `cholesky` read one of them
    return (a + a.T) / 2 if operator.symmetric else a


def _held_alike(parts: list[Array]) -> list[Array]:
    """Return arrays of the same shapes that all devices of a `shard_map` hold alike.

    So are the unit vectors then. An operator whose point differs by device sees that
    they are the same on all, and refuses them where it adds over the devices.
    """
    return [jnp.zeros(a.shape, a.dtype) for a in parts] if manual_axes() else parts


def _assembled(
    blocks: list[list[Array]], rows: list[Array], cols: list[Array]
) -> Float[Array, "rows columns"]:
    # not by JAX's promotion, which may be set to raise where dtypes are mixed
    dtype = space.promoted(*[a.dtype for a in (*rows, *cols)])
    flat = lambda a, r, c: a.reshape(r.size, c.size).astype(dtype)
    return jnp.block(
        [
            [flat(a, r, c) for a, c in zip(line, cols, strict=True)]
            for line, r in zip(blocks, rows, strict=True)
        ]
    )


def block(
    operator: AbstractLinearMap,
    row: Part,
    column: Part,
    size: int | None,
    by: By | None = None,
    axis: str | None = None,
) -> Float[Array, "rows columns"]:
    """Return the part of the matrix between two parts of the space."""
    call, like = "H.block(row, column)", space_of(operator)
    rows, cols = (VectorEntries.of(call, like, each) for each in (row, column))
    sizes = [part.size(like) for part in (rows, cols)]
    split = split_over(call, by, axis, size, jax.tree.leaves(operator))
    if isinstance(split, Division):
        by_rows = split.by == "rows"
        call = f"H.block(row, column, split={split.by!r})"
        n, others = sizes if by_rows else sizes[::-1]
        _check_division(operator, call, n, others, split)
        _check_parts(call, rows, cols, split)
        pair = (cols, rows) if by_rows else (rows, cols)
        a = _divided_block(operator, *pair, split)
        return a.T if by_rows else a
    _check_size(operator, call, *sizes)
    # The columns of the transpose, if they are fewer.
    turned = operator.symmetric and sizes[0] < sizes[1]
    if turned:
        rows, cols = cols, rows
    of = _block_on_host if operator.on_host else _block
    a = of(operator, rows, cols, size)
    return a.T if turned else a


@jitted(static_argnums=3)
def _block(
    operator: AbstractLinearMap,
    rows: VectorEntries,
    cols: VectorEntries,
    size: int | None,
) -> Float[Array, "rows columns"]:
    like = operator.like
    row_parts, some = space.parts(rows.take(like)), cols.take(like)

    within = cols.within(operator)

    def push(arrays: list[Array]) -> list[Array]:
        return _gathered_parts(rows.take(within(space.whole(arrays, some))))

    with space.mesh_of(like):
        blocks = columns(push, _held_alike(space.parts(some)), size)
    return _assembled(blocks, row_parts, space.parts(some))


def diagonal(operator: AbstractLinearMap, block: int | None) -> Vector:
    """Return the diagonal of the matrix of an operator as a vector."""
    like = space_of(operator)
    if operator.on_host:
        return unflattened(jnp.diag(matrix(operator, block)), like)
    sparse = sparse_if_large(operator) if block is None else None
    if sparse is not None:
        return diagonal_of(sparse)
    return _diagonal(operator, block)


@jitted(static_argnums=1)
def _diagonal(operator: AbstractLinearMap, block: int | None) -> Vector:
    like = operator.like
    push, like_parts = product_of_parts(operator, like), space.parts(like)
    # if no entry of the product depends on another entry of the vector, the matrix is
    # diagonal, and its product with ones is the diagonal
    if is_entrywise(push, like_parts):
        return space.whole(push([jnp.ones_like(a) for a in like_parts]), like)

    def entry(i: Int[Array, ""]) -> Scalar:
        direction = unit(like_parts, i)
        return space.inner(direction, push(direction))

    n = sum(a.size for a in like_parts)
    size = choose_block(push, like_parts) if block is None else block
    pieces = split_rows(over_basis(entry, n, size), like_parts)
    pairs = zip(pieces, like_parts, strict=True)
    whole = space.whole([piece.astype(a.dtype) for piece, a in pairs], like)
    return divided_as(whole, like)
