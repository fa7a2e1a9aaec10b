r"""Minimizers of a quadratic model, in a region or with a cubic term, by factors.

All are $s(\lambda) = -(H + \lambda I)^{-1} g$ for the $\lambda \ge \max(0, -\lambda_1)$
where the length of s is that of the region, or $\lambda / \sigma$: as in `_subproblem`,
with a factorization for each $\lambda$ in place of the eigenvectors. By NumPy alone, on
the host.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from hotk.sparse import Shifted


Flat: TypeAlias = np.ndarray

# Newton's method takes three to six factorizations; what is left is for the hard case.
_MOST_FACTORIZATIONS = 60
_TOLERANCE = 1e-9
# How much of the model's decrease a step may lack in the hard case.
_HARD = 1e-8


class ModelMinimizer(NamedTuple):
    r"""A minimizer of the model.

    Attributes:
        s: The step.
        shift: The $\lambda$ that it belongs to.
        lowest: A Rayleigh quotient near the smallest eigenvalue, never below it.
        direction: The unit vector that it is of.
        factorizations: How many it took.
    """

    s: Flat
    shift: float
    lowest: float
    direction: Flat
    factorizations: int


class Region(NamedTuple):
    r"""$\|s\| \le \Delta$.

    Attributes:
        radius: The radius.
    """

    radius: float

    def length(self, shift: float) -> float:
        """Return the length that a step at a shift is to have."""
        del shift
        return self.radius

    def slope(self, shift: float) -> float:
        """Return the derivative of the inverse of that length."""
        del shift
        return 0.0

    def highest(self, norm: float, size: float) -> float:
        """Bound the shift from above: by the norms of matrix and gradient."""
        return norm + size / self.radius


class Cubic(NamedTuple):
    r"""The term $\sigma \|s\|^3 / 3$.

    Attributes:
        weight: The weight.
    """

    weight: float

    def length(self, shift: float) -> float:
        """Return the length that a step at a shift is to have."""
        return shift / self.weight

    def slope(self, shift: float) -> float:
        """Return the derivative of the inverse of that length."""
        return -self.weight / shift**2

    def highest(self, norm: float, size: float) -> float:
        """Bound the shift from above: by the norms of matrix and gradient."""
        return (norm + (norm**2 + 4 * self.weight * size) ** 0.5) / 2


def minimizer(shifted: Shifted, g: Flat, where: Region | Cubic) -> ModelMinimizer:
    r"""Minimize $g^T s + s^T H s / 2$ in a region, or plus a cubic term [1].

    References:
        [1] Conn, Gould and Toint (2000). Trust-Region Methods. SIAM. Algorithm 7.3.4.
    """
    size = float(np.linalg.norm(g))
    scale = max(shifted.norm, np.finfo(float).tiny)
    low = max(0.0, -float(shifted.diagonal.min(initial=0.0)))
    high = max(where.highest(shifted.norm, size), low) * (1 + 1e-12)
    shift = low if isinstance(where, Region) else max(low, 1e-3 * high)
    s, lowest = np.zeros_like(g), -low
    z = _start(g.size)
    for count in range(1, _MOST_FACTORIZATIONS + 1):
        factors = shifted.factors(shift)
        if factors is None or not factors.is_definite:
            low = max(low, shift)
            if factors is not None and factors.on_diagonal:
                p = factors.direction(int(np.argmin(factors.pivots)))
                curvature = float(p @ (shifted.matrix @ p)) / float(p @ p)
                low = max(low, -curvature)
            shift = _between(low, high)
            continue
        s = -factors.solve(g)
        length, target = float(np.linalg.norm(s)), where.length(shift)
        for _ in range(3):
            z = factors.solve(z)
            z /= np.linalg.norm(z)
        lowest = float(z @ (shifted.matrix @ z))
        inside = isinstance(where, Region) and shift == 0 and length <= target
        if inside or abs(length - target) <= _TOLERANCE * target:
            return ModelMinimizer(s, shift, lowest, z, count)
        if length < target:
            high = min(high, shift)
            longer = _lengthened(s, z, g, shifted, target)
            gain = float(longer @ (shifted.matrix @ longer)) + shift * target**2
            # The step that is longer by an eigenvector loses no more than this.
            lost = (target**2 - length**2) * max(lowest + shift, 0.0)
            if lost <= _HARD * abs(gain - 2 * float(g @ longer)) or (
                high - low <= 1e-14 * scale
            ):
                return ModelMinimizer(longer, shift, lowest, z, count)
        else:
            low = max(low, shift)
        slope = float(s @ factors.solve(s)) / length**3 - where.slope(shift)
        step = shift - (1 / length - 1 / target) / slope if length > 0 < target else low
        inside = low < step < high and np.isfinite(step)
        shift = step if inside else _between(low, high)
    return ModelMinimizer(s, shift, lowest, z, _MOST_FACTORIZATIONS)


def _between(low: float, high: float) -> float:
    """Return a shift between two: the roots are nearer to the lower one."""
    return max((low * high) ** 0.5, low + 0.01 * (high - low))


def _start(n: int) -> Flat:
    z = np.random.default_rng(0).normal(size=n)
    return z / np.linalg.norm(z)


def _lengthened(s: Flat, z: Flat, g: Flat, shifted: Shifted, target: float) -> Flat:
    """Return a step plus a multiple of a unit vector that has a given length.

    Of the two multiples it is that with the lower model.
    """
    along = float(s @ z)
    root = (along**2 + max(target**2 - float(s @ s), 0.0)) ** 0.5
    both = [s + (sign * root - along) * z for sign in (1, -1)]
    model = lambda s: float(g @ s + s @ (shifted.matrix @ s) / 2)
    return min(both, key=model)
