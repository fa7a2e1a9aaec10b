"""`laplacian` and `biharmonic`."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Argnums, Function, Keywords, Point, Where
from hotk._dense import size_of, unit
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    Auto,
    Taylor,
    taylor_only,
    weak_if,
)
from hotk._prepared import like_value, operator, two_of_array

from ._contract import contracted
from ._directions import unit_seeds


def _always(order: None) -> bool:
    del order
    return True


_ONE_PASS = taylor_only("second derivatives are summed in one pass")


@two_of_array
@operator(
    wants="inexact", value=True, candidates=_ONE_PASS, modes=(Taylor,), curved=_always
)
def value_and_laplacian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> tuple[PyTree, ...]:
    r"""Compute the value of `f` and its Laplacian $\Delta f(x)$.

    Computes $f(x)$ and $\Delta f(x) = \sum_i \partial^2 f / \partial x_i^2$ over all
    numbers in `x` in one pass: beside the value, all first derivatives and the sum of
    the second ones are carried through the program. This is the forward Laplacian [1],
    which is Taylor mode with collapsed top coefficients [2]. There is no reverse pass
    and no Hessian: the memory is that of `block_size` first derivatives of an
    intermediate result.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays,
            twice differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused. All axes are summed
            over: for a batch of points use `jax.vmap`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many first derivatives at once. Chosen from the program if left
            out.

    Returns:
        The pair `(y, laplacian)`, both with the structure, shapes and dtypes of the
        value of `f`; `((y, aux), laplacian)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no second derivative.

    Example:
        >>> f = lambda x: jnp.sum(x**3)
        >>> y, laplacian = hotk.value_and_laplacian(f, jnp.array([1.0, 2.0]))
        >>> y.item(), laplacian.item()
        (9.0, 18.0)

    References:
        [1] Li, Ye, Zhang et al. (2024). A computational framework for neural
            network-based variational Monte Carlo with forward Laplacian. Nature Machine
            Intelligence 6, 209-219.
        [2] Dangel, Siebert, Zeinhofer and Walther (2025). Collapsing Taylor mode
            automatic differentiation. https://arxiv.org/abs/2505.13644
    """
    refuse_complex("laplacian(f, x)", x, "hvp")
    assert isinstance(mode, Taylor)
    return _laplacian(f, x, block_size)


def _laplacian(
    f: Function, x: Point, block: int | None
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `y`, its Laplacian, and `aux`."""
    numbers = jnp.arange(size_of(x), dtype=jnp.int32)
    if not numbers.size:  # a point of size zero has no directions to sum over
        y, aux = f(x)
        return y, jax.tree.map(jnp.zeros_like, y), aux
    direction = lambda i: unit(x, i)
    y, total, aux = contracted(
        f, x, direction, numbers, None, 2, block=block, known=unit_seeds
    )
    return y, weak_if(total, x), aux


@like_value
@operator(wants="inexact", candidates=_ONE_PASS, modes=(Taylor,), curved=_always)
def laplacian(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute the Laplacian $\Delta f(x) = \sum_i \partial^2 f / \partial x_i^2$.

    The sum is over all numbers in `x`. It takes one pass: beside the value, all first
    derivatives and the sum of the second ones are carried through the program. This is
    the forward Laplacian [1], which is Taylor mode with collapsed top coefficients [2].
    There is no reverse pass and no Hessian: the memory is that of `block_size` first
    derivatives of an intermediate result. Where a result depends on few numbers of `x`,
    as a feature of one electron does, it is differentiated by these alone, unless
    `block_size` is smaller than n. `hotk.value_and_laplacian` returns the value too.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays,
            twice differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused. All axes are summed
            over: for a batch of points use `jax.vmap`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many first derivatives at once. Chosen from the program if left
            out.

    Returns:
        The Laplacian, with the structure, shapes and dtypes of the value of `f`;
        `(laplacian, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no second derivative.

    Example:
        >>> hotk.laplacian(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0])).item()
        18.0

    References:
        [1] Li, Ye, Zhang et al. (2024). A computational framework for neural
            network-based variational Monte Carlo with forward Laplacian. Nature Machine
            Intelligence 6, 209-219.
        [2] Dangel, Siebert, Zeinhofer and Walther (2025). Collapsing Taylor mode
            automatic differentiation. https://arxiv.org/abs/2505.13644
    """
    refuse_complex("laplacian(f, x)", x, "hvp")
    assert isinstance(mode, Taylor)
    return _laplacian(f, x, block_size)[1:]


@like_value
@operator(wants="inexact", candidates=_ONE_PASS, modes=(Taylor,), curved=_always)
def biharmonic(
    f: Function,
    x: Point,
    *args: PyTree,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute the biharmonic operator $\Delta^2 f(x)$, the Laplacian of the Laplacian.

    Computes $\Delta^2 f = \sum_{ij} \partial^4 f / \partial x_i^2 \partial x_j^2$ as
    `hotk.laplacian` of `hotk.laplacian`, each in collapsed Taylor mode [1]: about n
    times the cost of one Laplacian for n numbers in `x`.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays,
            four times differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused. All axes are summed
            over: for a batch of points use `jax.vmap`.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.
        block_size: How many first derivatives at once, in each of the two. Chosen from
            the program if left out.

    Returns:
        The biharmonic, with the structure, shapes and dtypes of the value of `f`;
        `(biharmonic, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no fourth derivative.

    Example:
        >>> f = lambda x: x[0] ** 4 + x[0] ** 2 * x[1] ** 2
        >>> hotk.biharmonic(f, jnp.ones(2)).item()
        32.0

    References:
        [1] Dangel, Siebert, Zeinhofer and Walther (2025). Collapsing Taylor mode
            automatic differentiation. https://arxiv.org/abs/2505.13644
    """
    refuse_complex("biharmonic(f, x)", x, "hvp")
    assert isinstance(mode, Taylor)

    def inner(x: Point) -> tuple[PyTree, PyTree]:
        return _laplacian(f, x, block_size)[1:]

    return _laplacian(inner, x, block_size)[1:]
