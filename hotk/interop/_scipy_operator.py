"""`as_scipy`: an operator for SciPy's sparse solvers and eigensolvers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float
from scipy.sparse.linalg import LinearOperator

from hotk._prepared import jitted
from hotk.linop import AbstractOperator, space, space_of

from ._layout import Layout, as_flat, as_flat_rows


_CALL = "as_scipy(operator)"
Arrays: TypeAlias = Sequence[Array | np.ndarray]
Product: TypeAlias = Callable[[AbstractOperator, Arrays], Arrays]


def as_scipy(operator: AbstractOperator) -> LinearOperator:
    r"""Convert a linear operator to a `scipy.sparse.linalg.LinearOperator` in float64.

    It maps $v \mapsto A v$ on flat vectors in the order of `operator.index`; a complex
    leaf has its real parts first, then its imaginary parts. Products are computed in
    the dtypes of the operator: give SciPy's eigensolvers a `tol` above their precision.
    A product costs one product of the operator and two copies of the vector. Several
    columns at once (`matmat`) share one linearization; the first product with each
    number of columns compiles.

    Args:
        operator: A `hotk.AbstractOperator` of a known space.

    Returns:
        A `LinearOperator` of shape `(n, n)`, whose products are new NumPy arrays in
        float64. It has a transpose if the operator is symmetric.

    Raises:
        TypeError: If the operator has no space of its own, such as `hotk.Identity()`.

    Example:
        >>> from hotk.interop import as_scipy
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, 2.0]))
        >>> A = as_scipy(H)
        >>> A.shape, (A @ np.array([1.0, 0.5])).tolist()
        ((2, 2), [12.0, 24.0])
        >>> (A @ np.eye(2)).tolist()
        [[12.0, 0.0], [0.0, 48.0]]
    """
    layout = Layout(jax.tree.leaves(space_of(operator)))

    def matvec(v: npt.ArrayLike) -> Float[np.ndarray, "n"]:
        vector = as_flat(_CALL, "v", v, layout.size)
        return layout.join(run(_product, operator, layout.split(vector)))

    def matmat(vectors: npt.ArrayLike) -> Float[np.ndarray, "n k"]:
        rows = as_flat_rows(_CALL, "V", vectors, layout.size)
        return layout.join(run(_products, operator, layout.split(rows))).T.copy()

    run = _call if operator.on_host else _compiled_call
    # Without `rmatvec` SciPy raises for the transpose. hotk has none of an operator
    # that is not symmetric (`test_only_a_symmetric_operator_has_a_transpose`).
    maps: dict[str, Any] = {"matvec": matvec, "matmat": matmat, "dtype": np.float64}
    if operator.symmetric:
        maps |= {"rmatvec": matvec, "rmatmat": matmat}
    return LinearOperator((layout.size, layout.size), **maps)


def _call(product: Product, operator: AbstractOperator, parts: Arrays) -> Arrays:
    return product(operator, parts)


# One program for all operators of one function: the point is an argument.
_compiled_call = jitted(_call, static_argnums=0)


def _product(operator: AbstractOperator, parts: Arrays) -> Arrays:
    return space.parts(operator.mv(space.whole(parts, operator.like)))


def _products(operator: AbstractOperator, parts: Arrays) -> Arrays:
    return space.parts(operator.many(space.whole(parts, operator.like)))
