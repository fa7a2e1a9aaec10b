"""Likelihoods whose outputs are no natural parameters: the Fisher matrix is another."""

import math
from typing import Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped

from hotk._core import RandomKey, RealNumber, Scalar

from ._losses import AbstractLikelihood
from ._targets import Outputs, Targets, as_array, like_outputs


def _number(value: RealNumber, z: Outputs) -> Scalar:
    return jnp.asarray(value, z.dtype)


@final
class GammaLoss(AbstractLikelihood):
    r"""The Gamma loss of logarithms of means, $\ell(z, y) = \alpha (z + y e^{-z})$.

    The targets have mean $e^z$ and variance $e^{2 z} / \alpha$ [1]. The Hessian is
    $\alpha y e^{-z}$, the Fisher matrix $\alpha$ on the diagonal. What does not depend
    on z is left out.

    Attributes:
        targets: Positive numbers, as many as outputs.
        shape: The shape $\alpha$, a positive number.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.GammaLoss(jnp.array([1.0, 2.0]), reduction="sum")
        >>> loss(jnp.zeros(2)).item()
        3.0

    References:
        [1] McCullagh and Nelder (1989). Generalized Linear Models, 2nd ed., chapter 8.
            Chapman and Hall.
    """

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    shape: RealNumber = 1.0
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)
    convex = True
    support = (0, math.inf)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the losses."""
        relative = like_outputs(self, self.targets, z) * jnp.exp(-z)
        return _number(self.shape, z) * (z + relative)

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return one minus the target over its mean, times the shape."""
        relative = like_outputs(self, targets, z) * jnp.exp(-z)
        return _number(self.shape, z) * (1 - relative)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c shape y exp(-z) u`."""
        relative = like_outputs(self, self.targets, z) * jnp.exp(-z)
        return self.factor(z) * _number(self.shape, z) * relative * u

    def fisher_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c shape u`."""
        return self.factor(z) * _number(self.shape, z) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw positive numbers."""
        shape = _number(self.shape, z)
        return jax.random.gamma(key, shape, z.shape, z.dtype) * jnp.exp(z) / shape


@final
class NegativeBinomialLoss(AbstractLikelihood):
    r"""The negative binomial loss of logarithms of means.

    It is $\ell(z, y) = (y + r) \log(1 + e^z / r) - y z$: counts with mean $\mu = e^z$
    and variance $\mu + \mu^2 / r$ [1]. The Hessian is $(y + r) p (1 - p)$ with $p =
    \mu / (\mu + r)$, the Fisher matrix $r p$ on the diagonal. What does not depend on
    z is left out.

    Attributes:
        targets: Counts, as many as outputs.
        size: The size r, a positive number; the Poisson loss is its limit for large r.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> counts = jnp.array([0.0, 3.0])
        >>> loss = hotk.curvature.NegativeBinomialLoss(counts, size=1.0)
        >>> loss.slope(jnp.zeros(2), counts).tolist()
        [0.5, -1.0]

    References:
        [1] Hilbe (2011). Negative Binomial Regression, 2nd ed., chapter 8. Cambridge
            University Press.
    """

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    size: RealNumber = 1.0
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)
    convex = True
    support = (0, math.inf)

    def _logits(self, z: Outputs) -> Outputs:
        return z - jnp.log(_number(self.size, z))

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the losses."""
        y = like_outputs(self, self.targets, z)
        return (y + _number(self.size, z)) * jax.nn.softplus(self._logits(z)) - y * z

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return the share of the mean of all counts and sizes, minus the counts."""
        y, p = like_outputs(self, targets, z), jax.nn.sigmoid(self._logits(z))
        return (y + _number(self.size, z)) * p - y

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c (y + size) p (1 - p) u`."""
        logits, y = self._logits(z), like_outputs(self, self.targets, z)
        spread = jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)
        return self.factor(z) * (y + _number(self.size, z)) * spread * u

    def fisher_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c size p u`."""
        p = jax.nn.sigmoid(self._logits(z))
        return self.factor(z) * _number(self.size, z) * p * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw counts: of Poisson, with rates of Gamma."""
        one, other = jax.random.split(key)
        size = _number(self.size, z)
        rates = jax.random.gamma(one, size, z.shape, z.dtype) * jnp.exp(z) / size
        return jax.random.poisson(other, rates).astype(z.dtype)


@final
class StudentTLoss(AbstractLikelihood):
    r"""The loss of Student's t distribution, for residuals with outliers.

    It is $\ell(z, y) = \frac{\nu + 1}{2} \log(1 + r^2 / (\nu s^2))$ of $r = z - y$. The
    Hessian is $(\nu + 1) (\nu s^2 - r^2) / (\nu s^2 + r^2)^2$, negative for outliers;
    the Fisher matrix is $(\nu + 1) / ((\nu + 3) s^2)$ on the diagonal [1]. What does
    not depend on z is left out.

    Attributes:
        targets: As many numbers as outputs.
        degrees: The degrees of freedom $\nu$, a positive number.
        scale: The scale s, a positive number.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.StudentTLoss(jnp.zeros(2), degrees=3.0)
        >>> slopes = loss.slope(jnp.array([1.0, 100.0]), loss.targets)
        >>> [round(slope, 3) for slope in slopes.tolist()]
        [1.0, 0.04]

    References:
        [1] Lange, Little and Taylor (1989). Robust statistical modeling using the t
            distribution. JASA 84(408), 881-896.
    """

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    degrees: RealNumber = 4.0
    scale: RealNumber = 1.0
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    def _width(self, z: Outputs) -> Scalar:
        return _number(self.degrees, z) * _number(self.scale, z) ** 2

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the losses."""
        square = (z - like_outputs(self, self.targets, z)) ** 2
        return (_number(self.degrees, z) + 1) / 2 * jnp.log1p(square / self._width(z))

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return the residuals, those of outliers weighed less."""
        r = z - like_outputs(self, targets, z)
        return (_number(self.degrees, z) + 1) * r / (self._width(z) + r**2)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return the product with the diagonal Hessian, negative for outliers."""
        square, width = (z - like_outputs(self, self.targets, z)) ** 2, self._width(z)
        curvature = (width - square) / (width + square) ** 2
        return self.factor(z) * (_number(self.degrees, z) + 1) * curvature * u

    def fisher_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c (degrees + 1) / ((degrees + 3) scale^2) u`."""
        degrees = _number(self.degrees, z)
        square = _number(self.scale, z) ** 2
        return self.factor(z) * (degrees + 1) / ((degrees + 3) * square) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw numbers."""
        noise = jax.random.t(key, _number(self.degrees, z), z.shape, z.dtype)
        return z + _number(self.scale, z) * noise


@final
class OrdinalCrossEntropy(AbstractLikelihood):
    r"""The cross entropy of ordered classes, by the proportional odds model.

    With thresholds $\theta_1 < \dots < \theta_{K-1}$ the class of a score z is k with
    probability $\sigma(\theta_{k+1} - z) - \sigma(\theta_k - z)$, where $\theta_0 =
    -\infty$, $\theta_K = \infty$ and classes count from 0 [1]. The Hessian is the sum
    of $\sigma (1 - \sigma)$ at the two thresholds of the class.

    Attributes:
        targets: Classes 0 to K - 1, as many as scores.
        thresholds: The K - 1 thresholds, ascending.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> classes, thresholds = jnp.array([0, 2]), jnp.array([-1.0, 1.0])
        >>> loss = hotk.curvature.OrdinalCrossEntropy(classes, thresholds)
        >>> [round(slope, 3) for slope in loss.slope(jnp.zeros(2), classes).tolist()]
        [0.731, -0.731]

    References:
        [1] McCullagh (1980). Regression models for ordinal data. J. R. Stat. Soc. B
            42(2), 109-142.
    """

    targets: Shaped[Array, "N *outputs"] = eqx.field(converter=as_array)
    thresholds: Num[Array, " thresholds"] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)
    convex = True

    @property
    def support(self) -> tuple[float, float]:
        """The classes."""
        return 0, len(self.thresholds)

    def _bounds(self, z: Outputs, classes: Targets) -> tuple[Outputs, Outputs]:
        """Return the two thresholds of each class, minus the score."""
        ends = jnp.array([jnp.inf], z.dtype)
        edges = jnp.concatenate([-ends, self.thresholds.astype(z.dtype), ends])
        like_outputs(self, classes, z)  # refuses another shape
        places = classes.astype(jnp.int32)
        return edges[places] - z, edges[places + 1] - z

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the cross entropies."""
        low, high = self._bounds(z, self.targets)
        # log(s(high) - s(low)), which cancels for far scores
        inside = jnp.log(-jnp.expm1(low - high))
        return -(jax.nn.log_sigmoid(high) + jax.nn.log_sigmoid(-low) + inside)

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return the share above the class minus that below it."""
        low, high = self._bounds(z, targets)
        return jax.nn.sigmoid(-high) - jax.nn.sigmoid(low)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return the product with the diagonal Hessian."""
        return self.factor(z) * self._curvature(z, self.targets) * u

    def _curvature(self, z: Outputs, classes: Targets) -> Outputs:
        spread = lambda a: jax.nn.sigmoid(a) * jax.nn.sigmoid(-a)
        low, high = self._bounds(z, classes)
        return spread(low) + spread(high)

    def fisher_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return the product with the mean of the Hessians of all classes."""

        def share(k: Int[Array, ""]) -> Outputs:
            classes = jnp.full(z.shape, k)
            low, high = self._bounds(z, classes)
            # of the two forms of a difference the one that does not cancel
            below = jax.nn.sigmoid(high) - jax.nn.sigmoid(low)
            above = jax.nn.sigmoid(-low) - jax.nn.sigmoid(-high)
            share = jnp.where(low > 0, above, below)
            return share * self._curvature(z, classes)

        count = len(self.thresholds) + 1
        each = jax.vmap(share)(jnp.arange(count, dtype=jnp.int32))
        return self.factor(z) * jnp.sum(each, axis=0) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw classes."""
        latent = z + jax.random.logistic(key, z.shape, z.dtype)
        above = jax.vmap(lambda edge: latent > edge)(self.thresholds.astype(z.dtype))
        return jnp.sum(above, axis=0, dtype=jnp.int32)
