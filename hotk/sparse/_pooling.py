"""Rules of pooling: from each window the entry that another array selects."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import JaxprEqn, bound

from ._coefficients import taken
from ._linear import Context, Linear, Operand, Rule, operand_type, result_type
from ._pieces import moved, read, scaled
from ._positions import Positions, Shape, every, ravel, size_of, strides, unravel


class _Windows(NamedTuple):
    """Windows of an array, by their extent along each axis.

    Attributes:
        lengths: How many entries a window has.
        steps: By how much each window begins after the one before.
        margins: How many entries of padding there are before the first one.
        dilation: The distance of neighbors in a window.
        shape: How many windows there are.
        whole: The shape of the array.
    """

    lengths: Shape
    steps: Shape
    margins: Shape
    dilation: Shape
    shape: Shape
    whole: Shape

    def entries(self, place: tuple[int, ...]) -> Positions:
        """Return the entry at a place of each window, -1 for padding."""
        index, outside = [], np.zeros(self.shape, bool)
        axes = zip(unravel(every(self.shape), self.shape), place, strict=True)
        for d, (window, w) in enumerate(axes):
            at = window * self.steps[d] + w * self.dilation[d] - self.margins[d]
            outside |= (at < 0) | (at >= self.whole[d])
            index.append(at)
        flat = ravel(index, strides(self.whole), outside)
        return np.where(outside, -1, flat)

    def pairs(self) -> tuple[Positions, Positions]:
        """Return each window with each of its entries."""
        windows, entries = [], []
        for place in np.ndindex(*self.lengths):
            entry = self.entries(place).reshape(-1)
            inside = np.flatnonzero(entry >= 0)
            windows.append(inside)
            entries.append(entry[inside])
        return np.concatenate(windows), np.concatenate(entries)


def _cycled(shape: Shape, lengths: Shape) -> Positions:
    """Number the entries of an array so that each box of some lengths has no two."""
    index = unravel(every(shape), shape)
    numbers = [i % n for i, n in zip(index, lengths, strict=True)]
    return ravel(numbers, strides(lengths), every(shape)).reshape(-1)


def _gather_selected(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """From each window of `tangents` take the entry that `operand` selects."""
    parameters = equation.params
    if any(k != 1 for k in parameters["base_dilation"]):
        return None
    windows = _Windows(
        tuple(parameters["window_dimensions"]),
        tuple(parameters["window_strides"]),
        tuple(low for low, _ in parameters["padding"]),
        tuple(parameters["window_dilation"]),
        result_type(equation)[0],
        operand_type(equation, 0)[0],
    )
    results, entries = windows.pairs()
    extents = zip(windows.lengths, windows.dilation, strict=True)
    cycle = tuple(n * dilation for n, dilation in extents)
    return _selected(equation, operands, entries, results, cycle, context)


def _scatter_selected(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Add the entry of `source` for each window to the entry that is selected."""
    parameters = equation.params
    shape, _ = operand_type(equation, 0)
    windows = _Windows(
        tuple(parameters["window_dimensions"]),
        tuple(parameters["window_strides"]),
        tuple(low for low, _ in parameters["padding"]),
        (1,) * len(shape),
        shape,
        result_type(equation)[0],
    )
    sources, results = windows.pairs()
    # So many windows, one after the other, may have an entry in common.
    extents = zip(windows.lengths, windows.steps, strict=True)
    cycle = tuple(-(-n // step) for n, step in extents)
    return _selected(equation, operands, sources, results, cycle, context)


def _selected(
    equation: JaxprEqn,
    operands: list[Operand],
    sources: Positions,
    results: Positions,
    cycle: Shape,
    context: Context,
) -> list[Operand] | None:
    """Evaluate an operation of which each result depends on a few entries.

    Entries of which no two meet in a result are one direction. So a few products, by
    the operation itself, give each coefficient: what wins among equals is its affair.

    Args:
        equation: The operation; its first operand is what it is linear in.
        operands: Its operands.
        sources: Entries of the first operand.
        results: The results that may depend on each.
        cycle: Within a box of this shape no two entries have the same direction.
        context: What it is paid from.
    """
    a, by = operands
    if not isinstance(a, Linear) or isinstance(by, Linear):
        return None
    (shape, dtype), (result, _) = operand_type(equation, 0), result_type(equation)
    terms = read(a, sources, context.budget)
    if a.pieces and a.pieces[0].values is not None:
        context.budget.spend(size_of(cycle) * size_of(result))
        direction = _cycled(shape, cycle)
        numbers = np.arange(size_of(cycle))[:, None]
        directions = jnp.asarray(direction == numbers, dtype)
        product = lambda v: bound(equation, [v.reshape(shape), jnp.asarray(by)])[0]
        products = jax.vmap(product)(directions)
        at = direction[sources] * size_of(result) + results
        terms = scaled(terms, taken(products, at))
    return [moved(terms, result, lambda rows: results[rows])]


RULES: dict[str, Rule] = {
    "select_and_gather_add": _gather_selected,
    "select_and_scatter_add": _scatter_selected,
}
