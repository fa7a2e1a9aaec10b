"""`import hotk` brings nothing optional, and decides nothing for the user."""

import subprocess
import sys


OPTIONAL = ["matplotlib", "tqdm", "lineax", "sklearn", "cyipopt", "pytest", "IPython"]
PROGRAM = f"""
import sys
import hotk, hotk.plot, hotk.interop
from jax._src import xla_bridge
found = [name for name in {OPTIONAL} if name in sys.modules]
print(found, xla_bridge.backends_are_initialized())
"""
PLAIN = """
import sys
import jax, equinox, optax
before = set(sys.modules)
import hotk
more = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(more - {"hotk"} - set(sys.stdlib_module_names)))
"""


def printed(program):
    made = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def test_nothing_optional_is_imported_and_no_backend_is_started():
    """A user may still choose the platform, or call `jax.distributed.initialize`."""
    assert printed(PROGRAM) == "[] False"


def test_nothing_is_imported_that_jax_equinox_and_optax_do_not_need():
    assert printed(PLAIN) == "[]"
