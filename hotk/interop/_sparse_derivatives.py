"""Sparse derivatives of flat vectors, for SciPy and IPOPT, and `Lagrangian`."""

from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import Function, Leaf, Scalar
from hotk.sparse import SparseMatrix

from ._coordinates import Embedded


# With a larger part of all entries a dense array is what solvers are faster with.
_DENSEST = 0.1


@final
class ValueTwice(eqx.Module):
    """A function that returns its value twice: once to differentiate, once as it is.

    Attributes:
        func: The function.
    """

    func: Function

    def __call__(self, parts: Sequence[Leaf]) -> tuple[PyTree, PyTree]:
        """Return the value and the value."""
        y = self.func(parts)
        return y, y


@final
class WeightedSum(eqx.Module):
    r"""The sum $w \cdot r(x)$ of the numbers that a function returns.

    Attributes:
        func: The function.
    """

    func: Function

    def __call__(self, parts: Sequence[Leaf], weights: Sequence[Array]) -> Scalar:
        """Return the weighted sum."""
        leaves = jax.tree.leaves(self.func(parts))
        pairs = zip(weights, leaves, strict=True)
        terms = [jnp.sum(w.astype(a.dtype) * a) for w, a in pairs]
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*terms)
        return sum([term.astype(dtype) for term in terms], start=jnp.zeros((), dtype))


def for_scipy(matrix: SparseMatrix) -> Any:
    """Return a matrix in float64: sparse, or an array if many entries are there."""
    if matrix.pattern.density > _DENSEST:
        return np.asarray(matrix.todense(), np.float64)
    return matrix.to_scipy("csr").astype(np.float64)


def in_lower_half(matrix: SparseMatrix) -> np.ndarray:
    """Return which entries of a symmetric matrix are on or below the diagonal."""
    return np.flatnonzero(matrix.rows >= matrix.cols)


@final
class Lagrangian(eqx.Module):
    r"""The function $\sigma f + \lambda \cdot g$.

    Attributes:
        func: The objective.
        constraints: The constraints, `None` if there are none.
    """

    func: Embedded
    constraints: Embedded | None

    def __call__(
        self, parts: Sequence[Leaf], factor: Array, multipliers: Sequence[Array]
    ) -> Scalar:
        """Return the weighted sum."""
        y = self.func(parts)
        terms = [factor.astype(y.dtype) * y]
        if self.constraints is not None:
            leaves = jax.tree.leaves(self.constraints(parts))
            pairs = zip(multipliers, leaves, strict=True)
            terms += [jnp.sum(w.astype(g.dtype) * g) for w, g in pairs]
        # Objective and constraints may differ in dtype. A user who made promotion
        # strict did so for their own functions, not for this sum.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*terms)
        return sum([term.astype(dtype) for term in terms], start=jnp.zeros((), dtype))
