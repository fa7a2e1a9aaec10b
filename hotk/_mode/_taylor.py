"""`Taylor`: all derivatives along a curve in one pass."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import FunctionWithAux, Point, Tangent

from ._nested import AbstractCurvature
from .series import scaled, series_of


@dataclasses.dataclass(frozen=True)
class Taylor(AbstractCurvature):
    r"""Taylor mode: the coefficients of $f(x + t v)$ are computed in one forward pass.

    It gives second derivatives along directions, and all derivatives of higher order
    along one. Operations without a rule of their own are served by one that follows
    from their derivative, so it exists wherever forward mode does.

    Cost: for products and elementary functions at most quadratic in the order, where
    nested derivatives are exponential.

    Example:
        >>> x, v = jnp.array([1.0, 2.0]), jnp.ones(2)
        >>> f = lambda x: jnp.sum(x**3)
        >>> hotk.quadratic_form(f, x, v, mode=hotk.Taylor()).item()
        18.0

    References:
        [1] Griewank and Walther (2008). Evaluating derivatives. SIAM, chapter 13.
            https://doi.org/10.1137/1.9780898717761
    """

    nests: ClassVar[int] = 0

    def coefficients(
        self, f: FunctionWithAux, x: Point, v: Tangent, order: int
    ) -> tuple[list[PyTree], PyTree]:
        r"""Return the coefficients of $f(x + t v)$ up to an order, and `aux`."""
        terms = [(v,), *[None] * (order - 1)][:order]
        (y, aux), rows = series_of(f)((x,), terms)
        return [y, *(outputs[0] for outputs in rows)], aux

    def quadratic_form(
        self, f: FunctionWithAux, x: Point, v: Tangent
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, the second derivative of `f` along `v`, and `aux`."""
        (y, _, second), aux = self.coefficients(f, x, v, 2)
        return y, jax.tree.map(lambda a: scaled(2, a), second), aux

    def second_derivative(
        self, f: FunctionWithAux, x: Point
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its second derivative by a scalar `x`, and `aux`."""
        return self.quadratic_form(f, x, jax.tree.map(jnp.ones_like, x))
