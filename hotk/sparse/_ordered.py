"""Numbers put into the order of a matrix: side by side where its rows repeat."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from hotk._core import has_explicit_axes
from hotk._primitive import written

from ._coefficients import read_at
from ._positions import Positions


# With more entries in a row a gather is faster.
_MOST_COLUMNS = 3
# So many rows at least, and so many runs of entries outside of them at most.
_LEAST_ROWS, _MOST_RUNS = 1000, 32
# Few entries stand outside of a band: fewer than its entries over this.
_LITTLE = 8


class _Band(NamedTuple):
    """Rows of which each is the one before it, read one place further.

    Attributes:
        begin: Where they begin among all entries.
        end: Where they end.
        columns: How many entries each has.
    """

    begin: int
    end: int
    columns: int


def in_order(arrays: Sequence[Array], places: Positions) -> Array:
    """Return `jnp.concatenate(arrays)[places]`.

    The rows of a band matrix are columns that stand side by side: XLA computes them
    there. Otherwise the arrays are written, and gathered.
    """
    bounds = np.cumsum([0, *(array.size for array in arrays)])
    which = np.searchsorted(bounds, places, "right") - 1
    band = _band(places, which)
    if band is None:
        return read_at(written(*arrays), places)

    def part(first: int, count: int) -> Array:
        i = which[first]
        begin = int(places[first] - bounds[i])
        return arrays[i][begin : begin + count]

    rows = (band.end - band.begin) // band.columns
    columns = [part(band.begin + k, rows) for k in range(band.columns)]
    body = jnp.stack(columns, axis=1).reshape(-1)
    outside = (0, band.begin), (band.end, places.size)
    before, after = (
        [part(*run) for run in _runs(places, which, *ends)] for ends in outside
    )
    # An array on explicit axes of a mesh is written into one on the same alone.
    explicit = any(map(has_explicit_axes, (*before, body, *after)))
    if explicit or places.size - body.size > body.size // _LITTLE:
        return jnp.concatenate([*before, body, *after])
    # A concatenation asks for each entry which part it is of. Beside a few entries that
    # takes longer than to write the band into zeros. The band comes first: XLA writes
    # only the first one in the loop that computes it.
    total = jnp.zeros(places.size, body.dtype)
    total = lax.dynamic_update_slice(total, body, (band.begin,))
    for begin, parts in ((0, before), (band.end, after)):
        if parts:
            ends = jnp.concatenate(parts)
            total = lax.dynamic_update_slice(total, ends, (begin,))
    return total


def _band(places: Positions, which: Positions) -> _Band | None:
    """Return the band that all entries but a few runs are in, if there is one.

    Args:
        places: Where entries are read.
        which: In which array.
    """
    half = places.size // 2
    for columns in range(1, _MOST_COLUMNS + 1):
        if places.size < columns * _LEAST_ROWS:
            return None
        near = places[half - columns : half + columns]
        if (near[columns:] - near[:columns] != 1).any():
            continue
        further = places[columns:] - places[:-columns] == 1
        breaks = np.flatnonzero(~further | (which[columns:] != which[:-columns]))
        begin = int(breaks[breaks < half].max(initial=-1)) + 1
        end = int(breaks[breaks >= half].min(initial=further.size)) + columns
        end -= (end - begin) % columns
        outside = ((0, begin), (end, places.size))
        runs = sum(len(_runs(places, which, *ends)) for ends in outside)
        if end - begin >= columns * _LEAST_ROWS and runs <= _MOST_RUNS:
            return _Band(begin, end, columns)
    return None


def _runs(
    places: Positions, which: Positions, begin: int, end: int
) -> list[tuple[int, int]]:
    """Return where entries in a range are read one after the other, and how many."""
    if begin == end:
        return []
    here, array = places[begin:end], which[begin:end]
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(array) != 0)) + 1
    firsts = np.concatenate([[0], breaks, [end - begin]])
    pairs = itertools.pairwise(firsts)
    return [(begin + int(a), int(b - a)) for a, b in pairs]
