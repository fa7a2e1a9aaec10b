"""`hessian_diagonal`: second derivatives by each number alone."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    Auto,
    Nested,
    Taylor,
    along_candidates,
    weak_like,
)
from hotk._prepared import like_point, operator
from hotk._primitive import divided_as


@like_point
@operator(candidates=along_candidates, modes=(Nested, Taylor))
def hessian_diagonal(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute the exact diagonal of the Hessian of a real scalar function.

    Computes $\partial^2 f / \partial x_i^2$ for all i: one forward pass in Taylor mode
    [1] for each of the n numbers in `x`, `block_size` of them at once, and no matrix.
    For an estimate with error bars from fewer passes see `hotk.estimate.diagonal`.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number, twice
            differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
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
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    refuse_complex("hessian_diagonal(f, x)", x, "hvp")
    assert isinstance(mode, (Nested, Taylor))
    _, diagonal, aux = mode.diagonal(f, x, block_size)
    return divided_as(weak_like(diagonal, x), x), aux
