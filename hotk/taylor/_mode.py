"""`Taylor`: all derivatives along a curve in one pass."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from hotk.mode import AbstractMode

from ._series import scaled
from ._transform import series_of


@dataclasses.dataclass(frozen=True)
class Taylor(AbstractMode):
    """Taylor mode: the coefficients of a series are carried through the program.

    Cost: at most quadratic in the order for products and elementary functions, where
    nested derivatives are exponential.
    """

    def coefficients(
        self, f: Callable[..., Any], x: Any, v: Any, order: int
    ) -> tuple[list[Any], Any]:
        r"""Return the coefficients of $f(x + t v)$ up to an order, and `aux`."""
        terms = [(v,), *[None] * (order - 1)][:order]
        (y, aux), found = series_of(f)((x,), terms)
        return [y, *(made[0] for made in found)], aux


def times_factorials(coefficients: list[Any]) -> list[Any]:
    """Return the derivatives that Taylor coefficients stand for."""
    return [_times(math.factorial(k), c) for k, c in enumerate(coefficients)]


def _times(factor: int, tree: Any) -> Any:
    return jax.tree.map(lambda a: scaled(factor, a), tree)
