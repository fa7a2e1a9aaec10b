"""Products with Gauss-Newton and Fisher matrices, as J^T (H (J v)) of plain JAX."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import Selection
from hotk.curvature import EmpiricalFisher, Fisher, GaussNewton, SampledFisher
from hotk.linop import KFACOperator

from ._case import Alternatives, Arrays, Case
from ._comparison import Comparison, Skipped


CURVATURES = (GaussNewton, Fisher, SampledFisher, EmpiricalFisher)


def curvature_product(case: Case, x: Arrays, v: Arrays) -> Arrays:
    """Multiply with the matrix of a function whose Hessian is a curvature."""
    inside: Any = case.inside
    model = lambda x: case.tree(x, inside.model)
    z, pull = jax.vjp(model, x)
    try:
        along = jax.jvp(model, (x,), (v,))[1]
    except TypeError:  # a `custom_vjp`: the transpose of the transpose
        zero = jax.tree.map(jnp.zeros_like, z)
        along = jax.vjp(lambda u: pull(u)[0], zero)[1](v)[0]
    return pull(_times(inside, inside.loss, z, along))[0]


def _times(inside: Any, loss: Any, z: PyTree, u: PyTree) -> PyTree:
    """Multiply with the curvature of the loss at an output."""
    if isinstance(inside, Fisher) and not loss.natural:
        return loss.fisher_product(z, u)
    if isinstance(inside, GaussNewton | Fisher):
        return jax.jvp(jax.grad(loss), (z,), (u,))[1]
    slope = jax.grad(lambda z, y: jnp.sum(_with_targets(loss, y).each(z)))
    if isinstance(inside, EmpiricalFisher):
        slopes = [slope(z, loss.targets)]
    else:
        keys = jax.random.split(inside.key, inside.samples)
        slopes = [slope(z, loss.sample(key, z)) for key in keys]
    axes = tuple(range(1, jnp.ndim(z)))
    parts = [g * jnp.sum(g * u, axis=axes, keepdims=True) for g in slopes]
    factor = jnp.asarray(loss.factor(z) / len(slopes), parts[0].dtype)
    return factor * sum(parts[1:], start=parts[0])


def _with_targets(loss: Any, targets: PyTree) -> Any:
    return dataclasses.replace(loss, targets=targets)


def kfac(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
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
    axes = jax.tree.map(lambda a: 0 if a.ndim else None, rows)

    def model(x: Any, *rows: Any) -> Any:
        lead = lambda row, a: row[None] if a.ndim else row
        one = lambda *row: of_one(x, *jax.tree.map(lead, row, rows))[0]
        return jax.vmap(one, in_axes=axes)(*rows)

    of_loss = loss.skeleton.function(loss.leaves)
    of_loss = _with_targets(of_loss, jax.tree.map(same, of_loss.targets))
    rows = jax.tree.map(same, rows)
    where = None if selected is None else Selection(selected)
    K = KFACOperator(
        model, of_loss, x, *rows, approximation=options.approximation, where=where
    )
    leaves, tree = jax.tree.flatten(K.template)
    f = lambda leaves: model(eqx.combine(tree.unflatten(leaves), x), *rows)
    natural = getattr(of_loss, "natural", True)
    inside = GaussNewton(model, of_loss) if natural else Fisher(model, of_loss)
    random = np.random.default_rng(0)
    drawn = lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype)

    def times(y: Any, layout: Any) -> list[Any]:
        totals: list[Any] = [None] * len(leaves)
        layout.put(totals, y, leaves)
        pairs = zip(totals, leaves, strict=True)
        v = [jnp.zeros_like(a) if t is None else t for t, a in pairs]
        z, pull = jax.vjp(f, leaves)
        product = pull(_times(inside, of_loss, z, jax.jvp(f, (leaves,), (v,))[1]))[0]
        return [layout.take(product)]

    z, pull = jax.vjp(f, leaves)
    for block in K.blocks:
        layout, y = block.layout, block.layout.take(list(map(drawn, leaves)))
        if block.kind.startswith("Kronecker") and y.ndim == 2:
            first = lambda a: jnp.zeros_like(a).at[0].set(drawn(a[0]))
            u = [first(z) for _ in range(3)]
            slopes = [np.asarray(layout.take(pull(each)[0])) for each in u]
            sizes = np.linalg.svd(np.concatenate(slopes, axis=1), compute_uv=False)
            if sizes[1:2].sum() > 1e-3 * sizes[0]:
                continue
        elif not block.kind.startswith("dense"):
            continue
        expected = lambda y, layout=layout: times(y, layout)
        name = ", ".join(block.origin.parameters)
        yield [Comparison(f"block of {name}", [block.mv(y)], expected, (y,))]
