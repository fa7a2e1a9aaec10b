"""Whether a model computes the output of an example from other examples as well."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from hotk._core import Function, Point


def mixes_examples(
    model: Function, of_two: Function, x: Point, args: tuple[PyTree, ...]
) -> Bool[Array, ""]:
    """Compare the outputs of two examples with those of each alone.

    Args:
        model: The model of one row.
        of_two: The same of two rows.
        x: The point.
        args: The further arguments, arrays with the examples in their first axis.
    """
    rows = jnp.stack([jnp.zeros((), jnp.int32), _farthest(args)])
    some = lambda at: jax.tree.map(lambda a: a[at] if a.ndim else a, args)
    near = _moved(x)  # a layer that begins as zero hides what those before it mix
    both = of_two(near, *some(rows))
    alone = [model(near, *some(rows[k : k + 1])) for k in range(2)]
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


def _moved(x: Point) -> Point:
    """Return a point nearby at which no number is zero."""

    def moved(a: Array) -> Array:
        if not eqx.is_inexact_array(a):
            return a
        wave = jnp.cos(jnp.arange(a.size, dtype=jnp.float32)).reshape(a.shape) / 8
        wave = wave.astype(a.dtype)
        return jnp.where(a == 0, wave, a + a * wave)

    return jax.tree.map(moved, x)
