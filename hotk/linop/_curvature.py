"""Gauss-Newton and Fisher matrices as operators."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, final

import equinox as eqx
from jaxtyping import Array, Key

from hotk.curvature import (
    AbstractLikelihood,
    AbstractLoss,
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    SampledFisher,
)

from ._batches import DataOperator
from ._held import hold, split
from ._hessian import AbstractHessian, HessianOperator


@final
class GGNOperator(AbstractHessian):
    r"""The generalized Gauss-Newton matrix $J^T \nabla^2 L\, J$ as an operator.

    It is positive semi-definite where the loss is convex. `value` and `gradient` are
    those of `loss(model(x, *args))`; see `hotk.curvature.GaussNewton`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The point: its arrays.
        args: Further arguments of the model: their arrays.

    Example:
        >>> inputs = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> loss = hotk.curvature.SquaredError(jnp.zeros(2))
        >>> G = hotk.GGNOperator(lambda w: inputs @ w, loss, jnp.ones(2))
        >>> G.matrix().tolist()  # the inputs' second moments
        [[5.0, 7.0], [7.0, 10.0]]

    References:
        Schraudolph (2002). Fast curvature matrix-vector products for second-order
            gradient descent. Neural Computation 14(7), 1723-1738. Section 3.
    """

    f: Any
    x: Any
    args: tuple[Any, ...]

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Callable[[Any], Any],
        x: Any,
        *args: Any,
    ) -> None:
        """Hold model and loss as they are now, and the point.

        Args:
            model: Function `model(x, *args)` that returns a tree of floating arrays.
            loss: Function of that tree that returns one real number.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
        """
        self.f, self.x, self.args = hold(GaussNewton(model, loss), x, args)
        split("GGNOperator(model, loss, x)", self.x)

    @staticmethod
    def over(
        model: Callable[..., Any],
        loss: Callable[..., Any],
        x: Any,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        reduction: Literal["mean", "sum"] = "mean",
        dtype: Any = None,
        progress: bool = False,
    ) -> DataOperator:
        """Make the Gauss-Newton matrix of a loss over a data set in batches.

        Args:
            model: Function `model(x, batch)` that returns a tree of floating arrays.
            loss: Function `loss(z, batch)` of those that returns the mean over the
                examples of a batch, or their sum.
            x: Point: any pytree. Floating leaves are differentiated.
            batches: As in `HessianOperator.over`.
            reduction: As in `HessianOperator.over`.
            dtype: The dtype in which batches are summed; at least `float32`.
            progress: Whether to show a bar for each pass; needs `tqdm`.

        Returns:
            An operator with `value` and `gradient`, read from one pass now.

        Raises:
            TypeError: If `batches` can be read only once.
            ValueError: If the loss is not the same when asked twice.

        Example:
            >>> data = np.arange(10.0).reshape(5, 2)
            >>> model = lambda w, rows: rows @ w
            >>> loss = lambda z, rows: jnp.mean(z**2) / 2
            >>> batches = [data[:3], data[3:]]
            >>> G = hotk.GGNOperator.over(model, loss, jnp.ones(2), batches)
            >>> jnp.allclose(G.matrix(), data.T @ data / 5).item()
            True
        """
        f = _OnBatch(model, loss)
        return HessianOperator.over(
            f, x, batches, reduction=reduction, dtype=dtype, progress=progress
        )


@final
class _OnBatch(eqx.Module):
    """A Gauss-Newton function of a point and a batch."""

    model: Any
    loss: Any

    def __call__(self, x: Any, batch: Any) -> Any:
        return GaussNewton(self.model, lambda z: self.loss(z, batch))(x, batch)


@final
class FisherOperator(AbstractHessian):
    r"""The exact Fisher matrix $c \sum_n J_n^T E_y[\nabla\ell \nabla\ell^T] J_n$.

    The mean is over the model's own distribution of targets; c is 1/N for a mean over N
    examples, 1 for a sum. See `hotk.curvature.Fisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The point: its arrays.
        args: Further arguments of the model: their arrays.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0]))
        >>> F = hotk.FisherOperator(lambda w: w, loss, jnp.zeros(2))
        >>> F.matrix().tolist()
        [[0.125, 0.0], [0.0, 0.125]]

    References:
        Martens (2020). New insights and perspectives on the natural gradient method.
            JMLR 21(146), 1-76. Section 5.
    """

    f: Any
    x: Any
    args: tuple[Any, ...]

    def __init__(
        self,
        model: Callable[..., Any],
        loss: AbstractLikelihood,
        x: Any,
        *args: Any,
    ) -> None:
        """Hold model and loss as they are now, and the point.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A likelihood of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
        """
        self.f, self.x, self.args = hold(Fisher(model, loss), x, args)
        split("FisherOperator(model, loss, x)", self.x)


@final
class SampledFisherOperator(AbstractHessian):
    r"""A Monte Carlo estimate of the Fisher matrix, with S targets for each example.

    It is $\frac{c}{S} \sum_n \sum_s J_n^T g_{ns} g_{ns}^T J_n$; c is 1/N for a mean
    over N examples, 1 for a sum. One key is one matrix: all products are with the same
    targets. See `hotk.curvature.SampledFisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The point: its arrays.
        args: Further arguments of the model: their arrays.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.zeros(1))
        >>> key = jax.random.key(0)
        >>> F = hotk.SampledFisherOperator(lambda w: w, loss, jnp.ones(1), key=key)
        >>> F.matrix().shape
        (1, 1)

    References:
        Martens (2020). New insights and perspectives on the natural gradient method.
            JMLR 21(146), 1-76. Section 5.
    """

    f: Any
    x: Any
    args: tuple[Any, ...]

    def __init__(
        self,
        model: Callable[..., Any],
        loss: AbstractLikelihood,
        x: Any,
        *args: Any,
        key: Key[Array, ""],
        samples: int = 1,
    ) -> None:
        """Hold model and loss as they are now, the point and the key.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A likelihood of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
            key: A random key.
            samples: How many targets for each example.
        """
        f = SampledFisher(model, loss, key, samples)
        self.f, self.x, self.args = hold(f, x, args)
        split("SampledFisherOperator(model, loss, x)", self.x)


@final
class EmpiricalFisherOperator(AbstractHessian):
    r"""The empirical Fisher matrix $c \sum_n J_n^T g_n g_n^T J_n$ as an operator.

    The targets are the data's own; c is 1/N for a mean over N examples, 1 for a sum.
    It is no estimate of the Fisher
    matrix. See `hotk.curvature.EmpiricalFisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The point: its arrays.
        args: Further arguments of the model: their arrays.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.array([3.0]))
        >>> F = hotk.EmpiricalFisherOperator(lambda w: w, loss, jnp.ones(1))
        >>> F.matrix().tolist()
        [[4.0]]

    References:
        Kunstner, Balles and Hennig (2019). Limitations of the empirical Fisher
            approximation for natural gradient descent. NeurIPS. Equation 3.
    """

    f: Any
    x: Any
    args: tuple[Any, ...]

    def __init__(
        self,
        model: Callable[..., Any],
        loss: AbstractLoss,
        x: Any,
        *args: Any,
    ) -> None:
        """Hold model and loss as they are now, and the point.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A loss of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
        """
        self.f, self.x, self.args = hold(EmpiricalFisher(model, loss), x, args)
        split("EmpiricalFisherOperator(model, loss, x)", self.x)
