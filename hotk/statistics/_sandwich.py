"""`sandwich`: covariances of estimates that hold where the model is wrong."""

import warnings
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from hotk._core import (
    Function,
    NotStationaryWarning,
    Point,
    Tracer,
    Where,
)
from hotk._prepared import user_level
from hotk.linop import AbstractOperator, HessianOperator, space

from ._covariance import DenseCovariance
from ._definite import inverse_root
from ._examples import Examples, refuse_decisive
from ._normal import NormalApproximation, shift_text
from ._parameters import check_space


Kind: TypeAlias = Literal["HC0", "HC1", "HC2", "HC3"]
KINDS = ("HC0", "HC1", "HC2", "HC3")

_CALL = "sandwich(losses, x)"
_HINT = "Minimize the sum of the losses further, or give another `curvature=`."


def sandwich(
    losses: Function,
    x: Point,
    *data: PyTree,
    kind: Kind = "HC0",
    clusters: Shaped[Array, " N"] | Shaped[np.ndarray, " N"] | list | None = None,
    curvature: AbstractOperator | None = None,
    where: Where = None,
) -> NormalApproximation:
    r"""Compute the sandwich covariance of an estimate: robust standard errors.

    At the minimum of $\sum_i \ell_i$ it is $H^{-1} \left(\sum_i s_i s_i^T\right)
    H^{-1}$ with the scores $s_i = \nabla \ell_i$ and the Hessian H of the sum. It is a
    covariance of the estimate also where the variance, or the correlation within
    clusters, is not that of the model [1]. With G clusters (of one example each if
    `clusters` is left out) and their scores and Hessians $s_c, H_c$:

    - `"HC0"`: as above, with the sum over clusters.
    - `"HC1"`: times $\frac{G}{G-1} \frac{N-1}{N-n}$, which is $\frac{N}{N-n}$ for
      single examples.
    - `"HC2"`: with $(1 - A_c)^{-1/2} s_c$ in place of the scores, in the basis in
      which H is one and $A_c$ is $H_c$. For linear models and single examples $A_c$ is
      the leverage.
    - `"HC3"`: with $(1 - A_c)^{-1} s_c$: the steps of Newton's method that leave out a
      cluster each, so it is the jackknife around the estimate [2].

    Args:
        losses: `losses(x, *data)`, which returns one number for each example: the
            negative logarithm of its likelihood, or half a squared residual. A loss
            depends on its own row of the data alone.
        x: The minimum of the sum of the losses: any pytree.
        *data: Arrays with the examples in their first axis. The scores are computed row
            by row in one pass; for data that the function captures instead, by its
            Jacobian.
        kind: `"HC0"`, `"HC1"`, `"HC2"` or `"HC3"`.
        clusters: A label for each example; those of one cluster may be correlated.
            There must be two clusters at least; dozens are needed to trust the errors,
            and G clusters vary in at most G - 1 directions.
        curvature: An operator in place of the Hessian of the sum of the losses, such as
            the expected information, `FisherOperator`.
        where: Which leaves of `x` are parameters; see `hotk.Where`.

    Returns:
        A `hotk.statistics.NormalApproximation` of the distribution of the estimate. A
        warning is issued if the clusters vary in fewer directions than there are
        parameters, otherwise a `hotk.NotStationaryWarning` if `x` is not a minimum.

    Raises:
        NotPositiveDefiniteError: If the curvature is not positive definite.
        OutputError: If the losses are not one number for each example.
        StructureError: If the arrays of `data` have no common first axis, or no rows.
        DtypeError: If a parameter is complex.
        TypeError: If `clusters` is traced.
        ValueError: If there is no such kind, the loss of an example depends on others,
            there is one cluster only, or an example alone determines a parameter, for
            `"HC2"` and `"HC3"`.

    Example:
        >>> t = jnp.arange(6.0)
        >>> y = jnp.array([0.0, 1.2, 1.8, 3.5, 3.0, 6.0])
        >>> losses = lambda p, t, y: (p[0] + p[1] * t - y) ** 2 / 2
        >>> p = jnp.linalg.lstsq(jnp.stack([jnp.ones(6), t], axis=1), y)[0]
        >>> fit = hotk.statistics.sandwich(losses, p, t, y, kind="HC3")
        >>> print(np.round(np.asarray(fit.standard_errors, float), 2))
        [0.35 0.27]

    References:
        [1] White (1982). Maximum likelihood estimation of misspecified models.
            Econometrica 50(1), 1-25.
        [2] MacKinnon and White (1985). Some heteroskedasticity-consistent covariance
            matrix estimators with improved finite sample properties. Journal of
            Econometrics 29(3), 305-325.
    """
    if kind not in KINDS:
        raise ValueError(f"`{_CALL}`: kind {kind!r} is not one of {list(KINDS)}.")
    examples = Examples.of(_CALL, losses, x, data, where)
    like = examples.parameters
    if curvature is None:
        curvature = HessianOperator(examples.total(), x, *data, where=examples.where)
    else:
        check_space(_CALL, curvature, like)
    scores = examples.scores()
    bread = inverse_root(_CALL, curvature.matrix(), like, _HINT).root
    groups = _groups(clusters, examples.number)
    shares = None
    if kind in ("HC2", "HC3"):
        shares = _summed(examples.hessians(), groups)
    grouped = _summed(scores, groups)
    corrected = _corrected(kind, bread, grouped, shares)
    n = scores.shape[1]
    if kind == "HC1":
        corrected = corrected * _small_sample(examples.number, len(grouped), n)
    root = jnp.matmul(bread, corrected.T, precision="highest")
    log_det = jnp.linalg.slogdet(jnp.matmul(root, root.T, precision="highest"))[1]
    covariance = DenseCovariance(like, root, log_det)
    step = -bread @ (bread.T @ jnp.sum(scores, axis=0))
    errors = covariance.errors()
    shift = space.unflattened(step / jnp.where(errors > 0, errors, 1), like)
    of = f"{len(grouped)} clusters" if clusters is not None else "single examples"
    method = f"sandwich {kind}, {of}"
    value = jnp.sum(examples.values)
    fit = NormalApproximation(x, covariance, value, shift, examples.selected, method)
    if isinstance(value, Tracer):
        return fit
    rank = _rank(corrected, scores @ bread)
    if rank < n:
        warnings.warn(
            f"`{_CALL}`: the scores of {of} vary in {rank} of {n} directions (they "
            "add up to zero), so in the others the errors are too small, or zero. Take "
            "more clusters than parameters, or fewer parameters.",
            stacklevel=user_level(),
        )
    elif not bool(fit.stationary):  # in errors that tell something
        text = shift_text(shift, like)
        warnings.warn(f"`{_CALL}`: {text}.", NotStationaryWarning, user_level())
    return fit


def _rank(grouped: Float[Array, "G n"], scores: Float[Array, "N n"]) -> int:
    """Return in how many directions clusters vary, by more than rounding of scores."""
    largest = float(jnp.linalg.norm(scores)) * float(jnp.finfo(scores.dtype).eps) ** 0.5
    sizes = np.linalg.svd(np.asarray(grouped, float), compute_uv=False)
    return min(int(np.sum(sizes > largest)), len(grouped) - 1)


def _small_sample(examples: int, groups: int, n: int) -> float:
    if groups < 2 or examples <= n:
        raise ValueError(
            f"`{_CALL}`: HC1 needs more than one cluster and more examples than "
            f"parameters; there are {groups} clusters, {examples} examples and {n} "
            "parameters. Use HC0."
        )
    return (groups / (groups - 1) * (examples - 1) / (examples - n)) ** 0.5


def _groups(clusters: Any, count: int) -> np.ndarray | None:
    """Return for each example the number of its cluster."""
    if clusters is None:
        return None
    if isinstance(clusters, Tracer):
        raise TypeError(
            f"`{_CALL}`: the number of clusters decides the shapes of arrays, and of "
            "traced labels it is not known. Let the function in `jit` capture them."
        )
    labels = np.asarray(clusters)
    if labels.shape != (count,):
        raise ValueError(
            f"`{_CALL}`: `clusters` has shape {labels.shape}, and there are {count} "
            "examples: give one label for each."
        )
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"`{_CALL}`: a label in `clusters` is NaN.")
    groups = np.unique(labels, return_inverse=True)[1]
    if groups.max() == 0:
        raise ValueError(
            f"`{_CALL}`: all examples are in one cluster. The scores of a fit add up "
            "to zero, so it takes more than one cluster to see how they vary."
        )
    return groups


def _summed(a: Array, groups: np.ndarray | None) -> Array:
    if groups is None:
        return a
    return jax.ops.segment_sum(a, jnp.asarray(groups), int(groups.max()) + 1)


def _corrected(
    kind: Kind,
    bread: Float[Array, "n n"],
    scores: Float[Array, "G n"],
    shares: Float[Array, "G n n"] | None,
) -> Float[Array, "G n"]:
    """Return the scores in the basis in which the Hessian is one, corrected."""
    if shares is None:
        return jnp.matmul(scores, bread, precision="highest")
    eps = float(jnp.finfo(scores.dtype).eps)
    if isinstance(scores, Tracer):
        return _solved(jnp, kind, bread, scores, shares, eps)
    # Outside of a transformation on the host: nothing to compile, double precision.
    basis, rows, parts = (np.asarray(a, float) for a in (bread, scores, shares))
    found = _solved(np, kind, basis, rows, parts, eps)
    return jnp.asarray(found.astype(scores.dtype))


def _solved(
    numpy: Any, kind: Kind, bread: Any, scores: Any, shares: Any, eps: float
) -> Any:
    """Return the corrected scores, by the functions of NumPy or those of JAX.

    Raises:
        ValueError: If an example has all of the curvature in a direction.
    """
    values, vectors = numpy.linalg.eigh(bread.T[None] @ shares @ bread[None])
    left = 1 - values
    if numpy is np:
        refuse_decisive(_CALL, left, eps, f"so there is no {kind}. Use HC0 or HC1.")
    power = -0.5 if kind == "HC2" else -1.0
    along = (scores @ bread)[:, None, :] @ vectors * (left**power)[:, None, :]
    return (along @ numpy.swapaxes(vectors, 1, 2))[:, 0]
