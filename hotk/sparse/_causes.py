"""Which operations make rows of a sparse matrix dense, and where they stand."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from hotk._core import AbstractReport, JaxprEqn, source_line
from hotk._dense import Index

from ._linear import Linear, Operand
from ._pattern import Pattern
from ._positions import Positions, distinct


# What depends on more than half of the numbers of a leaf is dense in it. A leaf of a
# few numbers is not asked about.
_SHARE, _FEW = 0.5, 8
_SHOWN = 12


class Cause(NamedTuple):
    """An operation that makes numbers depend on most of a leaf.

    Attributes:
        line: Where it stands in the code of the user.
        operation: The name of the primitive of JAX.
        numbers: How many of its results depend on most of the leaf, while no number
            that goes in does.
        leaf: The leaf, as `x['w']`; of the output where the Jacobian is computed by
            rows.
        most: On how many numbers of the leaf one of them depends, at most.
        size: How many numbers the leaf has.
    """

    line: str
    operation: str
    numbers: int
    leaf: str
    most: int
    size: int


@final
class SparsityExplanation(AbstractReport):
    """What makes rows of a pattern dense: a table, one row for an operation.

    Attributes:
        pattern: The pattern.
        causes: The operations, those with the most results first.
        dense_blocks: Pairs of paths of leaves, of the output and of `x`, and the share
            of the entries between them that the pattern has, where it is more than
            half.
        output: What the rows belong to: `"x"` for a Hessian, `"y"`, the value, for a
            Jacobian.
    """

    pattern: Pattern = eqx.field(static=True)
    causes: tuple[Cause, ...] = eqx.field(static=True)
    dense_blocks: tuple[tuple[str, str, float], ...] = eqx.field(static=True)
    output: str = eqx.field(static=True, default="y")

    _header = ("line", "operation", "results", "depend on")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (c.line, c.operation, f"{c.numbers}", f"{c.most} of {c.size} in {c.leaf}")
            for c in self.causes[:_SHOWN]
        ]

    def _lines(self) -> list[str]:
        lines = []
        if not self.causes:
            lines.append("No single operation makes a number depend on most of a leaf.")
        blocks = (
            f"({_named(self.output, row)}, {_named('x', column)}) {100 * share:.3g} %"
            for row, column, share in self.dense_blocks[:_SHOWN]
        )
        dense = "Dense blocks: " + ", ".join(blocks) + "."
        return [*lines, dense if self.dense_blocks else "No block is dense."]


def _named(name: str, path: str) -> str:
    return f"{name}['{path}']" if path else name


class CauseRecorder:
    """Sees the operations of a linear program and keeps those that are causes."""

    def __init__(self, variables: PyTree, name: str) -> None:
        """Note the leaves.

        Args:
            variables: The tree of what the program is linear in.
            name: What it is called.
        """
        self._leaves = [
            (_named(name, words), part)
            for words, part in Index.of(variables).items()
            if _size(part) >= _FEW
        ]
        self._causes: dict[tuple[str, str, str], Cause] = {}
        self._around: list[str] = []

    @contextlib.contextmanager
    def inside(self, equation: JaxprEqn) -> Iterator[None]:
        """Note that operations are those of a call or a loop.

        A function of JAX that is jitted, as most of `jax.numpy` are, hides the line.
        """
        around = self._around
        self._around = [*around, line] if (line := source_line(equation)) else around
        try:
            yield
        finally:
            self._around = around

    def saw(
        self,
        equation: JaxprEqn,
        operands: Sequence[Operand],
        results: Sequence[Operand],
    ) -> None:
        """Look at an operation that was evaluated on patterns."""
        for leaf, part in self._leaves:
            least = _SHARE * _size(part)
            counts = [_counts(a, part, least) for a in results]
            numbers = sum(int((count > least).sum()) for count in counts)
            if not numbers:
                continue
            before = [_counts(a, part, least) for a in operands]
            if not any((count > least).any() for count in before):
                most = max(int(count.max(initial=0)) for count in counts)
                self._add(equation, Cause("", "", numbers, leaf, most, _size(part)))

    def gave_up(self, equation: JaxprEqn, numbers: int) -> None:
        """Note the operation that the algebra could not carry on with."""
        for leaf, part in self._leaves:
            size = _size(part)
            self._add(equation, Cause("", "", numbers, leaf, size, size))

    def _add(self, equation: JaxprEqn, cause: Cause) -> None:
        line, name = source_line(equation), equation.primitive.name
        line = line or (self._around[-1] if self._around else "")
        known = self._causes.get((line, name, cause.leaf), cause)
        self._causes[line, name, cause.leaf] = cause._replace(
            line=line,
            operation=name,
            numbers=max(cause.numbers, known.numbers),
            most=max(cause.most, known.most),
        )

    def explanation(self, pattern: Pattern) -> SparsityExplanation:
        """Return what was seen."""
        causes = sorted(self._causes.values(), key=lambda cause: -cause.numbers)
        return SparsityExplanation(pattern, tuple(causes), _dense_blocks(pattern))


def _counts(a: Operand, columns: slice, least: float) -> Positions:
    """Return on how many numbers of a leaf each entry of an array depends.

    Counts with repetitions are enough where they are small.
    """
    none = np.zeros(0, np.int64)
    if not isinstance(a, Linear) or not a.pieces:
        return none
    rows = np.concatenate([p.all_rows().reshape(-1) for p in a.pieces])
    cols = np.concatenate([p.columns.reshape(-1) for p in a.pieces])
    here = (cols >= columns.start) & (cols < columns.stop)
    rows, cols = rows[here], cols[here]
    places, which, counts = np.unique(rows, return_inverse=True, return_counts=True)
    if not (counts > least).any():
        return counts
    width = columns.stop - columns.start
    keys = distinct(which.reshape(-1) * width + (cols - columns.start))
    return np.bincount(keys // width, minlength=places.size)


def _dense_blocks(pattern: Pattern) -> tuple[tuple[str, str, float], ...]:
    """Return the blocks between leaves in which more than half of the entries are."""
    blocks = []
    columns = [
        (c, part) for c, part in pattern.col_index.items() if _size(part) >= _FEW
    ]
    for row, own in pattern.row_index.items():
        low, high = np.searchsorted(pattern.rows, [own.start, own.stop])
        cols = pattern.cols[low:high]
        for column, part in columns:
            inside = (cols >= part.start) & (cols < part.stop)
            share = float(inside.sum() / max(_size(own) * _size(part), 1))
            if share > _SHARE:
                blocks.append((row, column, share))
    return tuple(blocks)


def _size(part: slice) -> int:
    return part.stop - part.start
