"""Operations that use parameters, as sites: products, tables, biases, scales."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import JaxprEqn

from ._site import OperationKind, Output, Path, Site
from ._view import Shape, View


class Place(NamedTuple):
    """Where an equation is.

    Attributes:
        path: Its number, after those of the equations that it is inside of.
        line: The line of the model that made it.
        lengths: The lengths of the enclosing scans.
    """

    path: Path
    line: str
    lengths: Shape


def _site(
    kind: OperationKind,
    equation: JaxprEqn,
    place: Place,
    view: View,
    side: int,
    **fields: Any,
) -> Site:
    out: Any = equation.outvars[0].aval
    name = equation.primitive.name
    return Site(
        kind, place.path, name, place.line, view, side, place.lengths,
        out.shape, out.dtype, **fields,
    )  # fmt: skip


def match_dot(equation: JaxprEqn, view: View, side: int, place: Place) -> Site | None:
    """Match a product of matrices; batched axes are groups."""
    shapes = [_shape(atom) for atom in equation.invars]
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    contract, other = (left, right) if side == 0 else (right, left)
    batch, other_batch = (
        (left_batch, right_batch) if side == 0 else (right_batch, left_batch)
    )
    # In the leaf's order, so that all uses of a matrix have one order of rows.
    pairs = sorted(
        zip(contract, other, strict=True), key=lambda d: -abs(view.strides[d[0]])
    )
    contract, other = [d for d, _ in pairs], [d for _, d in pairs]
    rank, other_rank = len(shapes[side]), len(shapes[1 - side])
    free = [d for d in range(rank) if d not in (*contract, *batch)]
    ordered = sorted(free, key=lambda d: -abs(view.strides[d]))
    others = [d for d in range(other_rank) if d not in (*other, *other_batch)]
    count = lambda dims: math.prod(shapes[side][d] for d in dims)
    groups, inputs, outputs = map(count, (batch, contract, ordered))

    def reads(a: Array) -> Array:
        a = a.transpose((*other_batch, *others, *other))
        return a.reshape(groups, -1, inputs)

    # The output has the axes batch, free of the left, free of the right operand.
    first = len(batch) + (0 if side == 0 else len(others))
    mine = [first + free.index(d) for d in ordered]
    at_other = len(batch) + (len(free) if side == 0 else 0)
    positions = range(at_other, at_other + len(others))

    def signals(g: Array) -> Array:
        g = g.transpose((*range(len(batch)), *positions, *mine))
        return g.reshape(groups, -1, outputs)

    axes = [*range(len(batch)), *mine]
    lengths = [shapes[side][d] for d in (*batch, *ordered)]
    steps = dict(zip(axes, _steps(lengths), strict=True))
    out = range(len(batch) + len(free) + len(others))
    return _site(
        OperationKind.PRODUCT, equation, place,
        view.transposed([*batch, *contract, *ordered]), side,
        sizes=(groups, inputs, outputs),
        roles=(len(batch), len(contract), len(ordered)),
        reads=reads, signals=signals,
        strides=tuple(steps.get(d, 0) for d in out),
    )  # fmt: skip


def match_convolution(
    equation: JaxprEqn, view: View, side: int, place: Place
) -> Site | None:
    """Match a convolution with a kernel; a position is where a patch is read."""
    p = equation.params
    if side != 1 or p["batch_group_count"] != 1:
        return None
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    out_axis, in_axis, *spatial = numbers.rhs_spec
    ordered = view.transposed([in_axis, *spatial, out_axis])
    *patch, channels = ordered.shape
    each, inputs = channels // groups, math.prod(patch)
    split = ordered.reshaped([*patch, groups, each])
    if split is None:
        return None
    last = len(patch)
    window = [view.shape[d] for d in spatial]

    def reads(a: Array) -> Array:
        patches = jax.lax.conv_general_dilated_patches(
            a,
            window,
            p["window_strides"],
            p["padding"],
            lhs_dilation=p["lhs_dilation"],
            rhs_dilation=p["rhs_dilation"],
            dimension_numbers=jax.lax.ConvDimensionNumbers(
                numbers.lhs_spec, tuple(range(a.ndim)), tuple(range(a.ndim))
            ),
        )  # (examples, channels and window, *places)
        patches = patches.reshape(len(patches), groups, inputs, -1)
        return patches.transpose(1, 0, 3, 2).reshape(groups, -1, inputs)

    def signals(g: Array) -> Array:
        g = g.transpose(numbers.out_spec)
        g = g.reshape(len(g), groups, each, -1)
        return g.transpose(1, 0, 3, 2).reshape(groups, -1, each)

    return _site(
        OperationKind.PRODUCT, equation, place,
        split.transposed([last, *range(last), last + 1]), side,
        sizes=(groups, inputs, each),
        roles=(1, last, 1),
        reads=reads, signals=signals,
        # Channels count groups first, then the outputs of a group.
        strides=tuple(int(d == numbers.out_spec[1]) for d in range(last + 1)),
    )  # fmt: skip


def match_table(equation: JaxprEqn, view: View, side: int, place: Place) -> Site | None:
    """Match a lookup of whole rows of a table."""
    if side != 0 or not view.shape:
        return None
    name, rows, rest = equation.primitive.name, view.shape[0], view.shape[1:]
    if tuple(equation.params["slice_sizes"]) != (1, *rest):
        return None
    rank = len(_shape(equation.outvars[0]))
    if name == "dynamic_slice":
        offset = list(range(1, rank))

        def reads(i: Array) -> Array:
            return jnp.clip(i.reshape(1, -1), 0, rows - 1)

    else:
        numbers = equation.params["dimension_numbers"]
        starts = numbers.start_index_map
        if 0 not in starts or numbers.operand_batching_dims:
            return None
        column, offset = starts.index(0), list(numbers.offset_dims)
        clips = equation.params["mode"] == jax.lax.GatherScatterMode.CLIP

        def reads(i: Array) -> Array:
            # Other axes may have an index as well: they are whole, so it is zero.
            i = i[..., column].reshape(1, -1)
            return jnp.clip(i, 0, rows - 1) if clips else i

    positions = [d for d in range(rank) if d not in offset]

    def signals(g: Array) -> Array:
        return g.transpose((*positions, *offset)).reshape(1, -1, math.prod(rest))

    return _site(
        OperationKind.TABLE, equation, place, view, side,
        sizes=(1, rows, math.prod(rest)), roles=(0, 1, len(rest)),
        reads=reads, signals=signals,
    )  # fmt: skip


def match_bias(equation: JaxprEqn, view: View, side: int, place: Place) -> Site | None:
    """Match a sum or a difference with parameters."""
    negative = equation.primitive.name == "sub" and side == 1
    view = view.scaled(-1) if negative else view
    return _site(OperationKind.BIAS, equation, place, _as_output(equation, view), side)


def match_scale(equation: JaxprEqn, view: View, side: int, place: Place) -> Site | None:
    """Match a product with parameters, entry by entry."""
    return _site(OperationKind.SCALE, equation, place, _as_output(equation, view), side)


def _as_output(equation: JaxprEqn, view: View) -> View:
    # An operation entry by entry repeats a number, and operands along axes of length 1.
    shape = _shape(equation.outvars[0])
    return view.spread(shape, range(len(view.shape)))


MATCHES: dict[str, Callable[[JaxprEqn, View, int, Place], Site | None]] = {
    "dot_general": match_dot,
    "conv_general_dilated": match_convolution,
    "gather": match_table,
    "dynamic_slice": match_table,
    "add": match_bias,
    "add_any": match_bias,
    "sub": match_bias,
    "mul": match_scale,
}


def output_of(site: Site) -> Output:
    """Return which output of a product each entry of its result is."""
    groups, _, outputs = site.sizes
    return Output(site, View(-1, groups * outputs, 0, site.shape, site.strides))


def join(site: Site, output: Output, bias: View) -> View | None:
    """Return the bias of each (group, out) of a product, if there is just one.

    Args:
        site: The sum.
        output: The product that it adds to.
        bias: The other operand, in the shape of the output.
    """
    product = output.site
    everywhere = math.prod(output.view.shape) == math.prod(product.shape)
    if site.lengths != product.lengths or bias.heads != product.view.heads:
        return None
    if not everywhere:  # a part of the positions only
        return None
    groups, _, outputs = product.sizes
    axes = []
    for n, own, step in zip(
        output.view.shape, bias.strides, output.view.strides, strict=True
    ):
        if n > 1 and bool(own) != bool(step):
            return None
        if n > 1 and step:
            axes.append((step, n, own))
    axes.sort(reverse=True)
    expected = _steps([n for _, n, _ in axes])
    covers = math.prod(n for _, n, _ in axes) == groups * outputs
    if not covers or [step for step, _, _ in axes] != expected or output.view.offset:
        return None
    if site.name == "sub" and site.side == 0:  # the gradient by the product is minus
        bias = bias.scaled(-1)  # that by the difference
    return dataclasses.replace(
        bias,
        shape=tuple(n for _, n, _ in axes),
        strides=tuple(own for _, _, own in axes),
    )


def _steps(lengths: Sequence[int]) -> list[int]:
    return [math.prod(lengths[d + 1 :]) for d in range(len(lengths))]


def _shape(atom: Any) -> Shape:
    return atom.aval.shape
