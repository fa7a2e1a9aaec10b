r"""Minimizers of a quadratic model in a region, or with a cubic term, in eigenvectors.

All are $s(\lambda) = -(H + \lambda I)^{-1} g$ for the $\lambda \ge \max(0, -\lambda_1)$
where the length of s is that of the region, or $\lambda / \sigma$.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hotk._core import Gradient, Point, Scalar, Tangent, while_loop
from hotk.linop import AbstractOperator, space

from ._scaling import measured


# The share of the length that the model tells along the first gradient.
_CAUTION = 0.25
# A first step is at most so many lengths of the point.
_FAR = 100
# A metric in which lengths are as many times longer is another one.
_JUMP = 1000
# How much of the curvature along the first gradient the first cubic weight adds.
_SHARE = 0.1


class Metric(NamedTuple):
    r"""The norm $\|D s\|$ in which a region is round, or the cube of which is added.

    D has the roots of the largest curvature so far along each variable, as
    Levenberg and Marquardt's method has the norms of the columns of the Jacobian [1]:
    steps do not depend on the units of variables. Or it is what the user gave.

    Attributes:
        scale: The roots, zero of a variable that had no curvature.
        unit: D, which has the root of the slope over the point there.
        hessian: The Hessian.
        gradient: $D^{-1} g$, as a flat vector.
        whole: From a flat vector to one of the space.

    References:
        [1] More (1978). The Levenberg-Marquardt algorithm: implementation and theory.
            Lecture Notes in Mathematics 630, 105-116. (6.3).
    """

    scale: Float[Array, " n"]
    unit: Float[Array, " n"]
    hessian: AbstractOperator
    gradient: Float[Array, " n"]
    whole: Callable[[Any], Any]

    @staticmethod
    def of(
        hessian: AbstractOperator,
        diagonal: Float[Array, " n"],
        gradient: Gradient,
        before: Float[Array, " n"],
        adapts: Scalar,
        x: Point,
    ) -> "Metric":
        """Return the metric at a point.

        Args:
            hessian: The Hessian.
            diagonal: Its diagonal.
            gradient: The gradient.
            before: The scale before.
            adapts: Whether it follows the curvature.
            x: The point.
        """
        wide = space.widened(gradient)
        slopes, at = map(space.flattened, (wide, space.widened(x)))
        roots = jnp.sqrt(jnp.abs(diagonal))
        scale, unit = measured(roots, before, adapts, slopes, at)
        flat = slopes.astype(unit.dtype) / unit
        whole = lambda a: space.unflattened(a, wide)
        return Metric(scale, unit, hessian, flat, whole)

    def step(self, scaled: Float[Array, " n"]) -> Tangent:
        """Return $D^{-1} s$ as a vector of the space."""
        return self.whole(scaled / self.unit)

    def norm(self, step: Tangent) -> Scalar:
        """Return the norm of a vector of the space."""
        return jnp.linalg.norm(self.unit * space.flattened(step))

    def curvature(
        self, form: Float[Array, "*k"], direction: Float[Array, "n *k"]
    ) -> Float[Array, "*k"]:
        r"""Return $v^T H v / v^T v$ of $v = D^{-1} u$, given $v^T H v$ and u."""
        least = jnp.min(self.unit)  # beside it the squares below are in range
        relative = (least / self.unit).reshape(-1, *[1] * (direction.ndim - 1))
        square = jnp.sum((direction * relative) ** 2, axis=0)
        return form * least * least / jnp.where(square > 0, square, 1)

    def along(self) -> Float[Array, " n"]:
        r"""Return $D^{-1} H D^{-1} u$, with the unit vector u along $D^{-1} g$."""
        size = jnp.linalg.norm(self.gradient)
        step = self.step(self.gradient / jnp.where(size > 0, size, 1))
        product = self.hessian.mv(space.narrowed(step, self.hessian.like))
        return space.flattened(space.widened(product)).astype(size.dtype) / self.unit

    def first_radius(self, x: Point, adapts: Scalar) -> Scalar:
        r"""Return a quarter of the length to the model's minimum along $-D^{-1} g$.

        At most a hundred lengths of the point: a nearly singular Hessian tells no
        length. A region that is too small doubles; after a first step that is too long
        Biggs' problem (MGH 18) ends on a plateau.

        Args:
            x: The point.
            adapts: Whether D follows the curvature.
        """
        size = jnp.linalg.norm(self.gradient)
        curvature = self.along() @ self.gradient / jnp.where(size > 0, size, 1)
        length = size / jnp.where(curvature > 0, curvature, 1)
        usual = (curvature > 0) & jnp.isfinite(length) & (length > 0)
        whole = jnp.where(usual, length, self._otherwise(size, x, adapts))
        return jnp.minimum(_CAUTION * whole, _FAR * self._reach(x))

    def first_weight(self, x: Point, adapts: Scalar) -> Scalar:
        r"""Return a part of the curvature along $-D^{-1} g$, over its length.

        Or, with none, the weight whose first step is as long as `first_radius`, and at
        least that of the longest.

        Args:
            x: The point.
            adapts: Whether D follows the curvature.
        """
        size = jnp.linalg.norm(self.gradient)
        curvature = jnp.linalg.norm(self.along())
        weight = _SHARE * curvature * (curvature / jnp.where(size > 0, size, 1))
        usual = jnp.isfinite(weight) & (weight > 0)
        # of a gradient that is not finite there is none: the next one begins
        size = jnp.where(jnp.isfinite(size), size, 0)

        def least(length: Scalar) -> Scalar:
            safe = jnp.where(length > 0, length, 1)
            return size / safe / safe

        other = least(_CAUTION * self._otherwise(size, x, adapts))
        longest = least(_FAR * self._reach(x))
        return jnp.maximum(jnp.where(usual, weight, other), longest)

    def is_another(self, before: Float[Array, " n"], x: Point) -> Bool[Array, ""]:
        """Whether lengths in the metric before tell nothing in this one.

        On a plateau the curvature is next to nothing. Where it ends, a region of that
        metric has no length in this one, and steps in it passed for those at a minimum.

        Args:
            before: The scale before.
            x: The point.
        """
        unit = jnp.where(before > 0, before.astype(self.unit.dtype), self.unit)
        at = jnp.abs(space.flattened(space.widened(x)))
        part = self.unit * jnp.maximum(at, 1) > self._reach(x) / _JUMP
        return jnp.any(part & (self.unit > _JUMP * unit))

    def _reach(self, x: Point) -> Scalar:
        """Return the length of a point, or of one whose entries are 1."""
        return jnp.maximum(self.norm(space.widened(x)), jnp.linalg.norm(self.unit))

    def _otherwise(self, size: Scalar, x: Point, adapts: Scalar) -> Scalar:
        r"""Return a length where the curvature tells none: that of $D^{-1} g$.

        It has another unit if D does not follow the curvature.
        """
        return jnp.where(adapts > 0, size, self._reach(x))


class EigenModel(NamedTuple):
    """A Hessian in a metric, in its eigenvectors there.

    Attributes:
        values: The eigenvalues, in ascending order.
        vectors: The eigenvectors, one in each column.
        gradient: The gradient in this basis.
        metric: The metric.
        matrix: The Hessian in the metric.
    """

    values: Float[Array, " n"]
    vectors: Float[Array, "n n"]
    gradient: Float[Array, " n"]
    metric: Metric
    matrix: Float[Array, "n n"]

    def lowest(self) -> Scalar:
        """Return the smallest curvature of the Hessian along the eigenvectors here."""
        return jnp.min(self.metric.curvature(self.values, self.vectors))

    def step(self, coordinates: Float[Array, " n"]) -> Tangent:
        """Return the vector of the space with these coordinates."""
        return self.metric.step(self.vectors @ coordinates)

    def model(self, s: Float[Array, " n"]) -> Scalar:
        """Return the change of the quadratic model by a step, by its coordinates."""
        return self.gradient @ s + s @ (self.values * s) / 2

    def rest(self, s: Float[Array, " n"]) -> Scalar:
        """Return what the model decreases by from a step, along single variables.

        By the matrix: in the eigenvectors rounding hides all but the steep ones.
        """
        slope = self.metric.gradient + self.matrix @ (self.vectors @ s)
        return along_variables(slope, jnp.diagonal(self.matrix))


def along_variables(slope: Float[Array, " n"], diagonal: Float[Array, " n"]) -> Scalar:
    r"""Return $\sum_i r_i^2 / 2 |H_{ii}|$: free of the units of the variables.

    Infinity where an entry of the slope r is not zero, and its curvature is.
    """
    curvature = jnp.abs(diagonal)
    each = slope * (slope / jnp.where(curvature > 0, 2 * curvature, 1))
    never = jnp.where(slope != 0, jnp.inf, 0)
    return jnp.sum(jnp.where(curvature > 0, each, never))


def eigenmodel(
    hessian: AbstractOperator,
    gradient: Gradient,
    before: Float[Array, " n"],
    adapts: Scalar,
    x: Point,
) -> EigenModel:
    """Return the eigenvalues of a Hessian, and the gradient in its eigenvectors.

    Args:
        hessian: The Hessian.
        gradient: The gradient.
        before: The scale of the metric before.
        adapts: Whether it follows the curvature.
        x: The point.
    """
    matrix = hessian.matrix()
    matrix = matrix.astype(space.wide(matrix.dtype))
    metric = Metric.of(hessian, jnp.diagonal(matrix), gradient, before, adapts, x)
    # eigenvalues of what is not finite would not come back
    safe = jnp.where(jnp.isfinite(matrix), (matrix + matrix.T) / 2, 0)
    safe = safe / metric.unit[None] / metric.unit[:, None]
    values, vectors = jnp.linalg.eigh(safe)
    return EigenModel(values, vectors, vectors.T @ metric.gradient, metric, safe)


def in_region(found: EigenModel, radius: Scalar) -> tuple[Any, Any]:
    r"""Return the minimizer of the model over $\|s\| \le \Delta$, and $\lambda$ [1].

    References:
        [1] Conn, Gould and Toint (2000). Trust-Region Methods. SIAM. Section 7.3,
            Algorithm 7.3.1, in the eigenvectors.
    """
    newton = -found.gradient / jnp.where(found.values > 0, found.values, 1)
    inside = (found.values[0] > 0) & (jnp.linalg.norm(newton) <= radius)
    shift = _secular(found, lambda lam: jnp.full_like(lam, radius))
    s = _on_boundary(found, shift, radius)
    return jnp.where(inside, newton, s), jnp.where(inside, 0, shift)


def with_cubic(found: EigenModel, weight: Scalar) -> tuple[Any, Any]:
    r"""Return the minimizer of the model plus $\sigma \|s\|^3 / 3$, and $\lambda$ [1].

    References:
        [1] Cartis, Gould and Toint (2011). Adaptive cubic regularisation methods for
            unconstrained optimization. Part I. Math. Program. 127, 245-295. (3.1).
    """
    shift = _secular(found, lambda lam: lam / weight)
    return _on_boundary(found, shift, shift / weight), shift


class _Bracket(NamedTuple):
    low: Scalar
    high: Scalar
    shift: Scalar
    steps: int | Int[Array, ""]


def _secular(found: EigenModel, length: Callable[[Any], Any]) -> Scalar:
    r"""Solve $\|s(\lambda)\| = \ell(\lambda)$ by Newton's method, kept in an interval.

    $1 / \|s\|$ is nearly linear in $\lambda$, and convex where the root is looked for.
    """
    dtype = found.values.dtype
    tiny = jnp.finfo(dtype).tiny
    lowest = jnp.maximum(-found.values[0], 0)
    size = space.norm(found.gradient)
    scale = jnp.maximum(jnp.max(jnp.abs(found.values)), tiny)
    norm_at = lambda lam: jnp.linalg.norm(_inverse(found, lam))
    gap = lambda lam: norm_at(lam) - length(lam)

    def widen(high: Scalar) -> Scalar:
        return lowest + 2 * (high - lowest)

    first = lowest + jnp.maximum(size, scale) + tiny
    high = while_loop(
        lambda s: (gap(s[0]) > 0) & (s[1] < 200),
        lambda s: (widen(s[0]), s[1] + 1),
        (first, 0),
    )[0]

    def bracketed_newton(s: _Bracket) -> _Bracket:
        low, high, lam, count = s
        value, slope = jax.jvp(
            lambda lam: 1 / norm_at(lam) - 1 / length(lam),
            (lam,),
            (jnp.ones_like(lam),),
        )
        low = jnp.where(value < 0, lam, low)
        high = jnp.where(value < 0, high, lam)
        step = lam - value / slope
        middle = jnp.where(low > 0, jnp.sqrt(low) * jnp.sqrt(high), (low + high) / 2)
        inside = (step > low) & (step < high) & jnp.isfinite(step)
        # Where the curve is not convex a Newton step may leave the interval: bisect.
        return _Bracket(low, high, jnp.where(inside, step, middle), count + 1)

    def too_wide(s: _Bracket) -> Bool[Array, ""]:
        return (s.high - s.low > 4 * jnp.finfo(dtype).eps * s.high) & (s.steps < 80)

    start = _Bracket(lowest, high, (lowest + high) / 2, 0)
    return while_loop(too_wide, bracketed_newton, start).shift


def _inverse(found: EigenModel, lam: Scalar) -> Float[Array, " n"]:
    """Return the step at a shift, by its coordinates; zero where there is no slope."""
    shifted = found.values + lam
    moved = (found.gradient != 0) & (shifted != 0)
    return jnp.where(moved, -found.gradient / jnp.where(moved, shifted, 1), 0)


def _on_boundary(
    found: EigenModel, shift: Scalar, length: Scalar
) -> Float[Array, " n"]:
    """Return the step of a length, in the hard case with the first eigenvector."""
    s = _inverse(found, shift)
    missing = jnp.sqrt(jnp.maximum(length**2 - s @ s, 0))
    sign = jnp.where(found.gradient[0] > 0, -1, 1)
    hard = (found.values[0] <= 0) & (missing > 1e-3 * length)
    s = s.at[0].add(jnp.where(hard, sign * missing, 0))
    # near the hard case the shift has no digits left that tell the length
    size = jnp.linalg.norm(s)
    return s * jnp.where(size > length, length / jnp.where(size > 0, size, 1), 1)
