"""The list of flaws fits the source, and the default tests notice nearly all."""

import pathlib

import pytest

from tests.mutation.flaws import FLAWS, QUICK
from tests.offenders import none


ROOT = pathlib.Path(__file__).parents[2]
NOTICED = 0.9


def unfit(flaw):
    source = (ROOT / flaw.file).read_text()
    if (count := source.count(flaw.old)) != 1:
        yield f"{flaw.name}: {count} places of {flaw.file} read {flaw.old!r}"
        return
    try:
        compile(source.replace(flaw.old, flaw.new), flaw.file, "exec")
    except SyntaxError as error:
        yield f"{flaw.name}: {error}"
    for test in flaw.tests:
        if not (ROOT / test.split("::")[0]).exists():
            yield f"{flaw.name}: there is no {test}"


def test_the_text_that_a_flaw_replaces_stands_once_in_its_file():
    none(
        (found for flaw in FLAWS.values() for found in unfit(flaw)),
        "A line that a flaw replaces has changed: write the same flaw for the new "
        "line into tests/mutation/flaws.py, and see it noticed by "
        "`python -m tests.mutation NAME`.",
    )


def names_of(ids):
    """Return what tests may be named by: an id, all ids of a test, or a file."""
    return {
        name for id in ids for name in (id, id.partition("[")[0], id.partition("::")[0])
    }


@pytest.mark.counts  # what notices them may be left out itself
def test_the_default_tests_notice_nearly_all(request, left_out):
    """A test that must notice a flaw is run by default, whole, for 90 % of them."""
    config = request.config
    if config.args != config.getini("testpaths") or config.option.keyword:
        pytest.skip("not all of the tests are run")
    if config.option.markexpr != "not exhaustive and not slow":
        pytest.skip("not the default tests are run")
    whole = names_of(item.nodeid for item in request.session.items) - names_of(left_out)
    unnoticed = [name for name, flaw in FLAWS.items() if whole.isdisjoint(flaw.tests)]
    if len(unnoticed) > (1 - NOTICED) * len(FLAWS):
        none(
            unnoticed,
            "The default tests are to notice nine of ten flaws. Keep a test of some "
            "of these in the default run: take `exhaustive` off, or name a cheaper "
            "test in tests/mutation/flaws.py.",
        )


def test_the_quick_ones_are_flaws():
    assert set(QUICK) <= set(FLAWS)
