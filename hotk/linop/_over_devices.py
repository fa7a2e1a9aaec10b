"""Sums and maxima over the leaves of a vector, and over the devices that share them.

A leaf in a `Shard` is one device's part: what is reduced of it is reduced over the axes
of the mesh as well, by one collective for each set of axes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, PyTree

from hotk._core import Held, Scalar, held
from hotk._primitive import summed


Reduce = Callable[[Any, Any], Any]


def added(terms: Sequence[Held], start: Any) -> Any:
    """Add one number, or array of one shape, for each leaf.

    Args:
        terms: The terms, those of parts with the axes to add over.
        start: What to add them to.
    """
    over = lambda a, axes: summed([a], axes)[0]
    return _reduced(terms, start, lambda a, b: a + b, over)


def largest(entries: Sequence[Held], start: Any) -> Any:
    """Return the largest of one number for each leaf; it has no derivative by parts."""
    # JAX has no derivative of `pmax`, and none is needed: it is the unit of a norm
    over = lambda a, axes: jax.lax.pmax(jax.lax.stop_gradient(a), axes)
    return _reduced(entries, start, jnp.maximum, over)


def is_finite(*trees: PyTree) -> Bool[Array, ""]:
    """Whether all numbers in these trees are finite, those of all devices.

    What is not finite, less itself, is NaN. One sum of that is one kernel; a logical
    one becomes a tree of reductions, each a kernel to compile.
    """
    leaves = [a for a in held(trees) if jnp.issubdtype(a.array.dtype, jnp.inexact)]
    sums = [jnp.sum(a - a) for a, axes in leaves if not axes]
    own = [
        Held(jnp.isnan(jnp.sum(a - a)).astype(jnp.float32), axes)
        for a, axes in leaves
        if axes
    ]
    flags = [jnp.isfinite(a) for a in sums]
    if own:
        flags.append(added(own, 0) == 0)
    return functools.reduce(jnp.logical_and, flags, jnp.array(True))


def _reduced(
    terms: Sequence[Held],
    start: Any,
    both: Reduce,
    over: Callable[[Any, tuple[str, ...]], Any],
) -> Any:
    total, by_axes = start, dict[tuple[str, ...], Any]()
    for term, axes in terms:
        if not axes:
            total = both(total, term)
        else:
            by_axes[axes] = both(by_axes[axes], term) if axes in by_axes else term
    for axes, part in by_axes.items():
        total = both(total, over(part, axes))
    return total


def lowest(v: PyTree) -> Scalar:
    """Return the smallest entry of a vector with real leaves, infinity if it is empty.

    Of all devices, for what is divided among them.
    """
    entries = [Held(jnp.min(a, initial=jnp.inf), axes) for a, axes in held(v)]
    every = jnp.stack([a for a, axes in entries if not axes] or [jnp.array(jnp.inf)])
    over = lambda a, axes: jax.lax.pmin(a, axes)
    own = [entry for entry in entries if entry.axes]
    return _reduced(own, jnp.min(every), jnp.minimum, over)


def is_same(u: PyTree, v: PyTree, dtype: DTypeLike) -> Bool[Array, ""]:
    """Whether two vectors are equal in all entries, those of all devices.

    Args:
        u: A vector.
        v: Another.
        dtype: That of the count of others: a sum is one kernel.
    """
    pairs = zip(held(u), held(v), strict=True)
    others = [Held(jnp.sum(a.array != b.array, dtype=dtype), a.axes) for a, b in pairs]
    return added(others, jnp.zeros((), dtype)) == 0
