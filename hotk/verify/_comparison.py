"""Whether two results are the same but for rounding."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import ClosedJaxpr, Leaf, describe, equations

from ._operations import Operations, calls_host, epsilon, wide


# Units of rounding, and of what rounding moved on the way, by which two results differ.
_ALLOWED = 100
# How often rounding is drawn: two terms that cancel may be moved alike.
_DRAWS = 4


class Skipped(Exception):
    """There is nothing that a result could be compared with."""


class Comparison(NamedTuple):
    """A result, and functions that compute it by other routes.

    Attributes:
        what: What is compared.
        found: Of the result: a list of arrays.
        ways: From arrays to the same, by derivatives of plain JAX in several nestings,
            of those that exist.
        at: The arrays.
        slack: How far a result may be off besides: an iteration ends at a tolerance.
    """

    what: str
    found: Sequence[Leaf]
    ways: Sequence[Callable[..., Sequence[Leaf]]]
    at: tuple[PyTree, ...]
    slack: float = 0.0

    def difference(self) -> "Difference | None":
        """Return where the result differs from all ways to it.

        Raises:
            Skipped: If no way exists.
        """
        leaves, tree = jax.tree.flatten(self.at)
        failed: list[Exception] = []
        differences: list[Difference] = []
        for way in self.ways:
            run = lambda *leaves, way=way: list(way(*tree.unflatten(leaves)))
            try:
                closed = jax.make_jaxpr(run)(*leaves)
            except Skipped:
                raise
            except Exception as error:
                failed.append(error)
                continue
            found = difference(self.what, closed, leaves, self.found, self.slack)
            if found is None or self._is_stale(run, leaves):
                return None
            differences.append(found)
        if any("nan" in found.expected for found in differences):
            raise Skipped("the derivative of plain JAX is NaN")
        # Where JAX disagrees with itself, as for an index outside of an array of which
        # it is promised that it lies inside, either may be meant.
        if differences:
            return differences[0]
        raise Skipped(f"plain JAX has no such derivative: {first_line(failed[0])}")

    def _is_stale(self, run: Callable[..., list[Any]], leaves: Sequence[Leaf]) -> bool:
        """Whether the result is right by what a jitted function inside reads now.

        JAX keeps the trace of a jitted function, with what it has read when it was
        traced. Without `jit` it is traced anew, but for loops, which need not be.
        """
        try:
            with jax.disable_jit():
                closed = jax.make_jaxpr(run)(*leaves)
            return difference(self.what, closed, leaves, self.found, self.slack) is None
        except Exception:  # a loop that cannot be run without it
            return False


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


def first_line(error: Exception) -> str:
    """Return the class of an error and the beginning of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:100] if lines else ''}"


def difference(
    what: str,
    closed: ClosedJaxpr,
    arguments: Sequence[Leaf],
    found: Sequence[Leaf],
    slack: float = 0.0,
    own: bool = False,
) -> Difference | None:
    """Compare results with those of a program, evaluated operation by operation.

    Args:
        what: What is compared.
        closed: The program.
        arguments: What goes into it.
        found: The results.
        slack: How far they may be off besides rounding.
        own: Whether it is the program of the results themselves, which may iterate.

    Raises:
        Skipped: If the program calls the host, or rounding decides how it iterates.
    """
    if calls_host(closed):
        raise Skipped("it calls the host")
    exact = Operations().run(closed, arguments)
    different = _first(what, found, exact, exact, slack=slack)
    if different is not None:  # rounding may be the reason, where terms cancel
        for seed in range(_DRAWS):
            moved = Operations(noise=seed).run(closed, arguments)
            different = _first(what, found, exact, moved, slack=slack)
            if different is None:
                break
    names = [e.primitive.name for e in equations(closed.jaxpr)]
    if different is not None and own and "nan" in different.expected:
        raise Skipped("XLA drops what is not a number, as zero times infinity")
    if different is not None and own and "while" in names:
        raise Skipped("rounding decides the steps of its iteration")
    return different


def _first(what: str, *results: Sequence[Leaf], slack: float) -> Difference | None:
    for i, numbers in enumerate(zip(*results, strict=True)):
        place = f"{what}[{i}]" if len(results[0]) > 1 else what
        different = _difference(place, *numbers, slack=slack)
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
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    kind = wide(dtype) if inexact else np.int64
    a, b, c = (np.asarray(v).astype(kind).ravel() for v in (found, exact, moved))
    finite = np.isfinite(b)
    if not a.size or (finite != np.isfinite(c)).any():
        return None
    if not inexact and (b != c).any():  # decided by rounding
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        errors = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        size = float(np.max(np.abs(b), initial=0, where=finite))
        by_rounding = float(np.max(np.abs(c - b), initial=0, where=finite))
    allowed = 0.0
    if inexact:
        unit = by_rounding + epsilon(dtype) * size + float(jnp.finfo(dtype).tiny)
        allowed = _ALLOWED * unit + slack
    place = int(np.argmax(errors))
    if errors[place] <= allowed:
        return None
    one, other = f"{a[place]:.9g}", f"{b[place]:.9g}"
    return Difference(what, one, other, float(errors[place]), allowed)
