"""What the default run leaves out, and what house rules say when they fail."""

import itertools
from types import SimpleNamespace

import pytest

from tests.offenders import none
from tests.thinning import in_part, kept, mark_exhaustive


class Item(SimpleNamespace):
    """One id of a test, as pytest has it."""

    __hash__ = object.__hash__

    def get_closest_marker(self, name):
        return self.markers.get(name)

    def add_marker(self, marker):
        self.markers[marker.name] = marker


def ids(thinned=None, /, **values):
    """Make an id for each combination of values of parameters."""
    markers = {"thinned": pytest.mark.thinned(thinned)} if thinned else {}
    return [
        Item(
            nodeid=f"test_a[{'-'.join(map(str, combination))}]",
            callspec=SimpleNamespace(
                params=dict(zip(values, combination, strict=True))
            ),
            markers=dict(markers),
        )
        for combination in itertools.product(*values.values())
    ]


def test_so_many_ids_stay_and_they_are_spread():
    items = ids(name="abcdefghij")
    first, second = map(items.index, kept(items, 2))
    assert first < 5 <= second


def test_each_third_id_is_not_the_same_value_of_a_parameter():
    items = ids(name="abcdefghij", nesting=["one", "two", "three"])
    found = {item.callspec.params["nesting"] for item in kept(items, 10)}
    assert found == {"one", "two", "three"}


def test_no_more_than_there_are_stay():
    assert len(kept(ids(name="abc"), 9)) == 3


def test_each_value_of_the_named_parameters_stays():
    functions = [lambda x: x, lambda x: 2 * x]
    items = ids(name="abcdefg", nesting=["one", "two", "three"], f=functions)
    chosen = kept(items, 1, "nesting", "f")
    assert len(chosen) == 3
    assert {item.callspec.params["nesting"] for item in chosen} == {
        "one",
        "two",
        "three",
    }
    assert {item.callspec.params["f"] for item in chosen} == {*functions}
    assert len(kept(items, 8, "nesting", "f")) == 8
    assert len(kept(items, 1, "name")) == 7


def test_the_others_are_exhaustive_and_no_other_test_is():
    thinned, other = ids(3, name="abcdefg"), ids(name="xyz")
    for item in other:
        item.nodeid = item.nodeid.replace("test_a", "test_b")
    thinned[0].markers["slow"] = pytest.mark.slow
    mark_exhaustive([*thinned, *other])
    left = [item for item in thinned if "exhaustive" not in item.markers]
    assert len(left) == 1 + 3
    assert thinned[0] in left
    assert not any("exhaustive" in item.markers for item in other)


def test_each_test_is_in_one_part():
    items = ids(name="abcdefghijklmnopqrstuvwxyz", nesting=["one", "two", "three"])
    parts = [[item for item in items if in_part(item, f"{i}/3")] for i in (1, 2, 3)]
    assert sum(map(len, parts)) == len(items)
    assert {item.nodeid for part in parts for item in part} == {
        item.nodeid for item in items
    }
    assert min(map(len, parts)) > len(items) / 6


@pytest.mark.parametrize("part", ["0/3", "4/3", "a third"])
def test_no_part_is_empty_by_mistake(part):
    with pytest.raises(pytest.UsageError, match="expected i/n"):
        in_part(ids(name="a")[0], part)


def test_a_house_rule_says_how_to_mend_and_lists_all():
    none([], "Do this.")
    with pytest.raises(pytest.fail.Exception) as caught:
        none(iter(["first.py", "second.py"]), "Do this.")
    assert str(caught.value) == "Do this.\n2 found:\n  first.py\n  second.py"
