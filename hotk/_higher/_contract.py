"""Sums of derivatives along directions, a block of directions at a time."""

import contextlib
import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import Function, Point, Tangent, jaxpr_as_fun, work
from hotk._dense import choose_block, size_of
from hotk._mode import Seeds, TooManyNumbersError, scaled, series_of

from ._derivatives import check_factorial


# The coefficients of an array along all directions take so many numbers at most, where
# blocks of directions would take less memory.
_MOST = 1 << 20
# Of more directions few slots are less work. Of fewer they may be more: both ways are
# traced.
_FEW = 48

Direction: TypeAlias = Callable[[PyTree], Tangent]
"""From one row of a table to a direction."""


def contracted(
    f: Function,
    x: Point,
    direction: Direction,
    rows: PyTree,
    weights: Array | None,
    order: int,
    *,
    block: int | None = None,
    seed: Tangent | None = None,
    known: Callable[[Point], PyTree[Seeds | None] | None] | None = None,
) -> tuple[PyTree, PyTree, PyTree]:
    r"""Return `y`, $\sum_r w_r\,D^K f(x)[v_r, ..., v_r] + D f(x)[b]$, and `aux`.

    Args:
        f: The function, which returns `(y, aux)`.
        x: Where.
        direction: From one row to a direction.
        rows: A tree of arrays with a leading axis: one entry for each direction.
        weights: One for each direction, or `None` for ones.
        order: K, at least 2.
        block: How many directions at once; chosen from the program if `None`.
        seed: b, if there is one: it costs nothing, as the top coefficient of `x`.
        known: Returns the directions as `Seeds`: which entries of the point each of
            them moves. Then a result is differentiated along those that move it, alone.
    """
    many = len(jax.tree.leaves(rows)[0])
    check_factorial(f"D^{order} f(x)", jax.eval_shape(f, x)[0], order)
    factor = math.factorial(order)

    def part(
        v: PyTree, weights: Array | None, seed: Tangent | None, limit: int | None = None
    ) -> tuple[PyTree, PyTree, PyTree]:
        directions = many if weights is None else len(weights)
        # A curve x + t v + t^K b / K! has the K-th derivative D^K f[v, ..] + D f[b].
        top = None if seed is None else (_times(1 / factor, seed),)
        series = series_of(f, many=directions, weights=weights, limit=limit)
        (y, aux), terms = series((x,), [(v,), *[None] * (order - 2), top])
        return y, _times(factor, terms[-1][0]), aux

    width = _width(f, x, many, block)
    # Of a block in a loop it is not known which directions it has.
    usable = width == many or block is None
    seeds = known(x) if known is not None and usable else None
    if width == many:
        every = lambda: jax.vmap(direction)(rows)
        if seeds is None or many > _FEW:
            return part(every() if seeds is None else seeds, weights, seed)
        by_support = lambda: part(seeds, weights, seed)
        return _with_least_work(by_support, lambda: part(every(), weights, seed))
    if seeds is not None:
        with contextlib.suppress(TooManyNumbersError):
            return _with_least_work(lambda: part(seeds, weights, seed, _MOST))
    count = math.ceil(many / width)
    blocks, block_weights = _in_blocks(rows, weights, many, count)
    y, aux = f(x)
    # The seed goes in once, before the loop: each block would add it again.
    if seed is None:
        start = jax.tree.map(jnp.zeros_like, y)
    else:
        start = jax.jvp(lambda x: f(x)[0], (x,), (seed,))[1]

    def add(total: PyTree, block: tuple[PyTree, Array]) -> tuple[PyTree, None]:
        rows, weights = block
        _, term, _ = part(jax.vmap(direction)(rows), weights, None)
        return jax.tree.map(jnp.add, total, term), None

    total, _ = jax.lax.scan(add, start, (blocks, block_weights))
    return y, total, aux


def _with_least_work(*ways: Callable[[], PyTree]) -> PyTree:
    """Trace several ways to a result, and run the program of the cheapest one.

    One that raises leaves no equations in the program that is being traced.
    """
    traced = [jax.make_jaxpr(way, return_shape=True)() for way in ways]
    works = [work(closed.jaxpr) for closed, _ in traced]
    try:
        closed, shape = traced[works.index(min(works))]
    except jax.errors.InconclusiveDimensionOperation:  # which is less depends on a size
        closed, shape = traced[0]
    return jax.tree.structure(shape).unflatten(jaxpr_as_fun(closed)())


def along_all(
    f: Function,
    x: Point,
    direction: Direction,
    rows: PyTree,
    order: int,
    block: int | None,
) -> tuple[PyTree, PyTree]:
    """Return the derivative of an order along each direction, and `aux`."""
    many = len(jax.tree.leaves(rows)[0])
    check_factorial(f"D^{order} f(x)", jax.eval_shape(f, x)[0], order)

    def one(row: PyTree) -> PyTree:
        terms = [(direction(row),), *[None] * (order - 1)]
        _, coefficients = series_of(f)((x,), terms)
        return _times(math.factorial(order), coefficients[-1][0])

    width = _width(f, x, many, block)
    y, aux = f(x)
    # `jax.lax.map` cannot split results of size zero into blocks.
    if not all(leaf.size for leaf in jax.tree.leaves(y)):
        return jax.vmap(one)(rows), aux
    return jax.lax.map(one, rows, batch_size=width), aux


def _width(f: Function, x: Point, many: int, block: int | None) -> int:
    """Choose how many directions at once, from what one of them writes."""
    if block is None and many > 1:
        push = lambda v: jax.jvp(lambda x: f(x)[0], (x,), (v,))[1]
        block = choose_block(push, x)
        # `choose_block` knows of n directions. Where it takes all, so do we.
        if block >= size_of(x):
            block = many
    block = min(block or many, many)
    # As many blocks, but of one size: the fewest directions to fill up with zeros.
    return math.ceil(many / math.ceil(many / block))


def _in_blocks(
    rows: PyTree, weights: Array | None, many: int, count: int
) -> tuple[PyTree, Array]:
    """Split directions into blocks; the last one is filled up with weights of zero."""
    width = math.ceil(many / count)
    numbers = np.arange(count * width).reshape(count, width)
    # The last direction again, not zeros: along zero a function may have a NaN.
    chosen = np.minimum(numbers, many - 1)
    ones = np.ones(many) if weights is None else weights
    blocks = jax.tree.map(lambda a: jnp.asarray(a)[chosen], rows)
    block_weights = jnp.asarray(ones)[chosen]
    return blocks, block_weights * jnp.asarray(numbers < many, block_weights.dtype)


def _times(factor: float, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda a: scaled(factor, a), tree)


def sparse_direction(x: Point, row: tuple[Array | np.ndarray, Array]) -> Tangent:
    """Return the direction with these values at these flat places of a point."""
    places, values = row
    leaves, treedef = jax.tree.flatten(x)
    parts, offset = [], 0
    for leaf in leaves:
        # A comparison with `iota` and no scatter: it fuses, and it has a transpose by
        # `values`, which coefficients of an operator are differentiated through.
        here = jax.lax.iota(jnp.int32, leaf.size)[:, None] == (places - offset)[None]
        offset += leaf.size
        entries = values.astype(leaf.dtype)[None] * here.astype(leaf.dtype)
        parts.append(jnp.sum(entries, axis=1).reshape(leaf.shape))
    return treedef.unflatten(parts)
