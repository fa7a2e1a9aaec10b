"""`divergence`: the trace of a Jacobian."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from hotk._core import (
    Argnums,
    Cotangent,
    Function,
    Keywords,
    OutputError,
    Point,
    Scalar,
    StructureError,
    Tangent,
    Where,
    describe_tree,
    difference,
    message,
    typed_as,
)
from hotk._dense import choose_block, is_complex, over_basis, size_of, unit
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Reverse,
    forward_first,
    real_inner,
    weak_if,
)
from hotk._prepared import array_of_array, operator, two_of_array

from ._points import refuse_complex


@two_of_array
@operator(
    value=True, wants="inexact", candidates=forward_first, modes=(Forward, Reverse)
)
def value_and_divergence(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its divergence.

    Computes $f(x)$ and $\sum_i \partial f_i / \partial x_i$, which a continuous
    normalizing flow integrates [1]. The Jacobian is never whole: each of the n passes
    gives one number.

    Args:
        f: Function `f(x, *args)` that returns a tree like `x`, a vector field, with
            `None` in the places of leaves that are not differentiated.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused. All axes are summed
            over: for a batch of points use `jax.vmap`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`. The sum is over
            these.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many passes at once. Chosen from the program if left out.

    Returns:
        The pair `(y, divergence)` of the value and one number; `((y, aux), divergence)`
        with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but real floating arrays.
        StructureError: If the value does not have the structure and shapes of `x`.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> y, divergence = hotk.value_and_divergence(lambda x: x**2, jnp.ones(3))
        >>> y.tolist(), divergence.item()
        ([1.0, 1.0, 1.0], 6.0)

    References:
        [1] Chen, Rubanova, Bettencourt and Duvenaud (2018). Neural ordinary
            differential equations. NeurIPS. Equation 8.
            https://arxiv.org/abs/1806.07366
    """
    return _divergence(f, x, mode, block_size)


@array_of_array
@operator(wants="inexact", candidates=forward_first, modes=(Forward, Reverse))
def divergence(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Forward | Reverse | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute the divergence $\sum_i \partial f_i / \partial x_i$ of a vector field.

    It is the trace of the Jacobian, which is never whole: each of the n passes gives
    one number. A continuous normalizing flow integrates it [1].
    `hotk.value_and_divergence` returns the value as well, `hotk.estimate.divergence`
    needs a few passes in any dimension.

    Args:
        f: Function `f(x, *args)` that returns a tree like `x`, a vector field, with
            `None` in the places of leaves that are not differentiated.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused. All axes are summed
            over: for a batch of points use `jax.vmap`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Forward()`, `hotk.Reverse()` or `hotk.Auto()`: forward if it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`. The sum is over
            these.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many passes at once. Chosen from the program if left out.

    Returns:
        The divergence, one number; `(divergence, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but real floating arrays.
        StructureError: If the value does not have the structure and shapes of `x`.
        ModeError: If `f` has no derivative in this mode.

    Example:
        >>> rotation = lambda x: jnp.array([-x[1], x[0]]) + x**2
        >>> hotk.divergence(rotation, jnp.array([1.0, 2.0])).item()
        6.0

    References:
        [1] Chen, Rubanova, Bettencourt and Duvenaud (2018). Neural ordinary
            differential equations. NeurIPS. Equation 8.
            https://arxiv.org/abs/1806.07366
    """
    return _divergence(f, x, mode, block_size)[1:]


def _divergence(
    f: Function, x: Point, mode: AbstractMode, block: int | None
) -> tuple[PyTree, Scalar, PyTree]:
    """Return `y`, its divergence, and `aux`."""
    refuse_complex("divergence(f, x)", x, "jvp")
    assert isinstance(mode, (Forward, Reverse))
    if isinstance(mode, Forward):
        y, aux = f(x)
        like_point("divergence(f, x)", x, y)
        push: Callable[[Tangent], PyTree] = lambda v: like_point(
            "divergence(f, x)", x, mode.along(f, x, v)[1]
        )
    else:
        y, pull, aux = jax.vjp(f, x, has_aux=True)
        like_point("divergence(f, x)", x, y)
        push = lambda u: pull(_as_cotangent(u, y))[0]

    def entry(i: Int[Array, ""]) -> Scalar:
        direction = unit(x, i)
        return real_inner(direction, push(direction))

    size = choose_block(push, x) if block is None else block
    total = jnp.sum(over_basis(entry, size_of(x), size), axis=0)
    return y, weak_if(total, x), aux


def like_point(call: str, x: Point, y: PyTree) -> PyTree:
    """Return the value of a vector field at the differentiated leaves of a point.

    Args:
        call: The call, for messages.
        x: The point, `None` in place of leaves that are not differentiated.
        y: The value.

    Raises:
        StructureError: If the value does not have the structure and shapes of `x`.
        OutputError: If it is complex.
    """
    is_none = lambda leaf: leaf is None
    leaves, treedef = jax.tree.flatten(x, is_leaf=is_none)
    try:
        parts = treedef.flatten_up_to(y)
    except (ValueError, TypeError, KeyError):
        parts = [StructureError] * len(leaves)  # no leaf has its shape
    pairs = list(zip(leaves, parts, strict=True))
    if is_complex(y):
        raise OutputError(
            message(
                call,
                "the value of `f` is complex.",
                expected="real floating arrays",
                got=describe_tree(y),
                fix="Take the divergence of its real part and of its imaginary part.",
            )
        )
    if all(a is None or _shape(a) == _shape(b) for a, b in pairs):
        return treedef.unflatten([None if a is None else b for a, b in pairs])
    raise StructureError(
        message(
            call,
            "the value of `f` is not like `x`, so it has no divergence.",
            **difference("f(x)", x, y),
            fix="Return a tree like `x`, with `None` in the places of leaves that are "
            "not differentiated. `hotk.jacobian` takes any f.",
        )
    )


def _shape(a: object) -> tuple[int, ...] | None:
    return getattr(a, "shape", None)


def _as_cotangent(u: Tangent, y: PyTree) -> Cotangent:
    """Return a cotangent of the value: that of the point, zero at other leaves."""
    is_none = lambda leaf: leaf is None
    leaves, treedef = jax.tree.flatten(u, is_leaf=is_none)
    zeros = lambda part: jax.tree.map(jnp.zeros_like, part)
    made = [
        zeros(part) if a is None else typed_as(a.astype(part.dtype), part)
        for a, part in zip(leaves, treedef.flatten_up_to(y), strict=True)
    ]
    return treedef.unflatten(made)
