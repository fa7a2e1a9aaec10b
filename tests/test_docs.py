"""The examples in docstrings, the README and the pages of `docs/` are true.

They run as a user runs them: 32 bits, no type checker, and `hotk`, `jax`, `jnp` and
`np` imported. In Markdown, the blocks of one file are one session.
"""

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import testing
from tests import compilation
from tests.offenders import none
from tests.test_api import PUBLIC


HOUSE = Path(__file__).parents[1]
PAGES = sorted(
    path for path in [HOUSE / "README.md", *HOUSE.glob("docs/**/*.md")] if path.exists()
)
REFERENCE = HOUSE / "docs" / "reference"
TESTING = [
    f"testing.{name}"
    for name, value in vars(testing).items()
    if not name.startswith("_")
    and getattr(value, "__module__", "").startswith((testing.__name__, "hotk.verify"))
]
NAMES = {"hotk": hotk, "jax": jax, "jnp": jnp, "np": np}
# Pages that need libraries of the extra `everyday`; skipped where these are missing.
LIBRARIES = {
    "diffrax.md": ["diffrax"],
    "flax.md": ["flax"],
    "haiku.md": ["haiku"],
    "kfac.md": ["flax"],
    "laplace.md": ["laplax"],
    "matfree.md": ["matfree"],
    "numpyro.md": ["numpyro"],
    "optimistix.md": ["optimistix"],
    "solvers.md": ["jaxopt"],
}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

each_page = pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.library if page.name in LIBRARIES else ())
        for page in PAGES
    ],
    ids=lambda page: str(page.relative_to(HOUSE)),
)


def docstrings():
    """List `(file, dotted name, docstring)` of everything in hotk with an example.

    Read from the source, so that methods and operators are found however wrapped.
    """

    def visit(node, names):
        doc = ast.get_docstring(node)
        if doc and ">>>" in doc:
            yield ".".join(names), doc
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from visit(child, [*names, child.name])

    for path in sorted(HOUSE.glob("hotk/**/*.py")):
        for name, doc in visit(ast.parse(path.read_text(encoding="utf-8")), []):
            yield path.relative_to(HOUSE), name, doc


DOCSTRINGS = list(docstrings())


def run(text, name, names):
    [*examples] = doctest.DocTestParser().get_examples(text, name)
    test = doctest.DocTest(examples, dict(names), name, name, 0, text)
    report = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not failed, "\n" + "".join(report)


def without_files(text):
    """Return a page without its code that has a title: `test_contributing.py` runs it.

    Such code is a file, with docstrings of its own and names that are not in hotk.
    """
    return re.sub(r"(?ms)^```\w+ title=.*?^```$", "", text)


def test_examples_are_found():
    assert any(name == "hvp" for _, name, _ in DOCSTRINGS)


@pytest.mark.thinned(14)
@pytest.mark.usefixtures("default_settings")
@pytest.mark.parametrize(
    ("path", "name", "doc"), DOCSTRINGS, ids=[f"{p}:{n}" for p, n, _ in DOCSTRINGS]
)
def test_docstring(path, name, doc):
    for library in re.findall(r">>> (?:from|import) (\w+)", doc):
        pytest.importorskip(library)
    names = NAMES
    if name.split(".")[0] not in dir(hotk):  # not public: sees its own file
        module = importlib.import_module(".".join(path.with_suffix("").parts))
        names = vars(module) | NAMES
    run(doc, f"{path}:{name}", names)


@pytest.mark.thinned(1)
@pytest.mark.usefixtures("default_settings")
@each_page
def test_page(page):
    text = page.read_text(encoding="utf-8")
    if page.name == "errors.md":
        pytest.skip("it is compared as a whole")
    for library in LIBRARIES.get(page.name, []):
        pytest.importorskip(library)
    # What is titled is a file, with docstrings of its own: see `test_contributing.py`.
    text = re.sub(r"^```\w+ title=.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    # Within the settings above, what a page sets globally is not seen.
    double = '>>> jax.config.update("jax_enable_x64", True)' in text
    # A fence would be read as the last line of what is expected.
    with jax.enable_x64(double):
        run(re.sub(r"^ *```.*$", "", text, flags=re.MULTILINE), page.name, NAMES)


@pytest.mark.exhaustive
def test_the_error_messages_are_as_they_are_written():
    """`python docs/_errors.py` writes it anew.

    Read as there, in a process that compiles as users do: the page shows roundings.
    """
    folder = HOUSE / "docs"
    written = (folder / "errors.md").read_text(encoding="utf-8")
    if f"with JAX {jax.__version__})" not in written:
        pytest.skip("it quotes messages of another JAX")
    environment = os.environ | {"PYTHONPATH": str(HOUSE), "PYTHONUTF8": "1"}
    for variable in (compilation.FLAGS, compilation.FAST):
        environment.pop(variable, None)
    done = subprocess.run(
        [sys.executable, "-c", "import _errors; print(_errors.page(), end='')"],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout == written


def unparsed(page):
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if ">>>" not in block:
            try:
                ast.parse(block)
            except SyntaxError as error:
                yield f"{page.relative_to(HOUSE)}: {error}\n{block}"


def test_code_on_a_page_is_python():
    """What is not an example with its answer can at least be parsed."""
    none(
        (found for page in PAGES for found in unparsed(page)),
        "A block ```python on a page is whole Python. Mend it, or call it ```text.",
    )


def test_the_reference_has_every_public_name_once_and_no_other():
    pages = [path.read_text(encoding="utf-8") for path in REFERENCE.glob("*")]
    listed = re.findall(r"^::: hotk\.([\w.]+)$", "\n".join(pages), re.MULTILINE)
    public = {*PUBLIC, *TESTING}
    none(
        [
            *(f"::: hotk.{name} is missing" for name in sorted(public - {*listed})),
            *(f"::: hotk.{name} is not public" for name in sorted({*listed} - public)),
            *(f"::: hotk.{n} is there twice" for n in listed if listed.count(n) > 1),
        ],
        "The pages of docs/reference have a line `::: hotk.name` for each public name.",
    )


def test_the_page_on_architecture_names_every_file():
    page = (HOUSE / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = {path.name for path in HOUSE.glob("hotk/**/*.py")} - {"__init__.py"}
    none(
        sorted(files - set(re.findall(r"\w+\.py", page))),
        "docs/architecture.md says of each file what is in it: add a line.",
    )
