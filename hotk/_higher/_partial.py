"""`partial`: mixed partial derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import Function, Point, Where
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    Auto,
    Taylor,
    taylor_only,
)
from hotk._prepared import arranged, like_value, operator

from ._contract import contracted, sparse_direction
from ._directions import order_of, sparse_seeds, table_of
from ._terms import Terms, multi_index


by_terms = taylor_only("all terms of one order in one pass")


@operator(
    wants="inexact",
    candidates=by_terms,
    modes=(Taylor,),
    choice=Terms,
    curved=Terms.are_curved,
    name="partial",
)
def _partial(
    f: Function,
    x: Point,
    *args: PyTree,
    order: Terms,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> PyTree:
    """Compute one partial derivative: its multi-index is static, as an order is."""
    refuse_complex("partial(f, x, index)", x, "hvp")
    return sum_of_partials(f, x, jnp.ones(1), order, block_size)


@like_value
@arranged()
def partial(
    f: Function,
    x: Point,
    index: object,
    *args: PyTree,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute a mixed partial derivative of `f` at `x`.

    Computes $\partial^{|\alpha|} f / \partial x_1^{\alpha_1} \cdots \partial
    x_n^{\alpha_n}$ of any order. It is a sum of derivatives along a few directions
    [1], about half of $\prod_i (\alpha_i + 1)$ of them, in one pass of Taylor mode:
    their top coefficients are summed within it.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, as
            often differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; complex leaves are
            refused. For a batch of points use `jax.vmap`.
        index: The multi-index $\alpha$: `(2, 0, 1)` for an array of three numbers, 3
            for a number, and a tree of such for a tree. For a dict the keys that count
            are enough, `{"x": 2, "t": 1}`, or their names, `"xxt"` or
            `("x", "x", "t")`. It is static: another one is another program.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` the index may count; see `hotk.Where`. The others
            may be of any kind, complex ones among them.
        block_size: How many directions at once. Chosen from the program if left out.

    Returns:
        The derivative, with the structure, shapes and dtypes of the value of `f`;
        `(derivative, aux)` with `has_aux=True`.

    Raises:
        StructureError: If the index does not belong to `x`.
        DtypeError: If the index counts a leaf that cannot be differentiated or that
            `where` does not select, or a leaf of `x` is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1] ** 3
        >>> hotk.partial(f, jnp.array([1.0, 1.0]), (2, 3)).item()
        12.0
        >>> u = lambda p: jnp.sin(p["x"]) * jnp.exp(p["t"])
        >>> print(f"{hotk.partial(u, {'x': 1.0, 't': 0.0}, 'xxt'):.4f}")
        -0.8415

    References:
        [1] Kan (2008). From moments of sum to moments of product. J. Multivariate Anal.
            99(3), 542-554. Equation 3.
    """
    terms = Terms((multi_index("partial(f, x, index)", x, index, where),))
    keywords = {"mode": mode, "has_aux": has_aux, "block_size": block_size}
    return _partial, f, args, {"order": terms, "where": where, **keywords}


def sum_of_partials(
    f: Function, x: Point, c: Array, terms: Terms, block: int | None
) -> tuple[PyTree, PyTree]:
    """Return the weighted sum of partial derivatives, and `aux`.

    All of one order go in one pass. Those of first order travel in the top coefficient
    of any pass.
    """
    orders: dict[int, list[int]] = {}
    for a, index in enumerate(terms.indices):
        orders.setdefault(order_of(index), []).append(a)
    parts: list[PyTree] = []
    aux: PyTree = None
    seed = None
    if 1 in orders:
        chosen = orders.pop(1)
        places = np.array([terms.indices[a][0][0] for a in chosen], np.int32)
        seed = sparse_direction(x, (places, c[np.array(chosen)]))
        # Without a higher order there is no pass to travel in: a `jvp` of its own.
        if not orders.keys() - {0}:
            _, slope, aux = jax.jvp(f, (x,), (seed,), has_aux=True)
            parts.append(slope)
    if 0 in orders:
        factor = jnp.sum(c[np.array(orders.pop(0))])
        y, aux = f(x)
        parts.append(jax.tree.map(lambda a: a * factor.astype(a.dtype), y))
    for order, chosen in orders.items():
        table = table_of(tuple(terms.indices[a] for a in chosen))
        weights = jnp.asarray(table.matrix, c.dtype) @ c[np.array(chosen)]
        rows = (jnp.asarray(table.places), jnp.asarray(table.values))
        known = functools.partial(sparse_seeds, table)
        direction = lambda row: sparse_direction(x, row)
        _, part, aux = contracted(
            f, x, direction, rows, weights, order, block=block, seed=seed, known=known
        )
        seed = None  # it is in the sum once
        parts.append(part)
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), aux
