r"""Which rows of an arrow of blocks are eliminated first, all together."""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ._pattern import Pattern
from ._positions import distinct


# A loop runs over the rows of a block, so blocks are small.
_LARGEST_BLOCK = 16
# What is left is a dense matrix: of this size its factors take about a second.
_MOST_LEFT = 4000
# Whether what is left is sparse is not asked: the blocks take at least a part of the
# work. In dense matrices as many multiplications take a thirtieth of the time.
_FASTER = 30
# The Python around a product of two panels takes as long as so many of these.
_PRODUCT = 400_000
# Each block that two panels have in common takes a few numbers of memory.
_MOST_IN_COMMON = 20_000_000
_ROUNDS = 8


class Panel(NamedTuple):
    """Columns of B that have entries in the same rows.

    Attributes:
        rows: Those rows.
        cols: The columns, of all that are left.
        start: Where its entries start among those of all panels, row by row.
        size: How many rows the blocks have that these rows are of, 1 if not the same.
    """

    rows: Int[np.ndarray, " r"]
    cols: slice
    start: int
    size: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.cols.stop - self.cols.start

    def of(self, entries: np.ndarray) -> np.ndarray:
        """Return the panel of all entries."""
        size = self.rows.size * self.width
        return entries[self.start : self.start + size].reshape(-1, self.width)


class PanelProduct(NamedTuple):
    """Two panels, and where the rows that they have in common are in each.

    Attributes:
        in_first: The numbers of these rows, so many at once, in the first panel.
        in_second: The same in the second.
        size: How many: whole blocks are copied faster than single rows.
    """

    first: Panel
    second: Panel
    in_first: Int[np.ndarray, " k"]
    in_second: Int[np.ndarray, " k"]
    size: int

    def common(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the common rows of the first panel and of the second."""
        return (
            _taken(self.first.of(entries), self.in_first, self.size),
            _taken(self.second.of(entries), self.in_second, self.size),
        )


class Step(NamedTuple):
    """Rows of panels of one width that are rows of one number in their blocks.

    Attributes:
        entries: Which entries the panels of this width have.
        width: How many columns they have.
        number: Which row of a block it is.
        rows: Which rows of these panels, one in so many where they allow it.
        blocks: Which rows of D these are.
    """

    entries: slice
    width: int
    number: int
    rows: slice | Int[np.ndarray, " k"]
    blocks: Int[np.ndarray, " k"]

    def before(self, k: int) -> slice | Int[np.ndarray, " k"]:
        """Return which rows stand so many rows before."""
        if isinstance(self.rows, slice):
            return slice(self.rows.start - k, self.rows.stop - k, self.rows.step)
        return self.rows - k


class Elimination(NamedTuple):
    r"""Where the entries of $\begin{pmatrix} D & B \\ B^T & C \end{pmatrix}$ are.

    Attributes:
        order: Which row of the matrix each row is.
        starts: The first row of each block of D, the largest blocks first.
        sizes: The number of rows of each.
        number: Which row of its block each row of D is.
        blocks: Which entry of the matrix each of D's is, up to the diagonal, in as many
            columns as the largest block has; `nnz` for a zero.
        entries: Which entry each of B's is, panel by panel.
        panels: The columns of B.
        steps: The rows of B, in the order in which they are solved for.
        products: Pairs of panels with rows in common.
        left: The number of rows of C.
        within: Which entry each of C's is, up to the diagonal.
        at: Row and column of each in C.
        diagonal: Which entry stands on the diagonal of each row; `nnz` if none does.
        across: Which entry each entry of the transpose is.
        work: How many multiplications factors take.
    """

    order: Int[np.ndarray, " n"]
    starts: Int[np.ndarray, " k"]
    sizes: Int[np.ndarray, " k"]
    number: Int[np.ndarray, " m"]
    blocks: Int[np.ndarray, "m size"]
    entries: Int[np.ndarray, " nnz_B"]
    panels: list[Panel]
    steps: list[Step]
    products: list[PanelProduct]
    left: int
    within: Int[np.ndarray, " nnz_C"]
    at: tuple[Int[np.ndarray, " nnz_C"], Int[np.ndarray, " nnz_C"]]
    diagonal: Int[np.ndarray, " n"]
    across: Int[np.ndarray, " nnz"]
    work: float

    def in_order(
        self,
        blocks: Float[np.ndarray, "m size"],
        panels: Float[np.ndarray, " nnz_B"],
        rest: Float[np.ndarray, "c c"],
    ) -> Float[np.ndarray, " nnz"]:
        """Return the entries of a symmetric matrix from those of its parts."""
        nnz = self.across.size
        entries = np.full(nnz, np.nan, blocks.dtype)
        inside = self.blocks < nnz
        entries[self.blocks[inside]] = blocks[inside]
        entries[self.entries] = panels
        entries[self.within] = rest[self.at]
        # Those above the diagonal of a block, of C, and the transpose of B.
        return np.where(np.isnan(entries), entries[self.across], entries)


def elimination(pattern: Pattern) -> Elimination | None:
    """Return how an arrow of blocks is eliminated; derived once for a pattern.

    Args:
        pattern: The pattern of a symmetric matrix.

    Returns:
        Where its entries are; `None` if there are no such blocks, or if a dense matrix
        of the other rows takes more time than these.
    """
    return pattern.derived("elimination", lambda: (_elimination(pattern),))[0]


def _elimination(pattern: Pattern) -> Elimination | None:
    n = pattern.shape[0]
    first, number = _alike(pattern)
    count, sizes = first.size, np.bincount(number)
    # The rows that are alike, as nodes of a graph.
    mine = np.zeros(n, bool)
    mine[first] = True
    mine = mine[pattern.rows]
    pairs = distinct(
        number[pattern.rows[mine]].astype(np.int64) * count + number[pattern.cols[mine]]
    )
    heads, tails = np.divmod(pairs, count)
    apart = heads != tails
    heads, tails = heads[apart], tails[apart]
    chosen = _independent(heads, tails, sizes)
    left = int(sizes[~chosen].sum())
    if left > _MOST_LEFT or not chosen.any():
        return None
    among = chosen[heads]
    degrees = np.bincount(heads[among], minlength=count)
    meets = np.bincount(heads[among], sizes[tails[among]], minlength=count)
    own, meets, degrees = sizes[chosen], meets[chosen], degrees[chosen]
    work, dense = float((own * (own + meets) ** 2).sum()), left**3 / 3
    if dense > _FASTER * work:
        return None
    if (degrees * (degrees - 1.0) / 2).sum() > _MOST_IN_COMMON:
        return None
    most = (_FASTER * work - dense) / _PRODUCT
    return _placed(pattern, number, sizes, chosen, work + dense, most)


def _alike(pattern: Pattern) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " n"]]:
    """Group rows with entries in the same columns, those of each other among them.

    Returns:
        The first row of each group, and the group of each row.
    """
    n, starts = pattern.shape[0], pattern.starts
    # Two sums of such numbers are equal by chance once in 2^64.
    weights = np.random.default_rng(0).integers(1, 2**64, n, dtype=np.uint64)
    sums = np.append(np.uint64(0), np.cumsum(weights[pattern.cols]))
    keys = sums[starts[1:]] - sums[starts[:-1]]
    missing = np.ones(n, bool)
    missing[pattern.rows[pattern.rows == pattern.cols]] = False
    keys[missing] += weights[missing]
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return first, number.reshape(-1)


def _independent(
    heads: Int[np.ndarray, " e"],
    tails: Int[np.ndarray, " e"],
    sizes: Int[np.ndarray, " k"],
) -> Bool[np.ndarray, " k"]:
    """Choose small groups of rows of which no two meet, those that meet few first."""
    count = sizes.size
    meets = np.bincount(heads, sizes[tails], minlength=count)
    # Of those that meet as many, one at random: in their own order a chain would give
    # one in each round.
    chance = np.random.default_rng(0).permutation(count)
    rank = np.empty(count, np.int64)
    rank[np.lexsort((chance, meets))] = np.arange(count)
    free, chosen = sizes <= _LARGEST_BLOCK, np.zeros(count, bool)
    for _ in range(_ROUNDS):
        among = free[heads] & free[tails]
        least = np.full(count, count)
        np.minimum.at(least, heads[among], rank[tails[among]])
        taken = free & (rank < least)
        chosen |= taken
        free &= ~taken
        free[tails[taken[heads]]] = False
        if not free.any():
            break
    return chosen


def _placed(
    pattern: Pattern,
    number: Int[np.ndarray, " n"],
    sizes: Int[np.ndarray, " k"],
    chosen: Bool[np.ndarray, " k"],
    work: float,
    most_products: float,
) -> Elimination | None:
    """Put the chosen groups first, the largest before others, and find all entries."""
    size, last = sizes[number], ~chosen[number]
    # Panels of one width stand together, so that they are solved for together.
    order = np.lexsort((number, -size, last))
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    m = int(order.size - last.sum())
    is_first = np.append(True, number[order][1:] != number[order][:-1])
    starts = np.flatnonzero(is_first)
    group = np.cumsum(is_first) - 1
    widths = sizes[number[order[starts]]]
    rows, cols = place[pattern.rows], place[pattern.cols]

    within = np.flatnonzero((rows < m) & (cols <= rows))
    blocks = np.full((m, int(widths[0])), pattern.nnz, np.int64)
    blocks[rows[within], cols[within] - starts[group[rows[within]]]] = within

    beside = np.flatnonzero((rows < m) & (cols >= m))
    by_panel = np.lexsort((cols[beside], rows[beside], group[cols[beside]]))
    entries = beside[by_panel]
    panels = _panels(rows[entries], group[cols[entries]], group, starts - m, widths)
    number = np.arange(m) - starts[group[:m]]
    products = _products(panels, number, group, widths, most_products)
    if products is None:
        return None
    rest = np.flatnonzero((cols >= m) & (cols <= rows))
    on_diagonal = np.flatnonzero(pattern.rows == pattern.cols)
    diagonal = np.full(order.size, pattern.nnz)
    diagonal[rows[on_diagonal]] = on_diagonal
    inner = starts < m
    return Elimination(
        order,
        starts[inner],
        widths[inner],
        number,
        blocks,
        entries,
        panels,
        _steps(panels, number),
        products,
        order.size - m,
        rest,
        (rows[rest] - m, cols[rest] - m),
        diagonal,
        pattern.transposed()[1],
        work,
    )


def _panels(
    rows: Int[np.ndarray, " nnz_B"],
    groups: Int[np.ndarray, " nnz_B"],
    of_row: Int[np.ndarray, " n"],
    starts: Int[np.ndarray, " k"],
    widths: Int[np.ndarray, " k"],
) -> list[Panel]:
    found = []
    for low, high in _runs(groups):
        group = groups[low]
        width, start = int(widths[group]), int(starts[group])
        cols = slice(start, start + width)
        own = rows[low:high:width]
        sizes = widths[of_row[own]]
        size = int(sizes[0]) if np.all(sizes == sizes[0]) else 1
        found.append(Panel(own, cols, int(low), size))
    return found


def _steps(panels: list[Panel], number: Int[np.ndarray, " m"]) -> list[Step]:
    """Return how to solve with the blocks: first the first row of each."""
    found = []
    for width, same in itertools.groupby(panels, key=lambda panel: panel.width):
        together = list(same)
        rows = np.concatenate([panel.rows for panel in together])
        start = together[0].start
        entries = slice(start, start + rows.size * width)
        for k in range(int(number[rows].max()) + 1):
            here = np.flatnonzero(number[rows] == k)
            found.append(Step(entries, width, k, _evenly(here), rows[here]))
    return found


def _products(
    panels: list[Panel],
    number: Int[np.ndarray, " m"],
    group: Int[np.ndarray, " n"],
    sizes: Int[np.ndarray, " k"],
    most: float,
) -> list[PanelProduct] | None:
    """Return all pairs of panels with rows in common, `None` if there are too many."""
    if not panels:
        return []
    heads = [np.flatnonzero(number[panel.rows] == 0) for panel in panels]
    panel = np.repeat(np.arange(len(panels)), [head.size for head in heads])
    head = np.concatenate(heads)
    block = np.concatenate(
        [group[p.rows[h]] for p, h in zip(panels, heads, strict=True)]
    )
    by_block = np.argsort(block, kind="stable")
    panel, head, block = panel[by_block], head[by_block], block[by_block]
    # Each with all that come later in its block.
    ends = np.searchsorted(block, block, side="right")
    later = ends - np.arange(block.size) - 1
    first = np.repeat(np.arange(block.size), later)
    offset = np.arange(first.size) - np.repeat(np.cumsum(later) - later, later)
    second = first + 1 + offset
    keys = panel[first] * len(panels) + panel[second]
    by_pair = np.argsort(keys, kind="stable")
    first, second, keys = first[by_pair], second[by_pair], keys[by_pair]
    runs = _runs(keys)
    if len(runs) > most:
        return None
    found = []
    for low, high in runs:
        one, other = first[low:high], second[low:high]
        pair = panels[panel[one[0]]], panels[panel[other[0]]]
        if pair[0].size == pair[1].size > 1:
            size = pair[0].size
            places = head[one] // size, head[other] // size
        else:
            each, size = sizes[block[one]], 1
            starts = np.repeat(np.cumsum(each) - each, each)
            within = np.arange(starts.size) - starts
            places = tuple(np.repeat(head[at], each) + within for at in (one, other))
        found.append(PanelProduct(*pair, places[0], places[1], size))
    return found


def _runs(keys: Int[np.ndarray, " k"]) -> list[tuple[int, int]]:
    """Return where each run of equal numbers begins and ends."""
    if not keys.size:
        return []
    bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), keys.size]
    return [*itertools.pairwise(bounds)]


def _taken(panel: np.ndarray, which: Int[np.ndarray, " k"], size: int) -> np.ndarray:
    """Copy rows of a panel, so many at once."""
    width = panel.shape[1]
    return np.take(panel.reshape(-1, size * width), which, axis=0).reshape(-1, width)


def _evenly(rows: Int[np.ndarray, " k"]) -> slice | Int[np.ndarray, " k"]:
    """Return rows that stand at equal distances as a slice, which copies nothing."""
    steps = np.diff(rows)
    if not steps.size or np.any(steps != steps[0]):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]))
