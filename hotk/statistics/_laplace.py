"""`laplace_approximation`: the normal distribution that the Hessian at a mode gives."""

import warnings
from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    Function,
    ModeError,
    NotStationaryWarning,
    Point,
    RandomKey,
    RealNumber,
    Scalar,
    Tracer,
    V,
    Vector,
    Where,
    describe_tree,
    message,
    names_ours,
    selection,
    split_point,
)
from hotk._first import jvp, value_and_gradient
from hotk._prepared import user_level
from hotk._second import quadratic_form
from hotk.linop import AbstractOperator, HessianOperator, space

from ._comparison import warn_of_mismatch
from ._covariance import AbstractCovariance
from ._forms import FORMS, Precision
from ._normal import NormalApproximation, shift_text
from ._parameters import (
    check_space,
    direction_name,
    refuse_complex,
    refuse_parts_of_devices,
    shift_in_errors,
    vector_of,
)


Form: TypeAlias = Literal["full", "diagonal", "block", "lanczos", "kfac", "sparse"]

_CALL = "laplace_approximation(potential, mode)"
_HINT = (
    "This is a saddle point or a point before convergence: minimize further. For a "
    "model give the Gauss-Newton matrix as `curvature=`, which has no such direction."
)
# How much less certain a parameter is than with all others held fixed, and by how much
# a Newton step may change the curvature of its direction, before that is told of.
_INFLATED, _MOST_CHANGE = 5.0, 0.3


@names_ours
def laplace_approximation(
    potential: Function,
    mode: V,
    *args: PyTree,
    form: Form = "full",
    curvature: AbstractOperator | None = None,
    scale: RealNumber = 1.0,
    rank: int = 20,
    prior_precision: PyTree[RealNumber] = None,
    key: RandomKey | None = None,
    where: Where = None,
) -> NormalApproximation[V]:
    r"""Approximate a posterior, or the errors of an estimate, by the Hessian at a mode.

    Laplace's approximation is the normal distribution $N(\hat\theta, H^{-1})$ with the
    Hessian H of the potential at its minimum $\hat\theta$ [1]: covariance, standard
    errors, intervals, samples, predictions and log evidence from one call. For a
    potential that is the negative logarithm of a likelihood, $H^{-1}$ is the covariance
    of the maximum-likelihood estimate, by the observed information.

    The potential must be a *sum* over observations. If it is a mean over N of them,
    give `scale=N`: without it all standard errors are too large by $\sqrt N$.

    The forms differ in what is stored and in which correlations are kept:

    - `"full"`: the whole matrix, by n products and a factorization.
    - `"block"`: one block for each leaf.
    - `"diagonal"`: the inverse of the diagonal of H. These variances are those of each
      parameter with all others held fixed, so they are too small where parameters are
      correlated.
    - `"lanczos"`: `rank` eigenpairs of the largest magnitude, and `prior_precision` in
      all other directions. It is exact for the prior $N(0, 1 / \tau)$ with that
      precision $\tau$ if the rest of the potential has at most that rank. It takes
      products alone, for many parameters. Eigenvalues are those relative to the prior.
    - `"kfac"`: Kronecker factors for each layer, for networks. `curvature` is a
      `hotk.KFACOperator` with a loss that is a *sum* over examples, or a mean with
      `scale=N`, and `prior_precision` is added to it: $(s K + \tau I)^{-1}$, exactly,
      by the eigenvectors of the factors [2].
    - `"sparse"`: the whole inverse, of which the diagonal alone is computed, by factors
      of the sparse matrix on the host [3]: for latent fields and bundle adjustment with
      1e5 parameters. Not inside of a transformation.

    For the last layer alone, the others held at their values, choose its parameters
    with `where=`, in any form, in this call and in that of `curvature`.

    Args:
        potential: `potential(parameters, *args)`, the negative logarithm of the
            posterior density or of the likelihood: one real number.
        mode: The minimum of the potential: any pytree, as from `hotk.optim.minimize`.
        *args: Further arguments of the potential.
        form: `"full"`, `"block"`, `"diagonal"`, `"lanczos"`, `"kfac"` or `"sparse"`.
        curvature: An operator in place of the Hessian of the potential, at the same
            point: the Gauss-Newton matrix of a model with the precision of the prior,
            `GGNOperator(model, loss, mode) + tau * Identity()`, or the expected
            information, `FisherOperator(model, loss, mode)`.
        scale: A number that potential and curvature are multiplied with: N if they are
            means over N observations.
        rank: The number of eigenpairs for `"lanczos"`.
        prior_precision: The precision $\tau$ of the prior $N(0, 1 / \tau)$ for
            `"lanczos"` and `"kfac"`: a number, or a tree like the parameters, or the
            head of one, with numbers, for `"kfac"` one for each layer, and arrays for
            `"lanczos"`. Only `"kfac"` adds it, to factors of the model; in all other
            forms include the prior in the potential and in `curvature`.
        key: A random key for the start of `"lanczos"`; a fixed one if left out.
        where: Which leaves of the mode are parameters; see `hotk.Where`. The others are
            held at their values.

    Returns:
        A `hotk.statistics.NormalApproximation`. Inside of a transformation no error is
        possible: where the curvature is not positive definite, its numbers are NaN.
        Outside of one, a `hotk.NotStationaryWarning` is issued if the mode is more than
        a twentieth of a standard error away from the minimum, or if its curvature there
        would be another one by a third (`"full"`, without `curvature`), and a
        `hotk.CurvatureMismatchWarning` if `curvature` is ten times that of the
        potential or a tenth of it, by three random directions: a mean over examples
        and a sum, or a prior that the potential lacks.

    Raises:
        NotPositiveDefiniteError: If the curvature is not positive definite by more than
            rounding. The message and `direction` of the error give the
            combination of parameters.
        StructureError: If `curvature` acts on another space, or `prior_precision` is
            another tree.
        DtypeError: If a parameter is complex.
        ValueError: If there is no such form, or `prior_precision` is missing, or has
            several numbers for parameters that share Kronecker factors.
        TypeError: If `curvature` has no Kronecker factors for the form `"kfac"`, or no
            sparse matrix, or is traced, for `"sparse"`.

    Example:
        >>> t, y = jnp.arange(5.0), jnp.array([1.0, 2.9, 5.1, 7.0, 9.1])
        >>> nll = lambda p: jnp.sum((p["a"] + p["b"] * t - y) ** 2) / (2 * 0.1**2)
        >>> start = {"a": jnp.array(0.0), "b": jnp.array(0.0)}
        >>> newton = hotk.optim.trust_region(subproblem="exact")
        >>> found = hotk.optim.minimize(nll, start, newton, tol=1e-2)
        >>> print(hotk.laplace_approximation(nll, found.x).interval())
           estimate  std. error  2.5 %    97.5 %
        -  --------  ----------  -------  ------
        a  0.96      0.07746     0.80818  1.1118
        b  2.03      0.031623    1.968    2.092
        95 % intervals, inverse Hessian (full)

    References:
        [1] Kass and Raftery (1995). Bayes factors. Journal of the American Statistical
            Association 90(430), 773-795.
        [2] Ritter, Botev and Barber (2018). A scalable Laplace approximation for neural
            networks. ICLR. Section 3.
        [3] Rue and Martino (2007). Approximate Bayesian inference for hierarchical
            Gaussian Markov random field models. Journal of Statistical Planning and
            Inference 137(10), 3177-3192. Section 2.2.
    """
    if form not in FORMS:
        raise _no_such_form(form, mode)
    if form in ("lanczos", "kfac") and prior_precision is None:
        what = "the curvature in the directions that it does not find"
        what = "the precision of the prior" if form == "kfac" else what
        raise ValueError(
            f'`{_CALL}`: `form="{form}"` needs `prior_precision=`, {what}.'
        )
    selected = selection(_CALL, mode, where)
    parameters = jax.tree.map(jnp.asarray, split_point(mode, selected)[0])
    refuse_complex(_CALL, parameters)
    if curvature is None:
        A: AbstractOperator = HessianOperator(potential, mode, *args, where=where)
        name = "inverse Hessian"
    else:
        A, name = curvature, f"inverse of {type(curvature).__name__}"
        check_space(_CALL, A, parameters)
    precision = Precision(_CALL, A, scale, rank, prior_precision, key, _HINT)
    value, gradient = value_and_gradient(potential, mode, *args, where=where)
    refuse_parts_of_devices(_CALL, value, parameters, "terms of the potential")
    gradient = vector_of(gradient, parameters)
    if curvature is not None:
        added = form == "kfac" and prior_precision is not None
        warn_of_mismatch(
            precision,
            potential,
            parameters,
            split_point(mode, selected)[1],
            args,
            gradient,
            priors=precision.priors() if added else None,
            where=where,
        )
    covariance = FORMS[form](precision)
    fit = NormalApproximation(
        mode,
        covariance,
        jnp.asarray(scale, value.dtype) * value,
        shift_in_errors(covariance, space.times(jnp.asarray(scale), gradient)),
        selected,
        f"{name} ({form})",
    )
    if isinstance(fit.largest_shift, Tracer):
        return fit
    if not bool(fit.stationary):
        text = shift_text(fit.shift, parameters)
        warnings.warn(f"`{_CALL}`: {text}.", NotStationaryWarning, user_level())
    elif curvature is None and form == "full":
        form_of = lambda m, u: quadratic_form(potential, m, u, *args, where=where)
        slope = lambda u, step: jvp(lambda m: form_of(m, u), mode, step, where=where)
        change, combination = _change_by_step(covariance, fit.shift, slope)
        if abs(scale * change) > _MOST_CHANGE:
            warnings.warn(
                f"`{_CALL}`: the curvature along {combination} is not determined here: "
                f"a Newton step changes it by {abs(scale * change):.0%}. Minimize "
                "further; if it vanishes there, the data do not determine this "
                "combination of parameters.",
                NotStationaryWarning,
                stacklevel=user_level(),
            )
    return fit


def _change_by_step(
    covariance: AbstractCovariance, shift: Vector, slope: Callable[..., Scalar]
) -> tuple[float, str]:
    """Return how much a Newton step changes the curvature of the worst combination.

    Where only a product a b is determined, the Hessian is singular at the minimum. Next
    to it it has a curvature of the size of the gradient there, of either sign.

    Args:
        covariance: The inverse of the Hessian.
        shift: The Newton step, in standard errors.
        slope: The derivative of $u^T H u$ along a step, from u and the step.

    Returns:
        The change over the curvature, zero if no parameter is far less certain than it
        is with the others held fixed, or if there is no third derivative; and the name
        of the combination.
    """
    root, like = np.asarray(covariance.root_matrix(), float), covariance.like
    errors = np.linalg.norm(root, axis=1)
    inflation = errors * np.linalg.norm(np.linalg.inv(root), axis=0)
    if not np.max(inflation, initial=0) > _INFLATED:
        return 0.0, ""
    worst = root[int(np.argmax(inflation))]
    direction = root @ worst / np.linalg.norm(worst)  # as long as its standard error
    step = np.asarray(space.flattened(shift), float) * errors
    vectors = (jnp.asarray(v, covariance.dtype) for v in (direction, step))
    u, s = (space.unflattened(v, like) for v in vectors)
    try:
        change = float(slope(u, s))
    except ModeError:
        return 0.0, ""
    return change, direction_name(like, direction / np.linalg.norm(direction))


def _no_such_form(form: object, mode: Point) -> ValueError:
    if form not in ("last_layer", "last-layer"):
        return ValueError(f"`{_CALL}`: form {form!r} is not one of {list(FORMS)}.")
    return ValueError(
        message(
            _CALL,
            "the last layer is a choice of parameters, and can have any form.",
            expected=f"one of {list(FORMS)}",
            got=f"{form!r}, for a mode that is {describe_tree(mode)}",
            fix="Choose the leaves of the last layer with `where=`, a function of a "
            "leaf or a tree of booleans like the mode, such as `where={'hidden': "
            "False, 'last': True}`. Pass it here, and to the operator that you give as "
            "`curvature=`.",
        )
    )
