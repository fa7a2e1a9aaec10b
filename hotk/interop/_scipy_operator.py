"""`as_scipy`: an operator for SciPy's sparse solvers and eigensolvers."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator

from hotk.linop import AbstractOperator, space, space_of
from hotk.prepared import jitted

from ._layout import Layout, as_flat, as_flat_rows


_CALL = "as_scipy(operator)"


def as_scipy(operator: AbstractOperator) -> LinearOperator:
    r"""Return an operator as a `scipy.sparse.linalg.LinearOperator` in float64.

    It maps $v \mapsto A v$ on flat vectors in the order of `operator.index`, a complex
    leaf by its real parts, then its imaginary parts. What comes back is a new NumPy
    array in float64, as accurate as the operator's own dtypes allow: give SciPy's
    eigensolvers a `tol` above that. Several columns at once (`matmat`) share one
    linearization; each number of columns is compiled once.

    Args:
        operator: An operator of a known space.

    Returns:
        The operator of SciPy. It has a transpose if the operator is symmetric.

    Raises:
        TypeError: If the operator knows no space, as `hotk.Identity()` alone.

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

    def matvec(v: Any) -> Float[np.ndarray, "n"]:
        own = as_flat(_CALL, "v", v, layout.size)
        return layout.join(run(_product, operator, layout.split(own)))

    def matmat(vectors: Any) -> Float[np.ndarray, "n k"]:
        own = as_flat_rows(_CALL, "V", vectors, layout.size)
        return layout.join(run(_products, operator, layout.split(own))).T.copy()

    run = _as_it_is if operator.on_host else _compiled
    maps: Any = {"matvec": matvec, "matmat": matmat, "dtype": np.float64}
    if operator.symmetric:
        maps |= {"rmatvec": matvec, "rmatmat": matmat}
    return LinearOperator((layout.size, layout.size), **maps)


def _as_it_is(product: Any, operator: Any, parts: list[Any]) -> list[Any]:
    return product(operator, parts)


_compiled = jitted(_as_it_is, static_argnums=0)


def _product(operator: AbstractOperator, parts: list[Any]) -> list[Any]:
    return space.parts(operator.mv(space.whole(parts, operator.like)))


def _products(operator: AbstractOperator, parts: list[Any]) -> list[Any]:
    return space.parts(operator.many(space.whole(parts, operator.like)))
