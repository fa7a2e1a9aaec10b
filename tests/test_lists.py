"""What pages say by hand about operators and optimizers is whole, and is there."""

import importlib
import re
from pathlib import Path

import pytest

import hotk
from tests.test_api import OPERATORS


DOCS = Path(__file__).parents[1] / "docs"
# What a page was true of once may be gone by now.
HISTORY = {"changelog.md", "decisions.md"}
# `value_and_jvp` stands where `jvp` does.
FAMILIES = {name for name in OPERATORS if not name.startswith("value_")}
OPTIMIZERS = {
    name for name in vars(hotk.optim) if hasattr(hotk.optim, f"scale_by_{name}")
}


def text(*names):
    return "\n".join((DOCS / name).read_text(encoding="utf-8") for name in names)


def named(page):
    """Return the first words of all code on a page, with and without `hotk.`."""
    return set(re.findall(r"(?:`|\bhotk\.|\boptim\.)(\w+)", page))


@pytest.mark.parametrize("page", ["choosing.md", "math.md"])
def test_every_operator_is_listed(page):
    """Those of any order stand on a page of their own."""
    assert FAMILIES - named(text(page, "any_order.md")) == set()


def test_every_optimizer_is_listed():
    assert {"newton", "sophia"} < OPTIMIZERS
    assert OPTIMIZERS - named(text("optimizers.md")) == set()


def exists(name):
    value = hotk
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            try:
                importlib.import_module(f"{value.__name__}.{part}")
            except (AttributeError, ImportError):
                return False
        value = getattr(value, part)
    return True


def test_what_a_page_names_is_there():
    gone = [
        (page.name, name)
        for page in sorted(DOCS.glob("**/*.md"))
        if page.name not in HISTORY
        for name in re.findall(r"\bhotk(?:\.\w+)+", page.read_text(encoding="utf-8"))
        if not exists(name)
    ]
    assert not gone
