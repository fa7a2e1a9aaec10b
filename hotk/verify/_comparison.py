"""Whether two results are the same but for rounding."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import ClosedJaxpr, Leaf, describe

from ._operations import Operations, calls_host, epsilon, wide


# Units of rounding, and of what rounding moved on the way, by which two results differ.
_ALLOWED = 100


class Skipped(Exception):
    """There is nothing that a result could be compared with."""


class Comparison(NamedTuple):
    """A result, and a function that computes it by another route.

    Attributes:
        what: What is compared.
        found: Of the result: a list of arrays.
        expected: From arrays to the same; of the derivatives of plain JAX.
        at: The arrays.
        slack: How far a result may be off besides: an iteration ends at a tolerance.
    """

    what: str
    found: Sequence[Leaf]
    expected: Callable[..., Sequence[Leaf]]
    at: tuple[PyTree, ...]
    slack: float = 0.0


class Difference(NamedTuple):
    """Where two results differ by more than rounding.

    Attributes:
        what: What was compared.
        found: Its number.
        expected: That of the other road.
        error: The difference.
        allowed: How large it may be.
    """

    what: str
    found: str
    expected: str
    error: float
    allowed: float


def difference_of(comparison: Comparison) -> Difference | None:
    """Compare a result with what plain JAX computes, operation by operation."""
    leaves, tree = jax.tree.flatten(comparison.at)
    expected = lambda *leaves: list(comparison.expected(*tree.unflatten(leaves)))
    closed = jax.make_jaxpr(expected)(*leaves)
    what, found, slack = comparison.what, comparison.found, comparison.slack
    return difference(what, closed, leaves, found, slack)


def difference(
    what: str,
    closed: ClosedJaxpr,
    arguments: Sequence[Leaf],
    found: Sequence[Leaf],
    slack: float = 0.0,
) -> Difference | None:
    """Compare results with those of a program, evaluated operation by operation.

    Raises:
        Skipped: If the program calls the host.
    """
    if calls_host(closed):
        raise Skipped("it calls the host")
    exact = Operations().run(closed, arguments)
    if _first(what, found, exact, exact, slack) is None:
        return None
    # Rounding alone may be the reason where terms cancel.
    moved = Operations(noise=True).run(closed, arguments)
    return _first(what, found, exact, moved, slack)


def _first(
    what: str,
    found: Sequence[Leaf],
    exact: Sequence[Leaf],
    moved: Sequence[Leaf],
    slack: float,
) -> Difference | None:
    for i, numbers in enumerate(zip(found, exact, moved, strict=True)):
        place = f"{what}[{i}]" if len(found) > 1 else what
        different = _difference(place, *numbers, slack)
        if different is not None:
            return different
    return None


def _difference(
    what: str, found: Leaf, exact: Leaf, moved: Leaf, slack: float
) -> Difference | None:
    dtype = jnp.result_type(found)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return None
    if np.shape(found) != np.shape(exact):
        return Difference(what, describe(found), describe(exact), np.inf, 0.0)
    if not jnp.issubdtype(dtype, jnp.inexact):
        a, b, c = map(np.asarray, (found, exact, moved))
        if (a == b).all() or (b != c).any():  # or it is decided by rounding
            return None
        place = int(np.argmax((a != b).ravel()))
        return Difference(what, str(a.flat[place]), str(b.flat[place]), np.inf, 0.0)
    a, b, c = (np.asarray(v).astype(wide(dtype)).ravel() for v in (found, exact, moved))
    if not a.size or (np.isfinite(b) != np.isfinite(c)).any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        errors = np.where(np.isnan(errors), np.inf, errors)
        finite = np.isfinite(b)
        size = float(np.max(np.abs(b), initial=0, where=finite))
        by_rounding = float(np.max(np.abs(c - b), initial=0, where=finite))
        least = float(jnp.finfo(dtype).tiny)
        allowed = _ALLOWED * (by_rounding + epsilon(dtype) * size) + least + slack
    place = int(np.argmax(errors))
    if errors[place] <= allowed:
        return None
    one, other = f"{a[place]:.9g}", f"{b[place]:.9g}"
    return Difference(what, one, other, float(errors[place]), allowed)
