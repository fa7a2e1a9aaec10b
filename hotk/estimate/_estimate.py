"""`Estimate`: a value with its standard error."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int, PyTree

from hotk._core import AbstractReport, describe_tree


@final
class Estimate(AbstractReport):
    r"""A value that was estimated from random vectors, with its standard error.

    The error is the standard error of the mean,
    $\sqrt{\sum_i (t_i - \bar t)^2 / (k (k - 1))}$ for `k` independent samples. An
    interval of two errors to each side covers the truth in about 95 % of all cases for
    many samples, in about 92 % for ten. A single sample has an infinite error. It is a
    pytree of arrays, and prints as one line.

    Attributes:
        value: The estimate: a number, an array, or a vector of the operator's space.
        error: Its standard error, entry by entry, in the structure of the value. The
            real and the imaginary part of a complex entry have one each.
        products: The number of products with the operator.
        method: The name of the method.
    """

    value: PyTree
    error: PyTree
    products: Int[Array, "*batch"]
    method: str = eqx.field(static=True)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            ("value", self._text(self.value, "{:.6g}")),
            ("standard error", self._text(self.error, "{:.2g}")),
            ("products", str(self.products)),
            ("method", self.method),
        ]

    @staticmethod
    def _text(v: PyTree, number: str) -> str:
        leaves = jax.tree.leaves(v)
        if len(leaves) == 1 and leaves[0].ndim == 0:
            return number.format(leaves[0].item())
        sizes = [float(jnp.max(jnp.abs(a))) for a in leaves if a.size]
        return f"{describe_tree(v)}, at most " + number.format(max(sizes, default=0.0))

    def __repr__(self) -> str:
        """Write the value and its error in one line."""
        try:
            (_, value), (_, error), (_, products), (_, method) = self._rows()
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)
        return f"Estimate({value} +- {error}, {method}, {products} products)"


def averaged(samples: PyTree, products: int | Int[Array, ""], method: str) -> Estimate:
    """Estimate by the mean of independent samples, along the leading axis of a tree."""
    error = jax.tree.map(standard_error, samples)
    return Estimate(mean(samples), error, jnp.asarray(products, jnp.int32), method)


def mean(samples: PyTree) -> PyTree:
    """Return the mean over the leading axis of a tree."""
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), samples)


def standard_error(a: Inexact[Array, "k *shape"]) -> Inexact[Array, "*shape"]:
    """Return the standard error of the mean over the leading axis of an array."""
    if jnp.iscomplexobj(a):
        return jax.lax.complex(standard_error(a.real), standard_error(a.imag))
    count = a.shape[0]
    if count == 1:
        return jnp.full_like(a[0], jnp.inf)
    size = jnp.max(jnp.abs(a), axis=0)  # so that no square overflows or vanishes
    size = jnp.where(jnp.isfinite(size) & (size > 0), size, 1)
    return (
        size
        * jnp.std(a / size[None], axis=0, ddof=1)
        / jnp.asarray(count, a.dtype) ** 0.5
    )
