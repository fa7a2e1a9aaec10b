"""What residuals and their Jacobian at a solution say of the estimate."""

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
from hotk.first import value_and_jacobian
from hotk.linop import space
from hotk.optim import Minimum

from ._covariance import DenseCovariance
from ._definite import inverse_root_of_rows
from ._fitted import Fit
from ._names import name_of
from ._normal import NormalApproximation
from ._regression import CALL, Regression


_FLAT = (
    "The data do not determine this combination of parameters: hold one of them by "
    "`where=`, or write the model without it."
)
# The median of the absolute value of a standard normal number.
_MEDIAN = 0.6744897501960817
_MOST_CLOSER = 10


class _Scale(NamedTuple):
    """The variance of residuals by a loss: Huber's, or that of least squares.

    Attributes:
        pull: For each residual the derivative of its loss.
        mean: The mean of the second derivatives.
        variance: What $(J^T J)^{-1}$ is multiplied with.
    """

    pull: Any
    mean: Any
    variance: Any

    @staticmethod
    def of(regression: Regression, r: Any, n: int, numpy: Any) -> "_Scale":
        """Take it of residuals in units of their errors."""
        loss, m = regression.loss, r.size
        c = numpy.asarray(regression.f_scale, r.dtype)
        if not regression.robust:
            c = numpy.ones_like(c)
        pull, slope = c * loss.influence(r / c), loss.slope(r / c, numpy)
        mean = numpy.mean(slope)
        if numpy is np and not mean > 0:
            raise ValueError(
                f"`{CALL}`: more residuals lie where the loss {regression.loss_name!r} "
                "bends down than where it bends up, so there is no covariance: is "
                f"`f_scale={float(c):g}` as large as the errors?"
            )
        factor = (1 + n / m * numpy.var(slope) / mean**2) / mean
        dof = numpy.asarray(m - n, r.dtype)
        return _Scale(pull, mean, factor**2 * numpy.sum(pull**2) / dof)


class _Local(NamedTuple):
    """Residuals and their Jacobian at a point; outside of a trace of NumPy, in float64.

    Attributes:
        x: The point.
        r: The residuals in units of their errors.
        rows: Their Jacobian.
        difference: The model less the data.
        of_y: The data in units of their errors, and ones.
        dtype: What they were computed in.
    """

    x: Point
    r: Any
    rows: Any
    difference: Float[Array, "..."]
    of_y: tuple[Any, Any]
    dtype: Any

    @staticmethod
    def of(regression: Regression, x: Point, where: Selection | None) -> "_Local":
        """Evaluate them."""
        (r, (difference, *of_y)), jacobian = value_and_jacobian(
            regression.residuals, x, has_aux=True, where=where
        )
        wide = lambda a: a.astype(r.dtype) if in_trace() else np.asarray(a, np.float64)
        parts = [wide(a).reshape(r.size, -1) for a in jax.tree.leaves(jacobian)]
        rows = (jnp if in_trace() else np).concatenate(parts, axis=1)
        y, ones = map(wide, of_y)
        return _Local(x, wide(r), rows, difference, (y, ones), r.dtype)

    def step(self) -> np.ndarray:
        """Return the step of Gauss and Newton, without damping."""
        scale = np.linalg.norm(self.rows, axis=0)
        scale[scale == 0] = 1
        return np.linalg.lstsq(self.rows / scale, -self.r, rcond=None)[0] / scale


def _closer(
    regression: Regression, local: _Local, selected: tuple[bool, ...] | None
) -> _Local:
    """Return what further steps without damping find, as long as they get shorter.

    `minimize` stops where eight digits are right in float64; these add what rounding
    allows, and cost an evaluation each.
    """
    where = None if selected is None else Selection(selected)
    step = local.step()
    for _ in range(_MOST_CLOSER):
        moving, rest = split_point(local.x, selected)
        like = jax.tree.map(jnp.asarray, moving)
        flat = np.asarray(space.flattened(like), np.float64) + step
        moved = space.unflattened(from_host(flat, space.scalar_dtype(like)), like)
        after = _Local.of(regression, eqx.combine(moved, rest), where)
        if not (np.all(np.isfinite(after.rows)) and np.all(np.isfinite(after.r))):
            break
        ahead = after.step()
        shorter = np.linalg.norm(after.rows @ ahead) < np.linalg.norm(local.rows @ step)
        if not shorter:
            break
        local, step = after, ahead
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
    like = jax.tree.map(jnp.asarray, split_point(found.x, selected)[0])
    where = None if selected is None else Selection(selected)
    local, hint = _Local.of(regression, found.x, where), _FLAT
    free = numpy.ones(space.dimension(like))
    if found.active is not None:
        active = [numpy.ravel(a) for a in jax.tree.leaves(found.active)]
        free = numpy.where(numpy.concatenate(active) == 0, 1.0, 0.0)
    free = free.astype(local.rows.dtype)

    def invert(local: _Local) -> tuple[Any, Any]:
        # What is held has no column, and a row of its own: the inverse has a one there.
        rows = local.rows * free[None]
        if found.active is not None:
            rows = numpy.concatenate([rows, numpy.diag(1 - free)])
        root, log_det = inverse_root_of_rows(CALL, rows, local.dtype, like, hint)
        return root * free[:, None], log_det

    if numpy is np:
        _refuse_slopes(local.rows, like)
        if not bool(found.converged):
            hint += f" The fit did not converge, either: {found.reason}."
        elif not regression.robust and found.active is None:
            invert(local)  # refuses what has no such step
            local = _closer(regression, local, selected)
    m, n = local.rows.shape
    r, (y, ones) = local.r, local.of_y
    root, log_det = invert(local)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left: NaN
        pull, mean, variance = _Scale.of(regression, r, n, numpy)
        variance = numpy.ones_like(variance) if absolute_sigma else variance
        step = -root @ (root.T @ (local.rows.T @ pull)) / mean
        root = root * numpy.sqrt(variance)
        errors = numpy.linalg.norm(root, axis=1)
        shift = step / numpy.where(errors > 0, errors, 1)
        square = numpy.sum(r**2)
        flat = y - (ones @ y) / (ones @ ones) * ones
        spread = numpy.sqrt(square / numpy.asarray(m - n, r.dtype))
        likelihood = m * numpy.log(square / m)
        explained = 1 - square / numpy.sum(flat**2)
        if regression.robust:
            spread = numpy.median(abs(r)) / _MEDIAN
            likelihood = explained = numpy.asarray(np.nan, r.dtype)
        potential = numpy.asarray(found.value, r.dtype) / variance
        log_det = log_det + numpy.sum(free) * numpy.log(variance)
    place = lambda a: from_host(a, local.dtype)
    by = f", loss {regression.loss_name}" if regression.robust else ""
    distribution = NormalApproximation(
        local.x,
        DenseCovariance(like, place(root), place(log_det)),
        place(potential),
        space.unflattened(place(shift), like),
        selected,
        f"QR of the Jacobian{by}",
    )
    return Fit(
        local.x,
        found,
        distribution,
        -local.difference,
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
