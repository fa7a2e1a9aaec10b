"""Dense things of an operator: its matrix, parts of it, its diagonal."""

from typing import Any

import jax
import jax.numpy as jnp

from hotk.dense import (
    choose_block,
    columns,
    is_entrywise,
    over_basis,
    split_rows,
    unit,
)
from hotk.prepared import check_bytes, jitted

from . import space
from ._index import Index, leaf_numbers
from ._vectors import space_of
from .space import flattened, unflattened


_INSTEAD = (
    "`H @ v` for products, `H.diagonal()`, `H.block(row, column)` for a part, "
    "`H.eigh(k)` for extreme eigenvalues, `hotk.estimate` for trace and spectrum"
)


def pushed(operator: Any, like: Any) -> Any:
    """Return the product as a map of lists of real arrays."""
    return lambda arrays: _whole_parts(operator.mv(space.whole(arrays, like)))


def _whole_parts(v: Any) -> list[Any]:
    return [space.gathered(a) for a in space.parts(v)]


def _check(operator: Any, call: str, rows: int, count: int) -> None:
    dtype = space.promoted(*[a.dtype for a in space.parts(operator.like)])
    check_bytes(call, count, rows * count * dtype.itemsize, _INSTEAD)


@jitted(static_argnames="block")
def many(operator: Any, vectors: Any, block: int | None) -> Any:
    """Return the products with several vectors, so many at once."""
    if block is None:
        return jax.vmap(operator.mv)(vectors)
    return jax.lax.map(operator.mv, vectors, batch_size=block)


def matrix(operator: Any, block: int | None) -> Any:
    """Return the matrix of an operator."""
    _check(operator, "H.matrix()", operator.size, operator.size)
    return _matrix_on_host(operator) if operator.on_host else _matrix(operator, block)


def _matrix_on_host(operator: Any) -> Any:
    """Multiply all unit vectors at once, as each product is a pass over data."""
    like = operator.like
    dtype = space.promoted(*[a.dtype for a in space.parts(like)])
    rows = jnp.eye(operator.size, dtype=dtype)
    products = operator.many(jax.vmap(lambda row: unflattened(row, like))(rows))
    a = jax.vmap(flattened)(products).T
    return (a + a.T) / 2 if operator.symmetric else a


@jitted(static_argnames="block")
def _matrix(operator: Any, block: int | None) -> Any:
    like = operator.like
    with space.mesh_of(like):
        made = columns(pushed(operator, like), space.parts(like), block)
    a = _assembled(made, space.parts(like), space.parts(like))
    return (a + a.T) / 2 if operator.symmetric else a


def _assembled(made: list[list[Any]], rows: list[Any], cols: list[Any]) -> Any:
    dtype = space.promoted(*[a.dtype for a in (*rows, *cols)])
    flat = lambda a, r, c: a.reshape(r.size, c.size).astype(dtype)
    return jnp.block(
        [
            [flat(a, r, c) for a, c in zip(line, cols, strict=True)]
            for line, r in zip(made, rows, strict=True)
        ]
    )


def block(operator: Any, row: str, column: str, size: int | None) -> Any:
    """Return the part of the matrix between two leaves or subtrees."""
    like = space_of(operator)
    index = Index.of(like)
    places = index[row], index[column]
    count = [place.stop - place.start for place in places]
    _check(operator, "H.block(row, column)", *count)
    if operator.on_host:
        return matrix(operator, size)[places]
    numbers = [tuple(leaf_numbers(like, place)) for place in places]
    if operator.symmetric and count[0] < count[1]:
        return _block(operator, numbers[1], numbers[0], size).T
    return _block(operator, *numbers, size)


@jitted(static_argnums=(1, 2, 3))
def _block(
    operator: Any, rows: tuple[int, ...], cols: tuple[int, ...], size: int | None
) -> Any:
    leaves, treedef = jax.tree.flatten(operator.like)
    wanted = [leaves[i] for i in cols]

    def push(arrays: list[Any]) -> list[Any]:
        direction = [jnp.zeros_like(leaf) for leaf in leaves]
        for i, leaf in zip(cols, space.whole(arrays, wanted), strict=True):
            direction[i] = leaf
        product = jax.tree.leaves(operator.mv(treedef.unflatten(direction)))
        return _whole_parts([product[i] for i in rows])

    with space.mesh_of(leaves):
        made = columns(push, space.parts(wanted), size)
    return _assembled(made, space.parts([leaves[i] for i in rows]), space.parts(wanted))


def diagonal(operator: Any, block: int | None) -> Any:
    """Return the diagonal of the matrix of an operator as a vector."""
    like = space_of(operator)
    if operator.on_host:
        return unflattened(jnp.diag(matrix(operator, block)), like)
    return _diagonal(operator, block)


@jitted(static_argnums=1)
def _diagonal(operator: Any, block: int | None) -> Any:
    like = operator.like
    push, like_parts = pushed(operator, like), space.parts(like)
    if is_entrywise(push, like_parts):
        return space.whole(push([jnp.ones_like(a) for a in like_parts]), like)

    def entry(i: Any) -> Any:
        direction = unit(like_parts, i)
        return space.inner(direction, push(direction))

    n = sum(a.size for a in like_parts)
    size = choose_block(push, like_parts) if block is None else block
    pieces = split_rows(over_basis(entry, n, size), like_parts)
    pairs = zip(pieces, like_parts, strict=True)
    return space.whole([piece.astype(a.dtype) for piece, a in pairs], like)
