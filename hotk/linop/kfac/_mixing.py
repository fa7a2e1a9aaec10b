"""Whether a model computes the output of an example from other examples as well."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from hotk._capture import Closure
from hotk._core import Function, Point, Tracer, equations, is_known
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
    both = of_two(x, *some(rows))
    # In a program a false alarm would end a whole run: rounding has more room.
    eps = 16 * _coarsest(of_two, x, *some(rows))
    return _differ(both, jnp.concatenate(alone), eps)


def _coarsest(f: Function, *args: PyTree) -> float:
    """Return the spacing of numbers at one in the coarsest dtype of a program."""
    program = jax.make_jaxpr(f)(*args)
    types = [v.aval for e in equations(program.jaxpr) for v in e.outvars]
    dtypes = [
        t.dtype
        for t in [*types, *program.out_avals]
        if jnp.issubdtype(getattr(t, "dtype", int), jnp.floating)
    ]
    return max((float(jnp.finfo(dtype).eps) for dtype in dtypes), default=0.0)


def _differ(together: Array, alone: Array, eps: float) -> Bool[Array, ""]:
    if together.shape != alone.shape:
        return jnp.ones((), bool)
    if not together.size:
        return jnp.zeros((), bool)
    # What is not finite in one has to be so in the other: masked logits are.
    finite = jnp.isfinite(together) & jnp.isfinite(alone)
    same = (together == alone) | (jnp.isnan(together) & jnp.isnan(alone))
    a, b = (jnp.where(finite, each, 0) for each in (together, alone))
    # Mixing changes an output by about as much as examples differ in it, whatever its
    # offset, and one far example or another output says nothing of that.
    apart = jnp.abs(a - jnp.median(a, axis=0, keepdims=True))
    spread = jnp.nanmedian(jnp.where(apart > 0, apart, jnp.nan), axis=0, keepdims=True)
    spread = jnp.where(jnp.isnan(spread), 0, spread)
    # Another number of rows may be summed in another order, and accelerators multiply
    # single precision with ten bits: rounding of the number, and of terms like those
    # of the outputs that do differ.
    rounding, coarse = eps**0.6, eps > 1e-10
    if coarse and jax.default_backend() != "cpu":
        rounding = max(rounding, 1e-3)
    largest = jnp.max(jnp.where(spread > 0, jnp.abs(a), 0))
    tolerance = (2e-2 if coarse else 1e-4) * spread + rounding * jnp.abs(a)
    tolerance = tolerance + (32 if eps < 1e-4 else 8) * eps * largest
    return jnp.any(jnp.where(finite, jnp.abs(a - b) > tolerance, ~same))


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
    given = jax.tree.leaves((closure, x, args))
    if all(map(is_known, given)):
        return bool(_mixes(closure, whole, x, args)[0])
    if sum(map(np.size, given)) > _MOST:
        return False
    try:
        with jax.ensure_compile_time_eval():
            # Positive numbers, then such that are below one, as probabilities are.
            for most in (np.inf, 1.0):
                known = _with_numbers((closure, whole, x), most)
                mixed, finite = _mixes(*known, _with_numbers(args, most, by_rows=True))
                if mixed or finite:
                    return bool(mixed)
            return False
    except Exception:  # the axis of a `jax.vmap` around, for example
        return False


@jitted(quickly="if small")
def _mixes(
    closure: Closure, whole: Closure, x: Point, args: tuple[PyTree, ...]
) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether examples are mixed, and whether all outputs are finite."""
    model, of_all = (c.skeleton.function(c.leaves) for c in (closure, whole))
    axes = jax.tree.map(lambda a: 0 if a.ndim else None, args)
    each = jax.tree.map(lambda a: a[:, None] if a.ndim else a, args)
    eps = _coarsest(of_all, x, *args)

    def compared(at: Point) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
        together = of_all(at, *args)
        alone = jax.vmap(lambda args: model(at, *args), (axes,))(each)
        differ = _differ(together, alone.reshape(-1, *alone.shape[2:]), eps)
        return differ, jnp.all(jnp.isfinite(together))

    (here, finite), (near, _) = compared(x), compared(nearby(x))
    return here | near, finite


def _with_numbers(tree: PyTree, most: float, *, by_rows: bool = False) -> PyTree:
    """Return a tree with numbers of our own where a trace does not know them.

    They are the same in each array of a shape, so a captured one has the same numbers
    each time.

    Args:
        tree: Arrays.
        most: What they are less than.
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
            numbers = numbers / (1 + numbers / most)
            fan_in = a.shape[0] if a.ndim and not by_rows else 1
            numbers = np.float32(numbers / max(fan_in, 1) ** 0.5)
            return jnp.asarray(np.resize(numbers, a.shape), a.dtype)
        if by_rows and a.ndim:
            first = np.arange(len(a)).reshape(-1, *(1,) * (a.ndim - 1)) % 2
            return jnp.asarray(np.broadcast_to(first, a.shape), a.dtype)
        return jnp.full(a.shape, a.dtype == bool, a.dtype)

    return jax.tree.map(known, tree)
