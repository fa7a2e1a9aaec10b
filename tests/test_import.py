"""`import hotk` is quick, brings nothing optional, and decides nothing for the user."""

import ast
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import hotk


OPTIONAL = ["matplotlib", "tqdm", "lineax", "sklearn", "cyipopt", "pytest", "IPython"]
ALL = "[getattr(hotk, name) for name in dir(hotk)]"
PROGRAM = f"""
import sys
import hotk
{ALL}
from jax._src import xla_bridge
found = [name for name in {OPTIONAL} if name in sys.modules]
print(found, xla_bridge.backends_are_initialized())
"""
PLAIN = """
import sys
import jax, equinox, optax
before = set(sys.modules)
import hotk
[getattr(hotk, name) for name in dir(hotk) if name != "interop"]  # that is for SciPy
more = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(more - {"hotk"} - set(sys.stdlib_module_names)))
"""
PRODUCT = """
import sys
import hotk
hotk.hvp(lambda x: x**3, 1.0, 1.0)
folders = {name.split(".")[1] for name in sys.modules if name.startswith("hotk.")}
print(*sorted(folders), "optax" in sys.modules)
"""
MODULES = ["curvature", "estimate", "interop", "linop", "optim", "plot", "rule"]
MODULES += ["safe", "sparse", "statistics", "testing", "verify"]
PRIVATE = {"demo", "importlib", "os", "sys", "types"}


def printed(program):
    """Run a program without checks of every program, which load what they need."""
    made = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"HOTK_VERIFY": "0"},
    )
    return made.stdout.strip()


def test_nothing_optional_is_imported_and_no_backend_is_started():
    """A user may still choose the platform, or call `jax.distributed.initialize`.

    So no module makes an array when it is imported, which may be while JAX traces.
    """
    assert printed(PROGRAM) == "[] False"


def test_nothing_is_imported_that_jax_equinox_and_optax_do_not_need():
    assert printed(PLAIN) == "[]"


def test_a_product_loads_what_it_needs():
    """Whatever else a module needs is imported when its name is first read."""
    needed = "_capture _core _dense _first _mode _prepared _primitive _second"
    assert printed(PRODUCT) == f"{needed} False"


def test_a_type_checker_reads_the_names_that_are_loaded_late():
    tree = ast.parse(Path(hotk.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    read = {
        (alias.name, (node.module or "hotk").removeprefix("hotk."))
        for node in block.body
        for alias in node.names
    }
    late = {*hotk._FOLDERS.items(), *((name, "hotk") for name in hotk.__all__)}
    assert read == late - {("safe", "hotk")}  # it is a module in `hotk.rule`


def test_public_names_are_listed_and_private_ones_are_not():
    assert hotk.__all__ == MODULES
    assert {*MODULES, "hvp", "laplacian", "HotkError"} <= set(dir(hotk))
    assert set(dir(hotk)) & PRIVATE == set()
    assert all(hasattr(hotk, name) for name in dir(hotk))
    assert not hasattr(hotk, "nothing")


def test_help_is_read_in_one_sitting():
    assert len(pydoc.render_doc(hotk).splitlines()) < 300
