"""The Cholesky factor of an operator's matrix, and its `inertia`."""

from typing import Any, Literal, NamedTuple, overload

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hotk._core import (
    NotPositiveDefiniteError,
    RealNumber,
    Tracer,
    Vector,
    from_host,
    message,
    names_ours,
    not_finite,
    number_name,
)
from hotk._prepared import shown
from hotk.sparse import Factorization, identity

from . import _direct, space
from ._linear_map import AbstractLinearMap
from ._sparse import inertia_by_factors, sparse_of
from ._vectors import check_symmetric


@overload
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = ...,
    method: Literal["dense"] = ...,
) -> Float[Array, "n n"]: ...


@overload
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = ...,
    *,
    method: Literal["sparse"],
) -> Factorization: ...


@names_ours
@shown
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = 0.0,
    method: Literal["dense", "sparse"] = "dense",
) -> Float[Array, "n n"] | Factorization:
    r"""Compute the Cholesky factor of the matrix, $A + \lambda I = L L^T$.

    It forms the matrix. Outside of a transformation it also computes all eigenvalues,
    so that it raises where the matrix is not positive definite instead of returning NaN
    or the factor of a matrix that is only so by rounding.

    Args:
        operator: A symmetric operator.
        damping: The number $\lambda$ that is added to the diagonal.
        method: `"dense"`, or `"sparse"` for a factorization of the sparse matrix, which
            forms no dense one.

    Returns:
        The lower triangle `L`, in the order of `index`; with `method="sparse"` a
        `hotk.sparse.Factorization`, with `solve`, `inertia` and `logdet`.

    Raises:
        NotPositiveDefiniteError: If the smallest eigenvalue, damping included, is not
            positive by more than rounding. Inside of a transformation no error is
            possible, and the factor is NaN.
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.
        TypeError: If the operator is not known to be symmetric, has no sparse matrix,
            or is traced.
        ValueError: If there is no such method.

    Example:
        >>> H = hotk.HessianOperator(lambda x: 2 * x[0] ** 2 + x[1] ** 2, jnp.ones(2))
        >>> hotk.linop.cholesky(H, damping=2.0).tolist()[1]
        [0.0, 2.0]
    """
    call = "cholesky(A)"
    check_symmetric(call, operator)
    if method == "sparse":
        matrix = sparse_of(call, operator)
        shift = damping * identity(matrix)
        return (matrix + shift).symmetrized().cholesky()
    if method != "dense":
        raise ValueError(
            f"`cholesky(A)`: method {method!r} is neither 'dense' nor 'sparse'."
        )
    a = operator.matrix()
    if isinstance(a, Tracer) or isinstance(damping, Tracer):
        return _factor(a, damping)
    on_host = _direct.is_on_host(a)
    if on_host:
        # by NumPy, of which nothing is compiled; the diagonal alone is changed
        shifted = np.array(a, space.wide(a.dtype))
        np.fill_diagonal(shifted, shifted.diagonal() + np.asarray(damping, a.dtype))
        values = _direct.eigenvalues(shifted)
    else:
        shifted = a + jnp.asarray(damping, a.dtype) * jnp.eye(len(a), dtype=a.dtype)
        values = np.asarray(jnp.linalg.eigvalsh(shifted))
    smallest = float(np.min(values, initial=np.inf))
    largest = float(np.max(values, initial=-np.inf))
    if np.isnan(smallest):
        raise NotPositiveDefiniteError(not_finite(call), smallest)
    limit = float(jnp.finfo(a.dtype).eps) * len(a) * max(abs(smallest), abs(largest))
    if len(a) and not smallest > limit:
        gradient: Vector = getattr(operator, "gradient", None)
        slope = ""
        if gradient is not None:
            slope = f"; the gradient's norm here is {float(space.norm(gradient)):.3g}"
        raise NotPositiveDefiniteError(
            message(
                "H.cholesky(damping)",
                "the matrix is not positive definite.",
                expected=f"a smallest eigenvalue above {limit:.3g}, for rounding",
                got=f"{smallest:.6g} (largest {largest:.6g}){slope}",
                fix="At a saddle point, or before convergence, a Hessian is not "
                "positive definite: minimize further, or give `damping=` above "
                f"{-smallest + limit:.3g}.",
            ),
            smallest,
        )
    if not on_host:
        return _factor(a, damping)
    return jnp.asarray(np.linalg.cholesky(shifted), a.dtype)


def _factor(a: Float[Array, "n n"], damping: RealNumber) -> Float[Array, "n n"]:
    eye = jnp.eye(len(a), dtype=a.dtype)
    return jnp.linalg.cholesky(a + jnp.asarray(damping, a.dtype) * eye)


class Inertia(NamedTuple):
    """The inertia of a symmetric matrix: the number of eigenvalues of each sign.

    Attributes:
        positive: The number of positive eigenvalues.
        zero: The number that are zero up to rounding: at most `n eps` times the largest
            magnitude.
        negative: The number of negative eigenvalues.
    """

    positive: Int[Array, ""]
    zero: Int[Array, ""]
    negative: Int[Array, ""]

    def __repr__(self) -> str:
        """Show the three numbers."""
        numbers = zip(self._fields, map(number_name, self), strict=True)
        return f"Inertia({', '.join(f'{name}: {n}' for name, n in numbers)})"


def inertia(operator: AbstractLinearMap) -> Inertia:
    """Count the positive, zero and negative eigenvalues of a symmetric operator.

    It forms the matrix and computes all eigenvalues: `n^2` numbers and about `n^3`
    operations. Of a sparse matrix of 2000 rows or more it factorizes instead, where
    that shows them, and counts a pivot of at most `n eps` times the largest as zero.

    Args:
        operator: A symmetric operator.

    Returns:
        An `Inertia`: the numbers of positive, zero and negative eigenvalues.

    Raises:
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.
        TypeError: If the operator is not known to be symmetric.
        ValueError: If the matrix is not finite; inside of a transformation, where
            nothing can be raised, all three numbers are -1.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(3))
        >>> hotk.linop.inertia(H)
        Inertia(positive: 1, zero: 1, negative: 1)
    """
    check_symmetric(call := "inertia(A)", operator)
    counts = inertia_by_factors(operator)
    if counts is not None:
        return Inertia(*map(from_host, counts))
    a = operator.matrix()
    if isinstance(a, Tracer):
        values = jnp.linalg.eigvalsh(a)
        finite = jnp.all(jnp.isfinite(values))
        return Inertia(*(jnp.where(finite, n, -1) for n in _signs(jnp, values)))
    on_host = _direct.is_on_host(a)
    values = _direct.eigenvalues(a) if on_host else np.asarray(jnp.linalg.eigvalsh(a))
    if not np.isfinite(values).all():
        raise ValueError(not_finite(call))
    return Inertia(*map(from_host, _signs(np, values)))


def _signs(xp: Any, values: Float[Array | np.ndarray, " n"]) -> tuple[Any, ...]:
    """Count positive, zero and negative eigenvalues, with NumPy or in a trace."""
    limit = jnp.finfo(values.dtype).eps * values.size * xp.max(abs(values), initial=0)
    signs = values > limit, abs(values) <= limit, values < -limit
    return tuple(xp.sum(sign, dtype=int) for sign in signs)
