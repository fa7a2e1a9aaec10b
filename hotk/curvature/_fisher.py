"""Functions whose Hessian is a Fisher matrix: exact, sampled, empirical."""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._core import (
    Function,
    Point,
    RandomKey,
    RealNumber,
    Scalar,
    check_settings,
    message,
)
from hotk._primitive import held

from ._gauss_newton import linearized, with_curvature
from ._losses import AbstractLikelihood, AbstractLoss
from ._sample_rows import Roots, roots_of, with_rows


def _check_likelihood(name: str, loss: object) -> None:
    if not isinstance(loss, AbstractLikelihood):
        raise TypeError(
            message(
                f"{name}(model, loss)",
                "`loss` is not a likelihood, so it has no distribution of targets.",
                expected="one of `hotk.curvature`: SquaredError, SoftmaxCrossEntropy, "
                "SigmoidCrossEntropy, PoissonLoss, GammaLoss, NegativeBinomialLoss, "
                "OrdinalCrossEntropy, StudentTLoss, or a class of `AbstractLikelihood`",
                got=getattr(loss, "__name__", type(loss).__name__),
                fix="For another loss use the Gauss-Newton matrix, `hotk.ggnvp`.",
            )
        )


def _check_fisher_product(loss: AbstractLikelihood) -> None:
    default = AbstractLikelihood.fisher_product
    if not loss.natural and type(loss).fisher_product is default:
        raise TypeError(
            message(
                "Fisher(model, loss)",
                f"`{type(loss).__name__}` does not say what its Fisher matrix is.",
                expected="a method `fisher_product(z, u)`, or `natural = True`",
                got="neither",
                fix="Set `natural = True` in the class if the outputs are natural "
                "parameters: the Hessian of the loss does not depend on the targets "
                "then. Without a closed form use `hotk.sampled_fvp`.",
            )
        )


def _check_loss(name: str, loss: object) -> None:
    if not isinstance(loss, AbstractLoss):
        raise TypeError(
            message(
                f"{name}(model, loss)",
                "`loss` does not have the gradients of single examples.",
                expected="a loss of `hotk.curvature`, or a class of `AbstractLoss`",
                got=getattr(loss, "__name__", type(loss).__name__),
                fix="For another loss use the Gauss-Newton matrix, `hotk.ggnvp`.",
            )
        )


@final
class Fisher(eqx.Module):
    r"""The function `loss(model(x, *args))` whose Hessian is the exact Fisher matrix.

    The Fisher matrix is the mean over the model's own distribution of targets,
    $c \sum_n J_n^T\, E_{y \sim p(\cdot | z_n)}[\nabla \ell\, \nabla \ell^T]\, J_n$ with
    c = 1/N for the mean over N examples and 1 for the sum. It does not depend on the
    targets. Where the outputs are natural parameters, as for squared errors, cross
    entropies and the Poisson loss, it equals the Gauss-Newton matrix [1, section 9].

    Attributes:
        model: Function `model(x, *args)` that returns outputs.
        loss: A likelihood of `hotk.curvature`.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0]))
        >>> f = hotk.curvature.Fisher(lambda w: w, loss)
        >>> hotk.hessian(f, jnp.zeros(2)).tolist()
        [[0.125, 0.0], [0.0, 0.125]]

    References:
        [1] Martens (2020). New insights and perspectives on the natural gradient
            method. JMLR 21(146), 1-76.
    """

    model: Function
    loss: AbstractLikelihood

    def __check_init__(self) -> None:
        """Refuse a loss without a density, or without an expected Hessian."""
        _check_likelihood("Fisher", self.loss)
        _check_fisher_product(self.loss)

    def __call__(self, x: Point, *args: PyTree) -> Scalar:
        """Return the value of the loss.

        Args:
            x: The point.
            *args: Further arguments of the model.
        """
        z = linearized(self.model, x, args)
        loss = self.loss
        value = with_curvature(loss(z), z, loss.gradient, loss.fisher_product)
        product = loss.fisher_product
        roots = lambda z: roots_of(z, loss.gradient(z), lambda u: product(z, u))
        return with_rows(value, self.model, x, args, roots)


@final
class SampledFisher(eqx.Module):
    r"""The function whose Hessian is a Monte Carlo estimate of the Fisher matrix.

    For each example S targets are drawn from the model's distribution:
    $\frac{c}{S} \sum_n \sum_s J_n^T g_{ns} g_{ns}^T J_n$ with $g_{ns} = \nabla_z
    \ell(z_n, y_{ns})$, and c = 1/N for the mean over N examples, 1 for the sum. Its
    mean over keys is the exact Fisher matrix; a key gives one matrix.

    Attributes:
        model: Function `model(x, *args)` that returns outputs.
        loss: A likelihood of `hotk.curvature`.
        key: A random key.
        samples: The number of targets for each example.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.zeros(1))
        >>> key = jax.random.key(0)
        >>> f = hotk.curvature.SampledFisher(lambda w: w, loss, key, samples=10_000)
        >>> exact = jnp.ones((1, 1))
        >>> jnp.allclose(hotk.hessian(f, jnp.ones(1)), exact, atol=0.1).item()
        True
    """

    model: Function
    loss: AbstractLikelihood
    key: RandomKey
    samples: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        """Refuse a loss without a density."""
        _check_likelihood("SampledFisher", self.loss)
        check_settings("SampledFisher(model, loss, key)", samples=self.samples)

    def __call__(self, x: Point, *args: PyTree) -> Scalar:
        """Return the value of the loss.

        Args:
            x: The point.
            *args: Further arguments of the model.
        """
        z = linearized(self.model, x, args)
        loss = self.loss
        # the targets are drawn from the outputs, but are not a function of them
        keys = jax.random.split(self.key, self.samples)
        sample = lambda k, z: jax.lax.stop_gradient(loss.sample(k, z))
        drawn = lambda z: jax.vmap(lambda k: loss.slope(z, sample(k, z)))(keys)
        slopes = drawn(held(z))
        factor = loss.factor(z) / self.samples
        value = _with_outer_products(loss(z), z, loss.gradient, slopes, factor)
        roots = lambda z: jax.vmap(lambda g: factor**0.5 * g)(drawn(z))
        outer = lambda z: Roots(jnp.moveaxis(roots(z), 0, 1), None)
        return with_rows(value, self.model, x, args, outer)


@final
class EmpiricalFisher(eqx.Module):
    r"""The function whose Hessian is the empirical Fisher matrix.

    The targets are those of the data: it is $c \sum_n J_n^T g_n g_n^T J_n$ with $g_n =
    \nabla_z \ell(z_n, y_n)$, and c = 1/N for the mean over N examples, 1 for the sum.
    It does not estimate the Fisher matrix [1]: it is zero where all examples are
    fitted.

    Attributes:
        model: Function `model(x, *args)` that returns outputs.
        loss: A loss of `hotk.curvature`.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.array([3.0]))
        >>> f = hotk.curvature.EmpiricalFisher(lambda w: w, loss)
        >>> hotk.hessian(f, jnp.ones(1)).tolist()  # the square of the residual
        [[4.0]]

    References:
        [1] Kunstner, Balles and Hennig (2019). Limitations of the empirical Fisher
            approximation for natural gradient descent. NeurIPS. Equation 3.
    """

    model: Function
    loss: AbstractLoss

    def __check_init__(self) -> None:
        """Refuse a function: the gradient of each example is needed."""
        _check_loss("EmpiricalFisher", self.loss)

    def __call__(self, x: Point, *args: PyTree) -> Scalar:
        """Return the value of the loss.

        Args:
            x: The point.
            *args: Further arguments of the model.
        """
        z = linearized(self.model, x, args)
        loss = self.loss
        slopes = loss.slope(held(z), loss.targets)[None]
        factor = loss.factor(z)
        value = _with_outer_products(loss(z), z, loss.gradient, slopes, factor)

        def outer(z: Array) -> Roots:
            # the gradient of the loss is c times the slopes
            root = jnp.asarray(factor, z.dtype) ** 0.5
            weights = jnp.broadcast_to(root.reshape(-1, 1), (len(z), 1))
            return Roots((root * loss.slope(z, loss.targets))[:, None], weights)

        return with_rows(value, self.model, x, args, outer)


def _with_outer_products(
    value: Scalar,
    z: Inexact[Array, "N *outputs"],
    gradient: Callable[[PyTree], PyTree],
    slopes: Inexact[Array, "samples N *outputs"],
    factor: RealNumber | Float[Array, "N ..."],
) -> Scalar:
    """Return `value` with the curvature `factor sum_sn g_sn g_sn^T`."""
    axes = tuple(range(2, slopes.ndim))

    def product(z: PyTree, u: PyTree) -> Array:
        del z  # the gradients g are constant
        along = jnp.sum(slopes * u[None], axis=axes, keepdims=True)
        return factor * jnp.sum(slopes * along, axis=0)

    return with_curvature(value, z, gradient, product)
