"""Covariances from a precision operator, in the forms of `laplace_approximation`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    NotPositiveDefiniteError,
    RandomKey,
    RealNumber,
    StructureError,
    Tracer,
    Vector,
    describe_tree,
    message,
)
from hotk._prepared import check_bytes, jitted
from hotk.linop import (
    AbstractOperator,
    BlockDiagonal,
    Diagonal,
    KFACOperator,
    cholesky,
    space,
)

from ._covariance import (
    AbstractCovariance,
    BlockCovariance,
    DenseCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
    SparseCovariance,
)
from ._definite import inverse_root, refuse_negative_direction, refuse_not_positive


class Precision(NamedTuple):
    """What a covariance is the inverse of.

    Attributes:
        call: The call, for messages.
        curvature: The operator.
        scale: A number that it is multiplied with.
        rank: The number of eigenpairs to compute.
        prior: The precision in directions that these do not span, or that of a prior
            that is added: a number, or a tree of them.
        key: A random key for the start of the iteration.
        hint: What to do where it is not positive definite.
    """

    call: str
    curvature: AbstractOperator
    scale: RealNumber
    rank: int
    prior: PyTree[RealNumber]
    key: RandomKey | None
    hint: str

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.curvature.like

    def scaled(self, a: Array) -> Array:
        """Return numbers of the operator times the scale."""
        return jnp.asarray(self.scale, a.dtype) * a

    def priors(self) -> list[Array]:
        """Return the precision of the prior for each leaf: a number, or an array."""
        leaves = jax.tree.leaves(self.like)
        try:
            spread = jax.tree.leaves(jax.tree.broadcast(self.prior, self.like))
            fits = all(
                np.shape(t) in ((), a.shape)
                for t, a in zip(spread, leaves, strict=True)
            )
        except (TypeError, ValueError):
            spread, fits = [], False
        if not fits:
            raise StructureError(
                message(
                    self.call,
                    "`prior_precision` does not fit the parameters.",
                    expected="a number, or a tree like the parameters, or the head of "
                    f"one, with numbers and arrays: {describe_tree(self.like)}",
                    got=describe_tree(self.prior),
                    fix="Give a number for each layer, as in `{'w': 1.0, 'b': 0.1}`.",
                )
            )
        for t in spread:
            flat = jnp.asarray(t, space.scalar_dtype(self.like)).reshape(-1)
            _check(self, flat, "`prior_precision`")
        return [jnp.asarray(t, a.dtype) for t, a in zip(spread, leaves, strict=True)]


def full(precision: Precision) -> DenseCovariance:
    """Return the inverse of the matrix."""
    call, like, hint = precision.call, precision.like, precision.hint
    refuse_negative_direction(call, precision.curvature, precision.scale, hint)
    n, bytes_of_one = precision.curvature.size, space.scalar_dtype(like).itemsize
    check_bytes(call, n, n * n * bytes_of_one, '`form="sparse"`, "lanczos" or "kfac"')
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
    """Return the inverse in the space of some eigenvectors, and the prior elsewhere.

    They are those of the curvature in units in which the prior is the identity.
    """
    A, like = precision.curvature, precision.like
    k = min(precision.rank, A.size)
    leaves, tree = jax.tree.flatten(like)
    pairs = zip(precision.priors(), leaves, strict=True)
    units = [jnp.broadcast_to(1 / jnp.sqrt(t), a.shape) for t, a in pairs]
    D = Diagonal(space.placed(tree.unflatten(units), like))
    found = (D @ A @ D).eigh(k, "LM", key=precision.key)
    vectors = jax.vmap(space.flattened)(found.vectors)
    values = precision.scaled(found.values.astype(vectors.dtype))
    unit = space.flattened(D.entries).astype(vectors.dtype)
    rows = vectors * unit[None]
    lengths = jnp.linalg.norm(rows, axis=1)
    curvatures, rows = values / lengths**2, rows / lengths[:, None]
    _check(precision, curvatures, "the eigenvalues of the Hessian", rows)
    return LowRankCovariance(like, vectors, 1 / jnp.sqrt(values), unit)


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
    # (s K + tau)^-1 = (K + tau / s)^-1 / s, block by block
    blocks = K.eigendecomposition().blocks
    added = tuple(t.astype(dtype) / scale for t in _priors_of_blocks(precision, blocks))
    inverted, log_det = _inverted(blocks, added)
    inverse = BlockDiagonal(inverted, K.like)
    log_det = log_det - K.size * jnp.log(scale)
    factor = 1 / jnp.sqrt(scale)
    return KroneckerCovariance(K.like, inverse.sqrt(), inverse, factor, log_det)


@jitted
def _inverted(blocks: Any, priors: tuple[Array, ...]) -> tuple[Any, Array]:
    """Return the inverses of blocks, and the logarithm of their determinant."""
    inverses = tuple(b.inverse(t) for b, t in zip(blocks, priors, strict=True))
    logs = [jnp.sum(jnp.log(b.values)).astype(priors[0].dtype) for b in inverses]
    return inverses, jnp.sum(jnp.stack(logs))


def _priors_of_blocks(precision: Precision, blocks: Any) -> list[Array]:
    """Return the precision of the prior for each block, which has one."""
    priors, found = precision.priors(), []
    for block in blocks:
        own = [priors[part.leaf] for part in block.layout.parts]
        known = not any(isinstance(t, Tracer) for t in own)
        same = [t is own[0] or (known and bool(jnp.all(t == own[0]))) for t in own]
        if not all(same) or any(t.ndim for t in own):
            raise ValueError(
                f"`{precision.call}`: Kronecker factors are of "
                f"{' and '.join(block.origin.parameters)} together, so these have one "
                "number of `prior_precision`."
            )
        found.append(own[0])
    return found


def sparse(precision: Precision) -> SparseCovariance:
    """Return the inverse by a factor of the sparse matrix."""
    A, like = precision.curvature, precision.like
    try:
        factors = cholesky(A, method="sparse")
    except NotPositiveDefiniteError as error:
        raise NotPositiveDefiniteError(
            message(
                precision.call,
                "the Hessian is not positive definite.",
                expected="positive pivots of its sparse factor",
                got=f"a smallest pivot of {error.smallest:.6g}",
                fix=precision.hint,
            ),
            error.smallest,
        ) from None
    dtype = space.scalar_dtype(like)
    scale = jnp.asarray(precision.scale, dtype)
    variances = jnp.asarray(factors.inverse_diagonal(), dtype) / scale
    log_det = -jnp.asarray(factors.logdet(), dtype) - A.size * jnp.log(scale)
    return SparseCovariance(like, variances, 1 / jnp.sqrt(scale), log_det, factors)


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
    "sparse": sparse,
}
