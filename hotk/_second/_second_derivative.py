"""`second_derivative`: by a real scalar."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._first import check_scalar_point
from hotk._mode import (
    AUTO,
    Auto,
    Nested,
    Taylor,
    along_candidates,
    weak_if,
)
from hotk._prepared import array_of_array, operator


@array_of_array
@operator(wants="inexact", candidates=along_candidates, modes=(Nested, Taylor))
def second_derivative(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> PyTree:
    r"""Compute the second derivative $f''(x)$ of a function of one real number.

    By default it takes one forward pass in Taylor mode [1]. For orders above the second
    use `hotk.derivatives`.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays,
            twice differentiable at `x`.
        x: Point: a real scalar, a Python float or an array of shape `()`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The second derivative, with the structure, shapes and dtypes of the value of
        `f`, without a factor 1/2; `(second, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If `x` is an integer or complex.
        StructureError: If `x` is not a scalar.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> hotk.second_derivative(lambda t: t**4, 1.5).item()
        27.0

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    check_scalar_point("second_derivative(f, x)", x)
    assert isinstance(mode, (Nested, Taylor))
    _, second, aux = mode.second_derivative(f, x)
    return weak_if(second, x), aux
