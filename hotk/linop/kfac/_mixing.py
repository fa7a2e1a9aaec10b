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
    """Compare the outputs of two examples with those of each alone, within a trace.

    Args:
        model: The model of one row.
        of_two: The same of two rows.
        x: The point. A layer of zeros hides what those before it mix.
        args: The further arguments, arrays with the examples in their first axis.
    """
    rows = jnp.stack([jnp.zeros((), jnp.int32), _farthest(args)])
    some = lambda at: jax.tree.map(lambda a: a[at] if a.ndim else a, args)
    alone = [model(x, *some(rows[k : k + 1])) for k in range(2)]
    return _differ(of_two(x, *some(rows)), jnp.concatenate(alone))


def _differ(together: Array, alone: Array) -> Bool[Array, ""]:
    if together.shape != alone.shape:
        return jnp.ones((), bool)
    apart = jnp.max(jnp.abs(together - alone), initial=0)
    size = jnp.max(jnp.abs(together), initial=0)
    # Accelerators multiply single precision with ten bits, and another number of rows
    # in another order. What mixes examples differs by much more.
    tolerance = 1e-4 if together.dtype.itemsize > 4 else 2e-2
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


def is_known(tree: PyTree) -> bool:
    """Whether the numbers of all arrays of a tree are known, as outside of a trace."""
    return not any(isinstance(a, Tracer) for a in jax.tree.leaves(tree))


def mixes_in_batch(
    closure: Closure, whole: Closure, x: Point, args: tuple[PyTree, ...]
) -> bool:
    """Compare the outputs of all examples with those of each alone, before a trace.

    Some examples are treated together only where there are many: in a mixture of
    experts those that an expert has no room for. What a trace does not know is replaced
    by numbers of our own, as in a training loop under `jax.jit` nobody would read the
    result of a check that is part of the program, and what mixes examples does so at
    nearly any numbers.

    Args:
        closure: The model of one row.
        whole: The same of all rows.
        x: The point.
        args: The further arguments, arrays with the examples in their first axis.
    """
    given = (closure, x, args)
    if is_known(given):
        return bool(_mixes(closure, whole, nearby(x), args))
    if sum(np.size(a) for a in jax.tree.leaves(given)) > _MOST:
        return False
    try:
        with jax.ensure_compile_time_eval():
            known = _with_numbers((closure, whole, x))
            return bool(_mixes(*known, _with_numbers(args, by_rows=True)))
    except Exception:  # the axis of a `jax.vmap` around, for example
        return False


@jitted(quickly="if small")
def _mixes(
    closure: Closure, whole: Closure, x: Point, args: tuple[PyTree, ...]
) -> Bool[Array, ""]:
    model, of_all = (c.skeleton.function(c.leaves) for c in (closure, whole))
    axes = jax.tree.map(lambda a: 0 if a.ndim else None, args)
    each = jax.tree.map(lambda a: a[:, None] if a.ndim else a, args)
    alone = jax.vmap(lambda args: model(x, *args), (axes,))(each)
    return _differ(of_all(x, *args), alone.reshape(-1, *alone.shape[2:]))


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
