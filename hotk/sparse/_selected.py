"""Entries of the inverse of a sparse symmetric matrix, and its log-determinant."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from hotk._core import Arrays, Leaf, Scalar, Tracer, Types, called_on_host
from hotk._dense import promoted
from hotk._primitive import (
    AbstractLinear,
    AbstractRuled,
    apply_linear,
    apply_ruled,
    without_derivative,
)

from ._factors import AnyFactors, definite_factors
from ._pattern import Pattern
from ._positions import distinct
from ._schur import SchurFactors
from ._superlu import Factors, symmetric_factors
from ._vectors import check_one


def log_determinant(pattern: Pattern, values: Float[Array, " nnz"]) -> Scalar:
    """Return that of a positive definite matrix, NaN of another; twice differentiable.

    The derivative by the entries is the inverse, of which those on the pattern count.
    """
    values = _checked(pattern, values, "A.logdet()")
    return jnp.asarray(
        apply_ruled(_LogDeterminant(pattern, inverse=False), [values])[0]
    )


def differentiable_inverse(
    pattern: Pattern, values: Float[Array, " nnz"]
) -> Float[Array, " nnz"]:
    """Return entries of the inverse where a matrix has entries, differentiable once.

    They are NaN if the matrix is not positive definite.
    """
    values = _checked(pattern, values, "A.selected_inverse()")
    return jnp.asarray(apply_ruled(_LogDeterminant(pattern, inverse=True), [values])[1])


def _checked(pattern: Pattern, values: Array, call: str) -> Array:
    """Return the values in single precision at least."""
    check_one(values)
    if not pattern.symmetric or jnp.iscomplexobj(values):
        raise ValueError(
            f"`{call}`: the matrix is not known to be real and symmetric; if it "
            "is up to rounding, take `A.symmetrized()`, or make it with "
            "`symmetric=True`. Outside of transformations `A.factorize().logdet()` is "
            "that of any matrix."
        )
    return values.astype(promoted(values.dtype, jnp.float32))


@dataclasses.dataclass(frozen=True)
class _LogDeterminant(AbstractRuled):
    """The log-determinant, and on demand the entries of the inverse.

    Attributes:
        pattern: The pattern of the matrix.
        inverse: Whether the entries of the inverse are computed too.
    """

    pattern: Pattern
    inverse: bool
    users_rule = False

    def run(self, arrays: Arrays) -> Arrays:
        """Factorize on the host."""
        values = jnp.asarray(arrays[0])
        dtype, shape = values.dtype, values.shape

        def host(values: Any) -> tuple[np.ndarray, ...]:
            found = _definite_factors(self.pattern, np.asarray(values, np.float64))
            if found is None:
                nan = np.array(np.nan, dtype), np.full(shape, np.nan, dtype)
                return nan if self.inverse else nan[:1]
            value = np.log(found.pivots).sum().astype(dtype)
            if not self.inverse:
                return (value,)
            return value, selected_inverse(found, self.pattern).astype(dtype)

        types = jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct(shape, dtype)
        return [*_called(host, types if self.inverse else types[:1], values)]

    def tangents(
        self, outputs: Arrays, arrays: Arrays, along: list[Leaf | None]
    ) -> list[Leaf | None]:
        """Differentiate both by the inverse."""
        tangent = jnp.asarray(along[0])
        if not self.inverse:
            outputs = apply_ruled(_LogDeterminant(self.pattern, inverse=True), arrays)
            return [jnp.vdot(jnp.asarray(outputs[1]), tangent)]
        [turned] = apply_linear(_Congruence(self.pattern), arrays, [tangent])
        return [jnp.vdot(jnp.asarray(outputs[1]), tangent), jnp.negative(turned)]


def _definite_factors(
    pattern: Pattern, values: Float[np.ndarray, " nnz"]
) -> AnyFactors | None:
    finite = np.isfinite(values).all()
    return definite_factors(pattern, values) if finite else None


def _called(
    host: Callable[..., tuple[np.ndarray, ...]],
    types: tuple[jax.ShapeDtypeStruct, ...],
    *arrays: Array,
) -> Any:
    """Run a function of NumPy, by a callback where its arguments are traced."""
    if not any(isinstance(a, Tracer) for a in arrays):
        return tuple(map(jnp.asarray, host(*arrays)))
    return called_on_host(host, types, *arrays)


@dataclasses.dataclass(frozen=True)
class _Congruence(AbstractLinear):
    r"""The derivative of the inverse, $T \mapsto A^{-1} T A^{-1}$, on the pattern of A.

    Of a symmetric matrix it is its own transpose.

    Attributes:
        pattern: The pattern.
    """

    pattern: Pattern

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Apply the map to the symmetric part of T."""
        values, tangent = map(jnp.asarray, (*residuals, *inputs))

        def host(values: Any, tangent: Any) -> tuple[np.ndarray]:
            data, along = (np.asarray(a, np.float64) for a in (values, tangent))
            return (_congruence(self.pattern, data, along).astype(values.dtype),)

        types = (jax.ShapeDtypeStruct(values.shape, values.dtype),)
        [found] = _called(host, types, jax.lax.stop_gradient(values), tangent)
        return [
            without_derivative(
                "A.logdet() or A.selected_inverse()",
                found,
                values,
                names="the derivative of entries of the inverse",
                fix="Take two derivatives of a log-determinant, or one of the inverse; "
                "for more use a dense matrix.",
            )
        ]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the transpose."""
        return self.forward(residuals, cotangents)

    def takes(self, residuals: Types) -> Types:
        """Return the type of T."""
        return [residuals[0].to_tangent_aval()]

    def gives(self, residuals: Types) -> Types:
        """Return the type of the result."""
        return self.takes(residuals)


# The imaginary part of a complex step: its square must vanish beside one, even times
# the square of a condition number.
_STEP = 2.0**-133


def _congruence(
    pattern: Pattern,
    values: Float[np.ndarray, " nnz"],
    tangent: Float[np.ndarray, " nnz"],
) -> Float[np.ndarray, " nnz"]:
    r"""Return the entries of $A^{-1} T A^{-1}$ where A has entries.

    They are $-\operatorname{Im} (A + i h T)^{-1} / h$ for a tiny h, without
    cancellation (see [1]), and so cost what the entries of the inverse do in complex
    numbers. In place of it each column of the inverse would take a solution.

    References:
        [1] Squire and Trapp (1998). Using complex variables to estimate derivatives of
            real functions. SIAM Review 40(1), 110-112.
    """
    if _definite_factors(pattern, values) is None:
        return np.full_like(values, np.nan)
    across = pattern.transposed()[1]
    tangent = (tangent + tangent[across]) / 2
    # Relative to the matrix, in whatever units its variables are.
    scale = np.empty(pattern.shape[0])
    on_diagonal = pattern.rows == pattern.cols
    scale[pattern.rows[on_diagonal]] = np.sqrt(values[on_diagonal])
    size = np.abs(tangent / scale[pattern.rows] / scale[pattern.cols]).max(initial=0.0)
    if not size:
        return tangent
    if not np.isfinite(size):
        return np.full_like(values, np.nan)
    step = _STEP / size
    found = symmetric_factors(pattern, values + 1j * (step * tangent))
    return -np.imag(selected_inverse(found, pattern)) / step


def selected_inverse(
    factors: AnyFactors, pattern: Pattern
) -> Inexact[np.ndarray, " nnz"]:
    r"""Return entries of $Z = A^{-1}$ where A has entries.

    With $A = L D L^T$ these are Takahashi's equations [1] (see [2], section 2.2),
    $$Z_{ij} = \delta_{ij} / d_j - \sum_{k > j} Z_{ik} L_{kj}, \quad i \ge j,$$
    from the last column to the first. The k for which $L_{kj}$ is not zero are among
    the first of them, the parent of j, and the k of the parent. So a column needs no
    entries of Z but those of its parent's column, which are kept as a dense matrix
    until all children are done, and none that stand off the pattern of the factor.

    Args:
        factors: Those of the matrix, with pivots on its diagonal.
        pattern: Its pattern.

    References:
        [1] Takahashi, Fagan and Chen (1973). Formation of a sparse bus impedance matrix
            and its application to short circuit study. 8th PICA Conference, 63-69.
        [2] Rue and Martino (2007). Approximate Bayesian inference for hierarchical
            Gaussian Markov random field models. Journal of Statistical Planning and
            Inference 137(10), 3177-3192.
    """
    if isinstance(factors, SchurFactors):
        return factors.selected_inverse()
    n = factors.pivots.size
    place = np.empty(n, np.int64)
    place[factors.order] = np.arange(n)
    first, second = place[pattern.rows], place[pattern.cols]
    # Ones with the keys of entries below the diagonal: `column n + row`.
    keys = np.minimum(first, second) * n + np.maximum(first, second)
    off = first != second
    # SuperLU leaves out what is zero, in the matrix as well.
    lower = _with_zeros(*_below_diagonal(factors), distinct(keys[off]))
    lower = _closed(*lower, n)
    below, diagonal = _columns(lower, factors.pivots, n)
    entries = np.where(first == second, diagonal[first], 0.0)
    entries[off] = below[np.searchsorted(lower[0], keys[off])]
    return entries


def inverse_diagonal(factors: AnyFactors, pattern: Pattern) -> Float[np.ndarray, " n"]:
    """Return the diagonal of the inverse, also where the matrix has no entry."""
    if isinstance(factors, SchurFactors):  # definite, so each row has one
        return factors.selected_inverse()[pattern.rows == pattern.cols]
    every = np.arange(pattern.shape[0])
    return selected_inverse(factors, Pattern(every, every, pattern.shape))


def _below_diagonal(factors: Factors) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of L below its diagonal: their keys, in order, and values."""
    lower = factors.lower.tocoo()
    below = lower.row > lower.col
    keys = lower.col[below].astype(np.int64) * lower.shape[0] + lower.row[below]
    order = np.argsort(keys)
    return keys[order], lower.data[below][order]


def _closed(
    keys: np.ndarray, values: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add zeros so that each column's rows are among its parent and the parent's rows.

    The pattern of a Cholesky factor is so; SuperLU leaves out what cancels.
    """
    while True:
        cols, rows = np.divmod(keys, n)
        is_first = np.append(True, cols[1:] != cols[:-1])[: cols.size]
        parents = rows[is_first][np.cumsum(is_first) - 1]
        needed = distinct(parents[~is_first] * n + rows[~is_first])
        count = keys.size
        keys, values = _with_zeros(keys, values, needed)
        if keys.size == count:
            return keys, values


def _columns(
    lower: tuple[np.ndarray, np.ndarray], pivots: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of Z where L has some below its diagonal, and the diagonal."""
    keys, values = lower
    rows = keys % n
    starts = np.searchsorted(keys, np.arange(n + 1) * n).tolist()
    below, diagonal = np.empty_like(values), 1 / pivots
    has_rows = np.diff(starts) > 0
    parents = np.full(n, -1)
    parents[has_rows] = rows[np.asarray(starts[:-1])[has_rows]]
    children: list[list[int]] = [[] for _ in range(n)]
    for j, parent in enumerate(parents.tolist()):
        if parent >= 0:
            children[parent].append(j)
    # Depth first, so that few dense matrices are kept at a time.
    ready = [(j, np.zeros(0, int), np.zeros((0, 0))) for j in np.flatnonzero(~has_rows)]
    while ready:
        j, known, dense = ready.pop()
        start, stop = starts[j], starts[j + 1]
        own, column = rows[start:stop], values[start:stop]
        if own.size < known.size:
            at = known.searchsorted(own)
            dense = dense[at[:, None], at]
        z = -(dense @ column)
        diagonal[j] -= column @ z
        below[start:stop] = z
        if children[j]:
            size = own.size + 1
            whole = np.empty((size, size), values.dtype)
            whole[0, 0], whole[0, 1:], whole[1:, 0] = diagonal[j], z, z
            whole[1:, 1:] = dense
            own = np.append(j, own)
            ready += [(child, own, whole) for child in children[j]]
    return below, diagonal


def _with_zeros(
    keys: np.ndarray, values: np.ndarray, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add zeros with further keys, all different, where there are no entries."""
    more = np.setdiff1d(more, keys, assume_unique=True)
    keys = np.concatenate([keys, more])
    order = np.argsort(keys)
    values = np.append(values, np.zeros(more.size, values.dtype))
    return keys[order], values[order]
