"""Numbers that are read from several arrays as if these were one."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._primitive import written

from ._coefficients import read_at
from ._positions import Positions
from ._shared import Multiple


# A part that is read in more runs is read at each place.
_MOST_RUNS = 16


class Parts:
    """The entries of several arrays, one array after the other.

    An array that several parts are multiples of is there once. Arrays are joined to be
    read at scattered places, and only those that are; others are read by slices.

    Attributes:
        factors: The different factors of the parts.
        kinds: For each entry, which of these it has.

    Args:
        parts: The arrays, of one axis.
        places: Which entries of each are there; all if left out.
    """

    def __init__(
        self,
        parts: Sequence[Multiple],
        places: Sequence[Positions | None] | None = None,
    ) -> None:
        self._parts = list(parts)
        self._places = [None] * len(parts) if places is None else list(places)
        arrays = {id(part.array): part.array for part in parts}
        self._arrays = list(arrays.values())
        self._bounds = np.cumsum([0, *(array.size for array in self._arrays)])
        begins = dict(zip(arrays, self._bounds, strict=False))
        self.factors = sorted({part.factor for part in parts}, reverse=True)
        sources, kinds = [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for part, own in zip(self._parts, self._places, strict=True):
            own = np.arange(part.array.size) if own is None else own
            sources.append(own + begins[id(part.array)])
            kinds.append(np.full(own.size, self.factors.index(part.factor), np.int8))
        self._sources, self.kinds = np.concatenate(sources), np.concatenate(kinds)
        self._joined = np.zeros(len(self._arrays), bool)
        self._whole: tuple[int, Array, Positions] | None = None

    def multiplied(self) -> "Parts":
        """Return the same entries with factors of one."""
        made: dict[tuple[float, int], Multiple] = {}
        for part in self._parts:
            key = part.factor, id(part.array)
            if key not in made:
                made[key] = Multiple(1.0, part.multiplied())
        parts = [made[part.factor, id(part.array)] for part in self._parts]
        return Parts(parts, self._places)

    def prepare(self, entries: Positions) -> None:
        """Note which entries will be added: a row of them for each sum."""
        if self._runs(entries) is None:
            self._joined[self._array_of(self._sources[entries])] = True

    def sums(self, entries: Positions) -> list[Array]:
        """Add the entries of each row; the factors are the same in all rows.

        Returns:
            Some arrays, one after the other.
        """
        runs = self._runs(entries)
        if runs is not None:
            factor = self.factors[self.kinds[entries[0, 0]]]
            slices = self._slices(runs)
            return slices if factor == 1.0 else [factor * part for part in slices]
        total, factor = None, 1.0
        for k, kind in enumerate(self.kinds[entries[0]]):
            term = self._gathered(self._sources[entries[:, k]])
            own = self.factors[kind]
            if total is None:
                total, factor = term, own
            elif own == factor:
                total = total + term
            else:
                total, factor = factor * total + own * term, 1.0
        assert total is not None
        return [total if factor == 1.0 else factor * total]

    def total(self, entries: Positions) -> Array:
        """Add all of some entries."""
        total = 0.0
        for kind in np.unique(self.kinds[entries]):
            own = np.sort(entries[self.kinds[entries] == kind])
            runs = self._runs(own[:, None])
            sources = self._sources[own]
            terms = [self._gathered(sources)] if runs is None else self._slices(runs)
            total = total + self.factors[kind] * sum(map(jnp.sum, terms))
        return jnp.asarray(total)

    def read(self, entries: Positions) -> Array:
        """Return entries in any order."""
        terms = self._gathered(self._sources[entries])
        if self.factors == [1.0]:
            return terms
        return terms * np.asarray(self.factors, terms.dtype)[self.kinds[entries]]

    def _runs(self, entries: Positions) -> list[tuple[int, int]] | None:
        """Return the runs that sums of one entry each are read in, if these are few."""
        if entries.shape[1] != 1 or not entries.size:
            return None
        sources = self._sources[entries[:, 0]]
        # where the next is not the next one, or is one of another array
        which = self._array_of(sources)
        breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(which) != 0))
        if breaks.size > _MOST_RUNS + 2 * len(self._parts):
            return None
        begins, ends = np.append(0, breaks + 1), np.append(breaks, sources.size - 1)
        pairs = zip(sources[begins], sources[ends] + 1, strict=True)
        return [(int(first), int(end)) for first, end in pairs]

    def _slices(self, runs: list[tuple[int, int]]) -> list[Array]:
        slices = []
        for first, end in runs:
            i = int(self._array_of(np.asarray(first)))
            if self._joined[i]:  # it is computed there, not a second time
                whole, shifts = self._join()
                slices.append(whole[first + int(shifts[i]) : end + int(shifts[i])])
            else:
                begin = int(self._bounds[i])
                slices.append(self._arrays[i][first - begin : end - begin])
        return slices

    def _gathered(self, sources: Positions) -> Array:
        which = self._array_of(sources)
        self._joined[which] = True
        whole, shifts = self._join()
        return read_at(whole, sources + shifts[which])

    def _array_of(self, sources: Positions) -> Positions:
        return np.searchsorted(self._bounds, sources, "right") - 1

    def _join(self) -> tuple[Array, Positions]:
        """Join what is read at scattered places; return it, and how far each moved."""
        count = int(self._joined.sum())
        if self._whole is None or self._whole[0] != count:
            arrays = [a for a, j in zip(self._arrays, self._joined, strict=True) if j]
            sizes = np.where(self._joined, np.diff(self._bounds), 0)
            begins = np.cumsum(sizes) - sizes
            self._whole = count, written(*arrays), begins - self._bounds[:-1]
        return self._whole[1:]
