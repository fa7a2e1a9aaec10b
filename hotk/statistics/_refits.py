"""Constrained fits: points of the profile of an entry, or of a function."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from hotk._core import Function, RealNumber, Scalar
from hotk._first import value_and_gradient
from hotk.linop import space
from hotk.optim import minimize, trust_region


# How much stiffer the spring on a function is than the potential along its profile: a
# larger one is worse conditioned, a smaller one may have no minimum where the profile
# bends down.
_STIFFNESS = 100.0
# Of a gradient, in units of the standard errors: the potential is below its minimum by
# the square of this at most, which is nothing beside 1.92.
_SMALL = 1e-2


class Refit(NamedTuple):
    """A point of a profile.

    Attributes:
        rise: The potential above that of the mode; infinite if no fit converged.
        slope: The slope of the profile there.
        distance: How far what is profiled is from its value at the mode, in its
            standard errors.
        point: All parameters, in their standard errors around the mode.
        steepness: How steep what is profiled is there; at least 1 at the mode.
    """

    rise: float
    slope: float
    distance: float
    point: np.ndarray
    steepness: float

    @staticmethod
    def checked(
        rise: float,
        gradient: Float[ArrayLike, " n"],
        distance: float,
        normal: Float[ArrayLike, " n"],
        point: Float[ArrayLike, " n"],
    ) -> "Refit":
        """Check that a fit is a minimum where what is profiled is constant.

        Its gradient is then a multiple of the normal, by the slope of the profile. The
        end of the fit does not say it: the gradient of a stiff spring is never small.

        Args:
            rise: The potential above that of the mode.
            gradient: The gradient of the potential.
            distance: What is profiled, from its value at the mode.
            normal: The gradient of the distance.
            point: All parameters.
        """
        gradient, normal = np.asarray(gradient, float), np.asarray(normal, float)
        # It is zero where a bounded function has its largest value.
        slope = float(gradient @ normal) / (float(normal @ normal) or 1.0)
        rest = float(np.linalg.norm(gradient - slope * normal))
        found = math.isfinite(rise) and rest < _SMALL
        return Refit(
            rise if found else math.inf,
            slope if found else math.nan,
            distance,
            np.asarray(point, float),
            float(np.linalg.norm(normal)),
        )


class ScaledPotential(NamedTuple):
    """A potential by its parameters in units of their standard errors.

    Attributes:
        potential: The potential.
        args: Its further arguments.
        like: A tree like the parameters.
        rest: What of the point is no parameter.
        center: The parameters at the mode, as one array.
        units: Their standard errors.
        scale: What the potential is multiplied with.
    """

    potential: Function
    args: tuple[PyTree, ...]
    like: PyTree
    rest: PyTree
    center: Float[Array, " n"]
    units: Float[Array, " n"]
    scale: RealNumber

    def point(self, z: Float[Array, " n"]) -> PyTree:
        """Return the point of some scaled parameters."""
        moved = space.unflattened(self.center + self.units * z, self.like)
        return eqx.combine(moved, self.rest)

    def free(self, z: Float[Array, " n"], *args: PyTree) -> Scalar:
        """Return the potential, as a function of all parameters."""
        value = self.potential(self.point(z), *args)
        return jnp.asarray(self.scale, value.dtype) * value

    def value(self, z: Float[np.ndarray, " n"]) -> float:
        """Return the potential at a point."""
        return float(self.free(jnp.asarray(z, self.center.dtype), *self.args))


def _rise(
    free: Function, z: Float[Array, " n"], args: PyTree, value: Scalar, start: float
) -> float:
    r"""Return the potential above that of the mode.

    A sum over a million observations is known to a unit in single precision, and the
    difference of two of them to no more, while the gradient has small terms: then it is
    $\int_0^1 \nabla f(s z) \cdot z \, ds$, by the rule of Gauss and Legendre.

    Args:
        free: The potential, of parameters in their standard errors around the mode.
        z: The point.
        args: Further arguments of the potential.
        value: The potential there.
        start: That of the mode.
    """
    difference, eps = float(value) - start, float(jnp.finfo(value.dtype).eps)
    known = abs(difference) * _KNOWN >= eps * abs(start)
    if known or not math.isfinite(difference):
        return difference
    total = 0.0
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        at = z * jnp.asarray((1 + node) / 2, z.dtype)
        slope = np.asarray(value_and_gradient(free, at, *args)[1], float)
        total += weight / 2 * float(slope @ np.asarray(z, float))
    return total if math.isfinite(total) else difference


# A difference is taken if its rounding is at most this of it.
_KNOWN = 1e-3
_NODES = 12


@final
class EntryRefits:
    """Fits with one parameter held.

    Attributes:
        start: The potential at the mode.
        value_at: The potential at a point.
        dtype: The dtype of the parameters.
        stiffness: Infinite: a fit is at the distance that it is given.
    """

    stiffness = math.inf

    def __init__(self, scaled: ScaledPotential) -> None:
        self._scaled, self.value_at = scaled, scaled.value
        self.start = scaled.value(np.zeros(scaled.center.shape))
        self.dtype = scaled.center.dtype
        # Not a method: what a function captures is compared at each call.
        self._free = free = scaled.free

        def held(z: Float[Array, " n"], i: Any, t: Scalar, *args: PyTree) -> Scalar:
            # The second term holds the entry that the first does not depend on: a flat
            # direction would make each step that of a singular Hessian.
            return free(z.at[i].set(t), *args) + (z[i] - t) ** 2 / 2

        self._held = held

    def fit(self, i: int, t: float, start: np.ndarray) -> Refit:
        """Return the point of the profile of parameter `i` at distance `t`."""
        scaled, unit = self._scaled, np.arange(len(start)) == i
        z = _minimum(self._held, np.where(unit, t, start), i, t, scaled)
        value, gradient = value_and_gradient(self._free, z, *scaled.args)
        rise = _rise(self._free, z, scaled.args, value, self.start)
        return Refit.checked(rise, gradient, t, unit.astype(float), z)


@final
class FunctionRefits:
    r"""Fits with a spring between one value of a function and a target.

    The minimum of $f + \frac\rho2 (h - s)^2$ is the minimum of f among all points with
    its own value of h: there the second term is a constant. So it is a point of the
    profile, at a distance t = h that is known afterwards, and $\rho (s - t)$ is the
    slope of the profile. No constraint has to be solved.

    Attributes:
        start: The potential at the mode.
        value_at: The potential at a point.
        dtype: The dtype of the parameters.
        stiffness: The constant $\rho$.
    """

    stiffness = _STIFFNESS

    def __init__(
        self,
        scaled: ScaledPotential,
        function: Function,
        values: Float[Array, " m"],
        errors: Float[Array, " m"],
    ) -> None:
        self._scaled, self.value_at = scaled, scaled.value
        self.start = scaled.value(np.zeros(scaled.center.shape))
        self.dtype = scaled.center.dtype
        self._free = free = scaled.free
        to_point = scaled.point

        def distance(z: Float[Array, " n"], i: Any) -> Scalar:
            found = space.flattened(function(to_point(z)))
            return (found[i] - values[i]) / errors[i]

        def sprung(z: Float[Array, " n"], i: Any, s: Scalar, *args: PyTree) -> Scalar:
            value = free(z, *args)
            rest = distance(z, i).astype(value.dtype) - s.astype(value.dtype)
            return value + _STIFFNESS / 2 * rest**2

        self._distance, self._sprung = distance, sprung

    def fit(self, i: int, s: float, start: np.ndarray) -> Refit:
        """Return the point of the profile of value `i` where a spring to `s` holds."""
        scaled = self._scaled
        z = _minimum(self._sprung, start, i, s, scaled)
        value, gradient = value_and_gradient(self._free, z, *scaled.args)
        t, normal = value_and_gradient(self._distance, z, jnp.asarray(i))
        rise = _rise(self._free, z, scaled.args, value, self.start)
        return Refit.checked(rise, gradient, float(t), normal, z)


def _minimum(
    held: Callable[..., Scalar],
    start: np.ndarray,
    i: int,
    target: float,
    scaled: ScaledPotential,
) -> Float[Array, " n"]:
    dtype = scaled.center.dtype
    found = minimize(
        held,
        jnp.asarray(start, dtype),
        trust_region(subproblem="exact"),
        args=(jnp.asarray(i), jnp.asarray(target, dtype), *scaled.args),
        tol=float(jnp.finfo(dtype).eps) ** 0.4,
        max_steps=200,
    )
    return found.x
