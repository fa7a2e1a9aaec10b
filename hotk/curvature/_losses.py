"""Losses of common models, with their Hessians in closed form."""

import abc
import math
from typing import Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from hotk._core import RandomKey, RealNumber, Scalar, StructureError, Tracer, message

from ._targets import (
    Outputs,
    Targets,
    as_array,
    as_weights,
    impossible,
    in_support,
    like_outputs,
    no_examples,
    other_shape,
    refuse_complex,
)


class AbstractLoss(eqx.Module):
    r"""A loss $L(z) = c \sum_n w_n\, \ell(z_n, y_n)$ of outputs, example by example.

    The first axis of `z` counts the N examples; $\ell$ is summed over the others.
    Without weights w is 1, and the factor c is 1/N for the mean over examples, 1 for
    the sum. With weights the mean is the weighted one, of the factor $1 / \sum_n w_n$:
    with zeros and ones, the mean over the examples that are kept.

    Attributes:
        targets: What the outputs are compared with.
        reduction: `"mean"` or `"sum"` over the examples.
        convex: Whether $\ell$ is convex in the outputs, for all targets that it takes:
            then a Gauss-Newton matrix is known to be positive semidefinite. `False`
            unless a class says so.
        support: The smallest and the largest target, of any numbers unless a class says
            so. Others are refused where a loss is made, if their values are known
            there.
        example_weights: A number that is not negative, or a truth value, for each
            example; by keyword. Targets of weight zero do not count, and are finite.
    """

    targets: eqx.AbstractVar[Targets]
    reduction: eqx.AbstractVar[Literal["mean", "sum"]]
    example_weights: Float[Array, " N"] | None = eqx.field(
        default=None, kw_only=True, converter=as_weights
    )
    convex = False
    support = (-math.inf, math.inf)

    def __check_init__(self) -> None:
        """Refuse another reduction, weights of another shape, impossible targets."""
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"`reduction` is {self.reduction!r}, not 'mean' or 'sum'.")
        if (
            self.example_weights is not None
            and self.example_weights.shape != self.targets.shape[:1]
        ):
            raise StructureError(
                message(
                    f"{type(self).__name__}(targets, example_weights=)",
                    "there is not one weight for each example.",
                    expected=f"weights of shape {self.targets.shape[:1]}",
                    got=str(self.example_weights.shape),
                    fix="The first axis of the targets counts the examples.",
                )
            )
        if not in_support(self):
            raise impossible(self, *self.support)

    def __call__(self, z: Outputs) -> Scalar:
        """Return the loss $L(z)$.

        Args:
            z: The outputs, examples first.
        """
        each = self.each(z)  # first, as it refuses outputs of another shape
        if self.example_weights is None:
            return self.factor(z) * jnp.sum(each)
        return jnp.sum(self.factor(each) * each)

    def factor(self, z: Outputs) -> RealNumber | Float[Array, "N ..."]:
        """Return the factor c: 1/N for the mean over N examples, 1 for the sum.

        With weights it is the factor of each example, $c w_n$, in an array with as many
        axes as `z`.

        Args:
            z: The outputs, examples first.

        Raises:
            OutputError: If they are complex.
            StructureError: If they are one number.
        """
        refuse_complex(self, z)
        if not z.ndim:
            raise no_examples(self, "outputs", "(N, ...)", z)
        if self.example_weights is not None:
            w = self.example_weights.astype(jnp.finfo(z.dtype).dtype)
            w = w if self.reduction == "sum" else w / jnp.sum(w)
            return w.reshape(-1, *(1 for _ in z.shape[1:]))
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
        example_weights: A weight for each example, or none; see `AbstractLoss`.
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
        example_weights: A weight for each example, or none; see `AbstractLoss`.

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
    last axis. Targets are class numbers, or probabilities of the same shape as `z`. A
    class that does not exist is refused; where the classes are traced, as inside of a
    compiled program, the loss and its derivatives are NaN.

    Attributes:
        targets: Integers without the last axis of the logits, or probabilities.
        reduction: `"mean"` or `"sum"` over the examples.
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.SoftmaxCrossEntropy(jnp.array([0, 1]))
        >>> bool(jnp.allclose(loss(jnp.zeros((2, 3))), jnp.log(3)))
        True
    """

    natural = True
    convex = True

    targets: Shaped[Array, "N ..."] = eqx.field(converter=as_array)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)

    @property
    def support(self) -> tuple[float, float]:
        """Classes from 0; how many there are is known with the logits."""
        return 0, 1 if jnp.issubdtype(self.targets.dtype, jnp.floating) else math.inf

    def _probabilities(self, z: Outputs, targets: Shaped[Array, "..."]) -> Outputs:
        refuse_complex(self, z)
        if z.ndim == 1:  # each class would count as an example
            raise no_examples(self, "logits", "(N, ..., classes)", z)
        if jnp.issubdtype(targets.dtype, jnp.integer):
            if targets.shape != z.shape[:-1]:
                raise other_shape(self, str(z.shape[:-1]), targets)
            classes = z.shape[-1]
            outside = (targets < 0) | (targets >= classes)
            if self.example_weights is not None:  # targets of weight zero do not count
                outside &= (self.example_weights != 0).reshape(
                    -1, *(1,) * (targets.ndim - 1)
                )
            if not isinstance(outside, Tracer) and outside.any():
                raise impossible(self, 0, classes - 1)
            y = jax.nn.one_hot(targets, classes, dtype=z.dtype)
            return jnp.where(outside[..., None], jnp.nan, y)
        return like_outputs(self, targets, z)

    def each(self, z: Outputs) -> Float[Array, "..."]:
        """Return the cross entropies."""
        y = self._probabilities(z, self.targets)
        return -jnp.sum(y * jax.nn.log_softmax(z), axis=-1)

    def slope(self, z: Outputs, targets: Shaped[Array, "..."]) -> Outputs:
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
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0]))
        >>> bool(jnp.allclose(loss(jnp.zeros(2)), jnp.log(2)))
        True
    """

    natural = True
    convex = True
    support = (0, 1)

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
        example_weights: A weight for each example, or none; see `AbstractLoss`.

    Example:
        >>> loss = hotk.curvature.PoissonLoss(jnp.array([0.0, 3.0]), reduction="sum")
        >>> loss(jnp.zeros(2)).item()
        2.0
    """

    natural = True
    convex = True
    support = (0, math.inf)

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
