"""Vectors whose outer products are the curvature of a loss, example by example."""

import functools
import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import RandomKey, TooLargeError, bytes_name, message
from hotk._dense import promoted
from hotk._prepared import memory_budget
from hotk.curvature import AbstractLikelihood, AbstractLoss


Estimate: TypeAlias = Literal["exact", "sampled", "empirical"]
"""Which targets the gradients are of; see `hotk.KFACOperator`."""

Vectors: TypeAlias = Float[Array, "vectors N *outputs"]


def curvature_vectors(
    loss: AbstractLoss,
    z: Float[Array, "N *outputs"],
    estimate: Estimate,
    key: RandomKey | None,
    samples: int,
) -> Vectors:
    r"""Return vectors $u_{sn}$ with $\sum_s u_{sn} u_{sn}^T$ the matrix of example n.

    Args:
        loss: The loss.
        z: The outputs of the model.
        estimate: Which matrix: the expected Hessian of the loss, an estimate of it by
            sampled targets, or the outer product of the gradient.
        key: A random key for samples.
        samples: The number of targets for each example.

    Raises:
        StructureError: If the targets do not fit the outputs.
        TooLargeError: If the exact matrices would exceed the memory budget.
    """
    jax.eval_shape(loss, z)  # it refuses targets of another shape; its Hessian may not
    root = loss.factor(z) ** 0.5
    if estimate == "empirical":
        return (root * loss.slope(z, loss.targets))[None]
    if estimate == "sampled":
        assert isinstance(loss, AbstractLikelihood)
        assert key is not None
        keys = jax.random.split(key, samples)
        slopes = jax.vmap(lambda k: root * loss.slope(z, loss.sample(k, z)))(keys)
        return slopes / math.sqrt(samples)
    return _roots(loss, z)


def _roots(loss: AbstractLoss, z: Float[Array, "N *outputs"]) -> Vectors:
    count, m = len(z), math.prod(z.shape[1:])
    size = count * m * m * z.dtype.itemsize
    if size > memory_budget():
        raise TooLargeError(
            message(
                "KFACOperator(model, loss, x, *args)",
                f"the Hessian of the loss by {m} outputs for each of {count} examples "
                "exceeds the memory budget.",
                expected=f"at most {bytes_name(memory_budget())}",
                got=bytes_name(size),
                fix='Give `estimate="sampled"` and a `key=`.',
            )
        )
    is_likelihood = isinstance(loss, AbstractLikelihood)
    product = loss.fisher_product if is_likelihood else loss.hessian_product
    if m == 1:  # the product with one is the Hessian itself
        h = product(z, jnp.ones_like(z))
        return jnp.sqrt(jnp.maximum(h, 0))[None]
    units = jnp.eye(m, dtype=z.dtype).reshape(m, 1, *z.shape[1:])
    columns = jax.vmap(lambda u: product(z, jnp.broadcast_to(u, z.shape)))(units)
    h = columns.reshape(m, count, m).transpose(1, 2, 0)
    h = h.astype(promoted(z.dtype, jnp.float32))  # LAPACK has no lower precision
    return _root(h).transpose(2, 0, 1).reshape(m, *z.shape).astype(z.dtype)


# Eigenvectors have no derivative where eigenvalues are equal, and the root of an
# eigenvalue of zero, as a softmax has, has none. The symmetric root R of H has, if the
# rank stays: `R R' + R' R = H'`, which is solved with eigenvectors that are not
# differentiated, and differentiated as an equation again.


@jax.custom_jvp
def _root(h: Float[Array, "N m m"]) -> Float[Array, "N m m"]:
    """Return the symmetric root of positive semi-definite matrices."""
    values, vectors = jnp.linalg.eigh(h)
    half = vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None, :]
    return _product(half, vectors.mT)


@_root.defjvp
def _root_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    root = _root(*primals)
    return root, _between(root, *tangents)


@jax.custom_jvp
def _between(
    root: Float[Array, "N m m"], c: Float[Array, "N m m"]
) -> Float[Array, "N m m"]:
    """Solve $R X + X R = C$; X is zero along pairs of eigenvalues that are rounding."""
    values, vectors = jnp.linalg.eigh(root)
    sums = values[:, :, None] + values[:, None, :]
    rounding = 4 * root.shape[-1] * jnp.finfo(values.dtype).eps
    is_known = sums > rounding * values[:, -1:, None]
    inner = _product(vectors.mT, c, vectors)
    inner = jnp.where(is_known, inner / jnp.where(is_known, sums, 1), 0)
    return _product(vectors, inner, vectors.mT)


@_between.defjvp
def _between_tangent(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (root, c), (d_root, d_c) = primals, tangents
    x = _between(root, c)
    return x, _between(root, d_c - _product(d_root, x) - _product(x, d_root))


def _product(*factors: Float[Array, "N m m"]) -> Float[Array, "N m m"]:
    return functools.reduce(functools.partial(jnp.matmul, precision="highest"), factors)
