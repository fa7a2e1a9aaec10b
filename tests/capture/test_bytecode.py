"""What code reads and writes is found in the instructions of each Python.

`_code`, `_reads` and `_library_file` run without JAX, so they are tested on a Python
for which there is no JAX, in WebAssembly as well.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hotk._capture import _code
from tests.capture import bytecode_cases


HERE = Path(__file__).parent
CAPTURE = Path(_code.__file__).parent
# Apart from each other: what lies in the folder of hotk is no code of the user.
PLACES = {"user/bytecode_cases.py": HERE / "bytecode_cases.py"}
for name in ("_code.py", "_reads.py"):
    PLACES[f"hotk/_capture/{name}"] = CAPTURE / name
# By hand: the chains of attributes, what is used in another way, and what is written.
EXPECTED = {
    "two_globals": ({}, "K W", None),
    "attributes_of_globals": ({"math": "sin", "config": "scale"}, "", None),
    "writes_a_global": ({}, "K", "the global `K`"),
    "writes_a_nonlocal": ({}, "n", "the nonlocal `n`"),
    "reads_chains": ({"o": "a.b scale"}, "array", None),
    "defaults": ({"o": "scale"}, "k", None),
    "comprehension": ({"o": "scale w"}, "array range sum", None),
    "inner_function": ({"o": "q"}, "array", None),
    "writes_an_attribute": ({}, "o", "an attribute `count`"),
    "escapes": ({}, "f o", None),
    "formatted": ({"o": "name"}, "array", None),
    "tried": ({"o": "err scale"}, "ValueError", None),
    "matched": ({"o": "kind other"}, "", None),
    "imports": ({}, "", None),
    "by_name": ({}, "getattr o", None),
    "hidden": ({"o": "__dict__"}, "", "or reads `__dict__`, which hotk cannot track"),
    "keywords": ({"o": "scale"}, "array h", None),
    "pairs": ({"o": "a b"}, "", None),
    "starred": ({"o": "kw"}, "array h", None),
    "deletes": ({}, "o", "an attribute `zz`"),
    "class_body": ({}, "__name__ o", None),
    "__call__": ({"self": "a b.c"}, "", None),
    "writes_self": ({}, "self", None),
    "writes_a_captured_self": ({}, "self", None),
    "calls_super": ({}, "self super", None),
}
LOAD = """
import importlib, sys, types
sys.modules["jax"] = None  # it is not to be imported
facts = types.ModuleType("facts")
facts.__path__ = [{folder!r} + "/hotk/_capture"]
sys.modules["facts"] = facts
sys.path.insert(0, {folder!r} + "/user")
import bytecode_cases
print(bytecode_cases.table(importlib.import_module("facts._code").facts_of))
"""
IN_NODE = """
import fs from "fs";
import { loadPyodide } from %(module)s;
const python = await loadPyodide();
python.FS.mkdirTree("/facts/hotk/_capture");
python.FS.mkdirTree("/facts/user");
for (const [name, path] of Object.entries(%(files)s))
    python.FS.writeFile("/facts/" + name, fs.readFileSync(path, "utf8"));
python.runPython("import sys; print(*sys.version_info[:2])");
python.runPython(%(code)s);
"""


def check(text):
    found = json.loads(text)
    shown = {
        name: (
            {of: " ".join(chains) for of, chains in facts["reads"].items()},
            " ".join(facts["escapes"]),
            facts["writes"],
        )
        for name, facts in found.items()
    }
    assert shown == EXPECTED
    assert found["imports"]["imports"] == ["math"]
    assert [name for name, facts in found.items() if facts["by_name"]] == ["by_name"]


def test_the_instructions_of_this_python():
    check(bytecode_cases.table(_code.facts_of))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13"])
def test_the_instructions_of_another_python_without_jax(name, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    if subprocess.run([name, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} does not run")
    for place, path in PLACES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / place)
    code = LOAD.format(folder=str(tmp_path))
    run = subprocess.run([name, "-c", code], capture_output=True, text=True, check=True)
    check(run.stdout)


@pytest.mark.exhaustive
def test_the_instructions_of_python_3_14_in_pyodide(tmp_path):
    """It takes `npm install pyodide`, and its folder as HOTK_PYODIDE."""
    folder = os.environ.get("HOTK_PYODIDE")
    if folder is None or shutil.which("node") is None:
        pytest.skip("HOTK_PYODIDE is not set, or there is no node")
    values = {
        "module": json.dumps(str(Path(folder).resolve() / "pyodide.mjs")),
        "files": json.dumps({place: str(path) for place, path in PLACES.items()}),
        "code": json.dumps(LOAD.format(folder="/facts")),
    }
    (tmp_path / "run.mjs").write_text(IN_NODE % values)
    command = ["node", tmp_path / "run.mjs"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    version, text = run.stdout.strip().splitlines()[-2:]
    assert tuple(map(int, version.split())) == _code.NEWEST_TESTED
    check(text)


def test_on_a_newer_python_nothing_is_read_and_one_warning_says_so(monkeypatch):
    monkeypatch.setattr(_code, "IS_TESTED", False)
    _code._unread.cache_clear()
    functions = [
        eval(f"lambda x: x * config.scale + {i}", {"config": None}) for i in range(2)
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = [_code.CodeFacts(f.__code__, False) for f in functions]
    assert [each.category for each in caught] == [RuntimeWarning]
    assert "hotk is tested up to Python 3.14" in str(caught[0].message)
    this = "{}.{}".format(*sys.version_info)
    for each in facts:
        assert each.writes.startswith(f"or reads what hotk cannot see: Python {this}")
        assert not each.chains
        assert each.read_off("config") is None
    _code._unread.cache_clear()
