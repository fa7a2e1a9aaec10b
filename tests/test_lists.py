"""What pages say by hand about operators and optimizers is whole, and is there."""

import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.optim.optimizers import OPTIMIZERS as TESTED
from tests.test_api import OPERATORS
from tests.test_docs import without_files


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


@pytest.mark.parametrize("page", ["choosing.md", "math.md", "operators.md"])
def test_every_operator_is_listed(page):
    """Those of any order stand on a page of their own."""
    missing = sorted(FAMILIES - named(text(page, "any_order.md")))
    assert not missing, f"docs/{page}: add a row to the table for each of {missing}"


def test_every_optimizer_is_listed():
    assert {"newton", "sophia"} < OPTIMIZERS
    missing = sorted(OPTIMIZERS - named(text("optimizers.md")))
    assert not missing, f"docs/optimizers.md: name {missing} under 'Which one'"


def test_every_optimizer_is_in_the_table_of_the_tests():
    missing = sorted(OPTIMIZERS - {name.split(",")[0] for name in TESTED})
    assert not missing, f"tests/optim/optimizers.py: add a row for each of {missing}"


def is_dense(transform):
    """Whether its program has a matrix of the Hessian's size."""
    x = jnp.ones(7)
    f = lambda x: jnp.sum(jnp.cosh(x))
    state = transform.init(x)
    update = lambda g, x: transform.update(g, state, x, value_fn=f)
    return "[7,7]" in str(jax.make_jaxpr(update)(x, x))


@pytest.mark.exhaustive
def test_dense_optimizers_stand_in_one_row():
    """Other pages refer to "up to a thousand parameters", and name none."""
    dense = {name.split(",")[0] for name, row in TESTED.items() if is_dense(row.make())}
    rows = re.findall(
        r"^\|.*up to a thousand parameters.*", text("optimizers.md"), re.M
    )
    listed = OPTIMIZERS & named("\n".join(rows))
    assert listed == dense, (
        "docs/optimizers.md: a row with 'up to a thousand parameters' names each of "
        f"{sorted(dense)}, which store the whole Hessian, and no others"
    )


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
        for name in re.findall(r"\bhotk(?:\.\w+)+", without_files(text(page)))
        if not exists(name)
    ]
    assert not gone
