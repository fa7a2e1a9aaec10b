"""What the README tells a newcomer to type is what `.ci/run` runs."""

import re
from pathlib import Path

import pytest


HOUSE = Path(__file__).parents[1]
COMMANDS = {
    "demo": 'python -m venv .venv && .venv/bin/pip install -e ".[demo]"'
    " && .venv/bin/python -m hotk.demo",
    "test": 'python -m venv .venv && .venv/bin/pip install -e ".[test]"'
    " && .venv/bin/pytest",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_readme_has_the_command_on_one_line(command):
    lines = (HOUSE / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line.strip().removeprefix("$ ") for line in lines].count(command) == 1


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_ci_runs_the_very_command(command):
    assert f"'{command}'" in (HOUSE / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_lists_every_promise_that_has_a_test():
    """And no more: a promise is a file in `tests/promises`."""
    promises = sorted((HOUSE / "tests" / "promises").glob("test_*.py"))
    readme = (HOUSE / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"tests/promises/(test_\w+\.py)", readme)
    assert sorted(set(listed)) == [path.name for path in promises]
