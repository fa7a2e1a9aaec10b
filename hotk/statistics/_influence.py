"""Influence of single examples: on a function of the parameters, and on the fit."""

import warnings
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    LARGEST_FACTOR,
    AbstractReport,
    Function,
    NotStationaryWarning,
    OutputError,
    Point,
    RealNumber,
    Scalar,
    Tracer,
    Vector,
    Where,
    describe_tree,
    message,
    names_ours,
    split_point,
)
from hotk._first import jacobian, jvp
from hotk._prepared import user_level
from hotk.estimate import Estimate
from hotk.linop import AbstractOperator, HessianOperator, Identity, space

from ._definite import inverse_root
from ._examples import Examples, refuse_decisive
from ._normal import SMALL_SHIFT
from ._parameters import check_space, own_copy_of_devices


_INFLUENCE = "influence(losses, x)"
_LEAVE = "leave_one_out(losses, x)"
_HINT = (
    "Minimize the sum of the losses further. For a network give the Gauss-Newton "
    "matrix as `curvature=`, with `damping`."
)


@names_ours
def influence(
    losses: Function,
    x: Point,
    *data: PyTree,
    target: Function,
    curvature: AbstractOperator | None = None,
    damping: RealNumber = 0.0,
    tol: RealNumber = 1e-5,
    max_steps: int | None = None,
    where: Where = None,
) -> Estimate:
    r"""Compute the influence of each training example on functions of the fit.

    It is the change of a target t, such as a test loss, if an example is left out of
    the training, to first order: $\nabla t^T H^{-1} \nabla \ell_i$ with the Hessian H
    of the sum of the losses at its minimum [1]. There is one linear system for each
    number in the target, and then one forward pass for all examples: no gradient of a
    single example is stored.

    Args:
        losses: `losses(x, *data)`, which returns one number for each training example,
            whose *sum* was minimized. A penalty is divided among them.
        x: The minimum: any pytree.
        *data: Further arguments of the losses.
        target: `target(x)`: a real array, such as the losses of test examples.
        curvature: An operator in place of the Hessian of the sum of the losses: the
            Gauss-Newton matrix of a network.
        damping: A number that is added to its diagonal.
        tol: The tolerance of the linear systems, where they are solved by iteration.
        max_steps: The most products for one of them.
        where: Which leaves of `x` are parameters; see `hotk.Where`.

    Returns:
        A `hotk.Estimate`: the changes, of shape `(N, *target)`. Up to 2048 parameters
        they come from a factorization, with an error of zero; beyond from conjugate
        gradients; one more solution for the residual corrects them, and the size of the
        correction, which is larger than what remains, is the error.

    Raises:
        NotPositiveDefiniteError: If a factorization meets a curvature that is not
            positive definite.
        OutputError: If the losses are not one number for each example, or the target is
            no real array.
        DtypeError: If a parameter is complex.

    Example:
        >>> X, y = jnp.arange(4.0), jnp.array([0.0, 1.0, 2.0, 5.0])
        >>> losses = lambda w, X, y: (w * X - y) ** 2 / 2
        >>> w = X @ y / (X @ X)
        >>> found = hotk.statistics.influence(losses, w, X, y, target=lambda w: 10 * w)
        >>> print(np.round(found.value, 2))
        [ 0.    0.31  1.22 -1.53]

    References:
        [1] Koh and Liang (2017). Understanding black-box predictions via influence
            functions. International Conference on Machine Learning.
    """
    examples = Examples.of(_INFLUENCE, losses, x, data, where, rows=False)
    like = examples.parameters
    if curvature is None:
        A = HessianOperator(examples.total(), x, *data, where=examples.where)
    else:
        check_space(_INFLUENCE, curvature, like)
        A = curvature
    A = A + jnp.asarray(damping, space.scalar_dtype(like)) * Identity()
    value = target(x)
    if not eqx.is_inexact_array(value) or jnp.iscomplexobj(value):
        raise OutputError(
            message(
                _INFLUENCE,
                "`target(x)` must return a real array.",
                expected="a floating array, such as the losses of test examples",
                got=describe_tree(value),
                fix="Join several by `jnp.concatenate`, or call it once for each.",
            )
        )
    own = own_copy_of_devices(value, x)
    slopes = jacobian(target, own, where=examples.where)
    lead = lambda a: a.reshape(value.size, *a.shape[value.ndim :])
    rows = jax.tree.structure(like).unflatten(
        [lead(a).astype(b.dtype) for a, b in _pairs(slopes, like)]
    )
    along = lambda v: jvp(examples.losses, x, v, *data, where=examples.where)
    if A.size <= LARGEST_FACTOR and not A.on_host:
        root = inverse_root(_INFLUENCE, A.matrix(), like, _HINT).root
        flat = jax.vmap(space.flattened)(rows) @ root @ root.T
        solved = jax.vmap(lambda v: space.unflattened(v, like))(flat)
        changes = jax.vmap(along)(solved)
        error, count, method = jnp.zeros_like(changes), A.size, "exact"
    else:
        options = {"batched": True, "tol": tol, "max_steps": max_steps}
        found = A.solve(rows, **options)
        residual = jax.tree.map(jnp.subtract, rows, A.many(found.x))
        again = A.solve(residual, **{**options, "tol": 0.1})
        correction = jax.vmap(along)(again.x)
        changes = jax.vmap(along)(found.x) + correction
        error = jnp.abs(correction)
        count = jnp.sum(found.iterations) + jnp.sum(again.iterations)
        method = "conjugate gradients"
    shaped = lambda a: jnp.moveaxis(a, 0, -1).reshape(-1, *value.shape)
    products = jnp.asarray(count, jnp.int32)
    return Estimate(shaped(changes), shaped(error), products, method)


def _pairs(tree: PyTree, like: Vector) -> list[tuple[Array, Array]]:
    leaves = jax.tree.leaves(like)
    return list(zip(jax.tree.leaves(tree), leaves, strict=True))


@final
class LeaveOneOut(AbstractReport):
    """Fits without one example each, by one Newton step.

    Attributes:
        parameters: A tree like the parameters with one more axis in front: those of
            the fit without each example.
        losses: The loss of each example at the parameters without it.
        leverage: How much of the curvature an example contributes: the trace of its
            Hessian over that of the sum. They sum to the number of parameters.
    """

    parameters: Vector
    losses: Float[Array, " N"]
    leverage: Float[Array, " N"]

    @property
    def score(self) -> Scalar:
        """The sum of the losses: the leave-one-out cross-validation score."""
        return jnp.sum(self.losses)

    def _rows(self) -> list[tuple[str, ...]]:
        worst = int(jnp.argmax(self.leverage))
        return [
            ("examples", str(len(self.losses))),
            ("leave-one-out score", f"{float(self.score):.6g}"),
            ("largest loss", f"{float(jnp.max(self.losses)):.4g}"),
            ("largest leverage", f"{float(self.leverage[worst]):.4g} (row {worst})"),
        ]


def leave_one_out(
    losses: Function, x: Point, *data: PyTree, where: Where = None
) -> LeaveOneOut:
    r"""Approximate the fits without one example each by one Newton step.

    Without example i the sum of the losses has the gradient $g - \nabla \ell_i$ and the
    Hessian $H - H_i$, so its minimum is near $x + (H - H_i)^{-1} (\nabla \ell_i - g)$
    [1]; g is zero at the minimum of the whole sum. It is exact for linear least
    squares. The Hessians of all examples are stored, `N n^2` numbers.

    Args:
        losses: `losses(x, *data)`, which returns one number for each example, whose
            *sum* was minimized. A loss depends on its own row of the data alone. A
            penalty is divided among them.
        x: The minimum: any pytree.
        *data: Arrays with the examples in their first axis. For data that the function
            captures instead, all losses are computed for each of the fits.
        where: Which leaves of `x` are parameters; see `hotk.Where`.

    Returns:
        A `LeaveOneOut`: parameters, losses and leverages. A `hotk.NotStationaryWarning`
        is issued if `x` is not a minimum.

    Raises:
        NotPositiveDefiniteError: If the Hessian of the sum is not positive definite.
        OutputError: If the losses are not one number for each example.
        StructureError: If the arrays of `data` have no common first axis, or no rows.
        DtypeError: If a parameter is complex.
        ValueError: If the loss of an example depends on others, or without an example
            the others do not determine the parameters.

    Example:
        >>> X, y = jnp.arange(4.0), jnp.array([0.0, 1.0, 2.0, 5.0])
        >>> losses = lambda w, X, y: (w * X - y) ** 2 / 2
        >>> w = X @ y / (X @ X)
        >>> found = hotk.statistics.leave_one_out(losses, w, X, y)
        >>> print(np.round(found.parameters, 3))  # the last is (1 + 4) / (1 + 4)
        [1.429 1.462 1.6   1.   ]

    References:
        [1] Rad and Maleki (2020). A scalable estimate of the out-of-sample prediction
            error via approximate leave-one-out cross-validation. Journal of the Royal
            Statistical Society B 82(4), 965-996.
    """
    examples = Examples.of(_LEAVE, losses, x, data, where)
    like = examples.parameters
    H = HessianOperator(examples.total(), x, *data, where=examples.where)
    root = inverse_root(_LEAVE, H.matrix(), like, _HINT).root
    scores = jnp.matmul(examples.scores(), root, precision="highest")
    total = jnp.sum(scores, axis=0)
    shares = jnp.einsum(
        "ia,gij,jb->gab", root, examples.hessians(), root, precision="highest"
    )
    eye = jnp.eye(H.size, dtype=root.dtype)
    if not isinstance(shares, Tracer):
        left = 1 - np.linalg.eigvalsh(np.asarray(shares, float))
        eps = float(jnp.finfo(shares.dtype).eps)
        refuse_decisive(_LEAVE, left, eps, "so there is no fit without it.")
    own = (scores - total[None])[..., None]
    steps = jnp.linalg.solve(eye[None] - shares, own)[..., 0]
    steps = jnp.matmul(steps, root.T, precision="highest")
    _warn_of_a_slope(total, scores)
    center = space.flattened(like)
    fits = jax.vmap(lambda s: space.unflattened(center + s, like))(steps)
    rest = split_point(x, examples.selected)[1]
    of_each = examples.own_losses(lambda p: eqx.combine(p, rest), fits)
    return LeaveOneOut(fits, of_each, jnp.trace(shares, axis1=1, axis2=2))


def _warn_of_a_slope(total: Float[Array, " n"], scores: Float[Array, "N n"]) -> None:
    """Tell if the sum of the losses is not at its minimum.

    The root of the sum of the squares of all scores is what their sum varies by.
    """
    if isinstance(total, Tracer):
        return
    sizes = np.linalg.norm(np.asarray(scores, float))
    shift = np.linalg.norm(np.asarray(total, float)) / (sizes or 1.0)
    if shift > SMALL_SHIFT:
        warnings.warn(
            f"`{_LEAVE}`: the point is not the minimum of the sum of the losses: the "
            f"minimum of the quadratic model is {shift:.2g} standard errors away.",
            NotStationaryWarning,
            user_level(),
        )
