"""`hessian` and `hessian_diagonal`: second derivatives as arrays."""

from collections.abc import Callable
from typing import Any

from hotk.first import refuse_complex
from hotk.mode import (
    AUTO,
    Auto,
    Nested,
    Taylor,
    along_candidates,
    second_order_candidates,
    weak_like,
)
from hotk.prepared import check_budget, operator


def _nested(facts: Any, sizes: Any) -> Any:
    del sizes
    return second_order_candidates(facts)


def _along(facts: Any, sizes: Any) -> Any:
    del sizes
    return along_candidates(facts)


@operator(wants="inexact", value=True, candidates=_nested, modes=(Nested,))
def value_gradient_and_hessian(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    r"""Evaluate `f`, its gradient and its Hessian at `x`.

    Computes $f(x)$, $\nabla f(x)$ and $H_{ij} = \partial^2 f / \partial x_i \partial
    x_j$ by columns, `block_size` of them at once, each as a Hessian-vector product. The
    memory beyond the result is that of one block. For a function with several outputs
    it gives the Jacobian and one Hessian for each output.

    Args:
        f: Function `f(x, *args)` that returns a real scalar or a tree of floating
            or complex arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `(y, aux)`.
        block_size: How many columns at once. Chosen from the program if left out.

    Returns:
        The triple `(y, gradient, hessian)`. The Hessian has the structure of
        `jax.hessian(f)(x)`: the structure of `y`, then twice that of `x`, with leaves
        of shape `y.shape + x_i.shape + x_j.shape`; `((y, aux), gradient, hessian)` with
        `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If the Hessian would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1]
        >>> y, g, H = hotk.value_gradient_and_hessian(f, jnp.ones(2))
        >>> y.item(), g.tolist(), H.tolist()
        (1.0, [2.0, 1.0], [[2.0, 2.0], [2.0, 0.0]])

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 7. SIAM.
    """
    refuse_complex("hessian(f, x)", x, "hvp")
    check_budget("hessian(f, x)", f, x, order=2)
    assert isinstance(mode, Nested)
    return mode.hessian(f, x, block_size)


@operator(wants="inexact", candidates=_nested, modes=(Nested,))
def hessian(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """As `value_gradient_and_hessian`, and returns the Hessian alone.

    A drop-in for `jax.hessian(f)(x)`. With `has_aux=True` it returns `(hessian, aux)`.

    Example:
        >>> hotk.hessian(lambda x: x[0] ** 2 * x[1], jnp.ones(2)).tolist()
        [[2.0, 2.0], [2.0, 0.0]]
    """
    formula = value_gradient_and_hessian.kind.formula
    return formula(f, x, mode=mode, block_size=block_size)[2:]


@operator(candidates=_along, modes=(Nested, Taylor))
def hessian_diagonal(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    r"""Compute the exact diagonal of the Hessian of a real scalar `f` at `x`.

    Computes $\partial^2 f / \partial x_i^2$ for all i: one forward pass of Taylor mode
    for each of the n numbers in `x`, `block_size` of them at once, and no matrix.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.
        block_size: How many entries at once. Chosen from the program if left out.

    Returns:
        The diagonal, with the structure, shapes and dtypes of `x`, `None` at leaves
        that are not differentiated; `(diagonal, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> f = lambda x: jnp.prod(x) ** 2
        >>> hotk.hessian_diagonal(f, jnp.array([1.0, 2.0])).tolist()
        [8.0, 2.0]

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13. SIAM.
    """
    refuse_complex("hessian_diagonal(f, x)", x, "hvp")
    assert isinstance(mode, (Nested, Taylor))
    _, diagonal, aux = mode.diagonal(f, x, block_size)
    return weak_like(diagonal, x), aux
