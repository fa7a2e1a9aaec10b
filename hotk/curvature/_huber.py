"""`HuberLoss`: quadratic near zero, then linear."""

from typing import Literal, final

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from hotk._core import RealNumber, Scalar

from ._losses import AbstractLoss
from ._targets import Outputs, Targets, as_array, like_outputs


@final
class HuberLoss(AbstractLoss):
    r"""Huber's loss of the residual $r = z - y$: quadratic near zero, then linear.

    It is $r^2 / 2$ for $|r| \le \delta$ and $\delta (|r| - \delta / 2)$ beyond; its
    Hessian is 1 and 0 there. It has no density of its own, so no Fisher matrix.

    Attributes:
        targets: As many numbers as outputs.
        delta: Where the linear part begins, a positive number.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.HuberLoss(jnp.array([0.0, 0.0]), delta=1.0)
        >>> loss.each(jnp.array([0.5, 3.0])).tolist()
        [0.125, 2.5]
    """

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    delta: RealNumber = 1.0
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)
    convex = True

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the losses."""
        r = jnp.abs(z - like_outputs(self, self.targets, z))
        inside = jnp.minimum(r, self._delta(z))
        return inside * (r - inside / 2)

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return the clipped residuals."""
        delta = self._delta(z)
        return jnp.clip(z - like_outputs(self, targets, z), -delta, delta)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c u` where the loss is quadratic, zero elsewhere."""
        inside = jnp.abs(z - like_outputs(self, self.targets, z)) <= self._delta(z)
        return self.factor(z) * jnp.where(inside, u, 0)

    def _delta(self, z: Outputs) -> Scalar:
        return jnp.asarray(self.delta, z.dtype)
