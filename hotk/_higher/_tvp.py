"""`tvp`: a derivative of any order contracted with directions."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import Function, Point, StructureError, Tangent, Where, message
from hotk._mode import (
    AUTO,
    Auto,
    Taylor,
    taylor_only,
)
from hotk._prepared import arranged, like_value, operator

from ._contract import contracted


@operator(
    takes="vs",
    wants="inexact",
    candidates=taylor_only("one direction for each choice of signs"),
    modes=(Taylor,),
    name="tvp",
)
def _contraction(
    f: Function,
    x: Point,
    vs: tuple[Tangent, ...],
    *args: PyTree,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> PyTree:
    """Contract a derivative with directions."""
    assert isinstance(mode, Taylor)
    order = len(vs)
    if order == 1:
        _, slope, aux = jax.jvp(f, (x,), vs, has_aux=True)
        return slope, aux
    # The result is linear in each direction. Scaled to one size, none is lost in
    # another when they are added.
    sizes = jnp.stack([_size(v) for v in vs])
    mean = jnp.exp(jnp.mean(jnp.log(sizes)))
    factors = mean / sizes
    scaled = [
        jax.tree.map(lambda a, s=s: a * s.astype(a.dtype), v)
        for v, s in zip(vs, factors, strict=True)
    ]
    # Polarization. The first direction keeps its sign: flipping all signs gives the
    # same term again.
    signs = np.array([(1, *s) for s in itertools.product((1, -1), repeat=order - 1)])
    weights = signs.prod(axis=1) / (2.0 ** (order - 1) * math.factorial(order))

    def direction(row: Array) -> Tangent:
        return jax.tree.map(
            lambda *parts: sum(
                (row[k].astype(p.dtype) * p for k, p in enumerate(parts[1:], 1)),
                parts[0],
            ),
            *scaled,
        )

    rows = jnp.asarray(signs, jnp.int8)
    _, total, aux = contracted(f, x, direction, rows, jnp.asarray(weights), order)
    # The factors multiply to 1 but for rounding: this takes the rounding back.
    correction = 1 / jnp.prod(factors)
    return jax.tree.map(lambda a: a * correction.astype(a.dtype), total), aux


def _size(v: Tangent) -> Array:
    """Return a number to divide a direction by, held fixed in derivatives."""
    leaves = [jnp.max(jnp.abs(a), initial=0) for a in jax.tree.leaves(v)]
    dtype = jnp.result_type(float)
    largest = jnp.max(jnp.stack([a.astype(dtype) for a in leaves]), initial=0)
    divides = (largest > 0) & jnp.isfinite(largest)
    return jax.lax.stop_gradient(jnp.where(divides, largest, 1))


@like_value
@arranged()
def tvp(
    f: Function,
    x: Point,
    *directions: Tangent,
    args: tuple[PyTree, ...] = (),
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the tensor-vector product $D^K f(x)[v_1, \dots, v_K]$.

    Contracts the K-th derivative with as many directions as are given: $\sum T_{i_1
    \dots i_K} v_{1, i_1} \cdots v_{K, i_K}$, by polarization [1]: $2^{K-1}$ derivatives
    along $v_1 \pm v_2 \dots \pm v_K$, in one pass of Taylor mode that carries their
    sum. The tensor is not formed. For equal directions `hotk.derivatives` needs one
    direction.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        *directions: The directions $v_1, ..., v_K$, each as for `hotk.hvp`.
        args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        batched: Whether the leaves of all directions have a leading axis, one tuple of
            directions each.

    Returns:
        The product, with the structure, shapes and dtypes of the value of `f`, without
        factors; `(product, aux)` with `has_aux=True`. What `.prepare` returns is called
        as `prepared(x, (v1, ..., vk), *args)`.

    Raises:
        StructureError: If there is no direction, or one has another structure or shape
            than `x`.
        DtypeError: If nothing in `x` can be differentiated, or a direction is a JAX
            array of another dtype.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.

    Example:
        >>> f = lambda x: x[0] * x[1] * x[2]
        >>> e = jnp.eye(3)
        >>> hotk.tvp(f, jnp.ones(3), e[0], e[1], e[2]).round(5).item()
        1.0

    References:
        [1] Griewank, Utke and Walther (2000). Evaluating higher derivative tensors by
            forward propagation of univariate Taylor series. Math. Comp. 69, 1117-1130.
    """
    del x
    if not directions:
        raise StructureError(
            message(
                "tvp(f, x, v1, ..., vk)",
                "there is no direction.",
                expected="at least one",
                got="none",
                fix="Further arguments of `f` go in `args=(...)`.",
            )
        )
    keywords = {"mode": mode, "has_aux": has_aux, "batched": batched, "where": where}
    return _contraction, f, (directions, *args), keywords
