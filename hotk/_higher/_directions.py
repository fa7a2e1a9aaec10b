r"""Mixed partial derivatives as sums of derivatives along directions.

The K-th derivative along v is $(v \cdot \partial)^K f$, so a polynomial in $\partial$
that is homogeneous of order K is a sum of powers of linear forms: one direction each.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._core import Point, is_divided_by_type
from hotk._mode import Seeds, support


Index = tuple[tuple[int, int], ...]
"""A multi-index: pairs of a flat place and how often it is differentiated by."""


def order_of(index: Index) -> int:
    """Return the order of a partial derivative."""
    return sum(power for _, power in index)


class Table(NamedTuple):
    r"""Directions, sparse: direction r is $\sum_s$ `values[r, s] e[places[r, s]]`.

    Attributes:
        places: Flat places in the point.
        values: Whole numbers, zero where a direction has fewer.
        matrix: `matrix[r, a]`: how much of direction r partial derivative a has.
    """

    places: np.ndarray
    values: np.ndarray
    matrix: np.ndarray


@functools.lru_cache(maxsize=64)
def table_of(indices: tuple[Index, ...]) -> Table:
    """Return the directions for partial derivatives of one order, each one once."""
    # Fractions, not floats: weights of one direction from several terms may cancel, and
    # must then be zero.
    weights: dict[Index, dict[int, Fraction]] = {}
    for a, index in enumerate(indices):
        for direction, weight in _powers(index):
            row = weights.setdefault(direction, {})
            row[a] = row.get(a, Fraction(0)) + weight
    width = max(map(len, weights))
    places = np.zeros((len(weights), width), np.int32)
    values = np.zeros((len(weights), width), np.int32)
    matrix = np.zeros((len(weights), len(indices)))
    for r, (direction, row) in enumerate(weights.items()):
        for s, (place, value) in enumerate(direction):
            places[r, s], values[r, s] = place, value
        for a, weight in row.items():
            matrix[r, a] = float(weight)
    return Table(places, values, matrix)


def _powers(index: Index) -> Iterator[tuple[Index, Fraction]]:
    r"""Write a monomial as a sum of powers of linear forms.

    With $h_i = s_i / 2 - v_i$ it is $\prod_i x_i^{s_i} = \frac{1}{s!} \sum_v
    (-1)^{\sum v} \prod_i \binom{s_i}{v_i} (\sum_i h_i x_i)^s$, where each $v_i$ runs
    from 0 to $s_i$ (Kan, 2008: From moments of sum to moments of product. J.
    Multivariate Anal. 99(3), 542-554, equation 3). Directions have integer entries
    without a common factor, so that several monomials share equal ones.
    """
    if not index:  # the function itself, along no direction
        yield ((0, 0),), Fraction(1)
        return
    places, powers = zip(*index, strict=True)
    order = sum(powers)
    if len(index) == 1:  # a power already: one direction, not about s / 2 of them
        yield ((places[0], 1),), Fraction(1)
        return
    for v in itertools.product(*(range(s + 1) for s in powers)):
        form = [s - 2 * k for s, k in zip(powers, v, strict=True)]  # twice h
        factor = math.gcd(*form)
        if factor == 0:  # h = 0: the power of a form that is zero
            continue
        # v and s - v give one line, as h changes its sign: one direction for both.
        sign = 1 if next(h for h in form if h) > 0 else -1
        pairs = zip(places, form, strict=True)
        direction = tuple((p, sign * h // factor) for p, h in pairs if h)
        weight = Fraction((-1) ** sum(v), math.factorial(order))
        for s, k in zip(powers, v, strict=True):
            weight *= math.comb(s, k)
        yield direction, weight * Fraction(sign * factor, 2) ** order


@functools.lru_cache(maxsize=16)
def sorted_places(n: int, order: int) -> np.ndarray:
    """Return all sorted tuples of places: one for each entry of a symmetric tensor."""
    rows = itertools.combinations_with_replacement(range(n), order)
    count = math.comb(n + order - 1, order)
    flat = itertools.chain.from_iterable(rows)
    return np.fromiter(flat, np.int32, count * order).reshape(count, order)


def numbers_of(places: np.ndarray, n: int) -> np.ndarray:
    """Return the numbers of sorted tuples among all, in lexicographic order."""
    order = places.shape[-1]
    # Places may repeat; place i plus i does not, and is a combination of n + order - 1
    # things, which have a closed formula. Enumerating all of them would be n^order.
    last = n + order - 2 - (places.astype(np.int64) + np.arange(order))
    total = np.full(places.shape[:-1], math.comb(n + order - 1, order) - 1, np.int64)
    for i in range(order):
        chosen = [math.comb(b, order - i) for b in range(n + order)]
        total -= np.array(chosen, np.int64)[last[..., i]]
    return total


def entries_from_directions(
    n: int, order: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield how the entries of a symmetric tensor follow, by the powers in them.

    Entries such as $T_{iij}$ and $T_{kkl}$ have the powers (2, 1) and the same factors.
    Direction r is the sum of the unit vectors at row r of `sorted_places`.

    Yields:
        The numbers of the entries, for each of them numbers of directions, and the
        factors of the derivatives along these.
    """
    rows = sorted_places(n, order)
    numbers_by_powers: dict[tuple[int, ...], list[int]] = {}
    places: dict[tuple[int, ...], list[list[int]]] = {}
    for number, row in enumerate(rows.tolist()):
        # The highest power first: (1, 2) needs no factors beside those of (2, 1).
        counted = [(-len(list(group)), p) for p, group in itertools.groupby(row)]
        counted.sort()
        powers = tuple(-count for count, _ in counted)
        numbers_by_powers.setdefault(powers, []).append(number)
        places.setdefault(powers, []).append([p for _, p in counted])
    for powers, numbers in numbers_by_powers.items():
        combined, factors = interpolation(powers)
        chosen = np.array(places[powers], np.int32)[:, combined]
        directions = numbers_of(np.sort(chosen, axis=-1), n)
        yield np.array(numbers), directions, factors


@functools.lru_cache(maxsize=64)
def interpolation(powers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    r"""Return how a mixed derivative follows from derivatives along directions.

    The directions are multi-indices j of the same order K, as many as there are entries
    in a symmetric tensor: with $\gamma_{ij} = \sum_{0 < k \le i} (-1)^{|i - k|}
    \binom{i}{k} \binom{K k / |k|}{j} (|k| / K)^K$, derivative i is $\sum_j
    \gamma_{ij} / K!$ times that along j (Griewank, Utke and Walther, 2000: Evaluating
    higher derivative tensors by forward propagation of univariate Taylor series. Math.
    Comp. 69, 1117-1130, equation 13).

    Args:
        powers: The multi-index i, without zeros.

    Returns:
        For each direction K numbers of variables, whose unit vectors it is the sum of,
        and its factor.
    """
    order = sum(powers)
    rows = sorted_places(len(powers), order)
    counts = np.stack([(rows == p).sum(axis=1) for p in range(len(powers))], axis=1)
    # The terms alternate and nearly cancel, so the sum is one of integers: floats would
    # lose their digits. Python's own integers serve where 64 bits would overflow.
    integer = np.int64 if order <= 10 else object
    total = np.zeros(len(rows), integer)
    for k in itertools.product(*(range(s + 1) for s in powers)):
        size = sum(k)
        term = np.full(len(rows), (-1) ** (order - size), integer)
        for p, (s, m) in enumerate(zip(powers, k, strict=True)):
            # size^j j! binomial(order m / size, j); the size^j make size^order, which
            # cancels |k|^K
            steps = [order * m - i * size for i in range(order)]
            falling = [math.prod(steps[:t]) for t in range(order + 1)]
            term *= math.comb(s, m) * np.array(falling, integer)[counts[:, p]]
        total += term if size else 0
    factorials = np.array([math.factorial(t) for t in range(order + 1)], integer)
    divisor = order**order * math.factorial(order)
    divisors = (factorials[counts].prod(axis=1) * divisor).tolist()
    factors = [a / b for a, b in zip(total.tolist(), divisors, strict=True)]
    return rows, np.array(factors, float)


def unit_seeds(x: Point) -> PyTree[Seeds | None] | None:
    """Return all unit directions of a point, `None` if they save nothing.

    They do where there is only one, or the point is divided along explicit axes. A leaf
    without entries has `None`.
    """
    leaves, treedef = jax.tree.flatten(x)
    starts = [0, *itertools.accumulate(leaf.size for leaf in leaves)]
    if starts[-1] < 2 or any(map(is_divided_by_type, leaves)):
        return None
    pairs = zip(starts, leaves, strict=False)
    units = lambda start, leaf: _units(start, leaf.shape) if leaf.size else None
    return treedef.unflatten(units(start, leaf) for start, leaf in pairs)


def sparse_seeds(table: Table, x: Point) -> PyTree[Seeds | None] | None:
    """Return the directions of a table, `None` if they save nothing.

    Args:
        table: The directions.
        x: The point. A leaf that no direction moves has `None`.
    """
    leaves, treedef = jax.tree.flatten(x)
    if any(map(is_divided_by_type, leaves)):
        return None
    starts = [0, *itertools.accumulate(leaf.size for leaf in leaves)]
    direction, column = np.nonzero(table.values)
    place = table.places[direction, column]
    value = table.values[direction, column]
    made: list[Seeds | None] = []
    for start, leaf in zip(starts, leaves, strict=False):
        here = (place >= start) & (place < start + leaf.size)
        found = _sparse(direction[here], place[here] - start, value[here], leaf.shape)
        if found is not None and 2 * found.support.slots > len(table.places):
            return None
        made.append(found)
    return treedef.unflatten(made)


def _units(start: int, shape: tuple[int, ...]) -> Seeds:
    size = int(np.prod(shape))
    of = np.arange(start, start + size, dtype=np.int32).reshape(1, *shape)
    ones = np.ones((1, *shape))
    return Seeds(ones, support(of, ones.astype(bool)))


def _sparse(
    direction: np.ndarray, place: np.ndarray, value: np.ndarray, shape: tuple[int, ...]
) -> Seeds | None:
    """Return the seeds of one leaf, given the entries that are not zero."""
    if not place.size:
        return None
    size = int(np.prod(shape))
    order = np.argsort(place, kind="stable")
    direction, place, value = direction[order], place[order], value[order]
    counts = np.bincount(place, minlength=size)
    rank = np.arange(place.size) - (np.cumsum(counts) - counts)[place]
    slots = int(counts.max())
    of = np.zeros((slots, size), np.int32)
    values, live = np.zeros((slots, size)), np.zeros((slots, size), bool)
    of[rank, place], values[rank, place], live[rank, place] = direction, value, True
    whole = (slots, *shape)
    return Seeds(values.reshape(whole), support(of.reshape(whole), live.reshape(whole)))
