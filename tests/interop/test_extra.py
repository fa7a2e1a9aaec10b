"""Optional packages: not needed to import, and named when they are missing."""

import inspect
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import interop


FUNCTIONS = {
    name: value for name, value in vars(interop).items() if inspect.isfunction(value)
}


@pytest.mark.parametrize("package", ["lineax", "cyipopt"])
def test_what_is_missing_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    problem = interop.ipopt_problem(lambda x: jnp.sum(x**2), np.ones(2))
    operator = hotk.HessianOperator(lambda x: jnp.sum(x**2), np.ones(2))
    use = {"lineax": lambda: interop.as_lineax(operator), "cyipopt": problem.solve}
    with pytest.raises(ImportError, match=rf'pip install "hotk\[{package}\]"'):
        use[package]()


@pytest.mark.exhaustive
def test_none_is_imported_with_the_door_and_a_warning_points_at_the_caller():
    code = (
        "import sys, numpy as np, hotk.interop as i\n"
        "print({'lineax', 'cyipopt'} & set(sys.modules))\n"
        "f = lambda x: x @ x\n"
        "i.scipy_problem(f, np.ones(2))\n"
        "i.ipopt_problem(f, np.ones(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
    assert re.findall(r"<string>:(\d): PrecisionWarning", done.stderr) == ["4", "5"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_are_about_their_signatures(name):
    doc = inspect.getdoc(FUNCTIONS[name])
    [args] = re.findall(r"^Args:\n((?:    .*\n|\n)+)", doc, re.MULTILINE)
    documented = re.findall(r"^    \*{0,2}(\w+): ", args, re.MULTILINE)
    assert documented == list(inspect.signature(FUNCTIONS[name]).parameters)
    assert "Returns:" in doc
    assert "Raises:" in doc
    assert ">>> " in doc
