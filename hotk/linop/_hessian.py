"""`HessianOperator`: the Hessian of a function at a point."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import describe_tree
from hotk.first import value_and_gradient
from hotk.second import hvp

from ._batches import DataOperator, Source
from ._held import arrays_of, hold, moved, parts_of, split
from ._linearized import Linearized, linearized
from ._operator import AbstractOperator


class AbstractHessian(AbstractOperator):
    """The Hessian of a function at a point.

    Attributes:
        f: The function, held as it was when the operator was made.
        x: The point.
        args: Further arguments of the function.
    """

    f: eqx.AbstractVar[Any]
    x: eqx.AbstractVar[Any]
    args: eqx.AbstractVar[tuple[Any, ...]]

    @property
    def like(self) -> Any:
        """The differentiated part of the point, `None` elsewhere."""
        return eqx.filter(self.x, eqx.is_inexact_array)

    @property
    def symmetric(self) -> bool:
        """It is."""
        return True

    def mv(self, v: Any) -> Any:
        """Return the product with one vector."""
        return self.conjugate(hvp(self.f, self.x, self.direction(v), *self.args))

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
        """Return the products with several vectors by one linearization.

        Args:
            vectors: A tree like the space with one leading axis.
            block_size: How many at once; all if left out. Each block linearizes anew.

        Returns:
            The products, with the same leading axis.
        """
        if block_size is not None:
            return super().many(vectors, block_size)
        directions = self.direction(vectors, batched=True)
        return self.conjugate(hvp(self.f, self.x, directions, *self.args, batched=True))

    def linearize(
        self, plan: Literal["store", "recompute"] | None = None
    ) -> Linearized:
        """Keep what all products at this point have in common.

        It is for products asked for one by one, from Python: compiled solvers take what
        is common out of their loops by themselves. The operator that comes back is like
        this one, with its `plan` and with the `bytes` that it keeps.

        Args:
            plan: `"store"` keeps it, `"recompute"` nothing. If left out, it is kept
                unless all is elementwise: to compute that again is cheaper than to read
                it.

        Returns:
            A `Linearized` operator.

        Raises:
            ValueError: If there is no such plan.
            TooLargeError: If what is to be kept exceeds `hotk.memory_budget()`.

        Example:
            >>> a = jnp.arange(6.0).reshape(3, 2)
            >>> f, v = lambda x: jnp.sum(jnp.tanh(a @ x)), jnp.ones(2)
            >>> H = hotk.HessianOperator(f, v / 10)
            >>> L = H.linearize()
            >>> L.plan, jnp.allclose(L @ v, H @ v).item()
            ('store', True)
        """
        return linearized(self, plan)

    def direction(self, v: Any, *, batched: bool = False) -> Any:
        """Return a vector, or several, with the rest of the point beside it."""
        rest = eqx.filter(self.x, eqx.is_inexact_array, inverse=True)
        if batched:
            count = len(jax.tree.leaves(v)[0])
            spread = lambda a: jnp.broadcast_to(a, (count, *a.shape))
            rest = jax.tree.map(spread, rest)
        return eqx.combine(v, rest)

    @staticmethod
    def conjugate(product: Any) -> Any:
        """Turn JAX's convention for complex leaves into the real embedding."""
        return jax.tree.map(lambda a: a.conj() if jnp.iscomplexobj(a) else a, product)

    def __repr__(self) -> str:
        """Show function, point and size."""
        if not jax.tree.leaves(self.like):  # shapes alone, as of `jax.eval_shape`
            return eqx.tree_pformat(self)
        what = f"{self.f.skeleton.name}, {describe_tree(self.like)}, n={self.size}"
        return f"{type(self).__name__}({what})"

    @property
    def value(self) -> Float[Array, ""]:
        """The value of the function."""
        return value_and_gradient(self.f, self.x, *self.args)[0]

    @property
    def gradient(self) -> Any:
        """The gradient, a vector of the space.

        For complex leaves it is the gradient in the real embedding, the conjugate of
        what `jax.grad` returns: `x - H.solve(H.gradient).x` is a Newton step.
        """
        return self.conjugate(value_and_gradient(self.f, self.x, *self.args)[1])

    def at(self, x: Any, *args: Any) -> Any:
        """Return the same operator at another point: nothing is traced or compiled.

        Args:
            x: A point of the same structure and shapes. What is no array must be what
                it was.
            *args: The further arguments, if they change as well.

        Raises:
            StructureError: If the point has another structure, or its leaves have other
                shapes or dtypes.
        """
        old = self.x, self.args
        parts = parts_of(self.f, old)
        new = moved("x", x, old[0], parts[0]), old[1]
        if args:
            new = new[0], moved("args", tuple(args), old[1], parts[1])
        is_none = lambda a: a is None
        return eqx.tree_at(lambda h: (h.x, h.args), self, new, is_leaf=is_none)


@final
class HessianOperator(AbstractHessian):
    r"""The Hessian $\nabla^2 f(x)$ of a real scalar `f` at a point, as an operator.

    Products cost about two gradients each and no matrix is formed, unless one is asked
    for. The function is held as it is now; `at` moves the operator to another point
    without a trace. For complex leaves the operator acts in the real embedding, in
    which it is symmetric and a Newton step descends.

    Attributes:
        f: The function, as a closure.
        x: The point: its arrays.
        args: Further arguments of `f`: their arrays.

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

    f: Any
    x: Any
    args: tuple[Any, ...]

    def __init__(self, f: Callable[..., Any], x: Any, *args: Any) -> None:
        """Hold `f` as it is now, and the point.

        Args:
            f: Function `f(x, *args)` that returns one real floating-point number.
            x: Point: any pytree. Floating and complex leaves are differentiated.
            *args: Further arguments of `f`.
        """
        self.f, self.x, self.args = hold(f, x, args)
        split("HessianOperator(f, x)", self.x)

    @staticmethod
    def over(
        loss: Callable[..., Any],
        x: Any,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        reduction: Literal["mean", "sum"] = "mean",
        dtype: Any = None,
        progress: bool = False,
    ) -> DataOperator:
        r"""Make the Hessian of a loss over a data set that comes in batches.

        It is that of $\frac1N \sum_b n_b L_b(x)$ with the loss $L_b$ of a batch of
        $n_b$ examples and their number N. A short batch, the last one, is filled with
        copies of its rows whose share is then subtracted, so that one program serves
        all; the loss must be a mean (or a sum) over examples. A product is one pass
        over the data, which may be larger than memory.

        Args:
            loss: Function `loss(x, batch)` that returns the mean over the examples of a
                batch, or their sum.
            x: Point: any pytree. Floating and complex leaves are differentiated.
            batches: Something that can be iterated over again and again, or a function
                that returns an iterator: trees of arrays whose first axis counts the
                examples.
            reduction: `"mean"` if the loss is a mean over the examples of a batch, then
                the operator is that of the mean over all; `"sum"` for sums.
            dtype: The dtype in which batches are summed; at least `float32`.
            progress: Whether to show a bar for each pass; needs `tqdm`.

        Returns:
            An operator with `value` and `gradient`, read from one pass now.

        Raises:
            TypeError: If `batches` can be read only once.
            StructureError: If the arrays of a batch have no common first axis.
            ValueError: If there is no batch, or the loss is not the same when asked
                twice: at once, or in a later pass.

        Example:
            >>> data = np.arange(10.0).reshape(5, 2)
            >>> loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
            >>> batches = [data[:2], data[2:4], data[4:]]
            >>> H = hotk.HessianOperator.over(loss, jnp.ones(2), batches)
            >>> jnp.allclose(H.matrix(), data.T @ data / 5).item()
            True
        """
        source = Source(batches, reduction, progress)
        one = HessianOperator(loss, x, source.first())

        def make(x: Any, batch: Any) -> HessianOperator:
            args = (arrays_of(batch),)
            return eqx.tree_at(lambda h: (h.x, h.args), one.at(x), (one.at(x).x, args))

        return DataOperator.of(make, one.x, source, dtype)
