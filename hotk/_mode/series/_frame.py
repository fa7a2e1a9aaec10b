"""`Frame`: how the coefficients of all series in one pass are laid out."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import Leaf, zeros_like

from ._series import Coefficient, Series, constant, total


class TooManyNumbersError(Exception):
    """Coefficients along all directions would take too much memory."""


class Frame(NamedTuple):
    r"""One direction, or many whose top coefficients are summed as they go.

    With many directions, the coefficients 1 to K - 1 have a leading axis over them. The
    coefficient K of $y = f(x)$ is $f'(x)\,x_K$ plus what the lower ones give, linear in
    $x_K$ with the same factor for all directions: so its weighted sum is all that need
    be carried [1].

    Attributes:
        order: The highest power K.
        many: How many directions; `None` for one, without an axis.
        weights: One for each direction; `None` for ones. Where entries have directions
            of their own, the axes of the entries follow.
        limit: Of how many numbers the coefficients of an array along all directions may
            be; `None` for any.

    References:
        [1] Dangel, Siebert, Zeinhofer and Walther (2025). Collapsing Taylor mode
            automatic differentiation. https://arxiv.org/abs/2505.13644
    """

    order: int
    many: int | None = None
    weights: Array | None = None
    limit: int | None = None

    def check(self, value: Coefficient) -> None:
        """Refuse an array that has too many coefficients along all directions.

        Raises:
            TooManyNumbersError: If it has.
        """
        if self.limit is None or self.many is None or value is None:
            return
        if self.many * jnp.size(value) > self.limit:
            raise TooManyNumbersError

    def constant(self, value: Coefficient) -> Series:
        """Return the series of what does not move."""
        return constant(value, self.order)

    def zero(self, primal: Leaf, k: int) -> Array:
        """Return zeros for a coefficient."""
        zero = zeros_like(primal)
        if self.many is None or k == self.order:
            return zero
        return jnp.broadcast_to(zero, (self.many, *zero.shape))

    def filled(self, series: Series) -> list[Any]:
        """Return value and coefficients, with zeros for those that are `None`."""
        terms = [
            self.zero(series.primal, k) if term is None else term
            for k, term in enumerate(series.terms, 1)
        ]
        return [series.primal, *terms]

    def weighted(self, term: Array | None) -> Any:
        """Multiply each direction's coefficient by its weight."""
        if self.weights is None or term is None:
            return term
        shape = (*self.weights.shape, *(1,) * (term.ndim - self.weights.ndim))
        return term * self.weights.reshape(shape).astype(term.dtype)

    def summed(self, term: Array | None) -> Any:
        """Return the weighted sum over the directions."""
        return None if term is None else jnp.sum(self.weighted(term), axis=0)

    def swapped(self, series: Series) -> Series:
        """Exchange the axis of directions with the one that follows it."""
        if self.many is None:
            return series
        swap = lambda a: None if a is None else jnp.swapaxes(a, 0, 1)
        *lower, top = series.terms
        return Series(series.primal, (*map(swap, lower), top))


def split_top(inputs: list[Series]) -> tuple[list[Series], list[Any]]:
    """Return the series without their top coefficients, and these."""
    lower = [Series(s.primal, (*s.terms[:-1], None)) for s in inputs]
    return lower, [s.terms[-1] for s in inputs]


def with_top(series: Series, *parts: Coefficient) -> Series:
    """Return a series with the sum of these parts as its top coefficient."""
    return Series(series.primal, (*series.terms[:-1], total(parts)))
