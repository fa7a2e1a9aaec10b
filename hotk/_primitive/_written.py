"""Arrays that are computed once, where XLA would compute them anew for each use."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from hotk._core import (
    AbstractValue,
    Arrays,
    Leaf,
    ad,
    in_front,
    is_divided_by_type,
    new_primitive,
    output_types,
    varying_alike,
)


def written(*parts: Array) -> Array:
    """Return an array that is computed once, and not anew where it is read.

    Several are joined along their first axis. What is done inside of the branch saves a
    copy: the result of a branch that does nothing is one.

    XLA drops an optimization barrier on CPUs before it fuses operations; a branch it
    keeps. The condition holds for no number, and XLA does not see that: the array is
    returned as it is. Under `vmap` a branch would be a choice, and is none here.
    """
    if not sum(a.size for a in parts):
        return _joined(*parts)
    return _PRIMITIVE.bind(*varying_alike(parts), axis=0)[0]


def _joined(*parts: Leaf, axis: int = 0) -> Array:
    arrays = list(map(jnp.asarray, parts))
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis)


def _run(*parts: Leaf, axis: int) -> Arrays:
    if jax.default_backend() != "cpu":
        # a branch waits for the host
        return [lax.optimization_barrier(_joined(*parts, axis=axis))]
    return [_hotk_written(*map(jnp.asarray, parts), axis=axis)]


@jax.jit(static_argnames="axis")
def _hotk_written(*parts: Array, axis: int) -> Array:
    some = next(a for a in parts if a.size)
    if is_divided_by_type(some):  # of which no entry can be taken
        first = jnp.real(jnp.sum(some))
    else:
        first = jnp.real(lax.slice(some, [0] * some.ndim, [1] * some.ndim).reshape(()))
    never = (first != first) & (first == first)
    double = jnp.logical_not if some.dtype == bool else lambda a: 2 * a
    join = lambda *parts: _joined(*parts, axis=axis)
    return lax.cond(never, lambda *parts: double(join(*parts)), join, *parts)


def _types(*parts: AbstractValue, axis: int) -> Sequence[AbstractValue]:
    if len(parts) == 1:
        return parts
    return output_types(lambda parts: [_joined(*parts, axis=axis)], parts)


def _jvp(
    primals: Sequence[Leaf], tangents: Sequence[Leaf | ad.Zero], *, axis: int
) -> tuple[Arrays, list[Any]]:
    outputs = _PRIMITIVE.bind(*primals, axis=axis)
    if all(isinstance(t, ad.Zero) for t in tangents):
        return outputs, [ad.Zero(jax.typeof(outputs[0]).to_tangent_aval())]
    return outputs, [_joined(*map(ad.instantiate_zeros, tangents), axis=axis)]


def _transpose(cotangents: Sequence[Any], *parts: Any, axis: int) -> list[Any]:
    raise AssertionError("tangents go past it, so it is in no linear program")


def _batch(
    parts: Sequence[Leaf], axes: Sequence[int | None], *, axis: int
) -> tuple[Arrays, list[int]]:
    moved, size = in_front(parts, axes)
    pairs = zip(moved, axes, strict=True)
    every = [
        jnp.asarray(a) if d is not None else jnp.broadcast_to(a, (size, *jnp.shape(a)))
        for a, d in pairs
    ]
    return _PRIMITIVE.bind(*varying_alike(every), axis=axis + 1), [0]


_PRIMITIVE = new_primitive(
    "hotk_written",
    run=_run,
    types=_types,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
)
