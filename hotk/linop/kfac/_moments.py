r"""Kronecker factors from what sites read and are given back.

The gradient of example n by a matrix is $\sum_t a_{nt} g_{nt}^T$ over positions t, and
the curvature the sum of the outer products of these gradients. "expand" takes each
position for an example of its own, so the factors are the mean of $a a^T$ and the sum
of $g g^T$ over all of them. "reduce" takes the mean of a and the sum of g over the
positions of an example first.
"""

import math
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from hotk._dense import promoted

from ._factor import Factor
from ._site import OperationKind, Site


Approximation: TypeAlias = Literal["expand", "reduce"]
"""How positions that share a parameter are treated; see `hotk.KFACOperator`."""

# A factor with more rows is diagonal: in single precision a matrix takes 256 MiB.
LARGEST_FACTOR = 8192


class Positions(NamedTuple):
    """What a site reads and is given back, at each position.

    Attributes:
        a: What it reads; for a table the numbers of rows, without the last axis.
        g: The gradients by its output.
    """

    a: Num[Array, "..."]
    g: Float[Array, "*heads group vectors N T out"]


def positions_of(site: Site, read: Array, back: Array) -> Positions:
    """Arrange what a site reads and is given back by group, example and position.

    Scans whose steps see other entries each are heads; the steps of others are
    positions.
    """
    reads, split = site.reads, site.signals
    for _ in site.lengths:
        reads, split = jax.vmap(reads), jax.vmap(split)
    a = jax.vmap(reads)(read)
    g = jax.vmap(jax.vmap(split))(back)
    scans = site.view.scans
    own = [k for k, (_, step) in enumerate(scans) if step]
    shared = [k for k, (_, step) in enumerate(scans) if not step]
    n = len(scans)
    heads = [scans[k][0] for k in own]
    groups = a.shape[1 + n]
    ends = range(2 + n, a.ndim)
    a = a.transpose([*(1 + k for k in own), 1 + n, 0, *(1 + k for k in shared), *ends])
    width = () if site.kind is OperationKind.TABLE else (a.shape[-1],)
    a = a.reshape(*heads, groups, len(read), -1, *width)
    order = [*(2 + k for k in own), 2 + n, 0, 1, *(2 + k for k in shared), 3 + n, 4 + n]
    g = g.transpose(order)
    g = g.reshape(*heads, groups, *back.shape[:2], -1, g.shape[-1])
    a, g = _wide(a), _wide(g)
    # A table is told by the numbers of its rows, which cannot be multiplied.
    factor = site.view.factor
    if not width:
        return Positions(a, g * factor)
    dtype = promoted(a.dtype, g.dtype)
    return Positions(a.astype(dtype) * factor, g.astype(dtype))


def _wide(a: Num[Array, "..."]) -> Num[Array, "..."]:
    low = jnp.issubdtype(a.dtype, jnp.floating) and a.dtype.itemsize < 4
    return a.astype(jnp.float32) if low else a


def joined(all_positions: list[Positions]) -> Positions:
    """Put the positions of several uses of the same entries together."""
    if len(all_positions) == 1:
        return all_positions[0]
    site_axis = all_positions[0].g.ndim - 2
    a = jnp.concatenate([p.a for p in all_positions], axis=site_axis - 1)
    return Positions(a, jnp.concatenate([p.g for p in all_positions], axis=site_axis))


def input_factor(
    a: Num[Array, "..."],
    approximation: Approximation,
    *,
    dtype: jnp.dtype,
    rows: int | None = None,
    bias: float | None = None,
    share: Float[Array, " N"] | None = None,
) -> Factor:
    """Return the mean of the outer products of what is read.

    Args:
        a: What is read, or the numbers of rows of a table.
        approximation: How positions are treated.
        dtype: The dtype of the factor.
        rows: The number of rows, if it is a table.
        bias: What a bias is multiplied with; it is one more input, which is constant.
        share: How much each example counts, 1 in the mean; `None` if all do alike.
    """
    share = None if share is None else share.astype(dtype)
    if rows is not None:
        return Factor(_row_moments(a, rows, approximation, dtype, share), True)
    if approximation == "reduce":
        a = jnp.mean(a, axis=-2, keepdims=True)
    weighted = a if share is None else a * share[:, None, None]
    a, weighted = (a.reshape(*a.shape[:-3], -1, a.shape[-1]) for a in (a, weighted))
    count = max(a.shape[-2], 1)
    extra = 0 if bias is None else 1
    if a.shape[-1] + extra > LARGEST_FACTOR:
        squares = jnp.mean(a * weighted, axis=-2)
        if bias is not None:
            squares = jnp.concatenate(
                [squares, jnp.full_like(squares[..., :1], bias**2)], axis=-1
            )
        return Factor(squares, True)
    second = jnp.swapaxes(a, -1, -2) @ weighted / count
    if bias is None:
        return Factor(second, False)
    # Without a column of ones in `a`: a copy of it would be made for that.
    first = bias * jnp.mean(weighted, axis=-2)[..., None]
    corner = jnp.full_like(first[..., :1, :], bias**2)
    top = jnp.concatenate([second, first], axis=-1)
    bottom = jnp.concatenate([jnp.swapaxes(first, -1, -2), corner], axis=-1)
    return Factor(jnp.concatenate([top, bottom], axis=-2), False)


def _row_moments(
    i: Num[Array, "*heads group N T"],
    rows: int,
    approximation: Approximation,
    dtype: jnp.dtype,
    share: Float[Array, " N"] | None,
) -> Float[Array, "*heads group rows"]:
    """Return the mean squares of the indicator of each row of a table."""
    *heads, examples, times = i.shape
    share = jnp.ones(examples, dtype) if share is None else share
    if approximation == "expand":
        # Rows out of range read nothing; negative ones would count from the end.
        flat = i.reshape(-1, examples * times)
        each = jnp.repeat(share, times)
        count = lambda i: _counted(i, rows, each) / max(examples * times, 1)
        return jax.vmap(count)(flat).reshape(*heads, rows)
    flat = i.reshape(-1, times)
    ones = jnp.ones(times, dtype)
    parts = jax.vmap(lambda i: _counted(i, rows, ones) / times)(flat)
    parts = parts.reshape(*heads, examples, rows)
    return jnp.mean(parts**2 * share[:, None], axis=-2)


def _counted(i: Num[Array, " T"], rows: int, each: Float[Array, " T"]) -> Array:
    i = jnp.where(i < 0, rows, i)
    return jnp.zeros(rows, each.dtype).at[i].add(each, mode="drop")


def output_factor(
    g: Float[Array, "*heads group vectors N T out"], approximation: Approximation
) -> Factor:
    """Return the sum of the outer products of the signals."""
    if approximation == "reduce":
        g = jnp.sum(g, axis=-2, keepdims=True)
    g = g.reshape(*g.shape[:-4], math.prod(g.shape[-4:-1]), g.shape[-1])
    if g.shape[-1] > LARGEST_FACTOR:
        return Factor(jnp.sum(g**2, axis=-2), True)
    return Factor(jnp.swapaxes(g, -1, -2) @ g, False)
