"""Gauss-Newton and Fisher matrices as operators."""

from collections.abc import Callable
from typing import final

import equinox as eqx
from jax.typing import DTypeLike
from jaxtyping import PyTree

from hotk._capture import Closure
from hotk._core import Function, Point, RandomKey, Scalar, V, Where
from hotk.curvature import (
    AbstractLikelihood,
    AbstractLoss,
    CoxLoss,
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    SampledFisher,
)

from ._batches import DataOperator
from ._frozen import AxisName, Selected, freeze
from ._hessian import AbstractHessian, HessianOperator
from ._source import Batches, Reduction


@final
class GGNOperator(AbstractHessian[V]):
    r"""The generalized Gauss-Newton matrix $J^T \nabla^2 L\, J$ as an operator.

    It is positive semi-definite where the loss is convex. `value` and `gradient` are
    those of `loss(model(x, *args))`; see `hotk.curvature.GaussNewton`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The arrays of the point, `None` in place of other leaves.
        args: The arrays of the further arguments of the model.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.
        convex: Whether the loss is one of `hotk.curvature` that is convex.

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

    f: Closure
    x: V
    args: tuple[PyTree, ...]
    selected: Selected = eqx.field(static=True)
    convex: bool = eqx.field(static=True)

    @property
    def positive_semidefinite(self) -> bool:
        """Whether the loss is one of `hotk.curvature` that is convex."""
        return self.convex

    def __init__(
        self,
        model: Function,
        loss: Callable[[PyTree], Scalar],
        x: V,
        *args: PyTree,
        where: Where = None,
        axis_name: AxisName = None,
    ) -> None:
        """Make the operator of a model and a loss as they are now.

        Args:
            model: Function `model(x, *args)` that returns a tree of floating arrays.
            loss: Function of that tree that returns one real number.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            axis_name: Inside of `jax.shard_map`, the axis of the mesh, or axes, over
                which the whole is the mean of what devices have; see `hotk.over_axis`.
        """
        call, f = "GGNOperator(model, loss, x)", GaussNewton(model, loss)
        self.f, self.x, self.args, self.selected = freeze(
            call, f, x, args, where, axis_name
        )
        self.convex = isinstance(loss, (AbstractLoss, CoxLoss)) and loss.convex

    @staticmethod
    def over(
        model: Function,
        loss: Function,
        x: Point,
        batches: Batches,
        *,
        reduction: Reduction = "mean",
        dtype: DTypeLike | None = None,
        progress: bool = False,
        where: Where = None,
        processes: bool = False,
    ) -> DataOperator:
        r"""Make the Gauss-Newton matrix of a loss over a data set in batches.

        It is $\frac1N \sum_b n_b J_b^T \nabla^2 L_b\, J_b$ with the loss $L_b$ of a
        batch of $n_b$ examples, the Jacobian $J_b$ of the model on it, and the total
        number N of examples. A product is one pass over the data.

        Args:
            model: Function `model(x, batch)` that returns a tree of floating arrays.
            loss: Function `loss(z, batch)` of these outputs that returns the mean over
                the examples of a batch, or their sum.
            x: Point: any pytree. Floating leaves are differentiated.
            batches: A list, a data loader, or a function that returns a new iterator:
                trees of arrays whose first axis counts the examples.
            reduction: `"mean"` if the loss is a mean over the examples of a batch: the
                operator is then that of the mean over all examples. `"sum"` for sums.
            dtype: The dtype in which batches are summed; at least `float32`.
            progress: Whether to show a progress bar for each pass; needs `tqdm`.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            processes: Whether each process of a run that `jax.distributed.initialize`
                has begun gives batches of its own, any number of any sizes: the data
                set is all of them together. Each process makes the same calls, with the
                same `x` and vectors, and gets the same results; a pass takes one
                all-reduce.

        Returns:
            An operator with `value` and `gradient`, which take one pass now.

        Raises:
            TypeError: If `batches` can be iterated over only once, or is a tuple of
                arrays, which is one batch.
            StructureError: If the arrays of a batch have no common first axis.
            ValueError: If there is no batch, or the loss is not the same when it is
                evaluated twice.

        Example:
            >>> data = np.arange(10.0).reshape(5, 2)
            >>> model = lambda w, rows: rows @ w
            >>> loss = lambda z, rows: jnp.mean(z**2) / 2
            >>> batches = [data[:3], data[3:]]
            >>> G = hotk.GGNOperator.over(model, loss, jnp.ones(2), batches)
            >>> jnp.allclose(G.matrix(), data.T @ data / 5).item()
            True
        """
        # the Hessian of this function is the Gauss-Newton matrix of a batch
        f = _OnBatch(model, loss)
        return HessianOperator.over(
            f,
            x,
            batches,
            reduction=reduction,
            dtype=dtype,
            progress=progress,
            where=where,
            processes=processes,
        )


@final
class _OnBatch(eqx.Module):
    """A Gauss-Newton function of a point and a batch."""

    model: Function
    loss: Function

    def __call__(self, x: Point, batch: PyTree) -> Scalar:
        # the further arguments of a `GaussNewton` are those of its model alone
        return GaussNewton(self.model, lambda z: self.loss(z, batch))(x, batch)


@final
class FisherOperator(AbstractHessian[V]):
    r"""The exact Fisher matrix $c \sum_n J_n^T E_y[\nabla\ell \nabla\ell^T] J_n$.

    The mean is over the model's own distribution of targets; c is 1/N for a mean over N
    examples, 1 for a sum. See `hotk.curvature.Fisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The arrays of the point, `None` in place of other leaves.
        args: The arrays of the further arguments of the model.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0]))
        >>> F = hotk.FisherOperator(lambda w: w, loss, jnp.zeros(2))
        >>> F.matrix().tolist()
        [[0.125, 0.0], [0.0, 0.125]]

    References:
        Martens (2020). New insights and perspectives on the natural gradient method.
            JMLR 21(146), 1-76. Section 5.
    """

    f: Closure
    x: V
    args: tuple[PyTree, ...]
    selected: Selected = eqx.field(static=True)

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True

    def __init__(
        self,
        model: Function,
        loss: AbstractLikelihood,
        x: V,
        *args: PyTree,
        where: Where = None,
        axis_name: AxisName = None,
    ) -> None:
        """Make the operator of a model and a loss as they are now.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A likelihood of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            axis_name: Inside of `jax.shard_map`, the axis of the mesh, or axes, over
                which the whole is the mean of what devices have; see `hotk.over_axis`.
        """
        call, f = "FisherOperator(model, loss, x)", Fisher(model, loss)
        self.f, self.x, self.args, self.selected = freeze(
            call, f, x, args, where, axis_name
        )


@final
class SampledFisherOperator(AbstractHessian[V]):
    r"""A Monte Carlo estimate of the Fisher matrix, with S targets for each example.

    It is $\frac{c}{S} \sum_n \sum_s J_n^T g_{ns} g_{ns}^T J_n$; c is 1/N for a mean
    over N examples, 1 for a sum. A key gives one matrix: all products are with the same
    targets. See `hotk.curvature.SampledFisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The arrays of the point, `None` in place of other leaves.
        args: The arrays of the further arguments of the model.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.

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

    f: Closure
    x: V
    args: tuple[PyTree, ...]
    selected: Selected = eqx.field(static=True)

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True

    def __init__(
        self,
        model: Function,
        loss: AbstractLikelihood,
        x: V,
        *args: PyTree,
        key: RandomKey,
        samples: int = 1,
        where: Where = None,
        axis_name: AxisName = None,
    ) -> None:
        """Make the operator of a model, a loss and a key as they are now.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A likelihood of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
            key: A random key.
            samples: The number of targets for each example.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            axis_name: Inside of `jax.shard_map`, the axis of the mesh, or axes, over
                which the whole is the mean of what devices have; see `hotk.over_axis`.
        """
        f = SampledFisher(model, loss, key, samples)
        call = "SampledFisherOperator(model, loss, x)"
        self.f, self.x, self.args, self.selected = freeze(
            call, f, x, args, where, axis_name
        )


@final
class EmpiricalFisherOperator(AbstractHessian[V]):
    r"""The empirical Fisher matrix $c \sum_n J_n^T g_n g_n^T J_n$ as an operator.

    The targets are those of the data; c is 1/N for a mean over N examples, 1 for a sum.
    It does not estimate the Fisher matrix. See `hotk.curvature.EmpiricalFisher`.

    Attributes:
        f: The function whose Hessian it is, as a closure.
        x: The arrays of the point, `None` in place of other leaves.
        args: The arrays of the further arguments of the model.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.array([3.0]))
        >>> F = hotk.EmpiricalFisherOperator(lambda w: w, loss, jnp.ones(1))
        >>> F.matrix().tolist()
        [[4.0]]

    References:
        Kunstner, Balles and Hennig (2019). Limitations of the empirical Fisher
            approximation for natural gradient descent. NeurIPS. Equation 3.
    """

    f: Closure
    x: V
    args: tuple[PyTree, ...]
    selected: Selected = eqx.field(static=True)

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True

    def __init__(
        self,
        model: Function,
        loss: AbstractLoss,
        x: V,
        *args: PyTree,
        where: Where = None,
        axis_name: AxisName = None,
    ) -> None:
        """Make the operator of a model and a loss as they are now.

        Args:
            model: Function `model(x, *args)` that returns outputs, examples first.
            loss: A loss of `hotk.curvature`.
            x: Point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            axis_name: Inside of `jax.shard_map`, the axis of the mesh, or axes, over
                which the whole is the mean of what devices have; see `hotk.over_axis`.
        """
        call, f = (
            "EmpiricalFisherOperator(model, loss, x)",
            EmpiricalFisher(model, loss),
        )
        self.f, self.x, self.args, self.selected = freeze(
            call, f, x, args, where, axis_name
        )
