"""Losses of common models, with their Hessians in closed form."""

import abc
from typing import Literal, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Num, Shaped

from hotk._core import RandomKey, RealNumber, Scalar, StructureError, message


Outputs: TypeAlias = Inexact[Array, "N *outputs"]
"""The outputs of a model, examples first."""

Targets: TypeAlias = Shaped[Array, "N ..."]
"""What they are compared with: as many numbers, or class numbers."""


def as_array(values: jax.typing.ArrayLike) -> Array:
    """Return targets as an array of JAX.

    Those of NumPy are copied, as the user may write to them.
    """
    return values if isinstance(values, jax.Array) else jnp.array(values)


def like_outputs(loss: object, targets: Targets, z: Outputs) -> Targets:
    """Return targets in the dtype of the outputs, of which there must be as many.

    Broadcast against each other, N targets and outputs of shape (N, 1) would be N times
    N: a loss, and a curvature, N times as large.

    Raises:
        StructureError: If they have another shape.
    """
    if targets.shape != z.shape:
        raise _other_shape(loss, str(z.shape), targets)
    return targets.astype(z.dtype)


def _other_shape(loss: object, expected: str, targets: Targets) -> StructureError:
    name = type(loss).__name__
    return StructureError(
        message(
            f"{name}(targets)(z)",
            "the targets do not have the shape of the outputs.",
            expected=f"targets of shape {expected}",
            got=str(targets.shape),
            fix="Reshape the targets, or the outputs of the model; hotk never "
            "broadcasts them.",
        )
    )


class AbstractLoss(eqx.Module):
    r"""A loss $L(z) = c \sum_n \ell(z_n, y_n)$ of outputs, example by example.

    The first axis of `z` counts the N examples; $\ell$ is summed over the others. The
    factor c is 1/N for the mean over examples, 1 for the sum.

    Attributes:
        targets: What the outputs are compared with.
        reduction: `"mean"` or `"sum"` over the examples.
        convex: Whether $\ell$ is convex in the outputs, for all targets that it takes:
            then a Gauss-Newton matrix is known to be positive semidefinite. `False`
            unless a class says so.
    """

    targets: eqx.AbstractVar[Targets]
    reduction: eqx.AbstractVar[Literal["mean", "sum"]]
    convex = False

    def __check_init__(self) -> None:
        """Refuse another reduction."""
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"`reduction` is {self.reduction!r}, not 'mean' or 'sum'.")

    def __call__(self, z: Outputs) -> Scalar:
        """Return the loss $L(z)$.

        Args:
            z: The outputs, examples first.
        """
        total = jnp.sum(self.each(z))  # first, as it refuses outputs of another shape
        return self.factor(z) * total

    def factor(self, z: Outputs) -> RealNumber:
        """Return the factor c: 1/N for the mean over N examples, 1 for the sum.

        Args:
            z: The outputs, examples first.
        """
        if self.reduction == "sum":
            return 1.0
        count = z.shape[0]
        if isinstance(count, int):
            return 1 / count
        # A symbolic size, as of a program that is exported for any number of examples,
        # is an integer of the program; its quotient would be of the default dtype.
        return 1 / jnp.asarray(count).astype(jnp.finfo(z.dtype).dtype)

    def gradient(self, z: Outputs) -> Outputs:
        r"""Return the gradient by the outputs, $c\, \partial \ell / \partial z$.

        Args:
            z: The outputs, examples first.
        """
        return self.factor(z) * self.slope(z, self.targets)

    @abc.abstractmethod
    def each(self, z: Outputs) -> Float[Array, "..."]:
        r"""Return the losses $\ell$, whose sum over all axes is the loss over c.

        Args:
            z: The outputs, examples first.
        """

    @abc.abstractmethod
    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        r"""Return the derivatives $\partial \ell / \partial z$, without the factor c.

        Args:
            z: The outputs, examples first.
            targets: What they are compared with.
        """

    @abc.abstractmethod
    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        r"""Return the product of the Hessian of the loss with a vector, $c\, H u$.

        Args:
            z: The outputs, examples first.
            u: A direction, with the shape of `z`.
        """


class AbstractLikelihood(AbstractLoss):
    r"""A loss that is the negative logarithm of a density of the targets.

    A class of your own says how its Fisher matrix is computed: it sets `natural = True`
    if the outputs are the natural parameters of an exponential family, as logits and
    logarithms of Poisson rates are, or defines `fisher_product`.
    `hotk.testing.check_likelihood` compares both with sampled targets.

    Attributes:
        natural: Whether the outputs are natural parameters: the Hessian of the loss
            does not depend on the targets then, and is its own expectation. `False`
            unless a class says so.
    """

    natural = False

    def fisher_product(self, z: Outputs, u: Outputs) -> Outputs:
        r"""Return the product of the loss's Fisher matrix with a vector.

        This is $c\, E_{y \sim p(\cdot | z_n)}[\nabla \ell\, \nabla \ell^T]\, u$, which
        is the expected Hessian; the targets do not count.

        Args:
            z: The outputs, examples first.
            u: A direction, with the shape of `z`.

        Raises:
            TypeError: If the outputs are not natural parameters and the class does not
                define it.
        """
        if not self.natural:
            raise TypeError(
                f"`{type(self).__name__}` does not say what its Fisher matrix is: "
                "define `fisher_product(z, u)`, or set `natural = True` if the outputs "
                "are natural parameters."
            )
        return self.hessian_product(z, u)

    @abc.abstractmethod
    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw targets from the density whose parameters are the outputs.

        Args:
            key: A random key.
            z: The outputs, examples first.
        """


@final
class SquaredError(AbstractLikelihood):
    r"""Half the squared error, $\ell(z, y) = \frac12 \sum_j (z_j - y_j)^2$.

    Its Hessian is the identity. It is the negative log-likelihood of a normal
    distribution with mean `z` and variance 1, up to a constant.

    Attributes:
        targets: As many numbers as outputs.
        reduction: `"mean"` or `"sum"` over the examples.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.array([1.0, 2.0]))
        >>> loss(jnp.array([3.0, 2.0])).item()
        1.0
    """

    natural = True
    convex = True

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return half the squares."""
        return (z - like_outputs(self, self.targets, z)) ** 2 / 2

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return the residuals."""
        return z - like_outputs(self, targets, z)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c u`."""
        return self.factor(z) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw from the normal distribution around the outputs."""
        return z + jax.random.normal(key, z.shape, z.dtype)


@final
class SoftmaxCrossEntropy(AbstractLikelihood):
    r"""The cross entropy of logits, $\ell(z, y) = \log\sum_j e^{z_j} - z_y$.

    Its Hessian is $\mathrm{diag}(p) - p p^T$ with $p = \mathrm{softmax}(z)$, over the
    last axis. Targets are class numbers, or probabilities of the same shape as `z`.

    Attributes:
        targets: Integers without the last axis of the logits, or probabilities.
        reduction: `"mean"` or `"sum"` over the examples.

    Example:
        >>> loss = hotk.curvature.SoftmaxCrossEntropy(jnp.array([0, 1]))
        >>> bool(jnp.allclose(loss(jnp.zeros((2, 3))), jnp.log(3)))
        True
    """

    natural = True
    convex = True

    targets: Shaped[Array, "N ..."] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    def _probabilities(self, z: Outputs, targets: Targets) -> Outputs:
        if jnp.issubdtype(targets.dtype, jnp.integer):
            if targets.shape != z.shape[:-1]:
                raise _other_shape(self, str(z.shape[:-1]), targets)
            return jax.nn.one_hot(targets, z.shape[-1], dtype=z.dtype)
        return like_outputs(self, targets, z)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the cross entropies."""
        y = self._probabilities(z, self.targets)
        return -jnp.sum(y * jax.nn.log_softmax(z), axis=-1)

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return predicted minus given probabilities, if those sum to 1."""
        y = self._probabilities(z, targets)
        # targets may sum to another number than 1: then the log-sum-exp has that factor
        return jax.nn.softmax(z) * jnp.sum(y, axis=-1, keepdims=True) - y

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c (p * u - p (p . u))`."""
        p = jax.nn.softmax(z)
        y = self._probabilities(z, self.targets)
        mass = self.factor(z) * jnp.sum(y, axis=-1, keepdims=True)
        return mass * (p * u - p * jnp.sum(p * u, axis=-1, keepdims=True))

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw class numbers."""
        return jax.random.categorical(key, z)


@final
class SigmoidCrossEntropy(AbstractLikelihood):
    r"""The cross entropy of single logits, $\ell(z, y) = \log(1 + e^z) - y z$.

    Its Hessian is $p (1 - p)$ on the diagonal, with $p = 1 / (1 + e^{-z})$.

    Attributes:
        targets: 0 and 1, or probabilities; as many as logits.
        reduction: `"mean"` or `"sum"` over the examples.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0]))
        >>> bool(jnp.allclose(loss(jnp.zeros(2)), jnp.log(2)))
        True
    """

    natural = True
    convex = True

    targets: Shaped[Array, "N *outputs"] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the cross entropies."""
        return jax.nn.softplus(z) - like_outputs(self, self.targets, z) * z

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return predicted minus given probabilities."""
        return jax.nn.sigmoid(z) - like_outputs(self, targets, z)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c p (1 - p) u`."""
        return self.factor(z) * jax.nn.sigmoid(z) * jax.nn.sigmoid(-z) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw zeros and ones."""
        return jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(z.dtype)


@final
class PoissonLoss(AbstractLikelihood):
    r"""The Poisson loss of logarithms of rates, $\ell(z, y) = e^z - y z$.

    Its Hessian is $e^z$ on the diagonal. The constant $\log y!$ is left out.

    Attributes:
        targets: Counts, as many as outputs.
        reduction: `"mean"` or `"sum"` over the examples.

    Example:
        >>> loss = hotk.curvature.PoissonLoss(jnp.array([0.0, 3.0]), reduction="sum")
        >>> loss(jnp.zeros(2)).item()
        2.0
    """

    natural = True
    convex = True

    targets: Num[Array, "N *outputs"] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the losses."""
        return jnp.exp(z) - like_outputs(self, self.targets, z) * z

    def slope(self, z: Outputs, targets: Targets) -> Outputs:
        """Return rates minus counts."""
        return jnp.exp(z) - like_outputs(self, targets, z)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        """Return `c exp(z) u`."""
        return self.factor(z) * jnp.exp(z) * u

    def sample(self, key: RandomKey, z: Outputs) -> Targets:
        """Draw counts."""
        return jax.random.poisson(key, jnp.exp(z)).astype(z.dtype)


@final
class HuberLoss(AbstractLoss):
    r"""Huber's loss of the residual $r = z - y$: quadratic near zero, then linear.

    It is $r^2 / 2$ for $|r| \le \delta$ and $\delta (|r| - \delta / 2)$ beyond; its
    Hessian is 1 and 0 there. It has no density of its own, so no Fisher matrix.

    Attributes:
        targets: As many numbers as outputs.
        delta: Where the linear part begins, a positive number.
        reduction: `"mean"` or `"sum"` over the examples.

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
