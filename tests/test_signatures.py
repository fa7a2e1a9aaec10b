"""Public names, their keywords and defaults are those of `tests/signatures.txt`.

`python -m tests.test_signatures` writes the file anew.
"""

import difflib
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from tests import test_api, test_docstrings
from tests.offenders import none


FILE = Path(__file__).with_name("signatures.txt")
PUBLIC = test_api.PUBLIC | test_docstrings.PUBLIC


def signature(name):
    """Write a signature without its types, and of an exception and a constant none."""
    value = PUBLIC[name]
    exception = isinstance(value, type) and issubclass(value, Exception)
    if exception or not callable(value):
        return name
    parameters = inspect.signature(value).parameters.values()
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    return re.sub(" at 0x[0-9a-f]+", "", f"{name}{plain}")


def signatures():
    return sorted(map(signature, PUBLIC))


def test_signatures_are_as_they_were():
    written = FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(written, signatures(), n=0, lineterm=""))[2:]
    none(
        (line for line in changes if not line.startswith("@@")),
        "breaking: say so in the changelog, and write the file of signatures anew by "
        "`python -m tests.test_signatures`. A new name or keyword breaks nothing.",
    )


MODULES = ["curvature", "estimate", "interop", "linop", "optim", "plot", "rule"]
MODULES += ["sparse", "statistics"]


def listed(module):
    """Write the public names of a module as its docstring lists them."""
    public = {id(value) for value in PUBLIC.values() if callable(value)}
    names = [name for name, value in vars(module).items() if id(value) in public]
    lines = textwrap.wrap(" ".join(sorted(names)), 84)
    head = f"`help({module.__name__}.{min(names)})` documents one of these:"
    return "\n".join([head, "", *(f"    {line}" for line in lines)])


@pytest.mark.parametrize("name", MODULES)
def test_the_help_of_a_module_lists_its_names(name):
    module = importlib.import_module(f"hotk.{name}")
    assert inspect.cleandoc(module.__doc__).endswith(listed(module))


if __name__ == "__main__":
    FILE.write_text("\n".join(signatures()) + "\n", encoding="utf-8")
