"""Sums of products of rows of a sparse matrix, block by block."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._coefficients import read_at
from ._entries import Entries
from ._positions import Positions


class AlikeProducts(NamedTuple):
    """Products of groups of rows that are alike: one for each group.

    Attributes:
        left: The first rows, of shape `(products, rows of a group)`.
        right: The second rows.
        entries: Which entry of a matrix multiplies each.
    """

    left: Positions
    right: Positions
    entries: Positions


class BlockRows(NamedTuple):
    """Rows of a sparse matrix, and which of its rows and columns belong together.

    Attributes:
        starts: Where each row begins among the entries, and their number.
        cols: The column of each entry.
        group: For each row the number of the first one with its columns.
        block: For each column the number of its block: those of one block have entries
            in the same rows.
        sizes: How many columns each block has.
        layout: For each row a number: rows of one number have as many entries, and the
            columns of their blocks at the same places.
    """

    starts: Positions
    cols: Positions
    group: Positions
    block: Positions
    sizes: Positions
    layout: Positions

    @staticmethod
    def of(rows: Positions, cols: Positions, shape: tuple[int, int]) -> "BlockRows":
        """Look which rows and columns belong together.

        Args:
            rows: The row of each entry, ascending.
            cols: Its column, ascending within a row.
            shape: How many rows and columns there are.
        """
        starts = np.searchsorted(rows, np.arange(shape[0] + 1))
        group = _first_alike(starts, cols)
        first = np.flatnonzero(group == np.arange(shape[0]))
        kept = np.isin(rows, first)
        by_column = np.argsort(cols[kept], kind="stable")
        column_starts = np.searchsorted(cols[kept][by_column], np.arange(shape[1] + 1))
        alike = _first_alike(column_starts, rows[kept][by_column])
        _, block = np.unique(alike, return_inverse=True)
        sizes = np.bincount(block, minlength=1)
        # The k-th different block of a row, for each of its entries.
        lengths = np.diff(starts)
        which = block[cols] + sizes.size * rows.astype(np.int64)
        order = np.argsort(which, kind="stable")
        new = np.append(True, np.diff(which[order]) != 0)[: which.size]
        number = np.empty(which.size, np.int64)
        number[order] = np.cumsum(new) - 1
        # counted from the first entry of the row: its blocks are in ascending order
        least = np.full(shape[0], np.iinfo(np.int64).max)
        np.minimum.at(least, rows, number)
        local = number - least[rows]
        layout = np.zeros(shape[0], np.int64)
        seen: dict[bytes, int] = {b"": 0}
        for length in np.unique(lengths[lengths > 0]):
            here = np.flatnonzero(lengths == length)
            places = local[starts[here][:, None] + np.arange(length)]
            kinds, of = np.unique(places, axis=0, return_inverse=True)
            numbers = [seen.setdefault(kind.tobytes(), len(seen)) for kind in kinds]
            layout[here] = np.asarray(numbers)[of.reshape(-1)]
        return BlockRows(starts, cols, group, block, sizes, layout)

    def places(self, rows: Positions) -> Positions:
        """Return where the entries of rows of one layout stand."""
        first = self.starts[rows]
        length = self.starts[rows.flat[0] + 1] - first.flat[0] if rows.size else 0
        return first[..., None] + np.arange(length)

    def blocks(self, row: int) -> list[tuple[int, Positions]]:
        """Return the blocks of a row, ascending, and where each stands in it."""
        of = self.block[self.cols[self.starts[row] : self.starts[row + 1]]]
        return [(int(b), np.flatnonzero(of == b)) for b in np.unique(of)]

    def numbers(self, kind: AlikeProducts) -> int:
        """Return how many numbers the products of a kind are."""
        a, b = (self.places(rows[:1, 0]).size for rows in (kind.left, kind.right))
        return len(kind.left) * a * b

    def kinds(self, left: Positions, right: Positions) -> list[AlikeProducts]:
        """Sort the entries of a matrix by the rows that they multiply.

        Args:
            left: The row that each multiplies from the left.
            right: The row from the right.
        """
        lengths = np.diff(self.starts)
        kept = np.flatnonzero((lengths[left] > 0) & (lengths[right] > 0))
        pair = self.group[left[kept]] * self.group.size + self.group[right[kept]]
        order = np.argsort(pair, kind="stable")
        kept, pair = kept[order], pair[order]
        first = np.flatnonzero(np.append(True, np.diff(pair) != 0)[: pair.size])
        counts = np.diff(np.append(first, pair.size))
        at = kept[first]
        codes = [counts, self.layout[left[at]], self.layout[right[at]]]
        codes.append(self.group[left[at]] == self.group[right[at]])
        different, of = np.unique(np.stack(codes, 1), axis=0, return_inverse=True)
        kinds = []
        for i, code in enumerate(different):
            here = first[of.reshape(-1) == i]
            which = kept[here[:, None] + np.arange(code[0])]
            kinds.append(AlikeProducts(left[which], right[which], which))
        return kinds


class BlockSums:
    """A square matrix that is the sum of products of blocks.

    Args:
        of_k: The rows that are multiplied.
        symmetric: Whether the matrix is: the blocks of its lower half are added alone.
    """

    def __init__(self, of_k: BlockRows, *, symmetric: bool) -> None:
        self._of_k, self._symmetric = of_k, symmetric
        # For blocks of each shape: which they are, and the numbers that are added.
        self._keys: dict[tuple[int, int], list[Positions]] = {}
        self._terms: dict[tuple[int, int], list[Array]] = {}

    def add(self, kind: AlikeProducts, parts: list[Array] | None) -> None:
        """Add the products of one kind.

        Args:
            kind: What is multiplied.
            parts: The factors of the products, and the entries of the rows; `None` for
                the pattern alone.
        """
        of_k = self._of_k
        left, right = kind.left[:, 0], kind.right[:, 0]
        one = bool(of_k.group[left[0]] == of_k.group[right[0]])
        cols = [of_k.cols[of_k.places(rows)] for rows in (left, right)]
        for i, at in of_k.blocks(int(left[0])):
            for j, to in of_k.blocks(int(right[0])):
                if one and self._symmetric and i < j:
                    continue
                rows = of_k.block[cols[0][:, at[0]]].astype(np.int64)
                key = rows * of_k.sizes.size + of_k.block[cols[1][:, to[0]]]
                kept = slice(None)
                if self._symmetric and not one:
                    kept = np.flatnonzero(rows >= of_k.block[cols[1][:, to[0]]])
                shape = at.size, to.size
                self._keys.setdefault(shape, []).append(key[kept])
                if parts is None:
                    continue
                m, u, v = parts
                u = u * m[..., None]
                a, b = _columns(u, at)[kept], _columns(v, to)[kept]
                if a.shape[1] == 1:
                    blocks = a[:, 0, :, None] * b[:, 0, None, :]
                else:
                    blocks = jnp.einsum("kea,keb->kab", a, b, precision="highest")
                self._terms.setdefault(shape, []).append(blocks)

    def entries(self, dtype: np.dtype, *, valued: bool) -> Entries:
        """Add what belongs to the same block, and return all entries in order."""
        of_k, n = self._of_k, self._of_k.block.size
        by_block = np.argsort(of_k.block, kind="stable")
        begins = np.cumsum(of_k.sizes) - of_k.sizes
        values = [jnp.zeros(0, dtype)]
        rows, cols, source = ([np.zeros(0, np.int64)] for _ in range(3))
        count = 0
        for shape, keys in self._keys.items():
            found, place = np.unique(np.concatenate(keys), return_inverse=True)
            i, j = np.divmod(found, of_k.sizes.size)
            if valued:
                terms = jnp.concatenate(self._terms[shape])
                total = jax.ops.segment_sum(terms, place.reshape(-1), found.size)
                values.append(total.reshape(-1))
            r = by_block[begins[i][:, None] + np.arange(shape[0])]
            c = by_block[begins[j][:, None] + np.arange(shape[1])]
            whole = (found.size, *shape)
            number = count + np.arange(np.prod(whole)).reshape(whole)
            r, c = (
                np.broadcast_to(r[:, :, None], whole),
                np.broadcast_to(c[:, None, :], whole),
            )
            count += number.size
            places = [(r, c, number)]
            if self._symmetric:
                other = np.flatnonzero(i != j)
                places.append((c[other], r[other], number[other]))
            for a, b, k in places:
                rows.append(a.reshape(-1))
                cols.append(b.reshape(-1))
                source.append(k.reshape(-1))
        row, col = np.concatenate(rows), np.concatenate(cols)
        order = np.argsort(row * n + col, kind="stable")
        row, col = row[order], col[order]
        if not valued:
            return Entries(None, row, col)
        flat = jnp.concatenate(values)
        return Entries(read_at(flat, np.concatenate(source)[order]), row, col)


def _columns(a: Array, at: Positions) -> Array:
    """Return some columns of the last axis, by a slice where they follow each other."""
    if at[-1] - at[0] + 1 == at.size:
        return a[..., int(at[0]) : int(at[-1]) + 1]
    return a[..., at]


def _first_alike(starts: Positions, items: Positions) -> Positions:
    """Return for each list the number of the first one with the same items.

    Args:
        starts: Where each list begins among the items, and their number.
        items: The items, ascending within a list.
    """
    lengths = np.diff(starts)
    first = np.arange(lengths.size)
    first[lengths == 0] = int(np.argmin(lengths)) if lengths.size else 0
    for length in np.unique(lengths[lengths > 0]):
        lists = np.flatnonzero(lengths == length)
        content = items[starts[lists][:, None] + np.arange(length)]
        # Sorting lists takes long: they are told apart by a number, which is checked.
        odd = np.random.default_rng(0).integers(2**62, size=length, dtype=np.uint64)
        numbers = (content.astype(np.uint64) * (2 * odd + 1)).sum(1, dtype=np.uint64)
        _, at, of = np.unique(numbers, return_index=True, return_inverse=True)
        of = of.reshape(-1)
        if (content[at][of] == content).all():
            first[lists] = lists[at][of]
    return first
