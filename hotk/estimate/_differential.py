"""Differential operators from derivatives along random directions."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import (
    Function,
    Point,
    RandomKey,
    Tangent,
    Vector,
    Where,
    names_ours,
    nothing_inexact,
    selection,
    split_point,
)
from hotk._first import like_point, refuse_complex
from hotk._higher import DifferentialOperator, derivatives, directions_of, tvp
from hotk._mode import real_inner

from ._estimate import Estimate, averaged


# What `derivatives` returns for a batch of directions: one tree for each order, whose
# leaves have one more axis, the first.
Orders: TypeAlias = Sequence[PyTree]


@names_ours
def laplacian(
    f: Function,
    x: Point,
    key: RandomKey,
    *args: PyTree,
    samples: int = 16,
    where: Where = None,
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate the Laplacian of `f` at `x` from random directions.

    It is the mean of $D^2 f(x)[v, v]$ over `k` vectors of random signs [1]. Each one is
    a forward pass in Taylor mode: there is no reverse pass and no matrix, and the
    memory is that of the intermediates of `block_size` passes. The squared error is
    $2 \sum_{i \ne j} H_{ij}^2 / k$ for the Hessian H. For a trace from fewer products,
    see `trace` of a `HessianOperator`.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point: any pytree without complex leaves. The sum is over all axes: for a
            batch of points use `jax.vmap`.
        key: A random key.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        samples: The number `k` of random vectors.
        where: Which leaves of `x` to differentiate; see `hotk.Where`. The sum is over
            these.
        block_size: The number of directions at once; all if left out.

    Returns:
        An `Estimate` whose value is a tree like the result of `f`. Its `products` are
        the number of directions.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a count is not positive.
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.

    Example:
        >>> f = lambda x: jnp.sum(x**4)
        >>> found = hotk.estimate.laplacian(f, jnp.ones(1000), jax.random.key(0))
        >>> round(found.value.item(), 1), round(found.error.item(), 6)
        (12000.0, 0.0)

    References:
        [1] Hutchinson (1990). A stochastic estimator of the trace of the influence
            matrix for Laplacian smoothing splines. Commun. Stat. Simul. Comput. 19(2).
    """
    call = "estimate.laplacian(f, x, key)"
    like = _check_arguments(call, x, where)
    draw = lambda key: _draw_leaves(key, like, jax.random.rademacher)
    second = lambda v: derivatives(f, x, v, *args, order=2, batched=True, where=where)[
        2
    ]
    keys = jax.random.split(_as_key(key), samples)
    return _estimate(second, jax.vmap(draw), keys, block_size, "signs")


@names_ours
def divergence(
    f: Function,
    x: Point,
    key: RandomKey,
    *args: PyTree,
    samples: int = 16,
    where: Where = None,
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate the divergence of `f` at `x`, the trace of its Jacobian.

    It is the mean of $v^T J v$ over `k` vectors of random signs [1], each by one
    Jacobian-vector product. The squared error is $\sum_{i \ne j} (J_{ij} + J_{ji})^2 /
    (2 k)$. A continuous normalizing flow integrates it [2].

    Args:
        f: Function `f(x, *args)` that returns a tree like `x`, a vector field, with
            `None` in the places of leaves that are not differentiated.
        x: Point: any pytree without complex leaves. The sum is over all axes: for a
            batch of points use `jax.vmap`.
        key: A random key.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        samples: The number `k` of random vectors.
        where: Which leaves of `x` to differentiate; see `hotk.Where`. The sum is over
            these.
        block_size: The number of directions at once; all if left out.

    Returns:
        An `Estimate` of one number. Its `products` are the number of directions.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a count is not positive.
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        StructureError: If the value does not have the structure and shapes of `x`.

    Example:
        >>> f = lambda x: -3.0 * x + x**3
        >>> found = hotk.estimate.divergence(f, jnp.ones(1000), jax.random.key(0))
        >>> round(found.value.item(), 3), round(found.error.item(), 6)
        (0.0, 0.0)

    References:
        [1] Hutchinson (1990). A stochastic estimator of the trace of the influence
            matrix for Laplacian smoothing splines. Commun. Stat. Simul. Comput. 19(2).
        [2] Grathwohl, Chen, Bettencourt, Sutskever and Duvenaud (2019). FFJORD. ICLR.
            https://arxiv.org/abs/1810.01367
    """
    call = "estimate.divergence(f, x, key)"
    like = _check_arguments(call, x, where)
    draw = lambda key: _draw_leaves(key, like, jax.random.rademacher)

    def along(v: Tangent) -> Float[Array, " count"]:
        slopes = tvp(f, x, v, args=args, batched=True, where=where)
        return jax.vmap(real_inner)(v, like_point(call, v, slopes))

    keys = jax.random.split(_as_key(key), samples)
    return _estimate(along, jax.vmap(draw), keys, block_size, "signs")


@names_ours
def biharmonic(
    f: Function,
    x: Point,
    key: RandomKey,
    *args: PyTree,
    samples: int = 16,
    where: Where = None,
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate the biharmonic $\Delta^2 f$ at `x` from random directions.

    It is the mean of $\frac{n (n + 2)}{3} D^4 f(x)[v, v, v, v]$ over `k` directions v
    that are uniform on the unit sphere of the n numbers in `x`. Each one is a forward
    pass in Taylor mode. Shi et al. [1] draw v from a normal distribution; here the mean
    over its length is taken exactly, which leaves the mean and lowers the variance.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point: any pytree without complex leaves. The sum is over all axes: for a
            batch of points use `jax.vmap`.
        key: A random key.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        samples: The number `k` of directions.
        where: Which leaves of `x` to differentiate; see `hotk.Where`. The sum is over
            these.
        block_size: The number of directions at once; all if left out.

    Returns:
        An `Estimate` whose value is a tree like the result of `f`. Its `products` are
        the number of directions.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a count is not positive.
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.

    Example:
        >>> f = lambda x: jnp.sum(x**2) ** 2
        >>> found = hotk.estimate.biharmonic(f, jnp.ones(10), jax.random.key(0))
        >>> round(found.value.item(), 1)
        960.0

    References:
        [1] Shi, Hu, Lin and Kawaguchi (2024). Stochastic Taylor derivative estimator:
            efficient amortization for arbitrary differential operators. NeurIPS.
            https://arxiv.org/abs/2412.00088
    """
    call = "estimate.biharmonic(f, x, key)"
    like = _check_arguments(call, x, where)
    n = sum(leaf.size for leaf in jax.tree.leaves(like))

    def draw(key: RandomKey) -> Tangent:
        v = _draw_leaves(key, like, jax.random.normal)
        # in one dtype: the squares of half precision overflow for long vectors
        squares = [jnp.sum(a.astype(float) ** 2) for a in jax.tree.leaves(v)]
        length = jnp.sqrt(sum(squares[1:], squares[0]))
        return jax.tree.map(lambda a: a / length.astype(a.dtype), v)

    factor = n * (n + 2) / 3

    def fourth(v: Tangent) -> PyTree:
        orders = derivatives(f, x, v, *args, order=4, batched=True, where=where)
        return jax.tree.map(lambda a: a * jnp.asarray(factor, a.dtype), orders[4])

    keys = jax.random.split(_as_key(key), samples)
    return _estimate(fourth, jax.vmap(draw), keys, block_size, "sphere")


@names_ours
def differential(
    operator: DifferentialOperator,
    f: Function,
    x: Point,
    key: RandomKey,
    *args: PyTree,
    samples: int = 16,
    where: Where = None,
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate a differential operator of many terms, applied to `f` at `x`.

    It is the mean of $\operatorname{sign}(c_\alpha)\,\|c\|_1\,\partial^\alpha f(x)$
    over `k` terms $\alpha$ that are drawn with probability $|c_\alpha| / \|c\|_1$ [1].
    Each term is exact, as by `hotk.partial`. The derivative by the coefficients is
    unbiased, except by those that are zero: they are never drawn.

    Args:
        operator: The operator that `hotk.differential_operator` returns.
        f: Function `f(x, *args)` that returns a tree of floating arrays.
        x: Point, as for `hotk.partial`.
        key: A random key.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        samples: The number `k` of terms.
        where: Which leaves of `x` the indices may count; see `hotk.Where`.
        block_size: The number of terms at once; all if left out.

    Returns:
        An `Estimate` whose value is a tree like the result of `f`. Its `products` are
        the number of directions.

    Raises:
        TypeError: If it is not a differential operator, or a count is not an integer.
        ValueError: If a count is not positive.
        DtypeError: If nothing in `x` can be differentiated, or `x` or a coefficient is
            complex.

    Example:
        >>> L = hotk.differential_operator({(4, 0): 1.0, (2, 2): 2.0, (0, 4): 1.0})
        >>> f = lambda x: jnp.sum(x**2) ** 2
        >>> found = hotk.estimate.differential(L, f, jnp.ones(2), jax.random.key(0))
        >>> bool(abs(found.value - L(f, jnp.ones(2))) < 4 * found.error)
        True

    References:
        [1] Shi, Hu, Lin and Kawaguchi (2024). Stochastic Taylor derivative estimator:
            efficient amortization for arbitrary differential operators. NeurIPS.
            https://arxiv.org/abs/2412.00088
    """
    call = "estimate.differential(L, f, x, key)"
    if not isinstance(operator, DifferentialOperator):
        raise TypeError(
            f"`{call}`: expected a `hotk.differential_operator(...)` first, got "
            f"`{type(operator).__name__}`."
        )
    like = _check_arguments(call, x, where)
    refuse_complex(call, operator.coefficients, "differential_operator")
    table = directions_of(operator, x, where)
    order = len(table.weights[0, 0]) - 1
    coefficients = jnp.stack([jnp.asarray(c, float) for c in operator.coefficients])
    sizes = jnp.abs(coefficients)
    chosen = jax.random.categorical(_as_key(key), jnp.log(sizes), shape=(samples,))
    # JAX does not differentiate a random choice by its probabilities. With those held
    # fixed, c over its probability has the right mean, and so has its derivative by c.
    probabilities = jax.lax.stop_gradient(sizes / jnp.sum(sizes))
    factors = coefficients[chosen] / probabilities[chosen]
    weights = jnp.asarray(table.weights, float)[chosen] * factors[:, None, None]
    width = table.places.shape[1]

    def draw(chosen: Int[Array, " terms"]) -> Tangent:
        rows = [jnp.asarray(a)[chosen] for a in (table.places, table.values)]
        rows = [a.reshape(-1, a.shape[-1]) for a in rows]
        return jax.vmap(lambda row: table.direction(like, row))(tuple(rows))

    def weighted(
        v: Tangent, weights: Float[Array, "terms directions orders"]
    ) -> PyTree:
        orders: Orders = derivatives(
            f, x, v, *args, order=order, batched=True, where=where
        )

        def combine(*leaves: Array) -> Array:
            stacked = jnp.stack(leaves, axis=1)  # [directions of all terms, orders]
            stacked = stacked.reshape(-1, width, *stacked.shape[1:])
            cast = weights.astype(stacked.dtype)
            return jnp.einsum("srk,srk...->s...", cast, stacked, precision="highest")

        return jax.tree.map(combine, *orders)

    return _estimate(weighted, draw, chosen, block_size, "terms", weights)


def _check_arguments(call: str, x: Point, where: Where) -> Vector:
    """Check what all of them need; return the differentiated leaves of a point."""
    selected = selection(call, x, where)
    like = jax.tree.map(jnp.asarray, split_point(x, selected)[0])
    refuse_complex(call, like, "partial")
    if not jax.tree.leaves(like):
        raise nothing_inexact(call, x, kinds="floating", selected=selected)
    return like


def _as_key(key: RandomKey) -> RandomKey:
    return key if isinstance(key, jax.Array) else jnp.asarray(key)


def _draw_leaves(key: RandomKey, like: Vector, draw: Callable[..., Array]) -> Vector:
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    pairs = zip(keys, leaves, strict=True)
    return tree.unflatten([draw(k, a.shape, a.dtype) for k, a in pairs])


def _estimate(
    along: Callable[..., PyTree],
    draw: Callable[[Array], Tangent],
    rows: Array,
    block_size: int | None,
    method: str,
    *weights: Array,
) -> Estimate:
    """Average combinations of derivatives along random directions, a block at a time.

    Args:
        along: From a batch of directions, and the weights of the same rows, to one
            result for each sample.
        draw: From some rows to a batch of directions.
        rows: Keys, or numbers of terms: one row for each sample.
        block_size: The number of samples at once.
        method: The name of the method.
        *weights: Arrays with one row for each sample.
    """
    count = len(rows)
    # Blocks of one size, or the last one would be traced and compiled by itself: its
    # missing rows are copies of the last row, which are cut off below.
    blocks = math.ceil(count / min(block_size or count, count))
    width = math.ceil(count / blocks)
    parts, directions = [], 0
    for start in range(0, blocks * width, width):
        numbers = np.minimum(np.arange(start, start + width), count - 1)
        v = draw(rows[numbers])
        parts.append(along(v, *(a[numbers] for a in weights)))
        directions += len(jax.tree.leaves(v)[0])
    each = jax.tree.map(lambda *a: jnp.concatenate(a)[:count], *parts)
    return averaged(each, directions, method)
