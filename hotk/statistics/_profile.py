"""`profile_intervals`: limits where the profile of a likelihood has riseped enough."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    Function,
    Point,
    RealNumber,
    Scalar,
    Tracer,
    Where,
    selection,
    split_point,
)
from hotk.first import value_and_gradient
from hotk.linop import Diagonal, HessianOperator, space
from hotk.optim import minimize, trust_region

from ._definite import inverse_root
from ._interval import Interval, quantile
from ._parameters import refuse_complex


_CALL = "profile_intervals(potential, mode)"
_HINT = "Minimize the potential further: a profile starts at its minimum."


def profile_intervals(
    potential: Function,
    mode: Point,
    *args: PyTree,
    part: Any = "",
    level: float = 0.95,
    scale: RealNumber = 1.0,
    where: Where = None,
    max_refits: int = 40,
) -> Interval:
    r"""Compute profile likelihood intervals of parameters, entry by entry.

    The profile of a parameter is the minimum of the potential over all others. The
    limits are where it lies $z^2 / 2$ above the minimum, with the quantile z of the
    normal distribution (1.92 above it for 95 %): the values that a likelihood ratio
    test does not reject. Unlike the interval of the normal approximation they follow
    the skewness of the likelihood, and those of a transformed parameter are the
    transformed limits.

    Each point of a profile is a constrained fit. All fits share one compiled program
    and start from the tangent of the profile; the slope of the profile is the partial
    derivative there, so about four fits find a limit.

    Args:
        potential: `potential(parameters, *args)`: the negative logarithm of the
            likelihood, a sum over observations, or of a posterior density.
        mode: The minimum of the potential: any pytree.
        *args: Further arguments of the potential.
        part: Which entries to profile, as `HessianOperator.restrict` takes it: a path,
            a leaf filter, or a tree of boolean arrays. All if left out. The other
            parameters are fitted in either case.
        level: The probability that an interval covers the truth.
        scale: A number that the potential is multiplied with: N if it is a mean over N
            observations.
        where: Which leaves of the mode are parameters; the others are held at their
            values. See `hotk.Where`.
        max_refits: The most fits for one limit.

    Returns:
        An `Interval`, whose fields are trees like the parameters; of a leaf with a mask
        in `part` they have `leaf[mask]`. A limit is infinite where the profile stays
        below for as far as a million standard errors.

    Raises:
        NotPositiveDefiniteError: If the Hessian at the mode is not positive definite.
        DtypeError: If a parameter is complex.
        ValueError: If a fit finds a lower potential than that of the mode, or a limit
            is not found in `max_refits` fits.
        TypeError: If it is called inside of a transformation.

    Example:
        >>> k, n = 1.0, 10.0  # one success in ten trials
        >>> nll = lambda p: -k * jnp.log(p) - (n - k) * jnp.log1p(-p)
        >>> found = hotk.statistics.profile_intervals(nll, jnp.array(0.1))
        >>> print(f"{found.lower:.3f} to {found.upper:.3f}")
        0.006 to 0.372

    References:
        Venzon and Moolgavkar (1988). A method for computing profile-likelihood-based
            confidence intervals. Applied Statistics 37(1), 87-94.
    """
    selected = selection(_CALL, mode, where)
    moving, rest = split_point(mode, selected)
    moving = jax.tree.map(jnp.asarray, moving)
    refuse_complex(_CALL, moving)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((moving, args))):
        raise TypeError(
            f"`{_CALL}`: the search for a limit runs on the host: call it outside of "
            "`jit` and other transformations."
        )
    size = quantile(level, None)
    H = HessianOperator(potential, mode, *args, where=where)
    matrix = H.matrix()
    matrix = jnp.asarray(scale, matrix.dtype) * matrix
    root = np.asarray(inverse_root(_CALL, matrix, H.like, _HINT).root)
    covariance = root @ root.T
    errors = np.sqrt(np.diag(covariance))
    center = space.flattened(moving)
    fits = _Fits.of(potential, args, moving, rest, errors, scale)
    # `Any`: what it returns for a diagonal operator has `take`, which not all have.
    places: Any = Diagonal(_numbered(moving)).restrict(part)
    chosen = places.take(_numbered(moving))
    limits = np.full((2, len(errors)), np.nan)
    for i in np.asarray(space.flattened(chosen)).astype(int):
        correlated = covariance[i] / (errors[i] * errors)
        for row, side in enumerate((-1.0, 1.0)):
            limits[row, i] = fits.limit(int(i), side, size, correlated, max_refits)
    cut = lambda flat: places.take(space.unflattened(jnp.asarray(flat), moving))
    of_parameters = lambda flat: cut(np.asarray(flat, center.dtype))
    return Interval(
        of_parameters(center),
        of_parameters(errors),
        of_parameters(np.asarray(center) + errors * limits[0]),
        of_parameters(np.asarray(center) + errors * limits[1]),
        level,
        "profile likelihood",
    )


class _Fits(NamedTuple):
    """Constrained fits, in units of the standard errors around the mode.

    Attributes:
        free: The potential as a function of all parameters in these units.
        constrained: The same with one of them held.
        args: Further arguments.
        start: The potential at the mode.
        dtype: The dtype of the parameters.
    """

    free: Function
    constrained: Function
    args: tuple[PyTree, ...]
    start: float
    dtype: Any

    @staticmethod
    def of(
        potential: Function,
        args: tuple[PyTree, ...],
        moving: PyTree,
        rest: PyTree,
        errors: np.ndarray,
        scale: RealNumber,
    ) -> "_Fits":
        center = space.flattened(moving)
        units = jnp.asarray(errors, center.dtype)

        def free(z: Float[Array, " n"], *args: PyTree) -> Scalar:
            point = eqx.combine(space.unflattened(center + units * z, moving), rest)
            value = potential(point, *args)
            return jnp.asarray(scale, value.dtype) * value

        def constrained(
            z: Float[Array, " n"], i: Any, t: Scalar, *args: PyTree
        ) -> Scalar:
            # The second term holds the entry that the first does not depend on: a flat
            # direction would make each step that of a singular Hessian.
            return free(z.at[i].set(t), *args) + (z[i] - t) ** 2 / 2

        start = float(free(jnp.zeros_like(center), *args))
        return _Fits(free, constrained, args, start, center.dtype)

    def limit(
        self, i: int, side: float, size: float, tangent: np.ndarray, most: int
    ) -> float:
        """Return where the root of twice the rise is `size`, in standard errors."""
        eps = float(jnp.finfo(self.dtype).eps)
        low, high, t = 0.0, math.inf, size
        starts = [side * tangent]  # of points at distance 1
        for _ in range(most):
            rise, slope, z = self._fit(i, side * t, [t * s for s in starts])
            if rise < -max(1e-6, 1e3 * eps * abs(self.start)):
                raise ValueError(
                    f"`{_CALL}`: a fit found a potential {-rise:.3g} below that of the "
                    "mode, so this is not the minimum. Minimize from there: "
                    f"entry {i} at {side * t:.3g} standard errors from the mode."
                )
            root = math.sqrt(2 * max(rise, 0.0)) if math.isfinite(rise) else math.inf
            rate = side * slope / root if 0 < root < math.inf else math.nan
            newton = t + (size - root) / rate if rate > 0 else math.nan
            if abs(root - size) <= eps**0.5:
                return side * (newton if math.isfinite(newton) else t)
            if root < size:
                low = t
                starts = [z / t, *starts[-1:]]
            else:
                high = t
            # Rounding, or the end of the domain of the potential.
            if high < math.inf and high - low <= eps**0.5 * high:
                return side * low
            if not low < newton < high:
                newton = 2 * t if high == math.inf else (low + high) / 2
            t = min(newton, 4 * t)
            if t > 1e6:
                return side * math.inf
        raise ValueError(
            f"`{_CALL}`: no limit was found in {most} fits for entry {i}: it lies "
            f"between {side * low:.6g} and {side * high:.6g} standard errors from the "
            "mode. Give a larger `max_refits`."
        )

    def _fit(
        self, i: int, t: float, starts: list[np.ndarray]
    ) -> tuple[float, float, np.ndarray]:
        """Fit all others: return the rise, its slope and the point; infinity if none.

        A start may lie outside of the domain of the potential, so there are several.
        """
        tol = float(jnp.finfo(self.dtype).eps) ** 0.4
        held = (jnp.asarray(i), jnp.asarray(t, self.dtype), *self.args)
        z0 = np.zeros_like(starts[0])
        for start in [*starts, np.zeros_like(z0)]:
            z0 = np.array(start)
            z0[i] = t
            found = minimize(
                self.constrained,
                jnp.asarray(z0, self.dtype),
                trust_region(subproblem="exact"),
                args=held,
                tol=tol,
                max_steps=200,
            )
            if float(found.gradient_norm) < 1e-2:
                value, gradient = value_and_gradient(self.free, found.x, *self.args)
                point = np.asarray(found.x, float)
                return float(value) - self.start, float(gradient[i]), point
        return math.inf, math.nan, z0


def _numbered(like: PyTree) -> PyTree:
    """Return a vector whose entries are their own places."""
    leaves, treedef = jax.tree.flatten(like)
    stops = np.cumsum([a.size for a in leaves])
    pieces = [
        jnp.arange(stop - a.size, stop).reshape(a.shape).astype(float)
        for a, stop in zip(leaves, stops, strict=True)
    ]
    return treedef.unflatten(pieces)
