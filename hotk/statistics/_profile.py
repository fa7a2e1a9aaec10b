"""`profile_intervals`: limits where the profile of a likelihood has risen enough."""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from hotk._core import (
    Function,
    NotStationaryWarning,
    Point,
    RealNumber,
    Tracer,
    Where,
    names_ours,
    selection,
    split_point,
)
from hotk._dense import name_of
from hotk._first import gradient, value_and_jacobian
from hotk._prepared import user_level
from hotk.linop import Diagonal, HessianOperator, space

from ._definite import inverse_root
from ._interval import Interval, quantile
from ._normal import SMALL_SHIFT, shift_text
from ._parameters import jacobian_rows, refuse_complex, vector_of
from ._refits import EntryRefits, FunctionRefits, Refit, ScaledPotential


_CALL = "profile_intervals(potential, mode)"
_HINT = "Minimize the potential further: a profile starts at its minimum."

# In standard errors: where a function that lags behind may be bounded, and where a
# limit is taken for infinite.
_FAR, _ENDLESS = 1e2, 1e6
# The root of twice the rise grows by less where a target half as far again changes
# nothing, in quantiles.
_NO_MORE = 1e-4
# By how much less than the mode a fit has, beyond rounding.
_BELOW = 0.05
# The slope of a bounded function at its largest value, of 1 at the mode.
_LEVEL = 0.1


@names_ours
def profile_intervals(
    potential: Function,
    mode: Point,
    *args: PyTree,
    function: Function | None = None,
    part: Any = "",
    level: float = 0.95,
    scale: RealNumber = 1.0,
    where: Where = None,
    max_refits: int = 40,
) -> Interval:
    r"""Compute profile likelihood intervals of parameters, or of functions of them.

    The profile of a parameter is the minimum of the potential over all others; that of
    a function $g(\theta)$ at t is the minimum over all parameters with $g(\theta) = t$.
    The limits are where it lies $z^2 / 2$ above the minimum, with the quantile z of the
    normal distribution (1.92 above it for 95 %): the values that a likelihood ratio
    test does not reject. Unlike the interval of the normal approximation they follow
    the skewness of the likelihood, and those of a transformed parameter are the
    transformed limits.

    Each point of a profile is a constrained fit. All fits share one compiled program
    and start from the tangent of the profile; the slope of the profile is known there,
    so about four fits find a limit. A fit with a function held is a minimum of $f +
    \frac\rho2 (g - s)^2$, which is a minimum of f among all parameters with the same
    g: each target s gives a point of the profile, without a constraint to be solved.

    Args:
        potential: `potential(parameters, *args)`: the negative logarithm of the
            likelihood, a sum over observations, or of a posterior density.
        mode: The minimum of the potential: any pytree.
        *args: Further arguments of the potential.
        function: `function(parameters)`, which returns a tree of real arrays: a
            quantity of interest, such as a ratio, a quantile or predictions. Each of
            its numbers is profiled. The parameters themselves if left out.
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
        An `Interval`, whose fields are trees like the parameters, or like the value of
        the function; of a leaf with a mask in `part` they have `leaf[mask]`. The
        standard errors are those of the normal approximation, by the delta method. A
        limit is infinite where the profile stays below for as far as a million standard
        errors, or is flat up to where the derivatives overflow; it is the largest or
        smallest value of a bounded function where the profile stays below up to there,
        and the end of the domain of the potential, with a warning if the profile is
        flat there. A `hotk.NotStationaryWarning` is issued if the mode is more than
        a twentieth of a standard error away from the minimum.

    Raises:
        NotPositiveDefiniteError: If the Hessian at the mode is not positive definite.
        DtypeError: If a parameter or a value of the function is complex.
        OutputError: If the function returns integers.
        ValueError: If a fit finds a lower potential than that of the mode, a limit is
            not found in `max_refits` fits, no fit converges where the potential is
            finite, or the derivative of the function is zero at the mode.
        TypeError: If it is called inside of a transformation.

    Example:
        >>> k, n = 1.0, 10.0  # one success in ten trials
        >>> nll = lambda p: -k * jnp.log(p) - (n - k) * jnp.log1p(-p)
        >>> found = hotk.statistics.profile_intervals(nll, jnp.array(0.1))
        >>> print(f"{found.lower:.3f} to {found.upper:.3f}")
        0.006 to 0.372
        >>> odds = lambda p: p / (1 - p)
        >>> found = hotk.statistics.profile_intervals(
        ...     nll, jnp.array(0.1), function=odds
        ... )
        >>> print(f"{found.lower:.3f} to {found.upper:.3f}")
        0.006 to 0.591

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
    center = space.flattened(moving)
    units = np.linalg.norm(root, axis=1)
    slope = vector_of(gradient(potential, mode, *args, where=where), moving)
    slope = np.asarray(space.flattened(slope)) * np.asarray(scale)
    shift = -root @ (root.T @ slope) / units
    if np.max(np.abs(shift), initial=0) > SMALL_SHIFT:
        away = space.unflattened(jnp.asarray(shift, center.dtype), moving)
        text = shift_text(away, moving)
        warnings.warn(f"`{_CALL}`: {text}.", NotStationaryWarning, user_level())
    # An array: the number of one data set is not that of the next, as after `fit`.
    scale = jnp.asarray(scale, float)
    scaled = ScaledPotential(
        potential, args, moving, rest, center, jnp.asarray(units, center.dtype), scale
    )
    if function is None:
        profiled = _Profiled(moving, np.eye(len(units)))
        errors, refits = units, EntryRefits(scaled)
    else:
        profiled = _Profiled.of(function, mode, where, moving)
        errors = np.linalg.norm(profiled.rows @ root, axis=1)
        flat = space.flattened(profiled.values)
        _refuse_stationary(function, scaled, root, errors, profiled.values)
        refits = FunctionRefits(scaled, function, flat, jnp.asarray(errors, flat.dtype))
    tangents = profiled.rows @ root @ root.T / units
    # `Any`: what it returns for a diagonal operator has `take`, which not all have.
    places: Any = Diagonal(_numbered(profiled.values)).restrict(part)
    chosen = places.take(_numbered(profiled.values))
    limits = np.full((2, len(errors)), np.nan)
    numbers = np.asarray(space.flattened(chosen)).astype(int).tolist()
    names = tuple(name_of(profiled.values, i) for i in numbers)
    for i, name in zip(numbers, names, strict=True):
        if not errors[i]:
            limits[:, i] = 0.0
            continue
        for row, side in enumerate((-1.0, 1.0)):
            tangent = side * tangents[i] / errors[i]
            limits[row, i] = _limit(
                refits, i, f"`{name}`", side, size, tangent, max_refits
            )
    values = np.asarray(space.flattened(profiled.values), float)

    def cut(flat: np.ndarray) -> PyTree:
        entries = lambda leaf, at: (
            None if at is None else jnp.asarray(flat[np.asarray(at, int)], leaf.dtype)
        )
        return jax.tree.map(entries, profiled.values, chosen)

    is_cut = jax.tree.map(
        lambda leaf, at: at is not None and np.size(at) < np.size(leaf),
        profiled.values,
        chosen,
    )
    return Interval(
        cut(values),
        cut(errors),
        cut(values + errors * limits[0]),
        cut(values + errors * limits[1]),
        level,
        "profile likelihood",
        names if True in jax.tree.leaves(is_cut) else None,
    )


class _Profiled(NamedTuple):
    """What profiles are taken of.

    Attributes:
        values: Its values at the mode.
        rows: Their derivatives by the parameters, a row for each number.
    """

    values: PyTree
    rows: Float[np.ndarray, "m n"]

    @staticmethod
    def of(function: Function, mode: Point, where: Where, like: PyTree) -> "_Profiled":
        """Take the values and the derivatives of a function."""
        values, jacobian = value_and_jacobian(function, mode, where=where)
        refuse_complex(_CALL, values, "values of `function`")
        rows = jacobian_rows(values, jacobian, like)
        return _Profiled(values, np.concatenate([np.asarray(r, float) for r in rows]))


def _refuse_stationary(
    function: Function,
    scaled: ScaledPotential,
    root: np.ndarray,
    errors: np.ndarray,
    values: PyTree,
) -> None:
    """Refuse a function that has no slope at the mode, unless it is a constant."""
    if np.all(errors > 0):
        return
    # One standard error away in all directions at once.
    step = root @ np.ones(len(root)) / np.asarray(scaled.units)
    away = function(scaled.point(jnp.asarray(step, scaled.center.dtype)))
    changed = space.flattened(away) != space.flattened(values)
    for i in np.flatnonzero((errors == 0) & np.asarray(changed)):
        raise ValueError(
            f"`{_CALL}`: the derivative of the function is zero at the mode, so a "
            f"change of `{name_of(values, int(i))}` is not measured in "
            "standard errors: the mode is an extremum of it. Profile a function that "
            "is monotone there."
        )


def _limit(
    refits: EntryRefits | FunctionRefits,
    i: int,
    name: str,
    side: float,
    size: float,
    tangent: np.ndarray,
    most: int,
) -> float:
    """Return where the root of twice the rise is `size`, in standard errors.

    The search is for the target `s` of a fit, which the distance `t` from the mode
    that the fit finds is behind by the slope over the stiffness.

    Args:
        refits: Fits.
        i: Which entry.
        name: Its name, for messages.
        side: 1 or -1.
        size: The quantile.
        tangent: The direction of the profile at the mode, of distance 1.
        most: The most fits.
    """
    eps = float(jnp.finfo(refits.dtype).eps)
    low, high, s, reached = 0.0, math.inf, size * (1 + 1 / refits.stiffness), 0.0
    zero = np.zeros_like(tangent)
    last, start, before, below = zero, tangent, (0.0, 0.0), 0.0
    failed, bounded, ahead = False, False, 0.0
    for _ in range(most):
        # A start may lie outside of the domain of the potential, or beyond a pole of
        # the function, where the fit finds values on the other side of the mode.
        for z in (s * start, last, s * tangent, zero):
            fit = refits.fit(i, side * s, z)
            t = side * fit.distance
            if math.isfinite(fit.rise) and t >= reached * (1 - eps**0.5):
                break
        else:
            fit = Refit(math.inf, math.nan, side * s, zero, 1.0)
            t = s
        if fit.rise < -min(max(1e-6, 1e3 * eps * abs(refits.start)), _BELOW):
            raise ValueError(
                f"`{_CALL}`: a fit found a potential {-fit.rise:.3g} below that of the "
                "mode, so this is not the minimum. Minimize from there: "
                f"{name} at {side * t:.3g} standard errors from the mode."
            )
        root = math.sqrt(2 * max(fit.rise, 0.0))
        slope = side * fit.slope
        rate = slope / root if 0 < root < math.inf else math.nan
        newton = t + (size - root) / rate if rate > 0 else math.nan
        if abs(root - size) <= eps**0.5:
            return side * (newton if math.isfinite(newton) else t)
        if root < size:
            # A bounded function, at its largest value. Near a pole the profile is as
            # steep, and still rises.
            at_most = fit.steepness < _LEVEL and root - below < _NO_MORE * size
            if at_most and s > max(_FAR, 1.5 * low, 2 * t):
                return side * t
            # In single precision fits may not reach that far: there its slope is noise.
            bounded = at_most and (bounded or s > max(1.5 * low, 2 * t))
            low, reached, below = s, t, root
            ahead = newton if rate > 0 else math.inf
            last, start = fit.point, fit.point / s
        else:
            high, failed = s, not math.isfinite(fit.rise)
        # Rounding, or the end of the domain of the potential.
        if high < math.inf and high - low <= eps**0.5 * high:
            if bounded or not failed:
                return side * reached
            domain_ends = not math.isfinite(refits.value_at(high * start))
            return side * _last(name, side * t, ahead, reached, domain_ends)
        # The slope there, by that of the last two points; at the mode it is zero.
        bend = (slope - before[1]) / (t - before[0]) if t != before[0] else 0.0
        aim = newton + (slope + bend * (newton - t)) / refits.stiffness
        # Nothing is changed any more, up to rounding: the slope says nothing, either.
        stuck = abs(t - before[0]) <= 4 * eps * abs(t)
        before = (t, slope)
        if stuck or not low < aim < high:
            aim = 2 * s if high == math.inf else (low + high) / 2
        s = min(aim, 4 * s)
        if s > _ENDLESS and 2 * reached > low:
            return side * math.inf
    raise ValueError(
        f"`{_CALL}`: no limit was found in {most} fits for {name}: it lies "
        f"between {side * low:.6g} and {side * high:.6g} standard errors from the "
        "mode. Give a larger `max_refits`."
    )


def _last(
    name: str, at: float, ahead: float, reached: float, domain_ends: bool
) -> float:
    """Return the limit where there are no fits beyond: does it end, or overflow?

    Args:
        name: The name of the entry, for messages.
        at: Where, in standard errors.
        ahead: Where the profile would reach the limit if it went on straight.
        reached: The distance of the last fit.
        domain_ends: Whether the potential is not finite beyond.
    """
    flat = ahead > _ENDLESS
    if flat and not domain_ends:
        return math.inf
    text = f"`{_CALL}`: the profile of {name} "
    if not domain_ends:
        raise ValueError(
            f"{text}cannot be followed beyond {at:.6g} standard errors: the potential "
            "is finite there, but no fit converges. Is its derivative finite?"
        )
    if flat:
        warnings.warn(
            f"{text}is flat up to {at:.6g} standard errors, where the potential ends. "
            "If a number overflows there, the limit is infinite.",
            stacklevel=user_level(),
        )
    return reached


def _numbered(like: PyTree) -> PyTree:
    """Return a vector whose entries are their own places."""
    leaves, treedef = jax.tree.flatten(like)
    stops = np.cumsum([a.size for a in leaves])
    pieces = [
        jnp.arange(stop - a.size, stop).reshape(a.shape).astype(float)
        for a, stop in zip(leaves, stops, strict=True)
    ]
    return treedef.unflatten(pieces)
