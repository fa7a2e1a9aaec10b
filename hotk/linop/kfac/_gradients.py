"""Gradients of single examples, where there is no Kronecker product."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from hotk._primitive import with_rules

from ._site import OperationKind, Site
from ._view import Part, View


# The gradients of so many bytes are computed at once.
_BYTES = 1 << 26


def site_rows(site: Site, read: Array | None, back: Array) -> Array:
    """Return the gradients of a site by a bias or a scale, or by its own bias.

    Returns:
        An array of (vectors, examples, *heads, entries), the entries in the order of
        the sorted view.
    """
    if site.kind is OperationKind.BIAS:
        return _rows(site.view, back)
    if site.kind is OperationKind.SCALE:
        assert read is not None
        return _rows(site.view, back * read)
    assert site.bias is not None
    split = site.signals
    for _ in range(2 + len(site.lengths)):
        split = jax.vmap(split)
    g = jnp.sum(split(back), axis=-2)
    return _rows(site.bias, g.reshape(*g.shape[:-2], *site.bias.shape))


def _rows(view: View, g: Array) -> Array:
    """Sum gradients over the axes along which an entry is repeated."""
    steps = [step for _, step in view.scans] + list(view.strides)
    g = _wide(g)
    g = jnp.sum(g, axis=tuple(2 + d for d, step in enumerate(steps) if not step))
    heads = len(view.heads)
    kept = [step for step in view.strides if step]
    order = sorted(range(len(kept)), key=lambda k: -abs(kept[k]))
    g = g.transpose([*range(2 + heads), *(2 + heads + k for k in order)])
    return view.factor * g.reshape(*g.shape[: 2 + heads], -1)


def _wide(g: Array) -> Array:
    return g.astype(jnp.float32) if g.dtype.itemsize < 4 else g


def second_moment(rows: Float[Array, "vectors N *heads m"], *, dense: bool) -> Array:
    """Return the sum of the outer products of gradients, or of their squares."""
    if not dense:
        return jnp.sum(rows**2, axis=(0, 1))
    rows = jnp.moveaxis(rows.reshape(-1, *rows.shape[2:]), 0, -2)
    return jnp.swapaxes(rows, -1, -2) @ rows


def direct_moments(
    model: Callable[[Sequence[Array], PyTree], Array],
    leaves: Sequence[Array],
    rows: PyTree,
    vectors: Float[Array, "vectors N *outputs"],
    entries: Sequence[Part],
    places: Sequence[int],
    dense: Sequence[bool],
) -> list[Array]:
    """Return the second moments of gradients by leaves, example by example.

    A few examples are taken at once, so that their gradients take little memory.

    Args:
        model: From leaves and the row of an example to its outputs.
        leaves: The leaves.
        rows: Arrays with the examples in their first axis.
        vectors: What is pulled back.
        entries: Which entries of the leaves.
        places: For each of them the place of its leaf.
        dense: For each whether to return the whole matrix.
    """

    def moments(row: PyTree, u: Float[Array, "vectors *outputs"]) -> list[Array]:
        at = with_rules(lambda leaves: model(leaves, row), derive=False)
        _, pull = jax.vjp(at, list(leaves))
        (gradients,) = jax.vmap(pull)(u)
        found = []
        for part, place, whole in zip(entries, places, dense, strict=True):
            flat = jax.vmap(part.take)(_wide(gradients[place]))
            flat = flat.reshape(len(u), 1, -1)
            found.append(second_moment(flat, dense=whole))
        return found

    count = vectors.shape[1]
    each = sum(a.size * a.dtype.itemsize for a in leaves) * len(vectors)
    block = max(1, min(count, _BYTES // max(each, 1)))
    several = lambda *given: [jnp.sum(a, axis=0) for a in jax.vmap(moments)(*given)]
    given = rows, jnp.moveaxis(vectors, 1, 0)
    full = count // block * block
    first = jax.tree.map(lambda a: a[:full].reshape(-1, block, *a.shape[1:]), given)
    rest = jax.tree.map(lambda a: a[full:], given)

    def step(total: list[Array], now: PyTree) -> tuple[list[Array], None]:
        return list(map(jnp.add, total, several(*now))), None

    zeros = jax.eval_shape(functools.partial(several), *rest)
    total = [jnp.zeros(a.shape, a.dtype) for a in zeros]
    total, _ = jax.lax.scan(step, total, first)
    return list(map(jnp.add, total, several(*rest))) if full < count else total
