"""`quadratic_form`: the curvature along one direction."""

from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Tangent, Where
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
@operator(
    takes="v", wants="single", candidates=along_candidates, modes=(Nested, Taylor)
)
def quadratic_form(
    f: Function,
    x: Point,
    v: Tangent,
    *args: PyTree,
    mode: Nested | Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    batched: bool = False,
) -> PyTree:
    r"""Compute the quadratic form $v^{\mathsf T} \nabla^2 f(x)\,v$ of the Hessian.

    Computes $v^{\mathsf T} \nabla^2 f(x)\,v = \frac{d^2}{dt^2} f(x + t v)\big|_{t=0}$,
    the curvature of `f` along `v`, for complex `x` as well. By default it takes one
    pass in Taylor mode [1] and no reverse pass: it needs no memory for intermediate
    results and works through a `while_loop`.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number, twice
            differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated; integers,
            strings and functions pass through.
        v: Direction, with the structure, shapes and dtypes of `x`, as for `hotk.hvp`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, a `hotk.Nested`, or `hotk.Auto()`: the first of these
            that exists.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`: `v` is then like these. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        batched: Whether the leaves of `v` have a leading axis, one direction each; the
            result is then an array of as many numbers.

    Returns:
        A real scalar of the dtype of the value, without a factor 1/2; `(form, aux)`
        with `has_aux=True`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        OutputError: If `f` returns anything but one real floating-point number, of
            shape `()` or `(1,)`.
        ModeError: If `f` has no second derivative in this mode.

    Example:
        >>> x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])
        >>> hotk.quadratic_form(lambda x: jnp.sum(x**3), x, v).item()
        18.0

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 13.
            SIAM.
    """
    assert isinstance(mode, (Nested, Taylor))
    _, form, aux = mode.quadratic_form(f, x, v)
    return weak_if(form, x, v), aux
