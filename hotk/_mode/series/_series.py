"""`Series`: an array along a curve, as its truncated Taylor coefficients."""

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from hotk._core import Leaf, zeros_like


Coefficient: TypeAlias = Leaf | None
"""A coefficient of a series, `None` if it is zero."""


class Series(NamedTuple):
    r"""The coefficients of $x(t) = \sum_k x_k t^k$, where `None` is zero.

    Attributes:
        primal: The value at t = 0; the type of it where a loop is traced for the
            coefficients that it has, `None` for a zero that is not made.
        terms: The coefficients 1 to K.
    """

    primal: Any
    terms: tuple[Any, ...]

    @property
    def order(self) -> int:
        """The highest power of t."""
        return len(self.terms)

    @property
    def moves(self) -> bool:
        """Whether it depends on t."""
        return any(term is not None for term in self.terms)

    def __getitem__(self, k: Any) -> Any:
        """Return the k-th coefficient."""
        return self.primal if k == 0 else self.terms[k - 1]

    def cut(self, order: int) -> "Series":
        """Forget the powers above an order."""
        return Series(self.primal, self.terms[:order])

    def replaced(self, k: int, term: Coefficient) -> "Series":
        """Return the series with another k-th coefficient."""
        return Series(self.primal, (*self.terms[: k - 1], term, *self.terms[k:]))

    def derivative(self) -> "Series":
        """Return the series of the derivative by t, one order lower."""
        first, *rest = (
            None if term is None else scaled(k, term)
            for k, term in enumerate(self.terms, 1)
        )
        first = zeros_like(self.primal) if first is None else first
        return Series(first, tuple(rest))


def constant(value: Coefficient, order: int) -> Series:
    """Return the series of what does not move."""
    return Series(value, (None,) * order)


def scaled(factor: float, term: Coefficient) -> Any:
    """Multiply a coefficient by a Python number, in its own dtype."""
    if term is None or factor == 1:
        return term
    array: Any = term
    return array * jnp.asarray(factor, array.dtype)


def times(
    p: Coefficient,
    q: Coefficient,
    product: Callable[[Any, Any], Any] = operator.mul,
) -> Any:
    """Multiply two coefficients."""
    return None if p is None or q is None else product(p, q)


def total(parts: Iterable[Coefficient]) -> Any:
    """Add coefficients, `None` if there are none."""
    nonzero: list[Any] = [part for part in parts if part is not None]
    return functools.reduce(operator.add, nonzero) if nonzero else None


def product(
    of_two: Callable[[Coefficient, Coefficient], Coefficient], a: Series, b: Series
) -> Series:
    r"""Return the product of Cauchy: $c_k = \sum_j a_j b_{k - j}$."""
    coefficient = lambda k: total(of_two(a[j], b[k - j]) for j in range(k + 1))
    return Series(coefficient(0), tuple(coefficient(k) for k in range(1, a.order + 1)))


def composed(x: Series, outer: Inexact[Array, "terms ..."]) -> Series:
    r"""Return the series of $f(x(t))$ with as many equations as $K^2$.

    With $F_j = f^{(j)}(x(t)) / j!$ it is $F_j' = (j + 1)\,F_{j + 1}\,x'$: the k-th
    coefficients of all $F_j$ with $j \le K - k$ follow from those below, at once for
    all j. Powers of $x - x_0$, as in Horner's scheme, would take $K^3$.

    Args:
        x: The series of the argument.
        outer: The coefficients 0 to K of f at the value of x, along the first axis.
    """
    order = x.order
    counts = jnp.arange(1, order + 1).astype(outer.dtype)
    counts = counts.reshape(-1, *(1,) * (outer.ndim - 1))
    steps = [
        None if term is None else scaled(i, term)[None]
        for i, term in enumerate(x.terms, 1)
    ]
    slopes: list[Any] = [counts * outer[1:]]  # the k-th coefficients of all F_j'
    terms: list[Coefficient] = []
    for k in range(1, order + 1):
        rows = order - k + 1
        parts = (
            times(step, None if slope is None else slope[:rows])
            for step, slope in zip(steps, reversed(slopes), strict=False)
        )
        row = scaled(1 / k, total(parts))
        terms.append(None if row is None else row[0])
        slopes.append(None if row is None else counts[: rows - 1] * row[1:])
    return Series(outer[0], tuple(terms))


def widened(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return numbers in at least single precision: half has too few digits for sums."""
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
