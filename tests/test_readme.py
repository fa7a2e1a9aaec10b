"""The README: commands are those of `.ci/run`, links work on a package index."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.offenders import none


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


def links():
    """List the targets of the README's links, those in code left out."""
    text = (HOUSE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(?ms)^```.*?^```", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(path):
    """Return the anchors of the headings of a page, as code hosts make them."""
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def broken(target, base):
    if not target.startswith(base):
        return f"does not start with {base}"
    path, _, anchor = target.removeprefix(base).partition("#")
    file = HOUSE / path
    if not path or not file.exists():
        return "is no file of the repository"
    if anchor and anchor not in anchors(file):
        return "names no heading of that page"
    return None


def test_links_are_absolute_and_lead_to_files():
    """A package index shows the README without the files beside it."""
    text = (HOUSE / "pyproject.toml").read_text(encoding="utf-8")
    urls = tomllib.loads(text)["project"]["urls"]
    base = f"{urls['Repository']}/blob/main/"
    targets = links()
    targets += [url for url in urls.values() if url.endswith(".md")]
    page = (HOUSE / "docs" / "stability.md").read_text(encoding="utf-8")
    targets += re.findall(r"\]\((https://[^)]+/blob/[^)]+)\)", page)
    assert len(targets) > 20
    none(
        [f"{t} {why}" for t in targets if (why := broken(t, base))],
        "A link of the README is the address of the repository in pyproject.toml, "
        "`/blob/main/`, and the path of a file. If the address has changed, replace it "
        "in the README and in `[project.urls]`.",
    )


def test_the_citation_names_the_repository():
    text = (HOUSE / "pyproject.toml").read_text(encoding="utf-8")
    address = tomllib.loads(text)["project"]["urls"]["Repository"]
    citation = (HOUSE / ".github" / "CITATION.cff").read_text(encoding="utf-8")
    assert f'repository-code: "{address}"' in citation


def test_it_is_short():
    lines = (HOUSE / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
