"""`HessianOperator`: the Hessian of a function at a point."""

from typing import final

import equinox as eqx
from jax.typing import DTypeLike
from jaxtyping import PyTree

from hotk._capture import Closure
from hotk._core import Argnums, Function, Keywords, Point, V, Where
from hotk._prepared import rearranged

from ._batches import DataOperator
from ._frozen import AxisName, Selected, freeze
from ._linearized import Linearized, Plan, linearized
from ._point_operator import AbstractPointOperator
from ._processes import Processes
from ._source import Batches, Reduction, Source
from ._sums import OfOneBatch


class AbstractHessian(AbstractPointOperator[V]):
    """The Hessian of a function at a point, which can be linearized."""

    def linearize(self, plan: Plan | None = None) -> Linearized:
        """Linearize the gradient at this point once, for all products.

        It pays for products that are asked for one by one, from Python: a compiled
        solver moves the linearization out of its loop by itself. The result is used
        like this operator, and reports its `plan` and the `bytes` that it stores.

        Args:
            plan: `"store"` stores the linearization, `"recompute"` stores nothing. If
                left out, it is stored unless all operations are elementwise: then to
                compute it again is cheaper than to read it.

        Returns:
            A `Linearized` operator.

        Raises:
            ValueError: If there is no such plan.
            TooLargeError: If the stored arrays exceed `hotk.memory_budget()`.

        Example:
            >>> a = jnp.arange(6.0).reshape(3, 2)
            >>> f, v = lambda x: jnp.sum(jnp.tanh(a @ x)), jnp.ones(2)
            >>> H = hotk.HessianOperator(f, v / 10)
            >>> L = H.linearize()
            >>> L.plan, jnp.allclose(L @ v, H @ v).item()
            ('store', True)
        """
        return linearized(self, plan)


@final
class HessianOperator(AbstractHessian[V]):
    r"""The Hessian $\nabla^2 f(x)$ of a real scalar `f` at a point, as an operator.

    A product `H @ v` costs about two gradients. No matrix is formed unless you ask for
    it. The operator keeps the function as it is when the operator is made: what it
    captures may change afterwards. `H.at(x2)` is the operator at another point, without
    a trace. For complex leaves the operator acts in the real embedding, in which it is
    symmetric and a Newton step descends.

    Attributes:
        f: The function, as a closure.
        x: The arrays of the point, `None` in place of other leaves.
        args: The arrays of the further arguments of `f`.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.

    Example:
        >>> f = lambda w: jnp.sum(w["a"] ** 2) * w["b"]
        >>> H = hotk.HessianOperator(f, {"a": jnp.ones(2), "b": jnp.array(3.0)})
        >>> H.matrix().tolist()
        [[6.0, 0.0, 2.0], [0.0, 6.0, 2.0], [2.0, 2.0, 0.0]]
        >>> H.block("b", "a").tolist()
        [[2.0, 2.0]]
        >>> (H @ {"a": jnp.ones(2), "b": jnp.array(0.0)})["b"].item()
        4.0

    References:
        Pearlmutter (1994). Fast exact multiplication by the Hessian. Neural
            Computation 6(1), 147-160. https://doi.org/10.1162/neco.1994.6.1.147
    """

    f: Closure
    x: V
    args: tuple[PyTree, ...]
    selected: Selected = eqx.field(static=True)

    def __init__(
        self,
        f: Function,
        x: V,
        *args: PyTree,
        where: Where = None,
        argnums: Argnums = None,
        kwargs: Keywords = None,
        axis_name: AxisName = None,
    ) -> None:
        """Make the operator of `f` as it is now.

        Args:
            f: Function `f(x, *args)` that returns one real floating-point number.
            x: Point: any pytree. Floating and complex leaves are differentiated.
            *args: Further arguments of `f`.
            where: Which leaves of `x` to differentiate; see `hotk.Where`. The operator
                is that of `f` as a function of these alone.
            argnums: Which argument of `f` to differentiate, by position, or several as
                a tuple, as for `jax.grad`. The first by default. The point is then that
                argument, or the tuple.
            kwargs: Keyword arguments of `f`. They are the last of the further arguments
                of the operator, a dict.
            axis_name: Inside of `jax.shard_map`, the axis of the mesh, or axes, over
                which the whole is the mean of what devices have; see `hotk.over_axis`.

        Raises:
            DtypeError: If nothing in `x` can be differentiated.
            ModeError: If Python code in `f` needs the value of the point.
            ValueError: If `argnums` are no positions of arguments.
        """
        call = "HessianOperator(f, x)"
        if argnums is not None or kwargs is not None:
            f, x, args = rearranged(call, f, (x, *args), argnums, kwargs)
        self.f, self.x, self.args, self.selected = freeze(
            call, f, x, args, where, axis_name
        )

    @staticmethod
    def over(
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
        r"""Make the Hessian of a loss over a data set that comes in batches.

        It is the Hessian of $\frac1N \sum_b n_b L_b(x)$, with the loss $L_b$ of a batch
        of $n_b$ examples and their total number N. The loss must be a mean (or a sum)
        over examples: a short batch, the last one, is filled with copies of its rows,
        whose share is then subtracted, so that one program serves all batches. A
        product is one pass over the data, which may be larger than memory.

        Args:
            loss: Function `loss(x, batch)` that returns the mean over the examples of a
                batch, or their sum.
            x: Point: any pytree. Floating and complex leaves are differentiated.
            batches: A list, a data loader, or a function that returns a new iterator:
                trees of arrays whose first axis counts the examples. It is iterated
                over once for each product.
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
                evaluated twice: at once, or in a later pass. If processes differ in the
                point or in a vector, or `jax.distributed` was not initialized.
            RuntimeError: If another process fails, with its message.

        Example:
            >>> data = np.arange(10.0).reshape(5, 2)
            >>> loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
            >>> batches = [data[:2], data[2:4], data[4:]]
            >>> H = hotk.HessianOperator.over(loss, jnp.ones(2), batches)
            >>> jnp.allclose(H.matrix(), data.T @ data / 5).item()
            True
        """
        others = Processes() if processes else None
        source = Source(batches, reduction, progress, others)

        # one closure for all batches: they share its program
        def of_one() -> OfOneBatch:
            first = HessianOperator(loss, x, source.first_batch(), where=where)
            return OfOneBatch.of(first)

        return DataOperator.of(of_one, x, source, dtype)
