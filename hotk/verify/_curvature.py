"""Gauss-Newton and Fisher matrices, as the curvature of a loss along J u and J v."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import Leaf, Selection
from hotk.curvature import EmpiricalFisher, Fisher, GaussNewton, SampledFisher
from hotk.linop import KFACOperator

from ._case import Arrays, along
from ._comparison import Comparison, Skipped


CURVATURES = (GaussNewton, Fisher, SampledFisher, EmpiricalFisher)


def curvature(
    inside: Any, model: Callable[[Arrays], PyTree], x: Arrays, u: Arrays, v: Arrays
) -> Leaf:
    """Return u^T J^T H J v by plain JAX."""
    z, loss = model(x), inside.loss
    Ju, Jv = _pushed(model, x, u), _pushed(model, x, v)
    if isinstance(inside, Fisher) and not loss.natural:
        return jnp.sum(Ju * loss.fisher_product(z, Jv))
    if isinstance(inside, GaussNewton | Fisher):
        return along(loss, [Ju, Jv])(z)
    value = lambda z, y: jnp.sum(dataclasses.replace(loss, targets=y).each(z))
    axes = tuple(range(1, jnp.ndim(z)))

    def squares(targets: Any) -> Leaf:
        slope = jax.grad(value)(z, targets)
        return jnp.sum(slope * Ju, axes) * jnp.sum(slope * Jv, axes)

    if isinstance(inside, SampledFisher):
        keys = jax.random.split(inside.key, inside.samples)
        parts = jnp.mean(jax.vmap(lambda key: squares(loss.sample(key, z)))(keys), 0)
    else:
        parts = jnp.asarray(squares(loss.targets))
    factor = jnp.asarray(loss.factor(z), parts.dtype)
    factor = factor.reshape(-1) if factor.ndim else factor  # weights of the examples
    return jnp.sum(factor * parts)


def _pushed(model: Callable[[Arrays], PyTree], x: Arrays, v: Arrays) -> PyTree:
    try:
        return along(model, [v])(x)
    except TypeError:  # a `custom_vjp`: the transpose of the transpose
        z, pull = jax.vjp(model, x)
        zero = jax.tree.map(jnp.zeros_like, z)
        return jax.vjp(lambda u: pull(u)[0], zero)[1](v)[0]


def kfac(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare Kronecker factors where they are exact: for copies of one example.

    Then each block is that of the Gauss-Newton or Fisher matrix, if the gradients of
    all outputs have the same inputs: a weight that is used once.
    """
    del result
    closure, _, loss, x, rows, _ = args
    options, selected = keywords["options"], keywords["selected"]
    if options.estimate != "exact":
        raise Skipped("it is exact in the mean alone")
    same = lambda a: jnp.broadcast_to(a[:1], a.shape) if a.ndim else a
    of_one = closure.skeleton.function(closure.leaves)
    of_loss = loss.skeleton.function(loss.leaves)
    targets, rows = jax.tree.map(same, (of_loss.targets, rows))
    of_loss = dataclasses.replace(of_loss, targets=targets)
    axes = jax.tree.map(lambda a: 0 if a.ndim else None, rows)

    def model(x: Any, *rows: Any) -> Any:
        lead = lambda row, a: row[None] if a.ndim else row
        one = lambda *row: of_one(x, *jax.tree.map(lead, row, rows))[0]
        return jax.vmap(one, in_axes=axes)(*rows)

    where = None if selected is None else Selection(selected)
    K = KFACOperator(
        model, of_loss, x, *rows, approximation=options.approximation, where=where
    )
    leaves, tree = jax.tree.flatten(K.template)
    f = lambda leaves: model(eqx.combine(tree.unflatten(leaves), x), *rows)
    inside = (GaussNewton if getattr(of_loss, "natural", True) else Fisher)(f, of_loss)
    random = np.random.default_rng(0)
    drawn = lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype)
    z, pull = jax.vjp(f, leaves)
    for block in K.blocks:
        take, put = block.layout.take, _putting(block.layout, leaves)
        u, v = (take(list(map(drawn, leaves))) for _ in range(2))
        if block.kind.startswith("Kronecker") and u.ndim == 2:
            of_first = [jnp.zeros_like(z).at[0].set(drawn(z[0])) for _ in range(3)]
            slopes = np.concatenate([take(pull(each)[0]) for each in of_first], axis=1)
            sizes = np.linalg.svd(slopes, compute_uv=False)
            # of one position the moments of the inputs have one direction as well
            kronecker: Any = block
            moments = np.asarray(kronecker.A.values)
            trace = np.sum(moments if moments.ndim == 1 else np.diag(moments))
            several = np.sum(np.abs(moments) ** 2) < 0.999 * np.abs(trace) ** 2
            if several or sizes[1:2].sum() > 1e-3 * sizes[0]:
                continue
        elif not block.kind.startswith("dense"):
            continue
        form = lambda u, v, put=put: [curvature(inside, f, leaves, put(u), put(v))]
        found = [jnp.sum(u * block.mv(v))]
        yield Comparison("u' B v", found, [form], (u, v))


def _putting(layout: Any, leaves: Arrays) -> Callable[[Any], Arrays]:
    def put(entries: Any) -> Arrays:
        totals: list[Any] = [None] * len(leaves)
        layout.put(totals, entries, leaves)
        pairs = zip(totals, leaves, strict=True)
        return [jnp.zeros_like(a) if t is None else t for t, a in pairs]

    return put
