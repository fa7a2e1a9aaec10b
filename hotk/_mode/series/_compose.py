"""`composed`: the series of a function of one number that is known by coefficients."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ._series import Coefficient, Series, scaled, times, total


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
