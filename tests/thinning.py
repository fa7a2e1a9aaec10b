"""Which tests are in the default run, and which are marked `exhaustive`.

A test with many ids that make one claim is marked `thinned(n)`: `n` of its ids, spread
over all of them, stay in the default run, and the others are `exhaustive`. Names of
parameters may follow, each value of which stays at least once, be it more than `n` ids:

    @pytest.mark.thinned(12, "nesting")
    @pytest.mark.parametrize("nesting", NESTINGS)
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_a_claim(name, nesting): ...

`--part 2/7` runs the second seventh of whatever is chosen. Each test is in one of them.
"""

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def mark_exhaustive(items: Iterable[pytest.Item]) -> None:
    """Mark the ids of thinned tests that are not in the default run."""
    claim = lambda item: item.nodeid.partition("[")[0]
    for _, ids in itertools.groupby(items, claim):
        # What is left out anyhow stands for nothing.
        ids = [item for item in ids if not left_out(item)]
        marker = ids[0].get_closest_marker("thinned") if ids else None
        if marker is not None:
            for item in {*ids} - {*kept(ids, *marker.args)}:
                item.add_marker(pytest.mark.exhaustive)


def in_part(item: pytest.Item, part: str) -> bool:
    """Whether a test is in the part "i/n", counted from 1."""
    index, _, count = part.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise pytest.UsageError(f"--part: expected i/n with 1 <= i <= n, got {part!r}")
    return int.from_bytes(_hash(item)[:8], "big") % int(count) == int(index) - 1


def left_out(item: pytest.Item) -> bool:
    """Whether the default run is without a test, by a marker of its own."""
    return any(item.get_closest_marker(name) for name in ("exhaustive", "slow"))


def kept(items: list[pytest.Item], count: int, *parameters: str) -> list[pytest.Item]:
    """Choose ids of one test: each value of these parameters, and `count` in all."""
    values = {item: set(_values(item, parameters)) for item in items}
    missing = set().union(*values.values())
    # An order that has nothing to do with that of the values, and never changes.
    mixed = {item: _hash(item) for item in items}
    chosen: list[pytest.Item] = []
    left = sorted(items, key=mixed.__getitem__)
    while missing:
        best = max(left, key=lambda item: len(values[item] & missing))
        chosen.append(best)
        left.remove(best)
        missing -= values[best]
    rest = [item for item in items if item not in chosen]
    more = min(len(rest), max(0, count - len(chosen)))
    # One of each stretch: each n-th would be the same value of a parameter each time.
    ends = [i * len(rest) // more for i in range(more + 1)] if more else []
    for start, end in itertools.pairwise(ends):
        chosen.append(min(rest[start:end], key=mixed.__getitem__))
    return chosen


def _hash(item: pytest.Item) -> bytes:
    return hashlib.sha256(item.nodeid.encode()).digest()


def _values(item: Any, parameters: tuple[str, ...]) -> Iterable[tuple[str, int | str]]:
    """Name the values of parameters by what can be compared."""
    for name in parameters:
        value = item.callspec.params[name]
        yield name, value if isinstance(value, str) else id(value)
