"""The list of flaws fits the source as it is."""

import pathlib

import pytest

from tests.mutation.flaws import FLAWS, QUICK


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", FLAWS)
def test_the_text_that_a_flaw_replaces_stands_once_in_its_file(name):
    flaw = FLAWS[name]
    source = (ROOT / flaw.file).read_text()
    assert source.count(flaw.old) == 1
    compile(source.replace(flaw.old, flaw.new), flaw.file, "exec")
    assert all((ROOT / test.split("::")[0]).exists() for test in flaw.tests)


def test_the_quick_ones_are_flaws():
    assert set(QUICK) <= set(FLAWS)
