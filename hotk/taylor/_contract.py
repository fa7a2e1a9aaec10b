"""Sums of derivatives along directions, a block of directions at a time."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk.dense import choose_block, size_of
from hotk.mode import Units, scaled, series_of

from ._orders import check_factorial


Direction = Callable[[Any], Any]


def contracted(
    f: Callable[..., Any],
    x: Any,
    direction: Direction,
    rows: Any,
    weights: Any,
    order: int,
    *,
    block: int | None = None,
    seed: Any = None,
    units: bool = False,
) -> tuple[Any, Any, Any]:
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
        units: Whether the directions are all unit directions, in order.
    """
    many = len(jax.tree.leaves(rows)[0])
    check_factorial(f"D^{order} f(x)", jax.eval_shape(f, x)[0], order)
    factor = math.factorial(order)

    def part(rows: Any, weights: Any, seed: Any) -> Any:
        width = len(jax.tree.leaves(rows)[0])
        lazy = units and width == many and len(jax.tree.leaves(x)) == 1
        v = jax.tree.map(Units, x) if lazy else jax.vmap(direction)(rows)
        top = None if seed is None else (_times(1 / factor, seed),)
        series = series_of(f, many=width, weights=weights)
        (y, aux), found = series((x,), [(v,), *[None] * (order - 2), top])
        return y, _times(factor, found[-1][0]), aux

    width = _width(f, x, direction, rows, many, block)
    if width == many:
        return part(rows, weights, seed)
    count = math.ceil(many / width)
    blocks, given = _in_blocks(rows, weights, many, count)
    y, aux = f(x)
    if seed is None:
        first = jax.tree.map(jnp.zeros_like, y)
    else:
        first = jax.jvp(lambda x: f(x)[0], (x,), (seed,))[1]

    def add(total: Any, block: Any) -> tuple[Any, None]:
        rows, weights = block
        _, found, _ = part(rows, weights, None)
        return jax.tree.map(jnp.add, total, found), None

    total, _ = jax.lax.scan(add, first, (blocks, given))
    return y, total, aux


def along_all(
    f: Callable[..., Any],
    x: Any,
    direction: Direction,
    rows: Any,
    order: int,
    block: int | None,
) -> tuple[Any, Any]:
    """Return the derivative of an order along each direction, and `aux`."""
    many = len(jax.tree.leaves(rows)[0])
    check_factorial(f"D^{order} f(x)", jax.eval_shape(f, x)[0], order)

    def one(row: Any) -> Any:
        terms = [(direction(row),), *[None] * (order - 1)]
        _, found = series_of(f)((x,), terms)
        return _times(math.factorial(order), found[-1][0])

    width = _width(f, x, direction, rows, many, block)
    y, aux = f(x)
    if not all(leaf.size for leaf in jax.tree.leaves(y)):  # `map` cannot cut these
        return jax.vmap(one)(rows), aux
    return jax.lax.map(one, rows, batch_size=width), aux


def _width(
    f: Any, x: Any, direction: Direction, rows: Any, many: int, block: int | None
) -> int:
    """Choose how many directions at once, from what one of them writes."""
    if block is None and many > 1:
        push = lambda v: jax.jvp(lambda x: f(x)[0], (x,), (v,))[1]
        block = choose_block(push, x)
        if block >= size_of(x):
            block = many
    block = min(block or many, many)
    return math.ceil(many / math.ceil(many / block))


def _in_blocks(rows: Any, weights: Any, many: int, count: int) -> tuple[Any, Any]:
    """Cut directions into blocks; the last one is filled up with weights of zero."""
    width = math.ceil(many / count)
    numbers = np.arange(count * width).reshape(count, width)
    ones = np.ones(many) if weights is None else weights
    blocks = jax.tree.map(lambda a: jnp.asarray(a)[np.minimum(numbers, many - 1)], rows)
    given = jnp.asarray(ones)[np.minimum(numbers, many - 1)]
    return blocks, given * jnp.asarray(numbers < many, given.dtype)


def _times(factor: float, tree: Any) -> Any:
    return jax.tree.map(lambda a: scaled(factor, a), tree)


def sparse_direction(x: Any, row: tuple[Any, Any]) -> Any:
    """Return the direction with these values at these flat places of a point."""
    places, values = row
    leaves, treedef = jax.tree.flatten(x)
    made, offset = [], 0
    for leaf in leaves:
        here = jax.lax.iota(jnp.int32, leaf.size)[:, None] == (places - offset)[None]
        offset += leaf.size
        given = values.astype(leaf.dtype)[None] * here.astype(leaf.dtype)
        made.append(jnp.sum(given, axis=1).reshape(leaf.shape))
    return treedef.unflatten(made)
