"""Vectors whose outer products are the curvature of a loss, example by example."""

import functools
import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import RandomKey, TooLargeError, bytes_name, message
from hotk.curvature import AbstractLikelihood, AbstractLoss
from hotk.dense import promoted
from hotk.prepared import memory_budget


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


@jax.custom_jvp
def _root(h: Float[Array, "N m m"]) -> Float[Array, "N m m"]:
    """Return a root R of positive semi-definite matrices, $R R^T = H$."""
    values, vectors = jnp.linalg.eigh(h)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None, :]


@_root.defjvp
def _root_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # Eigenvectors have no derivative where eigenvalues are equal, and a softmax has an
    # eigenvalue of zero, whose root has none. A root has: with the projection P on the
    # range of H, `(H' - P H' / 2) H^+ R` is R' for one of them, if the rank stays.
    (h,), (dh,) = primals, tangents
    r, inverse = _root(h), jnp.linalg.pinv(h, hermitian=True)
    product = lambda *factors: functools.reduce(
        functools.partial(jnp.matmul, precision="highest"), factors
    )
    return r, product(dh - product(h, inverse, dh) / 2, inverse, r)
