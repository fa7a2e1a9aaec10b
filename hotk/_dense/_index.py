"""`Index`: where each leaf of a tree stands in a matrix."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from hotk._core import Vector, describe, html_table, text_table


class IndexRow(NamedTuple):
    """One leaf of an index.

    Attributes:
        code: Its path as the code that reads it, `.layers[0].weight`.
        words: Its path as words, `layers/0/weight`.
        range: Its rows, and columns, of the matrix.
        shown: Its dtype and shape.
    """

    code: str
    words: str
    range: slice
    shown: str


class Index:
    """Ranges of rows and columns of a matrix, by the paths of leaves.

    A path is written as the code that reads it, `['w']` or `.layers[0].weight`, or as
    words, `w` or `layers/0/weight`. The path of a subtree stands for all of its leaves,
    the empty path for the whole tree. Iterating yields the paths as words.

    Example:
        >>> f = lambda p: jnp.sum(p["w"] ** 2) * p["b"]
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(3), "b": jnp.array(1.0)})
        >>> H.index["w"], list(H.index)
        (slice(1, 4, None), ['b', 'w'])
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: tuple[IndexRow, ...]) -> None:
        self._rows = rows

    @staticmethod
    def of(tree: Vector) -> "Index":
        """Lay out the leaves of a tree one after the other.

        A complex leaf has its real parts first, then its imaginary parts.

        Args:
            tree: A tree of arrays.

        Returns:
            The index: one range for each leaf, in the order of `jax.tree.leaves`.
        """
        rows, start = [], 0
        for path, leaf in tree_flatten_with_path(tree)[0]:
            stop = start + leaf.size * (2 if jnp.iscomplexobj(leaf) else 1)
            code, words = keystr(path), keystr(path, simple=True, separator="/")
            rows.append(IndexRow(code, words, slice(start, stop), describe(leaf)))
            start = stop
        return Index(tuple(rows))

    def __getitem__(self, path: object) -> slice:
        """Return the range of a leaf or a subtree.

        Args:
            path: A path as text, or a key path of `jax.tree_util`.

        Returns:
            The range, a `slice`.

        Raises:
            KeyError: If there is no such path.
        """
        if isinstance(path, tuple):
            path = keystr(path)
        path = str(path)
        ranges = [
            row.range
            for row in self._rows
            if not path
            or _begins(row.code, path, "[.")
            # `layers[0]` for a module, whose first step is written `.layers`
            or _begins(row.code.lstrip("."), path, "[.")
            or _begins(row.words, path, "/")
        ]
        if not ranges:
            known = ", ".join(repr(row.words) for row in self._rows[:12])
            more = ", ..." if len(self._rows) > 12 else ""
            raise KeyError(f"no leaf at {path!r}: there are {known}{more}")
        return slice(ranges[0].start, ranges[-1].stop)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths."""
        return iter([row.words for row in self._rows])

    def __len__(self) -> int:
        """Return the number of leaves."""
        return len(self._rows)

    def items(self) -> list[tuple[str, slice]]:
        """List the paths, as words, with their ranges."""
        return [(row.words, row.range) for row in self._rows]

    def __eq__(self, other: object) -> bool:
        """Whether the other one has the same paths, ranges, shapes and dtypes."""
        return isinstance(other, Index) and self._rows == other._rows

    def __hash__(self) -> int:
        """Return a hash of the paths."""
        return hash(tuple(row.code for row in self._rows))

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows: list[tuple[str, ...]] = [
            (row.words, f"{row.range.start}:{row.range.stop}", row.shown)
            for row in self._rows
        ]
        return ("path", "range", "leaf"), rows

    def __repr__(self) -> str:
        """Show a row a leaf."""
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table())


def _begins(whole: str, path: str, separators: str) -> bool:
    rest = whole[len(path) :]
    return whole.startswith(path) and (not rest or rest[0] in separators)


def leaf_numbers(tree: Vector, part: slice) -> list[int]:
    """List the numbers of the leaves that a range of an index covers."""
    numbers, start = [], 0
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        stop = start + leaf.size * (2 if jnp.iscomplexobj(leaf) else 1)
        if part.start <= start and stop <= part.stop:
            numbers.append(i)
        start = stop
    return numbers


def leaf_names(like: Vector) -> list[str]:
    """Return the paths of the leaves as words, `"x"` for a single array."""
    paths = [path for path, _ in tree_flatten_with_path(like)[0]]
    return [keystr(path, simple=True, separator="/") or "x" for path in paths]


def entry_name(leaf: str, shape: tuple[int, ...], place: int) -> str:
    """Return the name of an entry of a leaf by its place in the flat leaf: `w[2,0]`."""
    if not shape:
        return leaf
    return f"{leaf}[{','.join(map(str, np.unravel_index(place, shape)))}]"


def name_of(like: Vector, place: int) -> str:
    """Return the name of an entry by its place in the flat vector."""
    for leaf, array in zip(leaf_names(like), jax.tree.leaves(like), strict=True):
        size = math.prod(array.shape)
        if place < size:
            return entry_name(leaf, array.shape, place)
        place -= size
    raise IndexError(place)
