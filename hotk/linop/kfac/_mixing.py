"""Whether a model computes the output of an example from other examples as well."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from hotk._capture import Closure
from hotk._core import Function, Point, Tracer
from hotk._prepared import jitted


# Random numbers are repeated after so many, a prime, so that rows differ; beyond the
# second number a model may have no room beside itself.
_PERIOD, _MOST = 4099, 1 << 27


def mixes_examples(
    model: Function, of_two: Function, x: Point, args: tuple[PyTree, ...]
) -> Bool[Array, ""]:
    """Compare the outputs of two examples with those of each alone.

    Args:
        model: The model of one row.
        of_two: The same of two rows.
        x: The point. A layer of zeros hides what those before it mix.
        args: The further arguments, arrays with the examples in their first axis.
    """
    rows = jnp.stack([jnp.zeros((), jnp.int32), _farthest(args)])
    some = lambda at: jax.tree.map(lambda a: a[at] if a.ndim else a, args)
    both = of_two(x, *some(rows))
    alone = [model(x, *some(rows[k : k + 1])) for k in range(2)]
    if both.shape != (2, *alone[0].shape[1:]):
        return jnp.ones((), bool)
    apart = jnp.max(jnp.abs(both - jnp.concatenate(alone)), initial=0)
    size = jnp.max(jnp.abs(both), initial=0)
    # Accelerators multiply single precision with ten bits, and another number of rows
    # in another order. What mixes examples differs by much more.
    tolerance = 1e-4 if both.dtype.itemsize > 4 else 2e-2
    return apart > tolerance * size


def _farthest(args: tuple[PyTree, ...]) -> Int[Array, ""]:
    """Return the number of the example that differs most from the first one."""
    total: Any = jnp.zeros(1)
    for a in jax.tree.leaves(args):
        if a.ndim and not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            inexact = eqx.is_inexact_array(a)
            apart = jnp.abs(a - a[:1]) if inexact else a != a[:1]
            apart = apart.reshape(len(a), -1).astype(total.dtype)
            total = total + jnp.sum(apart, axis=1)
    return jnp.argmax(total).astype(jnp.int32)


def nearby(x: Point) -> Point:
    """Return a point nearby at which no number is zero."""

    def moved(a: Array) -> Array:
        if not eqx.is_inexact_array(a):
            return a
        wave = jnp.cos(jnp.arange(a.size, dtype=jnp.float32)).reshape(a.shape) / 8
        wave = wave.astype(a.dtype)
        return jnp.where(a == 0, wave, a + a * wave)

    return jax.tree.map(moved, x)


def mixes_at_any_numbers(
    closure: Closure, pair: Closure, x: Point, args: tuple[PyTree, ...]
) -> bool:
    """Whether examples are treated together, where a trace does not know the numbers.

    What mixes them does so at nearly any numbers. In a training loop under `jax.jit`
    nobody would read the result of the check that is part of the program.

    Args:
        closure: The model of one row.
        pair: The same of two rows.
        x: The point.
        args: The further arguments, arrays with the examples in their first axis.
    """
    given = jax.tree.leaves((closure, x, args))
    size = sum(np.size(a) for a in given)
    if not any(isinstance(a, Tracer) for a in given) or size > _MOST:
        return False
    try:
        with jax.ensure_compile_time_eval():
            known = _with_numbers((closure, pair, x))
            return bool(_mixes(*known, _with_numbers(args, by_rows=True)))
    except Exception:  # the axis of a `jax.vmap` around, for example
        return False


@jitted(quickly="always")
def _mixes(
    closure: Closure, pair: Closure, x: Point, args: tuple[PyTree, ...]
) -> Bool[Array, ""]:
    model, of_two = (c.skeleton.function(c.leaves) for c in (closure, pair))
    return mixes_examples(model, of_two, x, args)


def _with_numbers(tree: PyTree, *, by_rows: bool = False) -> PyTree:
    """Return a tree with numbers of our own where a trace does not know them.

    They are the same in each array of a shape, so a captured one has the same numbers
    each time.

    Args:
        tree: Arrays.
        by_rows: Whether the first axis of an array is that of the examples, which then
            differ from each other.
    """

    def known(a: Array) -> Array:
        if not isinstance(a, Tracer):
            return a
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            key = jax.random.key(0, impl=jax.random.key_impl(a))
            return jax.random.split(key, a.shape)
        if eqx.is_inexact_array(a):
            # None below zero, as some may be variances.
            numbers = np.abs(np.random.default_rng(0).normal(size=_PERIOD))
            fan_in = a.shape[0] if a.ndim and not by_rows else 1
            numbers = np.float32(numbers / max(fan_in, 1) ** 0.5)
            return jnp.asarray(np.resize(numbers, a.shape), a.dtype)
        if by_rows and a.ndim:
            first = np.arange(len(a)).reshape(-1, *(1,) * (a.ndim - 1)) % 2
            return jnp.asarray(np.broadcast_to(first, a.shape), a.dtype)
        return jnp.full(a.shape, a.dtype == bool, a.dtype)

    return jax.tree.map(known, tree)
