"""Covariances from a precision operator, in the forms of `laplace_approximation`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import RandomKey, RealNumber, Tracer, Vector, message
from hotk.linop import AbstractOperator, BlockDiagonal, KFACOperator, space

from ._covariance import (
    AbstractCovariance,
    BlockCovariance,
    DenseCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
)
from ._definite import inverse_root, refuse_not_positive


class Precision(NamedTuple):
    """What a covariance is the inverse of.

    Attributes:
        call: The call, for messages.
        curvature: The operator.
        scale: A number that it is multiplied with.
        rank: The number of eigenpairs to compute.
        rest: The precision in directions that these do not span, or that of a prior
            that is added.
        key: A random key for the start of the iteration.
        hint: What to do where it is not positive definite.
    """

    call: str
    curvature: AbstractOperator
    scale: RealNumber
    rank: int
    rest: RealNumber | None
    key: RandomKey | None
    hint: str

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.curvature.like

    def scaled(self, a: Array) -> Array:
        """Return numbers of the operator times the scale."""
        return jnp.asarray(self.scale, a.dtype) * a


def full(precision: Precision) -> DenseCovariance:
    """Return the inverse of the matrix."""
    call, like, hint = precision.call, precision.like, precision.hint
    a = precision.scaled(precision.curvature.matrix())
    return DenseCovariance(like, *inverse_root(call, a, like, hint))


def diagonal(precision: Precision) -> DiagonalCovariance:
    """Return the inverse of the diagonal."""
    entries = space.flattened(precision.curvature.diagonal())
    entries = precision.scaled(entries)
    _check(precision, entries, "the diagonal of the Hessian")
    return DiagonalCovariance(precision.like, 1 / jnp.sqrt(entries))


def block(precision: Precision) -> BlockCovariance:
    """Return the inverse of each leaf's block of the matrix."""
    like = precision.like
    leaves, treedef = jax.tree.flatten(like)
    roots: list[Float[Array, "_ _"]] = []
    total: Any = jnp.zeros((), space.promoted(*[a.dtype for a in leaves]))
    for i in range(len(leaves)):
        own = treedef.unflatten([i == j for j in range(len(leaves))])
        a = precision.scaled(precision.curvature.block(own, own))
        part = jax.tree.map(lambda a, yes: a if yes else None, like, own)
        found = inverse_root(precision.call, a, part, precision.hint)
        roots.append(found.root.astype(total.dtype))
        total = total + found.log_determinant.astype(total.dtype)
    return BlockCovariance(like, tuple(roots), total)


def lanczos(precision: Precision) -> LowRankCovariance:
    """Return the inverse in the space of some eigenvectors, and a number elsewhere."""
    k = min(precision.rank, precision.curvature.size)
    pairs = precision.curvature.eigh(k, "LM", key=precision.key)
    vectors = jax.vmap(space.flattened)(pairs.vectors)
    values = precision.scaled(pairs.values.astype(vectors.dtype))
    rest = jnp.asarray(precision.rest, vectors.dtype)
    _check(precision, values, "the eigenvalues of the Hessian", vectors)
    _check(precision, rest[None], "`prior_precision`")
    deviations, other = 1 / jnp.sqrt(values), 1 / jnp.sqrt(rest)
    return LowRankCovariance(precision.like, vectors, deviations, other)


def kfac(precision: Precision) -> KroneckerCovariance:
    """Return the inverse of Kronecker factors plus the precision of a prior."""
    K = precision.curvature
    if not isinstance(K, (KFACOperator, BlockDiagonal)):
        raise TypeError(
            message(
                precision.call,
                '`form="kfac"` needs Kronecker factors.',
                expected="`curvature=hotk.KFACOperator(model, loss, mode, inputs)`, "
                "with a loss that is a sum over examples",
                got=f"a {type(K).__name__}",
                fix="Give that operator; the prior is added by `prior_precision=`.",
            )
        )
    dtype = space.scalar_dtype(K.like)
    scale = jnp.asarray(precision.scale, dtype)
    damping = jnp.asarray(precision.rest, dtype) / scale
    _check(precision, damping[None], "`prior_precision`")
    # (s K + tau)^-1 = (K + tau / s)^-1 / s
    inverse = K.eigendecomposition().inverse(damping)
    assert isinstance(inverse, BlockDiagonal)
    log_det = -K.logdet(damping) - K.size * jnp.log(scale)
    factor = 1 / jnp.sqrt(scale)
    return KroneckerCovariance(K.like, inverse.sqrt(), inverse, factor, log_det)


def _check(
    precision: Precision, numbers: Array, what: str, directions: Array | None = None
) -> None:
    if isinstance(numbers, Tracer):
        return
    flat = np.asarray(numbers, np.float64)
    of_space = what.startswith("the diagonal") or directions is not None
    named = precision.like if of_space else None
    rows = None if directions is None else np.asarray(directions)
    refuse_not_positive(precision.call, flat, named, what, precision.hint, rows)


FORMS: dict[str, Callable[[Precision], AbstractCovariance]] = {
    "full": full,
    "block": block,
    "diagonal": diagonal,
    "lanczos": lanczos,
    "kfac": kfac,
}
