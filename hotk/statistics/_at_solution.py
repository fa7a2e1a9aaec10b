"""What residuals and their Jacobian at a solution say of the estimate."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import (
    NotPositiveDefiniteError,
    Point,
    Selection,
    Vector,
    from_host,
    in_trace,
    message,
    split_point,
)
from hotk._dense import gathered, name_of
from hotk._first import value_and_jacobian
from hotk._prepared import few_runs
from hotk.linop import space
from hotk.optim import Minimum

from ._covariance import DenseCovariance
from ._definite import inverse_root_of_rows
from ._fitted import Fit
from ._normal import NormalApproximation
from ._regression import CALL, Regression


_FLAT = (
    "The data do not determine this combination of parameters: hold one of them by "
    "`where=`, or write the model without it."
)
# The median of the absolute value of a standard normal number.
_MEDIAN = 0.6744897501960817
_MOST_CLOSER = 10


class _Local(NamedTuple):
    """What residuals say at a point; outside of a trace of NumPy, in float64.

    Attributes:
        x: The point.
        r: The residuals in units of their errors.
        difference: The data less the model.
        of_y: The data in units of their errors, and ones.
        root: That of $(J^T J)^{-1}$, with the Jacobian J of r.
        log_det: The logarithm of the determinant of $(J^T J)^{-1}$.
        offset: The step of Gauss and Newton is the root times the negative of this,
            and as long in the space of the data.
        variance: What $(J^T J)^{-1}$ is multiplied with: Huber's, or that of least
            squares.
        dtype: What it was computed in.
    """

    x: Point
    r: Any
    difference: Float[Array, "..."]
    of_y: tuple[Any, Any]
    root: Any
    log_det: Any
    offset: Any
    variance: Any
    dtype: Any


def _local(
    regression: Regression,
    x: Point,
    selected: tuple[bool, ...] | None,
    free: Any,
    hint: str,
) -> _Local:
    """Evaluate residuals and their Jacobian at a point.

    Args:
        regression: The model with its data.
        x: The point.
        selected: For each leaf whether it is fitted; `None` for all.
        free: For each parameter one, or zero if it is held; `None` if none is.
        hint: What to do where the data do not determine all parameters.
    """
    numpy: Any = jnp if in_trace() else np
    where = None if selected is None else Selection(selected)
    with few_runs():
        (r, (difference, *of_y)), jacobian = value_and_jacobian(
            regression.residuals, x, has_aux=True, where=where
        )
    dtype, m = r.dtype, r.size
    wide = lambda a: a.astype(dtype) if numpy is jnp else np.asarray(a, np.float64)
    parts = [wide(gathered(a)).reshape(m, -1) for a in jax.tree.leaves(jacobian)]
    rows, r = numpy.concatenate(parts, axis=1), wide(gathered(r))
    like = jax.tree.map(jnp.asarray, split_point(x, selected)[0])
    if numpy is np:
        _refuse_slopes(rows, like)
    n, kept = rows.shape[1], rows
    if free is not None:
        # What is held has no column, and a row of its own: the inverse has a one there.
        free = free.astype(rows.dtype)
        kept = numpy.concatenate([rows * free[None], numpy.diag(1 - free)])
    root, log_det = inverse_root_of_rows(CALL, kept, dtype, like, hint)
    root = root if free is None else root * free[:, None]
    c = numpy.asarray(regression.f_scale if regression.robust else 1.0, r.dtype)
    pull, slope = c * regression.loss.influence(r / c), regression.loss.slope(r / c)
    mean = numpy.mean(slope)
    if numpy is np and not mean > 0:
        raise ValueError(
            f"`{CALL}`: more residuals lie where the loss {regression.loss_name!r} "
            "bends down than where it bends up, so there is no covariance: is "
            f"`f_scale={float(c):g}` as large as the errors?"
        )
    factor = (1 + n / m * numpy.var(slope) / mean**2) / mean
    with np.errstate(divide="ignore", invalid="ignore"):  # of m = n: no degrees
        variance = factor**2 * numpy.sum(pull**2) / numpy.asarray(m - n, r.dtype)
    offset = root.T @ (rows.T @ pull) / mean
    y, ones = (wide(gathered(a)) for a in of_y)
    return _Local(x, r, difference, (y, ones), root, log_det, offset, variance, dtype)


def _closer(
    local: _Local, selected: tuple[bool, ...] | None, at: Callable[[Point], _Local]
) -> _Local:
    """Return what further steps without damping find, as long as they get shorter.

    `minimize` stops where eight digits are right in float64; these add what rounding
    allows, and cost an evaluation each.
    """
    for _ in range(_MOST_CLOSER):
        moving, rest = split_point(local.x, selected)
        like = jax.tree.map(from_host, moving)
        at_it = [np.ravel(np.asarray(a, np.float64)) for a in jax.tree.leaves(like)]
        flat = np.concatenate(at_it) - local.root @ local.offset
        moved = jax.tree.map(from_host, space.unflattened(flat, like))
        after = at(eqx.combine(moved, rest))
        if not np.linalg.norm(after.offset) < np.linalg.norm(local.offset):
            break
        local = after
    return local


def fitted(
    regression: Regression,
    found: Minimum,
    selected: tuple[bool, ...] | None,
    absolute_sigma: bool,
) -> Fit:
    """Compute what the residuals and their Jacobian say of an estimate.

    Outside of a transformation it is done by NumPy, where nothing is compiled.

    Args:
        regression: The model with its data.
        found: The minimum.
        selected: For each leaf of the start whether it was fitted; `None` for all.
        absolute_sigma: Whether the residuals do not change the covariance.
    """
    numpy: Any = jnp if in_trace() else np
    free, hint = None, _FLAT
    if found.active is not None:
        active = [numpy.ravel(a) for a in jax.tree.leaves(found.active)]
        free = numpy.where(numpy.concatenate(active) == 0, 1, 0)
    if numpy is np and not bool(found.converged):
        hint += f" The fit did not converge, either: {found.reason}."
    at = lambda x: _local(regression, x, selected, free, hint)
    local = at(found.x)
    if numpy is np and bool(found.converged) and free is None:
        local = _closer(local, selected, at)
    r, (y, ones), variance = local.r, local.of_y, local.variance
    m, n = r.size, len(local.root)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left: NaN
        variance = numpy.ones_like(variance) if absolute_sigma else variance
        root = local.root * numpy.sqrt(variance)
        errors = numpy.linalg.norm(root, axis=1)
        shift = -local.root @ local.offset / numpy.where(errors > 0, errors, 1)
        square = numpy.sum(r**2)
        flat = y - (ones @ y) / (ones @ ones) * ones
        spread = numpy.sqrt(square / numpy.asarray(m - n, r.dtype))
        likelihood = m * numpy.log(square / m)
        explained = 1 - square / numpy.sum(flat**2)
        if regression.robust:
            spread = numpy.median(abs(r)) / _MEDIAN
            likelihood = explained = numpy.asarray(np.nan, r.dtype)
        potential = numpy.asarray(found.value, r.dtype) / variance
        moving = n if free is None else numpy.sum(free).astype(r.dtype)
        log_det = local.log_det + moving * numpy.log(variance)
    place = lambda a: from_host(a, local.dtype)
    like = jax.tree.map(jnp.asarray, split_point(local.x, selected)[0])
    by = f", loss {regression.loss_name}" if regression.robust else ""
    distribution = NormalApproximation(
        local.x,
        DenseCovariance(like, place(root), place(log_det)),
        place(potential),
        jax.tree.map(place, space.unflattened(shift, like)),
        selected,
        f"QR of the Jacobian{by}",
    )
    return Fit(
        local.x,
        found,
        distribution,
        local.difference,
        place(spread),
        place(explained),
        place(likelihood + 2 * n),
        place(likelihood + n * np.log(m)),
        regression,
        m - n,
        absolute_sigma,
    )


def _refuse_slopes(rows: np.ndarray, like: Vector) -> None:
    wrong = np.argwhere(~np.isfinite(rows))
    if not len(wrong):
        return
    i, j = wrong[0]
    raise NotPositiveDefiniteError(
        message(
            CALL,
            "the derivative of the model is not finite at the solution.",
            expected="finite numbers",
            got=f"{rows[i, j]} by `{name_of(like, int(j))}` at row {i} of the flat `y`",
            fix="A square root or a norm at zero? See `hotk.safe`.",
        ),
        float("nan"),
    )
