"""The worked examples of `docs/contributing.md` work, and their page says all of it.

The code is taken from the page and applied to a copy of the repository. A block with a
`title` is a new file, or, as a `diff`, lines that go into a file: to the place that the
lines around them show, or else to the end.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_architecture import FLOORS


HOUSE = Path(__file__).parents[1]
PAGE = HOUSE / "docs" / "contributing.md"
# The tests that ask for something elsewhere when a name or a file is new.
ASKING = [
    "tests/test_architecture.py",
    "tests/test_api.py",
    "tests/test_lists.py",
    "tests/test_docs.py::test_the_reference_has_every_public_name_once_and_no_other",
    "tests/test_docs.py::test_the_page_on_architecture_names_every_file",
    "tests/test_docs.py::test_code_on_a_page_is_python",
]


class Block(NamedTuple):
    """A block of code of the page.

    Attributes:
        example: The heading that it stands below.
        diff: Whether it is lines for a file, and not a file.
        path: The file.
        text: The code.
    """

    example: str
    diff: bool
    path: str
    text: str


def blocks():
    """List the blocks of the page that name a file."""
    parts = re.split(r"^##+ (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    for example, part in zip(parts[1::2], parts[2::2], strict=True):
        pattern = r'^```(python|diff) title="(\S+)"\n(.*?)^```$'
        for kind, path, text in re.findall(pattern, part, re.MULTILINE | re.DOTALL):
            yield Block(example, kind == "diff", path, text)


BLOCKS = list(blocks())
TESTS = [b.path for b in BLOCKS if b.path.startswith("tests/") and not b.diff]
OF_ALL_OPTIMIZERS = ["tests/optim/test_wrappers.py", "tests/optim/test_safety.py"]


def apply(block, root):
    file = root / block.path
    if not block.diff:
        assert not file.exists(), f"{block.path} is there: choose another example"
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        return
    source = file.read_text(encoding="utf-8")
    lines = block.text.splitlines()
    assert all(line[:1] in ("+", " ", "") for line in lines), block.text
    around = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
    written = "".join(f"{line[1:]}\n" for line in lines)
    if not around:
        file.write_text(source + written, encoding="utf-8")
        return
    count = source.count(around)
    assert count == 1, (
        f"docs/contributing.md, {block.example}: these lines stand {count} times in "
        f"{block.path}, not once. Write into the page what stands there now:\n{around}"
    )
    file.write_text(source.replace(around, written), encoding="utf-8")


def is_for_pages(block):
    return block.path.startswith("docs/")


def copied(folder):
    """Copy the repository, with all examples but their lines of pages."""
    for part in ("hotk", "tests", "docs"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HOUSE / part, folder / part, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOUSE / name, folder)
    for block in BLOCKS:
        if not is_for_pages(block):
            apply(block, folder)
    return folder


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("house"))


def run(root, *arguments):
    """Run tests of the copy in a process of its own; return its status and output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=--import-mode=importlib", "--tb=short", "-rf"]
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [*command, *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_kind_of_change_has_an_example():
    examples = list(dict.fromkeys(block.example for block in BLOCKS))
    assert examples == [
        "An operator",
        "A captured type",
        "A series rule of a primitive",
        "An optimizer",
        "A loss",
    ]


def test_the_table_of_folders_is_whole_and_in_the_order_of_imports():
    page = PAGE.read_text(encoding="utf-8")
    section = page.split("## The folders")[1].split("## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    folders = [name for names in FLOORS for name in names.split()]
    assert listed == [name for name in folders if (HOUSE / "hotk" / name).is_dir()]


@pytest.mark.parametrize("example", dict.fromkeys(block.example for block in BLOCKS))
def test_an_example_is_one_file_with_its_exports_and_a_test(example):
    """Of the code; pages list names, and `tests/` has what is known by hand."""
    mine = [block for block in BLOCKS if block.example == example]
    written = {b.path for b in mine if b.path.startswith("hotk/") and not b.diff}
    lines = {b.path for b in mine if b.path.startswith("hotk/") and b.diff}
    exports = {path for path in lines if Path(path).name == "__init__.py"}
    registers = {"hotk/_capture/_dispatch.py"} & lines
    assert len(written) + len(lines - exports - registers) == 1
    assert [b for b in mine if b.path.startswith("tests/") and not b.diff]


def asked_for(block):
    """Return what a test says when the lines of a block are not there."""
    names = re.findall(r"^\+(::: hotk\.\S+|\s+_\w+\.py)", block.text, re.MULTILINE)
    return [name.strip() for name in names] or [f"{block.path}: "]


@pytest.mark.exhaustive
def test_tests_of_pages_name_what_is_left_to_write(house):
    """Without the lines of pages exactly the tests fail that the page names."""
    status, output = run(house, *ASKING)
    assert status == 1, output
    failed = set(re.findall(r"^FAILED .*?::(\w+)", output, re.MULTILINE))
    page = PAGE.read_text(encoding="utf-8")
    assert not [name for name in failed if f"`{name}`" not in page], output
    asked = {
        text for block in BLOCKS if is_for_pages(block) for text in asked_for(block)
    }
    assert not [text for text in asked if text not in output], output


@pytest.mark.exhaustive
def test_the_examples_work_and_nothing_is_left_to_write(house):
    for block in BLOCKS:
        if is_for_pages(block):
            apply(block, house)
    status, output = run(house, *ASKING, *TESTS)
    assert status == 0, output


@pytest.mark.exhaustive
def test_one_row_brings_an_optimizer_the_tests_of_all(house):
    [row] = [block for block in BLOCKS if block.path == "tests/optim/optimizers.py"]
    [name] = re.findall(r'^\+    "(\w+)": Optimizer', row.text, re.MULTILINE)
    status, output = run(house, *OF_ALL_OPTIMIZERS, "-k", name)
    assert status == 0, output
    assert re.search(r"\b\d\d passed", output), output


@pytest.mark.exhaustive
def test_what_the_examples_write_is_formatted(house):
    pytest.importorskip("ruff")
    paths = sorted({block.path for block in BLOCKS if block.path.endswith(".py")})
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", *paths],
            cwd=house,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
