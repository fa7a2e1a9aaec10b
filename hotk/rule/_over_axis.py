"""`over_axis`: a function whose parts are on the devices of a mesh axis."""

import math
from collections.abc import Sequence
from typing import Any, Literal, final

import equinox as eqx
import jax
from jaxtyping import PyTree

from hotk._core import (
    Function,
    Held,
    StructureError,
    describe,
    differs_along,
    function_name,
    held,
    is_inexact,
    manual_axes,
    message,
    without_shards,
)
from hotk._primitive import shared as taken_from_all, summed, taken


@final
class OverAxis(eqx.Module):
    """A function that is the mean, or the sum, of what each device computes.

    Attributes:
        f: What each device computes.
        axis_name: The axes of the mesh.
        reduction: `"mean"` or `"sum"`.
        shared: Positions of the arguments that all devices hold alike.
        has_aux: Whether `f` returns `(y, aux)`.
    """

    f: Function
    axis_name: tuple[str, ...] = eqx.field(static=True)
    reduction: Literal["mean", "sum"] = eqx.field(static=True)
    shared: tuple[int, ...] = eqx.field(static=True)
    has_aux: bool = eqx.field(static=True)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Evaluate the function on all devices, inside of `shard_map`.

        Raises:
            StructureError: If an axis is none of the `shard_map` that is traced, or an
                argument is not there.
        """
        axes = self.axis_name
        self._check(len(args))
        given = list(map(without_shards, args))
        own = self._own([args[i] for i in self.shared])
        for i, arg in zip(self.shared, own, strict=True):
            given[i] = arg
        out = self.f(*given, **kwargs)
        y, aux = out if self.has_aux else (out, None)
        terms, structure = jax.tree.flatten(y)
        count = math.prod(jax.lax.axis_size(axis) for axis in axes)
        whole: list[Any] = summed(terms, axes)
        if self.reduction == "mean":
            whole = [a / count for a in whole]
        total = structure.unflatten(whole)
        return (total, aux) if self.has_aux else total

    def _own(self, chosen: list[PyTree]) -> list[PyTree]:
        """Return what this device takes of the arguments that all hold alike.

        A part of an array, a `Shard`, is its own: what comes back for it is summed by
        the transpose of the collective in `f` that puts the parts together.
        """
        leaves = held(chosen)
        arrays = [leaf.array for leaf in leaves]
        alike: dict[tuple[str, ...], list[int]] = {}
        for i, leaf in enumerate(leaves):
            if not is_inexact(leaf.array):
                continue
            self._check_leaf(leaf)
            if leaf.axes:
                arrays[i] = taken(leaf.array, leaf.axes)
            others = tuple(axis for axis in self.axis_name if axis not in leaf.axes)
            if others:
                alike.setdefault(others, []).append(i)
        for others, places in alike.items():
            own = taken_from_all([arrays[i] for i in places], others)
            for i, leaf in zip(places, own, strict=True):
                arrays[i] = leaf
        return jax.tree.structure(without_shards(chosen)).unflatten(arrays)

    def _check_leaf(self, leaf: Held) -> None:
        call = f"over_axis({function_name(self.f)}, {self.axis_name})"
        unknown = [axis for axis in leaf.axes if axis not in self.axis_name]
        if unknown:
            raise StructureError(
                message(
                    call,
                    f"an argument is divided along {unknown[0]!r}, of which this "
                    "function knows nothing.",
                    expected=f"parts along {' or '.join(map(repr, self.axis_name))}",
                    got=f"a `Shard` along {leaf.axes}",
                    fix=f"Name both: `over_axis(f, {(*self.axis_name, *unknown)})`.",
                )
            )
        others = [axis for axis in self.axis_name if axis not in leaf.axes]
        if differs_along(leaf.array, others):
            raise StructureError(
                message(
                    call,
                    "an argument that all devices hold alike differs from one to "
                    "another.",
                    expected=f"an array that does not vary along {others[0]!r}",
                    got=str(jax.typeof(leaf.array)),
                    fix="If each device holds a part of it, mark the parts: "
                    '`hotk.as_shards(x, {"w": P("data"), "b": P()})`. If it was cast '
                    "by `jax.lax.pcast`, leave the cast out. Give the positions of "
                    "the arguments that all hold alike by `shared=`.",
                )
            )

    def _check(self, count: int) -> None:
        call = f"over_axis({function_name(self.f)}, {self.axis_name})"
        inside = manual_axes()
        missing = [axis for axis in self.axis_name if axis not in inside]
        if missing:
            raise StructureError(
                message(
                    call,
                    f"{missing[0]!r} is no axis of a `shard_map` that is traced.",
                    expected="a call inside of `jax.shard_map` over this axis",
                    got=f"the axes {', '.join(map(repr, inside))}"
                    if inside
                    else "a call outside of `jax.shard_map`",
                    fix="Call it inside. Outside, a function of whole arrays needs no "
                    "`over_axis`: JAX divides it over the devices by itself.",
                )
            )
        if any(not -count <= i < count for i in self.shared):
            raise StructureError(
                message(
                    call,
                    "an argument that all devices hold alike is not there.",
                    expected=f"arguments at the positions {self.shared}",
                    got=f"{count} positional arguments",
                    fix="Give their positions by `shared=`; pass them by position.",
                )
            )


def over_axis(
    f: Function,
    axis_name: str | Sequence[str],
    reduction: Literal["mean", "sum"] = "mean",
    *,
    shared: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> OverAxis:
    r"""Define a function as the mean or the sum of its values over all devices.

    Inside of `jax.shard_map` each device has a part of the data, and `f` is the loss on
    that part. `over_axis(f, "data")` is the whole loss, $\frac{1}{P} \sum_p f_p(x)$
    over the $P$ devices of the axis, or their sum. All operators, solvers, estimates
    and optimizers then return the results of the whole loss on each device, at any
    order of derivatives. A gradient, or a product with a Hessian, takes one all-reduce.
    This holds with `check_vma=True` and `check_vma=False`.

    Without it, the derivatives are those of `f` on one device with `check_vma=False`,
    and with `check_vma=True` those of the sum, as in `jax.grad`. With `check_vma=False`
    JAX treats `psum` and `pmean` as their own transposes, so the derivatives of a
    function that ends with one of them are those of one device as well.

    `f` can contain collectives, such as `jax.lax.pmean` for the statistics of a batch
    normalization. A `pmean` at its end is allowed, and takes one more all-reduce.

    Args:
        f: Function `f(x, *args)` of this device, with any output.
        axis_name: An axis of the mesh, or several.
        reduction: `"mean"`, for terms that are means over equal parts of the data, or
            `"sum"`.
        shared: Positions of the arguments that all devices hold alike, such as the
            parameters. Only derivatives by these are whole; those by other arguments
            are by the part of this device. With `check_vma=True` JAX knows which
            arrays all hold alike, and derivatives by others are whole as well. Leaves
            of which each device holds a part are marked by `hotk.as_shards`; `f` gets
            the part itself, and puts the parts together by `jax.lax.all_gather`.
        has_aux: Whether `f` returns `(y, aux)`; `aux` stays as each device has it.

    Returns:
        A function of the same arguments, for use inside of `shard_map`.

    Raises:
        StructureError: When called outside of a `shard_map` over the axis, or without
            one of the shared arguments; if one of these differs from one device to
            another and is not marked, or is divided along another axis.
        TypeError: If `f` is not a function.
        ValueError: If `reduction` is something else, no axis is given, or `shared`
            holds anything but integers.

    Example:
        >>> from jax.sharding import AxisType, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> def product(w, v, rows):
        ...     loss = lambda w, rows: jnp.mean(jnp.tanh(rows @ w) ** 2)
        ...     return hotk.hvp(hotk.over_axis(loss, "data"), w, v, rows)
        >>> over = jax.shard_map(
        ...     product, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P()
        ... )
        >>> rows, w = jnp.eye(4, 2), jnp.zeros(2)
        >>> jax.jit(over)(w, jnp.ones(2), rows).tolist()
        [0.5, 0.5]

    References:
        Shoeybi et al. (2019). Megatron-LM. arXiv:1909.08053, section 3: the two
        conjugate operators f and g.
    """
    if not callable(f):
        what = describe(f)
        raise TypeError(f"`over_axis(f, axis_name)`: `f` is {what}, no function.")
    listed = lambda a: tuple(a) if isinstance(a, (tuple, list)) else (a,)
    axes, positions = listed(axis_name), listed(shared)
    named = axes and all(isinstance(axis, str) for axis in axes)
    counted = all(isinstance(position, int) for position in positions)
    if not (named and counted and reduction in ("mean", "sum")):
        raise ValueError(
            f"`over_axis(f, {axis_name!r}, {reduction!r}, shared={shared!r})`: give "
            'one or several axes, "mean" or "sum", and positions of arguments.'
        )
    return OverAxis(f, axes, reduction, positions, has_aux)
