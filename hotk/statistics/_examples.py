"""Gradients and Hessians of the losses of single examples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._core import (
    Function,
    OutputError,
    Point,
    Scalar,
    StructureError,
    Tracer,
    Vector,
    Where,
    describe_tree,
    message,
    selection,
    split_point,
)
from hotk._dense import gathered
from hotk._first import gradient, jacobian
from hotk._second import hessian
from hotk.linop import space

from ._parameters import refuse_complex, refuse_parts_of_devices


# By how many roundings of the largest a loss may differ where the order of sums does.
_ROUNDINGS = 1e4
# All losses at several fits are computed in parts of so many.
_MOST_LOSSES = 1_000_000


class Examples(NamedTuple):
    """A function that returns the losses of examples, and where it is evaluated.

    Attributes:
        call: The call, for messages.
        losses: `losses(x, *data)`, one number for each example.
        x: The point.
        data: Arrays with the examples in their first axis, and numbers.
        where: Which leaves of the point are parameters.
        selected: The same, for each leaf; `None` for all.
        parameters: The parameters, a vector of their space.
        values: The losses.
    """

    call: str
    losses: Function
    x: Point
    data: tuple[PyTree, ...]
    where: Where
    selected: tuple[bool, ...] | None
    parameters: Vector
    values: Float[Array, " N"]

    @staticmethod
    def of(
        call: str,
        losses: Function,
        x: Point,
        data: tuple[PyTree, ...],
        where: Where,
        *,
        rows: bool = True,
    ) -> "Examples":
        """Evaluate the losses once and check what they are.

        Args:
            call: The call, for messages.
            losses: The function.
            x: The point.
            data: Its further arguments.
            where: Which leaves of the point are parameters.
            rows: Whether losses of single rows will be asked for.

        Raises:
            OutputError: If there is not one number for each example.
            StructureError: If the arrays of `data` have no common first axis, or none
                has a row.
            ValueError: If a loss is NaN or infinite.
            DtypeError: If a parameter is complex.
        """
        selected = selection(call, x, where)
        parameters = jax.tree.map(jnp.asarray, split_point(x, selected)[0])
        refuse_complex(call, parameters)
        values = losses(x, *data)
        one_axis = hasattr(values, "ndim") and values.ndim == 1
        if not one_axis or not jnp.issubdtype(values.dtype, jnp.floating):
            raise OutputError(
                message(
                    call,
                    "`losses(x, *data)` must return one number for each example.",
                    expected="a floating array of shape (N,)",
                    got=describe_tree(values),
                    fix="Leave out the sum or the mean over the examples.",
                )
            )
        found = Examples(call, losses, x, data, where, selected, parameters, values)
        if rows:
            found._check_rows()
        found._check_finite()
        return found

    @property
    def number(self) -> int:
        """The number of examples."""
        return len(self.values)

    @property
    def by_rows(self) -> bool:
        """Whether the examples are rows of arrays that are arguments."""
        return any(np.ndim(leaf) > 0 for leaf in jax.tree.leaves(self.data))

    def total(self) -> Function:
        """Return the sum of the losses as a function of point and data."""
        losses = self.losses
        return lambda x, *data: jnp.sum(losses(x, *data))

    def _check_finite(self) -> None:
        if isinstance(self.values, Tracer) or bool(jnp.all(jnp.isfinite(self.values))):
            return
        losses = np.asarray(self.values)
        wrong = np.flatnonzero(~np.isfinite(losses))
        raise ValueError(
            message(
                self.call,
                f"the loss of example {wrong[0]} is {losses[wrong[0]]}.",
                expected="finite losses",
                got=f"{len(wrong)} of {self.number} that are not",
                fix="Leave out these examples, or look for the NaN in their data.",
            )
        )

    def _check_rows(self) -> None:
        if not self.number:
            raise StructureError(f"`{self.call}`: there are no examples.")
        arrays = [leaf for leaf in jax.tree.leaves(self.data) if np.ndim(leaf) > 0]
        if any(len(leaf) != self.number for leaf in arrays):
            raise StructureError(
                message(
                    self.call,
                    "arrays of `data` have the examples in their first axis.",
                    expected=f"{self.number} rows each, as many as there are losses",
                    got=describe_tree(self.data),
                    fix="Let the function capture arrays that are no data.",
                )
            )
        if not arrays or isinstance(self.values, Tracer):
            return
        # The gradient of a row alone would not be that of its term in the sum. Where
        # all losses are rounding, as of a perfect fit, they differ by as much: so a
        # point nearby is asked as well.
        apart = self._apart(self.x, self.values)
        if apart:
            moved = jax.tree.map(lambda a: 1.01 * a, self.parameters)
            nearby = eqx.combine(moved, split_point(self.x, self.selected)[1])
            apart = apart and self._apart(nearby, self.losses(nearby, *self.data))
        if apart:
            raise ValueError(
                f"`{self.call}`: the loss of an example depends on other examples: "
                f"computed from its row alone, one differs by {apart:.3g}. Let the "
                "function capture the data instead, and call it without `data`."
            )

    def _apart(self, x: Point, values: Float[Array, " N"]) -> float:
        """Return by how much a loss of a row alone differs, zero if by rounding."""
        alone = self.each(lambda one, row: one(x, row))
        apart = float(jnp.max(jnp.abs(alone - values), initial=0))
        eps = float(jnp.finfo(values.dtype).eps)
        largest = float(jnp.max(jnp.abs(values), initial=0))
        return apart if apart > _ROUNDINGS * eps * largest else 0.0

    def each(self, of_one: Callable[..., PyTree], *more: PyTree) -> PyTree:
        """Map over the examples: `of_one(one, row, *more)` with the loss `one(x, row)`.

        The arrays of `more` have the examples in their first axis as well.
        """
        leaves, treedef = jax.tree.flatten(self.data)
        is_row = [np.ndim(leaf) > 0 for leaf in leaves]
        rows = [jnp.asarray(a) for a, yes in zip(leaves, is_row, strict=True) if yes]
        if more:  # which are whole on each device, and `vmap` takes all alike
            rows = [gathered(a) for a in rows]
        rest = [a for a, yes in zip(leaves, is_row, strict=True) if not yes]
        losses = self.losses

        def one(x: Point, row: list[Array]) -> Scalar:
            of_row, held = iter(row), iter(rest)
            data = [next(of_row)[None] if yes else next(held) for yes in is_row]
            return losses(x, *treedef.unflatten(data))[0]

        return jax.vmap(lambda row, *more: of_one(one, row, *more))(rows, *more)

    def own_losses(
        self, at: Callable[[PyTree], Point], fits: PyTree
    ) -> Float[Array, " N"]:
        """Return the loss of each example at parameters of its own.

        Args:
            at: From parameters to the point.
            fits: The parameters, with the examples in the first axis.
        """
        if self.by_rows:
            return self.each(lambda one, row, p: one(at(p), row), fits)
        count = self.number
        of_all = jax.vmap(lambda p: self.losses(at(p), *self.data))
        step = max(_MOST_LOSSES // max(count, 1), 1)
        parts = []
        for low in range(0, count, step):
            some = jax.tree.map(lambda a, low=low: a[low : low + step], fits)
            parts.append(jnp.diagonal(gathered(of_all(some)), low))
        return jnp.concatenate(parts)

    def scores(self) -> Float[Array, "N n"]:
        """Return the gradients of the losses, one flat vector a row."""
        refuse_parts_of_devices(self.call, self.values, self.parameters)
        x, where = self.x, self.where
        if self.by_rows:
            of_one = lambda one, row: gradient(one, x, row, where=where)
            tree = self.each(of_one)
        else:
            tree = jacobian(self.losses, x, *self.data, where=where)
        leaves = [gathered(a).reshape(self.number, -1) for a in jax.tree.leaves(tree)]
        dtype = space.promoted(*[a.dtype for a in leaves])
        return jnp.concatenate([a.astype(dtype) for a in leaves], axis=1)

    def hessians(self) -> Float[Array, "N n n"]:
        """Return the Hessians of the losses."""
        x, where = self.x, self.where
        if self.by_rows:
            of_one = lambda one, row: hessian(one, x, row, where=where)
            tree = self.each(of_one)
        else:
            tree = hessian(self.losses, x, *self.data, where=where)
        return _as_matrices(tree, self.parameters, self.number)


def _as_matrices(tree: PyTree, like: Vector, count: int) -> Inexact[Array, "N n n"]:
    """Join the blocks of Hessians, each of shape `(N, *row, *column)`."""
    outer = jax.tree.structure(like)
    leaves: list[Any] = jax.tree.leaves(like)
    dtype = space.promoted(*[a.dtype for a in leaves])
    lines = []
    for row, line in zip(leaves, outer.flatten_up_to(tree), strict=True):
        blocks = map(gathered, outer.flatten_up_to(line))
        pairs = zip(blocks, leaves, strict=True)
        flat = [b.reshape(count, row.size, c.size).astype(dtype) for b, c in pairs]
        lines.append(jnp.concatenate(flat, axis=2))
    return jnp.concatenate(lines, axis=1)


def refuse_decisive(call: str, left: np.ndarray, eps: float, consequence: str) -> None:
    """Refuse examples without which the others determine no parameters.

    Args:
        call: The call, for messages.
        left: For each example, or cluster, what the others leave of the curvature in
            each direction.
        eps: The relative size of rounding of what it was computed from.
        consequence: What it means here.

    Raises:
        ValueError: If nothing is left but rounding.
    """
    if not left.size or np.min(left) > 10 * left.shape[-1] * eps:
        return
    worst = np.unravel_index(np.argmin(left), left.shape)
    raise ValueError(
        f"`{call}`: without example or cluster {worst[0]} the parameters are not "
        f"determined (its share of the curvature is {1 - left[worst]:.6g} in some "
        f"direction), {consequence}"
    )
